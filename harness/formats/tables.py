"""Opening a delimited file: its header or, without one, what its cells look like; then refusals.

The refusals stand here, before a row is read: no power column, a node's meter only, no times
without ``--period``, rows that name no GPU and have no times either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.formats.cells import CellError, Clock, Quantity, is_missing, read
from harness.formats.delimited import TableReader, split_cells
from harness.formats.identity import identity_columns
from harness.formats.layout import (
    Column,
    Device,
    Layout,
    Role,
    layout_by_names,
    layout_of,
)
from harness.formats.positional import rows_per_tick
from harness.formats.recipe import refusal
from harness.formats.text import Head, TextSource
from harness.formats.ticks import GpuTable, Ledger, Options, ReaderStream

DELIMITERS = (",", ";", "\t", "|")
SAMPLE_LINES = 512
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{6,}")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_DEVICE_NAME = re.compile(r"(?:NVIDIA|Tesla|GeForce|Quadro|AMD|TITAN|RTX)\b.*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the head of a delimited file says: its layout and some of its rows."""

    layout: Layout
    delimiter: str
    samples: tuple[tuple[str, ...], ...]


def shape_of(head: Head) -> Shape | None:
    """The shape of a file with a header that we know, or of rows whose cells carry units."""
    lines = head.lines[:-1] if not head.text.endswith("\n") and len(head.lines) > 1 else head.lines
    for at, line in enumerate(lines):
        for delimiter in DELIMITERS:
            cells = split_cells(line, delimiter)
            if len(cells) < 2 or layout_of(cells) is None or _has_reading(cells):
                continue
            rows = _rows(lines[at + 1 : at + 1 + SAMPLE_LINES], delimiter, len(cells))
            layout = layout_of(cells, rows)
            assert layout is not None
            return Shape(layout=layout, delimiter=delimiter, samples=rows)
    return _headerless(lines)


def shape_by_names(source: TextSource, options: Options) -> Shape:
    """The shape that ``--columns`` gives; the header is the first line that has those names.

    Raises:
        FormatError: no line of the head has those columns.
    """
    columns = options.columns or {}
    lines = source.head.lines
    wanted = {name.strip().lower() for name in columns.values() if not name.isdecimal()}
    for at, line in enumerate(lines):
        for delimiter in DELIMITERS:
            header = split_cells(line, delimiter)
            if wanted and wanted <= {cell.strip().lower() for cell in header}:
                return _named(lines[at + 1 :], delimiter, header, columns, len(header))
    delimiter = max(DELIMITERS, key=lambda d: sum(len(split_cells(x, d)) for x in lines[-8:]))
    cells = split_cells(lines[0], delimiter)
    header = [] if _has_reading(cells) else cells
    return _named(lines, delimiter, header, columns, len(cells))


def _named(
    lines: Sequence[str],
    delimiter: str,
    header: Sequence[str],
    columns: Mapping[str, str],
    width: int,
) -> Shape:
    layout = layout_by_names(header, columns, width)
    rows = _rows(lines[:SAMPLE_LINES], delimiter, width)
    return Shape(layout=layout, delimiter=delimiter, samples=rows)


def open_table(
    source: TextSource, options: Options, shape: Shape, *, format_name: str, why: str
) -> ReaderStream:
    """The stream of a delimited file.

    Raises:
        FormatError: it cannot be triaged.
    """
    layout = shape.layout
    _check(source, options, layout)
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=format_name, why=why)
    ledger.columns.update(layout.names())
    ledger.power_kind = layout.power_kind
    ledger.is_relative = Role.TIME not in layout.shared
    is_positional = not layout.is_wide and _is_positional(shape, ledger)
    if is_positional and Role.TIME not in layout.shared:
        raise refusal(source.path, "neither times nor GPU indices: rows cannot be told apart")
    if Role.UTILIZATION.value not in ledger.columns:
        ledger.note("the file has no utilization")
    reader = TableReader(
        source,
        options,
        layout,
        shape.delimiter,
        is_positional=is_positional,
        name=_only_name(shape) if is_positional else None,
        table=table,
        ledger=ledger,
    )
    return ReaderStream(table, ledger, reader.chunks())


def _check(source: TextSource, options: Options, layout: Layout) -> None:
    if not layout.has_power:
        if layout.node_power:
            raise refusal(
                source.path,
                f"only a node's meter ({layout.node_power}), whose watts say nothing of one GPU",
            )
        names = ", ".join(layout.header) or "no header"
        raise refusal(source.path, f"no power column ({names})")
    if Role.TIME not in layout.shared and options.period_s is None:
        raise refusal(
            source.path, "no timestamps; say how far its ticks lie apart with --period SECONDS"
        )


