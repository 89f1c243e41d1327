"""Rows of cells with a delimiter: the machinery below every CSV format.

A block of lines that is proven clean is read by numpy (``fastcells``); any other is read line by
line. The careful path is the definition: both give the same samples, account and notes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.formats import fastcells
from harness.formats.cells import NAN, CellError, Clock, is_fault, read, read_throttled
from harness.formats.gathered import Gathered, interleave
from harness.formats.identity import DOUBTED, Identities, identity_columns
from harness.formats.layout import QUANTITIES, Column, Device, Layout, Role, layout_of
from harness.formats.positional import PositionalTicks
from harness.formats.text import Line, TextSource
from harness.formats.ticks import GpuTable, Ledger, Options
from harness.samples import FAULT_NOTE, GpuId, SampleBatch

PART_BYTES = 64 * 1024
TORN = "row cut short (no line end, or NUL bytes inside)"
BEFORE_HEADER = "line before the header"
NOT_A_ROW = "wrong number of cells"
BAD_CELL = "a cell that is no reading"
NO_READING = "row of a table without power"
FAULTS = FAULT_NOTE


def split_cells(text: str, delimiter: str) -> list[str]:
    """The cells of one line, quotes taken off."""
    if '"' not in text:
        return text.split(delimiter)
    try:
        # Strict: a quote that overwrote a digit and is never closed is damage, not a quote.
        rows = list(csv.reader([text], delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error:
        return []
    return rows[0] if len(rows) == 1 else []


class TableReader:
    """Reads one delimited file from its first line to its last."""

    def __init__(
        self,
        source: TextSource,
        options: Options,
        layout: Layout,
        delimiter: str,
        *,
        is_positional: bool,
        name: str | None,
        table: GpuTable,
        ledger: Ledger,
    ) -> None:
        """Prepare to read.

        Args:
            source: The file.
            options: ``period_s`` makes the times of a file that has none.
            layout: Its columns, with power.
            delimiter: One character.
            is_positional: Rows name no GPU; their place in the tick does.
            name: Device name for positional rows.
            table: Filled with the GPUs.
            ledger: Filled with the account.
        """
        self._source = source
        self._period_s = options.period_s
        self._layout = layout
        self._delimiter = delimiter
        self._table = table
        self._ledger = ledger
        self._clock = Clock()
        self._roles = () if is_positional else identity_columns(layout.shared)
        self._identities = Identities(table, ledger)
        self._positional = PositionalTicks(table, ledger, name) if is_positional else None
        self._in_table = not layout.header
        self._is_used = True
        self._num_headers = 0
        self._hole = True
        self._tick = 0
        self._in_tick: set[int] = set()
        self._wide: dict[tuple[str, int], int] = {}

    def chunks(self) -> Iterator[SampleBatch]:
        """The samples, batch by batch."""
        for block in self._source.blocks():
            whole, end, last = block.rpartition(b"\n")
            for batch, holes in self._blocks(whole + end):
                yield from self._assign(batch, holes)
            if last:
                yield from self._assign(*self._careful(last))
        if self._positional is not None:
            yield from self._positional.finish()
        self._finish_notes()

    def _blocks(self, block: bytes) -> Iterator[tuple[SampleBatch, NDArray[np.bool_]]]:
        """The block at once if it is clean, else in small parts, each as fast as it allows."""
        found = self._fast(block)
        if found is not None:
            yield found
            return
        start = 0
        while start < len(block):
            stop = block.rfind(b"\n", start, start + PART_BYTES) + 1
            stop = stop if stop > start else block.find(b"\n", start) + 1
            part = block[start:stop]
            yield self._fast(part) or self._careful(part)
            start = stop

    def _assign(self, batch: SampleBatch, holes: NDArray[np.bool_]) -> Iterator[SampleBatch]:
        if not batch.t_s.size:
            return
        if self._positional is None:
            yield batch
        else:
            yield from self._positional.push(batch, holes)

    # The careful path.

    def _careful(self, block: bytes) -> tuple[SampleBatch, NDArray[np.bool_]]:
        rows = Gathered()
        for line in self._source.split(block):
            cells = split_cells(line.text, self._delimiter)
            if self._is_header(cells):
                self._enter_header(cells)
                self._hole = True
            elif not self._row(line, cells, rows):
                self._hole = True
        return rows.batch(), rows.hole_column()

    def _is_header(self, cells: Sequence[str]) -> bool:
        if not self._layout.header:
            return False
        if len(cells) < 2 or any(cell[:1].isdigit() for cell in cells):
            return False
        stripped = tuple(cell.strip() for cell in cells)
        return stripped == self._layout.header or layout_of(cells) is not None

    def _enter_header(self, cells: Sequence[str]) -> None:
        self._in_table = True
        self._num_headers += 1
        stripped = tuple(cell.strip() for cell in cells)
        if stripped == self._layout.header:
            self._is_used = True
            if self._num_headers > 1:
                self._ledger.count("headers repeated (restarts, or several writers)")
            return
        other = layout_of(cells)
        assert other is not None
        is_same_shape = other.shared.keys() == self._layout.shared.keys()
        self._is_used = other.has_power and is_same_shape and not other.is_wide
        self._is_used = self._is_used and not self._layout.is_wide
        self._ledger.count("headers with other columns")
        self._layout = other

    def _row(self, line: Line, cells: Sequence[str], rows: Gathered) -> bool:
        reason = None
        if not self._in_table:
            reason = BEFORE_HEADER
        elif line.torn:
            reason = TORN
        elif not self._is_used:
            reason = NO_READING
        elif len(cells) != self._layout.width:
            reason = NOT_A_ROW
        if reason is None:
            try:
                return self._sample(cells, rows)
            except CellError:
                reason = BAD_CELL
        self._ledger.drop(reason)
        return False

    def _sample(self, cells: Sequence[str], rows: Gathered) -> bool:
        shared = self._layout.shared
        t_s = self._clock.read(cells[shared[Role.TIME].at]) if Role.TIME in shared else NAN
        words = tuple(cells[shared[role].at].strip() for role in self._roles)
        label = cells[shared[Role.LABEL].at].strip() if Role.LABEL in shared else None
        readings = [self._readings(cells, device) for device in self._layout.devices]
        if self._layout.is_wide:
            host = cells[shared[Role.HOST].at].strip() if Role.HOST in shared else ""
            gpus = [self._wide_gpu(host, device) for device in self._layout.devices]
        else:
            gpu = self._identities.position(self._roles, words) if self._roles else 0
            if gpu is None:
                self._ledger.drop(DOUBTED)
                return False
            gpus = [gpu]
        if Role.TIME not in shared:
            t_s = self._time_of_tick(gpus)
        for gpu, (values, throttled, num_faults) in zip(gpus, readings, strict=True):
            if num_faults:
                self._ledger.count(FAULTS, num_faults)
            rows.add(t_s, gpu, values, throttled, label or None, hole=self._hole)
        self._hole = False
        return True

    def _readings(self, cells: Sequence[str], device: Device) -> tuple[dict[Role, float], int, int]:
        values: dict[Role, float] = {}
        num_faults = 0
        for role, column in device.columns.items():
            text = cells[column.at]
            value = values[role] = read(text, QUANTITIES[role], column.unit)
            num_faults += value != value and is_fault(text)  # noqa: PLR0124 - NaN
        flags = [read_throttled(cells[column.at]) for column in device.flags]
        return values, max(flags, default=-1), num_faults

    def _wide_gpu(self, host: str, device: Device) -> int:
        assert device.index is not None
        key = (host, device.index)
        if key not in self._wide:
            gpu = GpuId(host=host, index=device.index, uuid=None, name=None)
            self._wide[key] = self._table.position(gpu)
        return self._wide[key]

    def _time_of_tick(self, gpus: Sequence[int]) -> float:
        """Times of a file without any: a tick ends when a GPU comes again."""
        assert self._period_s is not None
        if not self._in_tick.isdisjoint(gpus):
            self._tick += 1
            self._in_tick.clear()
        self._in_tick.update(gpus)
        return self._tick * self._period_s

    # The fast path.

    def _fast(self, block: bytes) -> tuple[SampleBatch, NDArray[np.bool_]] | None:
        layout = self._layout
        is_ready = self._in_table and self._is_used and Role.TIME in layout.shared
        if not is_ready or not block:
            return None
        grid = fastcells.cut(block, self._delimiter, layout.width)
        if grid is None:
            return None
        try:
            t_s = fastcells.times(grid, layout.shared[Role.TIME].at, self._clock)
            label = self._fast_label(grid)
            gpus = self._fast_gpus(grid)
            if gpus is None:
                return None
            devices = [self._fast_device(grid, device) for device in layout.devices]
        except CellError:
            return None
        holes = np.zeros(grid.num_rows * len(devices), dtype=np.bool_)
        holes[0] = self._hole
        self._hole = False
        return interleave(t_s, gpus, devices, label), holes

    def _fast_label(self, grid: fastcells.Grid) -> NDArray[np.object_] | None:
        if Role.LABEL not in self._layout.shared:
            return None
        codes, words = fastcells.texts(grid, (self._layout.shared[Role.LABEL].at,))
        names = np.array([word or None for (word,) in words], dtype=object)
        return names[codes] if any(names) else None

    def _fast_gpus(self, grid: fastcells.Grid) -> list[NDArray[np.int32]] | None:
        """The GPUs of each device's rows; None where a row names a GPU not met before."""
        shared = self._layout.shared
        if not self._layout.is_wide and not self._roles:
            return [np.zeros(grid.num_rows, dtype=np.int32)]
        columns = [shared[role].at for role in self._roles]
        if self._layout.is_wide:
            columns = [shared[Role.HOST].at] if Role.HOST in shared else []
        if not columns:
            known = [
                self._wide.get(("", d.index)) for d in self._layout.devices if d.index is not None
            ]
            if None in known:
                return None
            return [np.full(grid.num_rows, gpu, dtype=np.int32) for gpu in known]
        codes, words = fastcells.texts(grid, tuple(columns))
        found: list[NDArray[np.int32]] = []
        for device in self._layout.devices:
            if device.index is None:
                positions = [self._identities.known(word) for word in words]
            else:
                positions = [self._wide.get((word[0], device.index)) for word in words]
            if any(position is None for position in positions):
                return None
            found.append(np.array(positions, dtype=np.int32)[codes])
        return found

    def _fast_device(
        self, grid: fastcells.Grid, device: Device
    ) -> tuple[dict[Role, NDArray[np.float64]], NDArray[np.int8]]:
        values = {
            role: fastcells.numbers(grid, column.at, QUANTITIES[role], column.unit)
            for role, column in device.columns.items()
        }
        throttled = np.full(grid.num_rows, -1, dtype=np.int8)
        for column in device.flags:
            throttled = np.maximum(throttled, _fast_flag(grid, column))
        return values, throttled

    def _finish_notes(self) -> None:
        for trouble, count in self._source.troubles.items():
            self._ledger.count(trouble, count)
        if not self._clock.has_zone:
            self._ledger.note("times carry no zone and are read as UTC")
        if self._clock.is_relative:
            self._ledger.is_relative = True


def _fast_flag(grid: fastcells.Grid, column: Column) -> NDArray[np.int8]:
    codes, words = fastcells.texts(grid, (column.at,))
    return np.array([read_throttled(word) for (word,) in words], dtype=np.int8)[codes]
