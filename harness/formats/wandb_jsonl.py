"""System metrics of Weights & Biases, one JSON object a line.

``wandb-events.jsonl`` of older clients and what ``run.history(stream="system")`` exports from any:
``system.gpu.0.powerWatts`` and its like, without ``system.`` in newer ones, flat or nested, with
``/l:LABEL`` behind the key where several nodes log into one run. ``gpu.process.*`` repeats the
readings of the GPUs that the process uses and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.formats.cells import NAN, CellError, Clock, Quantity, read
from harness.formats.delimited import TORN
from harness.formats.jsontext import cell, flatten, parse_object
from harness.formats.recipe import refusal
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import GpuId, PowerKind, SampleBatch

NAME = "wandb jsonl"

NO_OBJECT = "line is no JSON object"
NO_TIME = "line without a readable time"
UNREADABLE = "unreadable readings, left out"
_TIME_KEYS = ("_timestamp", "timestamp", "_runtime")
_MIN_PERCENT = 5.0
"""Below it a percentage of two decimals says little about what it is a share of."""

_KEY = re.compile(r"(?:system[./])?gpu\.(\d{1,4})\.(\w+)(?:/l:(.+))?")
_NAME = re.compile(r"(?:system[./])?_gpu\.(\d{1,4})\.name(?:/l:(.+))?")
_SIGNATURE = re.compile(r'"(?:system[./])?gpu\.\d+\.\w+(?:/l:[^"]*)?"\s*:')
_NESTED = re.compile(r'"gpu"\s*:\s*\{\s*"\d+"\s*:\s*\{')
_QUANTITIES: Mapping[str, tuple[str, Quantity, str]] = {
    "powerWatts": ("power", Quantity.POWER, "w"),
    "enforcedPowerLimitWatts": ("limit", Quantity.POWER, "w"),
    "powerPercent": ("percent", Quantity.PERCENT, "%"),
    "gpu": ("utilization", Quantity.PERCENT, "%"),
    "memoryAllocatedBytes": ("memory", Quantity.MEMORY, "bytes"),
    "smClock": ("clock", Quantity.CLOCK_MHZ, "mhz"),
    "temp": ("temperature", Quantity.TEMPERATURE_C, "c"),
}


def claims(head: Head) -> Claim | None:
    """Whether its first object has keys of GPUs as W&B names them."""
    first = next(iter(head.lines), "").lstrip()
    if not first.startswith("{"):
        return None
    if match := _SIGNATURE.search(first):
        return Claim(score=90, why=f"W&B system metrics with the key {match[0].rstrip(': ')}")
    if _NESTED.search(first) and any(key in first for key in _TIME_KEYS):
        return Claim(score=80, why="W&B system metrics, nested by gpu and index")
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
        self._clock = Clock()
        self._time_key: str | None = None
        self._names: dict[tuple[str, int], str] = {}
        self._num_ticks = 0

    def chunks(self) -> Iterator[SampleBatch]:
        """The batches."""
        rows = Rows()
        for line in self._source.lines():
            # An object that is whole is whole wherever it stands.
            record = parse_object(line.text)
            if record is None:
                self._ledger.drop(TORN if line.torn else NO_OBJECT)
                continue
            self._enter(flatten(record), rows)
            if rows.is_full:
                yield rows.take()
        for trouble, count in self._source.troubles.items():
            self._ledger.count(trouble, count)
        if "power" not in self._ledger.columns:
            raise refusal(self._source.path, "no power: no key gpu.N.powerWatts")
        yield rows.take()

    def _enter(self, record: Mapping[str, Any], rows: Rows) -> None:
        gpus: dict[tuple[str, int], dict[str, float]] = {}
        for key, value in record.items():
            if (match := _NAME.fullmatch(key)) and isinstance(value, str):
                self._names.setdefault((match[2] or "", int(match[1])), value)
            match = _KEY.fullmatch(key)
            if match is None or match[2] not in _QUANTITIES:
                continue
            role, number = self._read(key, match[2], value)
            gpus.setdefault((match[3] or "", int(match[1])), {})[role] = number
        if not gpus:
            return
        t_s = self._time(record)
        if t_s is None:
            self._ledger.drop(NO_TIME, len(gpus))
            return
        for (host, index), numbers in gpus.items():
            self._add(t_s, host, index, numbers, rows)

    def _add(
        self, t_s: float, host: str, index: int, numbers: Mapping[str, float], rows: Rows
    ) -> None:
        gpu = GpuId(host=host, index=index, uuid=None, name=self._names.get((host, index)))
        rows.add(
            t_s,
            self._table.position(gpu),
            numbers.get("power", NAN),
            limit_w=self._limit_w(numbers),
            utilization_pct=numbers.get("utilization", NAN),
            memory_used_bytes=numbers.get("memory", NAN),
            sm_clock_mhz=numbers.get("clock", NAN),
            temperature_c=numbers.get("temperature", NAN),
        )

    def _read(self, key: str, name: str, value: Any) -> tuple[str, float]:
        role, quantity, unit = _QUANTITIES[name]
        try:
            number = read(cell(value), quantity, unit)
        except CellError:
            self._ledger.count(UNREADABLE)
            return role, NAN
        if role not in ("percent", *self._ledger.columns):
            self._ledger.columns[role] = key
            if role == "power" and key.startswith("system."):
                self._ledger.power_kind = PowerKind.AVERAGE
                self._ledger.note(
                    "W&B averages what it samples between two lines; what is shorter is not seen"
                )
        return role, number

    def _limit_w(self, numbers: Mapping[str, float]) -> float:
        if "limit" in numbers:
            return numbers["limit"]
        percent = numbers.get("percent", NAN)
        if not percent >= _MIN_PERCENT:
            return NAN
        self._ledger.columns.setdefault("limit", "powerWatts / powerPercent")
        self._ledger.note("the limit is worked out: powerWatts is powerPercent of it")
        return round(100.0 * numbers.get("power", NAN) / percent, 1)

    def _time(self, record: Mapping[str, Any]) -> float | None:
        if self._time_key is None:
            found = [key for key in _TIME_KEYS if key in record]
            if not found:
                return self._time_by_period()
            self._time_key = found[0]
            self._ledger.columns["time"] = self._time_key
        try:
            t_s = self._clock.read(cell(record.get(self._time_key)))
        except CellError:
            return None
        self._ledger.is_relative = self._clock.is_relative
        return t_s

    def _time_by_period(self) -> float | None:
        if self._period_s is None:
            raise refusal(
                self._source.path, f"no times ({', '.join(_TIME_KEYS)}); give --period SECONDS"
            )
        self._ledger.is_relative = True
        self._num_ticks += 1
        return (self._num_ticks - 1) * self._period_s
