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
TEXT_WIDTH = 100
_GAP, _NARROW_GAP = "  ", " "
_MIN_TEXT_WIDTH = 12
_GLUE = "\0"  # stands for a blank where no line may break


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


def in_words(value: float, digits: int = 3) -> str:
    """A large number as prose says it: ``1.01 billion``; below a million, plain digits."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if abs(value) >= unit:
            return f"{value / unit:.{digits}g} {name}"
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


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
    widths, gap = _layout(columns, cells, width)
    lines = _headings(columns, widths, gap)
    lines.append(gap.join("-" * w for w in widths))
    for line in cells:
        lines += _line(line, columns, widths, gap)
    return lines


def _layout(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> tuple[list[int], str]:
    """Widths and gap; what is too wide gives way: columns of text, then headings, then the gap."""
    needed = [max([0, *(len(line[i]) for line in cells)]) for i in range(len(columns))]
    whole = [max(n, len(c.heading)) for n, c in zip(needed, columns, strict=True)]
    broken = [
        max(n, *(len(word) for word in c.heading.split()))
        for n, c in zip(needed, columns, strict=True)
    ]
    for widths, gap in ((whole, _GAP), (broken, _GAP), (list(broken), _NARROW_GAP)):
        _narrow(widths, columns, width, gap)
        if _total(widths, gap) <= width:
            return widths, gap
    return widths, gap


def _total(widths: Sequence[int], gap: str) -> int:
    return sum(widths) + len(gap) * (len(widths) - 1)


def _narrow(widths: list[int], columns: Sequence[Column], width: int, gap: str) -> None:
    """Take what is too wide from the widest columns of text, as far as they can give it."""
    while _total(widths, gap) > width:
        texts = [i for i, c in enumerate(columns) if not c.is_number]
        widest = max(texts, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _MIN_TEXT_WIDTH:
            return
        widths[widest] -= 1


def _headings(columns: Sequence[Column], widths: Sequence[int], gap: str) -> list[str]:
    parts = [textwrap.wrap(c.heading, w) for c, w in zip(columns, widths, strict=True)]
    height = max(len(p) for p in parts)
    rows = zip(*([""] * (height - len(p)) + p for p in parts), strict=True)
    return [_padded(row, columns, widths, gap) for row in rows]


def _line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], gap: str
) -> list[str]:
    """One row as text; only columns of text go on in further lines."""
    parts = [
        [cell] if c.is_number else (textwrap.wrap(cell, w, break_on_hyphens=False) or [""])
        for cell, c, w in zip(cells, columns, widths, strict=True)
    ]
    height = max(len(p) for p in parts)
    rows = zip(*(p + [""] * (height - len(p)) for p in parts), strict=True)
    return [_padded(row, columns, widths, gap) for row in rows]


def _padded(
    texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int], gap: str
) -> str:
    padded = [
        text.rjust(w) if c.is_number else text.ljust(w)
        for text, c, w in zip(texts, columns, widths, strict=True)
    ]
    return gap.join(padded).rstrip()


def _wrapped(note: str, width: int) -> list[str]:
    """Break at words, but never inside a command in backticks: it must survive copy and paste."""
    parts = note.split("`")
    glued = "`".join(p.replace(" ", _GLUE) if i % 2 else p for i, p in enumerate(parts))
    lines = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_GLUE, " ") for line in lines]
