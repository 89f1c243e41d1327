"""The human table of ``nvidia-smi``, printed in a loop.

Its clock counts whole seconds, so several tables may carry one time: those are spread evenly over
their second, in order. A table that is cut short gives the GPUs that it has whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.formats.cells import (
    NAN,
    CellError,
    Clock,
    Quantity,
    is_fault,
    is_missing,
    read,
    read_index,
)
from harness.formats.delimited import BAD_CELL, FAULTS, TORN, split_cells
from harness.formats.layout import Layout, layout_of
from harness.formats.recipe import refusal
from harness.formats.text import Head, Line, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import GpuId, SampleBatch

NAME = "nvidia-smi table"

CUT = "GPU of a table without its readings"
NO_TIME = "GPU of a table whose time is missing or damaged"
_BANNER_REACH = 3
"""Lines from a time to the box that it belongs to: a rule, at times a blank line between."""

_BANNER = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} [ \d]\d \d{2}:\d{2}:\d{2}(?: [A-Z]{2,5})? \d{4}\s*"
)
_SMI = re.compile(r"\|\s*NVIDIA-SMI\s+\S+.*\|\s*")
_GPU = re.compile(
    r"\|\s+(?P<index>\d+)\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s*\|"
    r"\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s.*\|\s*"
)
_READINGS = re.compile(
    r"\|\s*(?:\S+%?\s+)?(?P<temp>\d+C|N/A|ERR!)\s+(?:P\d+|N/A|ERR!|Unknown)\s+"
    r"(?P<power>[\d.]+\s?W|N/A|ERR!|\[?Unknown Error\]?)\s*/\s*(?P<limit>[\d.]+\s?W|N/A|ERR!)\s*\|"
    r"\s*(?P<used>\d+\s?MiB|N/A)\s*/\s*(?:\d+\s?MiB|N/A)\s*\|\s*(?P<util>\d+\s?%|N/A|ERR!)\s.*\|\s*"
)


@dataclass(frozen=True, slots=True)
class _Reading:
    gpu: int
    power_w: float
    limit_w: float
    utilization_pct: float
    memory_used_bytes: float
    temperature_c: float


def claims(head: Head) -> Claim | None:
    """Sure of the box with ``NVIDIA-SMI`` in it, unless a CSV with power follows it."""
    if not any(_SMI.fullmatch(line) for line in head.lines):
        return None
    if any(layout.has_power for layout in _csv_layouts(head)):
        return Claim(score=30, why="a table of nvidia-smi above a CSV")
    return Claim(score=88, why="the box that nvidia-smi prints, with its NVIDIA-SMI line")


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """The stream of such a file.

    Raises:
        FormatError: no table has a time and there is no period, or a second writer's rows have
            none.
    """
    head = source.head
    has_banner = any(_BANNER.fullmatch(line) for line in head.lines)
    others = list(_csv_layouts(head))
    if options.period_s is None and not has_banner:
        raise refusal(
            source.path, "tables without times; say how far they lie apart with --period SECONDS"
        )
    if options.period_s is None and any("time" not in other.names() for other in others):
        raise refusal(
            source.path,
            "two writers, a table and a CSV without timestamps, in one file; say how far its ticks"
            " lie apart with --period SECONDS",
        )
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    ledger.columns.update(
        power="Pwr:Usage",
        limit="Pwr:Cap",
        utilization="GPU-Util",
        memory="Memory-Usage",
        temperature="Temp",
    )
    ledger.is_relative = options.period_s is not None
    if others:
        ledger.note("two writers in one file: the rows of a CSV without power are left out")
    return ReaderStream(table, ledger, _Tables(source, options, table, ledger).chunks())


def _csv_layouts(head: Head) -> Iterator[Layout]:
    for line in head.lines:
        if line.startswith(("|", "+")):
            continue
        layout = layout_of(split_cells(line, ","))
        if layout is not None:
            yield layout


class _Tables:
    """One file while it is read."""

    def __init__(
        self, source: TextSource, options: Options, table: GpuTable, ledger: Ledger
    ) -> None:
        self._source = source
        self._period_s = options.period_s
        self._table = table
        self._ledger = ledger
        self._clock = Clock()
        self._second: float | None = None
        self._tables: list[list[_Reading]] = []
        self._num_tables = 0
        self._pending: re.Match[str] | None = None
        self._has_banner = False
        self._lines_since_banner = 0
        self._is_trusted = False
        self._last_index = -1
        self._names: dict[int, str] = {}

    def chunks(self) -> Iterator[SampleBatch]:
        rows = Rows()
        for line in self._source.lines():
            self._line(line, rows)
            if rows.is_full:
                yield rows.take()
        self._cut()
        self._release(rows)
        yield rows.take()
        self._finish_notes()

    def _line(self, line: Line, rows: Rows) -> None:
        text = line.text
        self._lines_since_banner += 1
        if line.torn:
            # What is missing beside it may be the next table's time.
            self._pending = None
            self._is_trusted = False
            self._ledger.drop(TORN)
        elif _BANNER.fullmatch(text):
            self._banner(text.strip(), rows)
        elif _SMI.fullmatch(text):
            self._cut()
            is_own = self._lines_since_banner <= _BANNER_REACH
            self._is_trusted = (self._has_banner and is_own) or self._period_s is not None
            self._has_banner = False
            self._last_index = -1
            self._tables.append([])
        elif match := _GPU.fullmatch(text):
            self._cut()
            self._pending = match
        elif self._pending is not None:
            self._readings(text)
        elif "," in text and not text.startswith("|"):
            self._ledger.drop("row of another writer")

    def _banner(self, text: str, rows: Rows) -> None:
        self._cut()
        # "Wed Jan  5 15:09:50 UTC 2022": the zone's letters say nothing that can be relied upon.
        words = [word for word in text.split() if not (word.isupper() and word.isalpha())]
        self._has_banner = False
        try:
            second = self._clock.read(" ".join(words))
        except CellError:
            return
        self._has_banner = True
        self._lines_since_banner = 0
        if second != self._second:
            self._release(rows)
            self._second = second

    def _cut(self) -> None:
        """A GPU's second line did not come: whose the next one is cannot be told."""
        if self._pending is not None:
            self._ledger.drop(CUT)
            self._pending = None
            self._is_trusted = False

    def _readings(self, text: str) -> None:
        gpu, self._pending = self._pending, None
        assert gpu is not None
        match = _READINGS.fullmatch(text)
        if match is None:
            self._ledger.drop(CUT)
            return
        index = int(gpu["index"])
        self._is_trusted = self._is_trusted and index > self._last_index
        self._last_index = index
        if not self._is_trusted or not self._tables:
            self._ledger.drop(NO_TIME)
            return
        try:
            reading = self._reading(gpu, match)
        except CellError:
            self._ledger.drop(BAD_CELL)
            return
        if any(is_fault(cell) for cell in match.groupdict().values()):
            self._ledger.count(FAULTS)
        self._tables[-1].append(reading)

    def _reading(self, gpu: re.Match[str], cells: re.Match[str]) -> _Reading:
        index = read_index(gpu["index"])
        temperature_c = (
            NAN if is_missing(cells["temp"]) else read(cells["temp"], Quantity.TEMPERATURE_C)
        )
        name = gpu["name"].rstrip(".").strip()
        identity = GpuId(host="", index=index, uuid=gpu["bus"], name=name)
        first = self._names.setdefault(index, name)
        if first != name:
            self._ledger.note(f"two devices under index {index}: {first} and {name}; kept apart")
        return _Reading(
            gpu=self._table.position(identity),
            power_w=read(cells["power"], Quantity.POWER),
            limit_w=read(cells["limit"], Quantity.POWER),
            utilization_pct=read(cells["util"], Quantity.PERCENT),
            memory_used_bytes=read(cells["used"], Quantity.MEMORY),
            temperature_c=temperature_c,
        )

    def _release(self, rows: Rows) -> None:
        """Give the tables of one second their times."""
        tables, self._tables = [table for table in self._tables if table], []
        for i, table in enumerate(tables):
            if self._period_s is not None:
                t_s = self._num_tables * self._period_s
            else:
                assert self._second is not None
                t_s = self._second + i / len(tables)
            self._num_tables += 1
            if i and self._period_s is None:
                self._ledger.count("tables spread over the second that they share")
            for reading in table:
                rows.add(
                    t_s,
                    reading.gpu,
                    reading.power_w,
                    limit_w=reading.limit_w,
                    utilization_pct=reading.utilization_pct,
                    memory_used_bytes=reading.memory_used_bytes,
                    temperature_c=reading.temperature_c,
                )

    def _finish_notes(self) -> None:
        for trouble, count in self._source.troubles.items():
            self._ledger.count(trouble, count)
        if self._period_s is None:
            self._ledger.note("times carry no zone and are read as UTC")
