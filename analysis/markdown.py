"""Markdown forms of a table: escaped, so that no cell can break its row."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.table import Section, Table


def escape(text: str) -> str:
    """Make ``text`` safe inside a cell or a paragraph: pipes, emphasis, links, HTML, newlines."""
    for char in "\\|*_[]<>`~":
        text = text.replace(char, "\\" + char)
    return " ".join(text.split())


def code(text: str) -> str:
    """``text`` as code; a backtick in it would end the code, so it becomes an apostrophe."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def prose(text: str) -> str:
    """Escape everything but what stands in backticks, which is shown as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(code(p) if i % 2 else _spaced(p) for i, p in enumerate(parts))


def to_markdown(table: Table, *, level: int = 1) -> str:
    """The whole table as a page, headings from ``level`` on."""
    parts = [f"{'#' * level} {escape(table.title)}"]
    for section in table.sections:
        parts.append(f"{'#' * (level + 1)} {escape(section.title)}")
        parts.append(section_markdown(section))
    if table.notes:
        parts.append(bullets(table.notes))
    return "\n\n".join(parts) + "\n"


def section_markdown(section: Section) -> str:
    """One section's rows as a Markdown table, its notes as a list below."""
    lines = [
        "| " + " | ".join(escape(c.heading) for c in section.shown) + " |",
        "| " + " | ".join("---:" if c.is_number else ":---" for c in section.shown) + " |",
    ]
    lines += [
        "| " + " | ".join(escape(c.cell(row)) for c in section.shown) + " |" for row in section.rows
    ]
    text = "\n".join(lines)
    return f"{text}\n\n{bullets(section.notes)}" if section.notes else text


def bullets(notes: Sequence[str]) -> str:
    """A list of notes."""
    return "\n".join(f"- {prose(note)}" for note in notes)


def _spaced(text: str) -> str:
    """Escape a piece of prose and keep the blank at either end."""
    head = " " if text[:1].isspace() else ""
    tail = " " if text[-1:].isspace() and text.strip() else ""
    return head + escape(text) + tail
