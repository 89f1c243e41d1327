"""CSV of ``amd-smi metric --csv`` and ``amd-smi monitor --csv``, and of ``rocm-smi --csv``.

MI200 reports ``average_socket_power``, MI300 ``current_socket_power``, newer tools
``socket_power``; a file is read in the first of them that holds a number. With ``--watch`` there is
a ``timestamp`` column; scripts that put a time before several GPUs' rows, side by side, are read
too. Without times every GPU once is a single tick.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.formats.amd_common import NAMES, POWER_NAMES, Power, reading
from harness.formats.cells import NAN, CellError, Clock, is_missing
from harness.formats.delimited import BAD_CELL, BEFORE_HEADER, NOT_A_ROW, TORN, split_cells
from harness.formats.layout import Role
from harness.formats.recipe import refusal
from harness.formats.text import Head, Line, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import GpuId, SampleBatch

NAME = "amd-smi csv"

PARTITION = "row of a further partition of a GPU (xcp above 0), which has no sensor"
_TIMES = ("timestamp", "time", "date", "datetime")
_HOSTS = ("host", "hostname", "node")
_INDICES = ("gpu", "device", "gpu_id")
_INDEX = re.compile(r"(?:card|gpu)?\s*(\d{1,4})", re.IGNORECASE)
# Other tools have columns of these names too.
_COMMON = frozenset(
    {"power_usage", "power_limit", "gfx", "edge", "junction", "hotspot", "power_cap"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """The columns of one GPU in a row; ``readings`` is role -> (position, name)."""

    index: int
    power: tuple[tuple[str, int], ...]
    readings: dict[Role, tuple[int, str]]
    partition: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The columns of a file; ``num_empty`` more without a name stand at the end."""

    cells: tuple[str, ...]
    num_empty: int
    time: int | None
    host: int | None
    blocks: tuple[_Block, ...]


def claims(head: Head) -> Claim | None:
    """Whether a line of the head is a header of AMD's."""
    for line in head.lines:
        header = _header(split_cells(line, ","))
        if header is not None:
            own = [cell for cell in header.cells if _is_amd(cell)]
            return Claim(score=80, why=f"a header of AMD's tools ({', '.join(own[:3])})")
    return None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """Open it as a stream.

    Raises:
        FormatError: it has no power column, or no such header.
    """
    headers = (_header(split_cells(line, ",")) for line in source.head.lines)
    header = next((one for one in headers if one is not None), None)
    if header is None:
        raise refusal(source.path, "no header of amd-smi or rocm-smi")
    if not any(block.power for block in header.blocks):
        raise refusal(source.path, f"no power column ({', '.join(header.cells)})")
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    return ReaderStream(table, ledger, _Reader(source, options, header, table, ledger).chunks())


