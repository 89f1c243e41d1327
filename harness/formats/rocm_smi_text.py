"""Text of ``rocm-smi``: lines ``GPU[0] : Average Graphics Package Power (W): 237.0``.

One shot, or a loop's shots one after another; the tool prints no time, but a line that is a date
(``date``, or seconds since 1970), as loops often print between, is the time of the shot below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.formats.amd_common import NAMES, POWER_NAMES, Power, is_secondary, reading
from harness.formats.cells import NAN, CellError, Clock
from harness.formats.delimited import TORN
from harness.formats.layout import Role
from harness.formats.recipe import refusal
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import GpuId, SampleBatch

NAME = "rocm-smi text"

NO_TIME = "shot without the time that others have"
_BANNER = re.compile(r"={4,} .*ROCm System Management Interface.*={4,}", re.IGNORECASE)
_LINE = re.compile(r"(?:ERROR:\s*)?GPU\[(\d{1,4})\]\s*:\s*(.*?)\s*(?::\s*(.*))?")
_SCLK = re.compile(r"\d+:\s*\((\d+)\s*mhz\)", re.IGNORECASE)
_DEVICE_NAMES = ("card series", "device name", "card model")
# ``date`` prints a zone before the year; it is dropped, and a note says that UTC is assumed.
_DATE = re.compile(r"(\w{3} \w{3}\s+\d{1,2} \d{2}:\d{2}:\d{2}) (?:\w{2,5} )?(\d{4})")
_TIME = re.compile(r"\d{4}[-/]\d{2}[-/]\d{2}[ T].{8,}|1\d{9}(?:\.\d+)?|1\d{12}")

_Shot = dict[int, dict[str, str]]


def claims(head: Head) -> Claim | None:
    """Whether it has the banner of rocm-smi, or its lines."""
    if _BANNER.search(head.text):
        return Claim(score=90, why="the banner of rocm-smi")
    for line in head.lines:
        match = _LINE.fullmatch(line.strip())
        if match and match[2].lower() in (*POWER_NAMES, *NAMES):
            return Claim(score=75, why=f"lines GPU[N] of rocm-smi ({match[2]})")
    return None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """Open it as a stream."""
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    return ReaderStream(table, ledger, _Reader(source, options, table, ledger).chunks())


class _Reader:
    """One pass over the file."""

    def __init__(
        self, source: TextSource, options: Options, table: GpuTable, ledger: Ledger
    ) -> None:
        self._source = source
        self._period_s = options.period_s
        self._table = table
        self._ledger = ledger
        self._power = Power(table, ledger)
        self._clock = Clock()
        self._names: dict[int, str] = {}
        self._shot: _Shot = {}
        self._time_s: float | None = None
        self._has_times: bool | None = None
        self._has_lines = False
        self._num_shots = 0
        self._has_power_line = False

    def chunks(self) -> Iterator[SampleBatch]:
        """The batches."""
        rows = Rows()
        for line in self._source.lines():
            text = line.text.strip()
            match = _LINE.fullmatch(text)
            if match is not None:
                self._has_lines = True
                if line.torn:
                    self._ledger.drop(TORN)
                else:
                    self._enter(int(match[1]), match[2], match[3], rows)
            elif _TIME.search(text) or _DATE.search(text):
                self._flush(rows)
                # None for a damaged one: what follows is not the shot of the date before it.
                self._time_s = self._read_time(text)
            elif _BANNER.search(text):
                self._flush(rows)
            if rows.is_full:
                yield rows.take()
        self._flush(rows)
        self._finish()
        yield rows.take()

    def _enter(self, index: int, metric: str, value: str | None, rows: Rows) -> None:
        name = metric.lower()
        if value is None:
            if "package power" in name:
                self._shot.setdefault(index, {})["reason"] = metric
            return
        if name in _DEVICE_NAMES:
            self._names.setdefault(index, value)
            return
        if name == "sclk clock level" and (match := _SCLK.fullmatch(value)):
            name, value = "gfx_clk", str(match[1])
        if name not in NAMES and name not in POWER_NAMES:
            return
        self._has_power_line = self._has_power_line or name in POWER_NAMES
        if name in self._shot.get(index, {}):
            self._flush(rows)
        self._shot.setdefault(index, {})[name] = value

    def _flush(self, rows: Rows) -> None:
        """End a shot."""
        shot, time_s, has_lines = self._shot, self._time_s, self._has_lines
        self._shot, self._time_s, self._has_lines = {}, None, False
        if not shot:
            # The banner comes below the date; a date before lines of nothing is theirs.
            self._time_s = None if has_lines else time_s
            return
        if self._has_times is None:
            self._has_times = time_s is not None
        if self._has_times and time_s is None:
            self._ledger.drop(NO_TIME, len(shot))
            return
        if not self._has_times and self._num_shots and self._period_s is None:
            raise refusal(
                self._source.path,
                "several shots and no times; say how far they lie apart with --period SECONDS",
            )
        self._ledger.is_relative = not self._has_times or self._clock.is_relative
        t_s = time_s if self._has_times else self._num_shots * (self._period_s or 0.0)
        assert t_s is not None
        self._num_shots += 1
        for index, cells in shot.items():
            self._add(t_s, index, cells, rows)

    def _add(self, t_s: float, index: int, cells: dict[str, str], rows: Rows) -> None:
        gpu = self._table.position(
            GpuId(host="", index=index, uuid=None, name=self._names.get(index))
        )
        power = [(name, cells[name]) for name in POWER_NAMES if name in cells]
        watts = self._power.read(gpu, power)
        if "reason" in cells:
            self._power.explain(gpu, cells.pop("reason"))
        values: dict[Role, tuple[int, float]] = {}
        for name, text in cells.items():
            if name in NAMES and not is_secondary(text):
                role, rank, _, _ = NAMES[name]
                if role not in values or rank < values[role][0]:
                    values[role] = (rank, reading(text, name, self._ledger))
                    self._ledger.columns.setdefault(role.value, name)
        rows.add(
            t_s,
            gpu,
            watts,
            limit_w=_get(values, Role.LIMIT) or NAN,
            utilization_pct=_get(values, Role.UTILIZATION),
            memory_used_bytes=_get(values, Role.MEMORY),
            sm_clock_mhz=_get(values, Role.CLOCK),
            temperature_c=_get(values, Role.TEMPERATURE),
        )

    def _read_time(self, text: str) -> float | None:
        match = _DATE.fullmatch(text)
        if match is None and not _TIME.fullmatch(text):
            return None
        try:
            t_s = self._clock.read(f"{match[1]} {match[2]}" if match else text)
        except CellError:
            return None
        self._ledger.columns[Role.TIME.value] = "line with a date before the shot"
        return t_s

    def _finish(self) -> None:
        self._power.finish(names_second_dies=True)
        for trouble, count in self._source.troubles.items():
            self._ledger.count(trouble, count)
        if not self._has_power_line:
            raise refusal(
                self._source.path, "no power: rocm-smi was run without --showpower, or it failed"
            )
        if self._has_times and not self._clock.has_zone:
            self._ledger.note("times carry no zone that is known and are read as UTC")
        if Role.UTILIZATION.value not in self._ledger.columns:
            self._ledger.note("the file has no utilization")


def _get(values: dict[Role, tuple[int, float]], role: Role) -> float:
    return values[role][1] if role in values else NAN
