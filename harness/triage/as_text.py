"""Sections as Markdown, and for a terminal of any width (rich, made for 100 columns)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from harness.triage.report import Grid, Section

_WIDTH = 100
_COMMAND_FOLLOWS = "record a usable file with: "


def to_markdown(sections: Sequence[Section], *, picture: str | None = None) -> str:
    """The report as Markdown; ``picture`` is the address of the picture, where there is one."""
    parts = ["# Triage by board watts\n"]
    if picture is not None:
        parts.append(f"![Watts, states and utilization per GPU]({picture})\n")
    for section in sections:
        parts.append(f"## {section.title}\n")
        if section.lines:
            parts.append("\n".join(_item(line) for line in section.lines) + "\n")
        if section.grid is not None and section.grid.rows:
            parts.append(_markdown_grid(section.grid) + "\n")
    return "\n".join(parts)


def print_sections(sections: Sequence[Section], file: TextIO, *, width: int | None = None) -> None:
    """Print the report; ``width`` overrides the terminal's."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    is_terminal = file.isatty()
    console = Console(file=file, width=width if width or is_terminal else _WIDTH, highlight=False)
    for number, section in enumerate(sections):
        if number:
            console.print()
        console.print(Text(section.title, style="bold"))
        for line in section.lines:
            indent = 2 + len(line) - len(line.lstrip())
            said, mark, command = line.partition(_COMMAND_FOLLOWS)
            text = Text(said.lstrip() + mark.rstrip(), style=_style(line))
            console.print(Padding(text, (0, 0, 0, indent), expand=False))
            if command:  # on one line, whatever the width, so that it can be copied
                console.print(Text(command), soft_wrap=True)
        if section.grid is not None and section.grid.rows:
            table = Table(box=None, padding=(0, 1, 0, 1), header_style="dim", pad_edge=True)
            for name, align in zip(section.grid.columns, _alignments(section.grid), strict=True):
                table.add_column(name, justify="right" if align else "left", overflow="fold")
            for row in section.grid.rows:
                table.add_row(*(Text(cell) for cell in row))
            console.print(table)


_STYLES = {
    "DEADLOCK": "bold red",
    "CRASHED_RANK": "bold red",
    "WEDGED": "bold red",
    "STALLED_SAVE": "bold red",
    "SLOW": "yellow",
    "STARVING": "yellow",
    "UNKNOWN": "magenta",
    "HEALTHY": "green",
    "IDLE": "green",
}


def _style(line: str) -> str:
    return _STYLES.get(line.rsplit(": ", 1)[-1], "")


def _item(line: str) -> str:
    depth = "  " if line.startswith((" ", "- ")) else ""
    return f"{depth}- {_escape(line.strip().removeprefix('- '))}"


def _markdown_grid(grid: Grid) -> str:
    marks = ["---:" if right else "---" for right in _alignments(grid)]
    rows = [list(grid.columns), marks, *(list(map(_escape, row)) for row in grid.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _alignments(grid: Grid) -> list[bool]:
    """Whether a column is numbers, and stands to the right."""
    columns = zip(*grid.rows, strict=True)
    return [all(cell[:1] in "0123456789.-+" for cell in column if cell) for column in columns]


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")