class _Reader:
    """One pass over the file."""

    def __init__(
        self,
        source: TextSource,
        options: Options,
        header: _Header,
        table: GpuTable,
        ledger: Ledger,
    ) -> None:
        self._source = source
        self._period_s = options.period_s
        self._header = header
        self._table = table
        self._ledger = ledger
        self._power = Power(table, ledger)
        self._clock = Clock()
        self._in_table = False
        self._tick = 0
        self._in_tick: set[int] = set()

    def chunks(self) -> Iterator[SampleBatch]:
        """The batches."""
        self._name_columns()
        rows = Rows()
        for line in self._source.lines():
            self._enter(line, rows)
            if rows.is_full:
                yield rows.take()
        self._power.finish(names_second_dies=False)
        for trouble, count in self._source.troubles.items():
            self._ledger.count(trouble, count)
        if self._header.time is not None and not self._clock.has_zone:
            self._ledger.note("times carry no zone and are read as UTC")
        yield rows.take()

    def _enter(self, line: Line, rows: Rows) -> None:
        cells = [cell.strip() for cell in split_cells(line.text, ",")]
        names = tuple(cell.lower() for cell in cells)
        if names == self._header.cells + ("",) * self._header.num_empty:
            if self._in_table:
                self._ledger.count("headers repeated (restarts, or a header each time)")
            self._in_table = True
            return
        if line.torn or not self._in_table:
            self._ledger.drop(TORN if line.torn else BEFORE_HEADER)
            return
        # Scripts that put commas behind a header leave them out of the rows.
        num_empty = len(cells) - len(self._header.cells)
        if num_empty not in (0, self._header.num_empty) or any(cells[len(self._header.cells) :]):
            self._ledger.drop(NOT_A_ROW)
            return
        for block in self._header.blocks:
            self._enter_gpu(cells, block, rows)

    def _enter_gpu(self, cells: Sequence[str], block: _Block, rows: Rows) -> None:
        match = _INDEX.fullmatch(cells[block.index])
        try:
            t_s = NAN if self._header.time is None else self._clock.read(cells[self._header.time])
        except CellError:
            match = None
            t_s = NAN
        if match is None:
            self._ledger.drop(BAD_CELL)
            return
        partition = "0" if block.partition is None else cells[block.partition]
        if partition != "0" and not is_missing(partition):
            self._ledger.drop(PARTITION)
            return
        host = "" if self._header.host is None else cells[self._header.host]
        gpu = self._table.position(GpuId(host=host, index=int(match[1]), uuid=None, name=None))
        if self._header.time is None:
            t_s = self._time_of_tick(gpu)
        self._ledger.is_relative = self._header.time is None or self._clock.is_relative
        values = {
            role: reading(cells[at], name, self._ledger)
            for role, (at, name) in block.readings.items()
        }
        rows.add(
            t_s,
            gpu,
            self._power.read(gpu, [(name, cells[at]) for name, at in block.power]),
            limit_w=values.get(Role.LIMIT, NAN) or NAN,
            utilization_pct=values.get(Role.UTILIZATION, NAN),
            memory_used_bytes=values.get(Role.MEMORY, NAN),
            sm_clock_mhz=values.get(Role.CLOCK, NAN),
            temperature_c=values.get(Role.TEMPERATURE, NAN),
        )

    def _time_of_tick(self, gpu: int) -> float:
        """A GPU that comes again begins the next tick."""
        if gpu in self._in_tick:
            self._tick += 1
            self._in_tick.clear()
            if self._period_s is None:
                raise refusal(
                    self._source.path,
                    "several ticks and no times; say how far they lie apart with --period SECONDS",
                )
        self._in_tick.add(gpu)
        return self._tick * (self._period_s or 0.0)

    def _name_columns(self) -> None:
        header = self._header
        if header.time is not None:
            self._ledger.columns[Role.TIME.value] = header.cells[header.time]
        self._ledger.columns[Role.INDEX.value] = header.cells[header.blocks[0].index]
        for role, (_, name) in header.blocks[0].readings.items():
            self._ledger.columns[role.value] = name
        if Role.UTILIZATION not in header.blocks[0].readings:
            self._ledger.note("the file has no utilization")


def _header(cells: Sequence[str]) -> _Header | None:
    """The columns that a line names, or None where it is no header of AMD's."""
    names = [cell.strip().lower() for cell in cells]
    while names and not names[-1]:
        names.pop()
    if not any(_is_amd(name) for name in names):
        return None
    starts = [at for at, name in enumerate(names) if name in _INDICES]
    if not starts:
        return None
    bounds = [*starts[1:], len(names)]
    if len(starts) == 1:
        blocks = (_block(names, starts[0], range(len(names))),)
    else:
        blocks = tuple(
            _block(names, start, range(start, end))
            for start, end in zip(starts, bounds, strict=True)
        )
    return _Header(
        cells=tuple(names),
        num_empty=len(cells) - len(names),
        time=next((at for at, name in enumerate(names) if name in _TIMES), None),
        host=next((at for at, name in enumerate(names) if name in _HOSTS), None),
        blocks=blocks,
    )


def _block(names: Sequence[str], index: int, where: range) -> _Block:
    power = {names[at]: at for at in reversed(where) if names[at] in POWER_NAMES}
    readings: dict[Role, tuple[int, int, str]] = {}
    for at in where:
        if names[at] in NAMES:
            role, rank, _, _ = NAMES[names[at]]
            if role not in readings or rank < readings[role][0]:
                readings[role] = (rank, at, names[at])
    return _Block(
        index=index,
        power=tuple((name, power[name]) for name in POWER_NAMES if name in power),
        readings={role: (at, name) for role, (_, at, name) in readings.items()},
        partition=next((at for at in where if names[at] == "xcp"), None),
    )


def _is_amd(name: str) -> bool:
    return (name in NAMES or name in POWER_NAMES) and name not in _COMMON