def _is_positional(shape: Shape, ledger: Ledger) -> bool:
    """Whether only the place in the tick tells GPUs apart."""
    layout = shape.layout
    roles = identity_columns(layout.shared)
    if not roles:
        return True
    named = {tuple(row[layout.shared[role].at].strip() for role in roles) for row in shape.samples}
    if len(named) != 1 or Role.TIME not in layout.shared:
        return False
    times = _times(shape)
    size, _, share = rows_per_tick(times, np.zeros(times.size, dtype=np.bool_))
    if size < 2 or share < 0.9 or times.size < 3 * size:
        return False
    ledger.note(
        f"{layout.shared[roles[-1]].name} is the same in every row though {size} rows make a tick;"
        " GPUs are told apart by their place in the tick"
    )
    return True


def _times(shape: Shape) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    clock = Clock()
    times: list[float] = []
    for row in shape.samples:
        try:
            times.append(clock.read(row[shape.layout.shared[Role.TIME].at]))
        except CellError:
            continue
    return np.array(times, dtype=np.float64)


def _only_name(shape: Shape) -> str | None:
    column = shape.layout.shared.get(Role.NAME)
    names = {row[column.at].strip() for row in shape.samples} if column is not None else set[str]()
    return names.pop() if len(names) == 1 else None


def _rows(lines: Sequence[str], delimiter: str, width: int) -> tuple[tuple[str, ...], ...]:
    rows = (tuple(split_cells(line, delimiter)) for line in lines)
    return tuple(row for row in rows if len(row) == width and _has_reading(row))


def _has_reading(cells: Sequence[str]) -> bool:
    """Whether a line holds values rather than names."""
    return any(cell.strip()[:1].isdigit() for cell in cells)


def _headerless(lines: Sequence[str]) -> Shape | None:
    """A file without a header, by the units in its cells."""
    for delimiter in DELIMITERS:
        width = len(split_cells(lines[0], delimiter)) if lines else 0
        if width < 2:
            continue
        rows = _rows(lines[:SAMPLE_LINES], delimiter, width)
        found = _by_cells(rows, width) if rows else None
        if found is not None:
            return Shape(layout=found, delimiter=delimiter, samples=rows)
    return None


def _by_cells(rows: Sequence[Sequence[str]], width: int) -> Layout | None:
    kinds = [_kind([row[at].strip() for row in rows]) for at in range(width)]
    shared: dict[Role, Column] = {}
    readings: dict[Role, Column] = {}
    for at, kind in enumerate(kinds):
        column = Column(at=at, name=f"column {at + 1}")
        if (kind is Role.POWER or kind is Role.MEMORY) and kind in readings:
            # Limit and total are at least what is drawn and used, whichever comes first.
            lower, upper = _ordered(rows, readings[kind], column, kind)
            readings[kind] = lower
            if kind is Role.POWER:
                readings[Role.LIMIT] = upper
        elif kind is not None and kind in _READINGS:
            readings.setdefault(kind, column)
        elif kind is not None:
            shared.setdefault(kind, column)
    if Role.TIME not in shared or Role.POWER not in readings:
        return None
    return Layout(width=width, header=(), shared=shared, devices=(Device(columns=readings),))


_READINGS = (Role.POWER, Role.MEMORY, Role.UTILIZATION, Role.CLOCK)
_SUFFIXES = {
    " w": Role.POWER,
    " %": Role.UTILIZATION,
    " mib": Role.MEMORY,
    " mhz": Role.CLOCK,
}


def _kind(cells: Sequence[str]) -> Role | None:
    """What a column without a name holds, if every cell of the sample agrees."""
    known = [cell for cell in cells if not is_missing(cell)]
    if not known:
        return None
    for suffix, role in _SUFFIXES.items():
        if all(cell.lower().endswith(suffix) for cell in known):
            return role
    for pattern, role in ((_UUID, Role.UUID), (_BUS, Role.PCI), (_DEVICE_NAME, Role.NAME)):
        if all(pattern.fullmatch(cell) for cell in known):
            return role
    if all(cell.isdecimal() for cell in known):
        values = {int(cell) for cell in known}
        # An index runs from 0 without a hole; a temperature or a clock does not.
        return Role.INDEX if values == set(range(len(values))) and len(values) < 64 else None
    clock = Clock()
    try:
        for cell in known:
            clock.read(cell)
    except CellError:
        return None
    return Role.TIME if not clock.is_relative else None


def _ordered(
    rows: Sequence[Sequence[str]], one: Column, two: Column, role: Role
) -> tuple[Column, Column]:
    quantity = Quantity.POWER if role is Role.POWER else Quantity.MEMORY
    totals = [0.0, 0.0]
    for row in rows:
        for i, column in enumerate((one, two)):
            try:
                value = read(row[column.at], quantity)
            except CellError:
                continue
            totals[i] += 0.0 if np.isnan(value) else value
    return (one, two) if totals[0] <= totals[1] else (two, one)
