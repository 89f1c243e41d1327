"""CSV of nvitop's ResourceMetricCollector, one column a statistic.

``metrics-daemon/cuda:0 (gpu:3)/power_usage (W)/mean``: tag, GPU (its index is behind ``gpu:``),
metric, statistic. Where there is ``last`` it is read: the newest sample. Otherwise ``mean``, which
nvitop takes over all the time since its collection began or was reset, given as ``duration (s)``:
what lay between two rows is worked out from their means and durations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.formats.cells import MAX_POWER_W, NAN, CellError, Clock, Quantity, read
from harness.formats.delimited import BAD_CELL, BEFORE_HEADER, NOT_A_ROW, TORN, split_cells
from harness.formats.layout import Role
from harness.formats.recipe import refusal
from harness.formats.text import Head, Line, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import GpuId, PowerKind, SampleBatch

NAME = "nvitop csv"

UNCLEAR = "row whose means cover a time that is not known"
IMPOSSIBLE = "readings worked out from means that cannot be, left out"
_METRICS: Mapping[str, tuple[Role, Quantity, str]] = {
    "power_usage (W)": (Role.POWER, Quantity.POWER, "w"),
    "gpu_utilization (%)": (Role.UTILIZATION, Quantity.PERCENT, "%"),
    "memory_used (MiB)": (Role.MEMORY, Quantity.MEMORY, "mib"),
    "temperature (C)": (Role.TEMPERATURE, Quantity.TEMPERATURE_C, "c"),
}
_COLUMN = re.compile(
    r"(?P<tag>.+)/(?:cuda:\d+ \()?gpu:(?P<gpu>\d{1,4})\)?/(?P<metric>[^/]+)/(?P<stat>mean|last)"
)
_HIGHEST = {Role.POWER: MAX_POWER_W, Role.UTILIZATION: 100.0}
_SLACK = 0.1
"""How far, of a step, the growth of a duration may be off before it is no longer that step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The columns of one tag; ``gpus`` is index -> role -> position."""

    cells: tuple[str, ...]
    time: int | None
    duration: int | None
    stat: str
    gpus: Mapping[int, Mapping[Role, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row as read: its time, how long its means reach back, and the numbers of each GPU."""

    t_s: float
    duration_s: float
    gpus: Mapping[int, Mapping[Role, float]]


