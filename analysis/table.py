"""A table as data, and its CSV and plain-text forms. Pure.

A table has one row per fact and all columns in CSV. A page or a terminal shows the columns named in
``shown``, one section after the other; notes stand below. Nothing is ever cut off with an ellipsis.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Value = str | int | float | None
DAGGER = "\u2020"
TEXT_WIDTH = 110
_GAP = "  "
_MIN_TEXT_WIDTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A printed column: its heading, and how a row fills its cell."""

    heading: str
    cell: Callable[[Mapping[str, Value]], str]
    is_number: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows that belong together, under a title, with the lines that stand below them.

    ``csv_only`` are rows that a page shows in another form: in a cell or in a note.
    """

    title: str
    rows: tuple[Mapping[str, Value], ...]
    shown: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    csv_only: tuple[Mapping[str, Value], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A named table: every row has every name in ``fields``."""

    name: str
    title: str
    fields: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Mapping[str, Value], ...]:
        """The rows of all sections, in order."""
        return tuple(row for s in self.sections for row in (*s.rows, *s.csv_only))


def to_csv(table: Table) -> str:
    """All fields of all rows; an unknown value is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.fields)
    for row in table.rows:
        writer.writerow([_plain(row[name]) for name in table.fields])
    return buffer.getvalue()


def to_text(table: Table, width: int = TEXT_WIDTH) -> str:
    """The table for a terminal: aligned, at most ``width`` wide where the cells allow it."""
    lines = [table.title, "=" * len(table.title), ""]
    for section in table.sections:
        lines += [*textwrap.wrap(section.title, width), ""]
        lines += _grid(section, width)
        for note in section.notes:
            lines += _wrapped(note, width)
        lines.append("")
    for note in table.notes:
        lines += _wrapped(note, width)
    return "\n".join(lines).rstrip() + "\n"


def number(value: Value, digits: int = 0, scale: float = 1.0) -> str:
    """A number with thousands separators, or nothing where it is unknown."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value * scale:,.{digits}f}"


def significant(value: Value) -> str:
    """About four significant digits, for quantities that span decades."""
    if value is None or isinstance(value, str):
        return value or ""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 0.001:
        return f"{value:.4g}"
    return f"{value:.3g}"


def interval(low: Value, high: Value, show: Callable[[Value], str]) -> str:
    """``low to high``, or nothing where one run gives no spread."""
    if low is None or high is None:
        return ""
    return f"{show(low)} to {show(high)}"


def field(name: str, heading: str, show: Callable[[Value], str] = str) -> Column:
    """A column that shows one field of the row."""
    is_number = show is not str

    def cell(row: Mapping[str, Value]) -> str:
        value = row[name]
        return "" if value is None else show(value)

    return Column(heading=heading, cell=cell, is_number=is_number)


def _plain(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    # The csv module leaves a lone carriage return unquoted, and then cannot read it back.
    return str(value).replace("\r", " ").replace("\n", " ")


def _grid(section: Section, width: int) -> list[str]:
    columns = section.shown
    cells = [[c.cell(row) for c in columns] for row in section.rows]
    widths = [
        max([len(c.heading), *(len(line[i]) for line in cells)]) for i, c in enumerate(columns)
    ]
    _narrow(widths, columns, width)
    lines = _line([c.heading for c in columns], columns, widths)
    lines.append(_GAP.join("-" * w for w in widths))
    for line in cells:
        lines += _line(line, columns, widths)
    return lines


def _narrow(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Take what is too wide from the widest columns of text, as far as they can give it."""
    total = sum(widths) + len(_GAP) * (len(widths) - 1)
    while total > width:
        texts = [i for i, c in enumerate(columns) if not c.is_number]
        widest = max(texts, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _MIN_TEXT_WIDTH:
            return
        widths[widest] -= 1
        total -= 1


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """One row as text; only columns of text go on in further lines."""
    parts = [
        [cell] if c.is_number else (textwrap.wrap(cell, w, break_on_hyphens=False) or [""])
        for cell, c, w in zip(cells, columns, widths, strict=True)
    ]
    height = max(len(p) for p in parts)
    lines: list[str] = []
    for number_of_line in range(height):
        texts = [p[number_of_line] if number_of_line < len(p) else "" for p in parts]
        padded = [
            text.rjust(w) if c.is_number else text.ljust(w)
            for text, c, w in zip(texts, columns, widths, strict=True)
        ]
        lines.append(_GAP.join(padded).rstrip())
    return lines


def _wrapped(note: str, width: int) -> list[str]:
    """Break at words, but never inside a command: it must survive copy and paste."""
    if "`" in note:
        return [note]
    return textwrap.wrap(note, width, break_long_words=False, break_on_hyphens=False)