def claims(head: Head) -> Claim | None:
    """Whether a line of the head has columns as nvitop names them."""
    for line in head.lines:
        if "/" not in line:
            continue
        cells = split_cells(line, ",")
        found = next((cell for cell in cells if _is_ours(cell)), None)
        if found is not None:
            return Claim(score=90, why=f"columns as nvitop names them ({found.strip()})")
    return None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """Open it as a stream.

    Raises:
        FormatError: it has no power, no times, or means of which nobody knows over what.
    """
    headers = (_header(split_cells(line, ",")) for line in source.head.lines)
    header = next((one for one in headers if one is not None), None)
    if header is None:
        raise refusal(source.path, "no column .../power_usage (W)/mean or last of nvitop")
    if header.time is None and header.duration is None and options.period_s is None:
        raise refusal(source.path, "neither timestamp nor duration; give --period SECONDS")
    if header.stat == "mean" and header.duration is None:
        raise refusal(
            source.path, "means without their duration (s): nobody knows over what time they are"
        )
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
        self._clock = Clock()
        self._in_table = False
        self._before: _Row | None = None
        self._num_rows = 0

    def chunks(self) -> Iterator[SampleBatch]:
        """The batches."""
        self._describe()
        rows = Rows()
        for line in self._source.lines():
            row = self._read(line)
            if row is not None:
                self._enter(row, rows)
            if rows.is_full:
                yield rows.take()
        for trouble, count in self._source.troubles.items():
            self._ledger.count(trouble, count)
        if not self._clock.has_zone:
            self._ledger.note("times carry no zone and are read as UTC")
        yield rows.take()

    def _read(self, line: Line) -> _Row | None:
        cells = [cell.strip() for cell in split_cells(line.text, ",")]
        if tuple(cells) == self._header.cells:
            if self._in_table:
                self._ledger.count("headers repeated (restarts)")
            self._in_table, self._before = True, None
            return None
        if line.torn or not self._in_table or len(cells) != len(self._header.cells):
            reason = NOT_A_ROW if self._in_table else BEFORE_HEADER
            self._ledger.drop(TORN if line.torn else reason)
            return None
        try:
            return self._parse(cells)
        except CellError:
            self._ledger.drop(BAD_CELL)
            return None

    def _parse(self, cells: Sequence[str]) -> _Row:
        header = self._header
        duration_s = NAN if header.duration is None else _seconds(cells[header.duration])
        if header.time is not None:
            t_s = self._clock.read(cells[header.time])
        elif self._period_s is not None:
            t_s = self._num_rows * self._period_s
        else:
            t_s = duration_s
        self._num_rows += 1
        self._ledger.is_relative = header.time is None or self._clock.is_relative
        units = {role: (quantity, unit) for role, quantity, unit in _METRICS.values()}
        gpus = {
            index: {role: read(cells[at], *units[role]) for role, at in columns.items()}
            for index, columns in header.gpus.items()
        }
        return _Row(t_s=t_s, duration_s=duration_s, gpus=gpus)

    def _enter(self, row: _Row, rows: Rows) -> None:
        before, self._before = self._before, row
        if self._header.stat == "last":
            gpus = row.gpus
        else:
            found = self._since(before, row)
            if found is None:
                return
            gpus = found
        for index, numbers in gpus.items():
            gpu = self._table.position(GpuId(host="", index=index, uuid=None, name=None))
            rows.add(
                row.t_s,
                gpu,
                numbers.get(Role.POWER, NAN),
                utilization_pct=numbers.get(Role.UTILIZATION, NAN),
                memory_used_bytes=numbers.get(Role.MEMORY, NAN),
                temperature_c=numbers.get(Role.TEMPERATURE, NAN),
            )

    def _since(self, before: _Row | None, row: _Row) -> Mapping[int, Mapping[Role, float]] | None:
        """Averages since the row before, or None where nobody knows over what time they are."""
        if before is None:
            self._ledger.drop(UNCLEAR, len(row.gpus))
            return None
        step_s, grown_s = row.t_s - before.t_s, row.duration_s - before.duration_s
        slack_s = _SLACK * step_s
        if abs(grown_s - step_s) <= slack_s and grown_s > 0.0:
            return {
                index: {
                    role: self._between(role, value, before.gpus[index][role], row, before)
                    for role, value in numbers.items()
                }
                for index, numbers in row.gpus.items()
            }
        if 0.0 < row.duration_s <= step_s + slack_s:
            return row.gpus
        self._ledger.drop(UNCLEAR, len(row.gpus))
        return None

    def _between(self, role: Role, mean: float, mean_before: float, row: _Row, bef: _Row) -> float:
        total = mean * row.duration_s - mean_before * bef.duration_s
        value = total / (row.duration_s - bef.duration_s)
        # Rounding of the file's means is multiplied by how long they reach back.
        if -1.0 < value < 0.0:
            return 0.0
        if value < 0.0 or value > _HIGHEST.get(role, math.inf) + 1.0:
            self._ledger.count(IMPOSSIBLE)
            return NAN
        return min(value, _HIGHEST.get(role, math.inf))

    def _describe(self) -> None:
        header, ledger = self._header, self._ledger
        if header.time is not None:
            ledger.columns[Role.TIME.value] = header.cells[header.time]
        for role in (role for role, _, _ in _METRICS.values()):
            names = [header.cells[c[role]] for c in header.gpus.values() if role in c]
            if names:
                ledger.columns[role.value] = ", ".join(names)
        if header.stat == "mean":
            ledger.power_kind = PowerKind.AVERAGE
            ledger.note(
                "nvitop's means run from the start of its collection: what lies between two rows is"
                " worked out from them, an average over that time"
            )


def _header(cells: Sequence[str]) -> _Header | None:
    names = [cell.strip() for cell in cells]
    matches = [(at, m) for at, name in enumerate(names) if (m := _COLUMN.fullmatch(name))]
    matches = [(at, m) for at, m in matches if m["metric"] in _METRICS and "pid:" not in m["tag"]]
    powers = [m for _, m in matches if _METRICS[m["metric"]][0] is Role.POWER]
    if not powers:
        return None
    tag = powers[0]["tag"]
    stat = "last" if any(m["stat"] == "last" for m in powers if m["tag"] == tag) else "mean"
    gpus: dict[int, dict[Role, int]] = {}
    for at, match in matches:
        if match["tag"] == tag and match["stat"] == stat:
            gpus.setdefault(int(match["gpu"]), {})[_METRICS[match["metric"]][0]] = at
    places = {name: at for at, name in reversed(list(enumerate(names)))}
    times = (f"{tag}/timestamp", "timestamp", "_timestamp", "time")
    return _Header(
        cells=tuple(names),
        time=next((places[name] for name in times if name in places), None),
        duration=places.get(f"{tag}/duration (s)"),
        stat=stat,
        gpus=gpus,
    )


def _is_ours(cell: str) -> bool:
    match = _COLUMN.fullmatch(cell.strip())
    return match is not None and match["metric"] in _METRICS


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise CellError(f"{text!r} is no duration") from None
    if not 0.0 <= value < 1e9:
        raise CellError(f"{text!r} is no duration")
    return value
