"""A trainer's own history with power as average, minimum and maximum of each logged step.

A JSON list of objects, an object with ``log_history`` (as trainers of transformers save it), or one
object a line. The rows are averages over minutes: shares of time can be told from them, a hang
cannot. The trainer logs of one process, so there is one GPU, index 0 unless a key says another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from harness.formats.cells import NAN, CellError, Clock, Quantity, read
from harness.formats.jsontext import cell, parse_object
from harness.formats.recipe import refusal
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import GpuId, PowerKind, SampleBatch

NAME = "trainer json"

NO_RECORD = "entry is no JSON object"
NO_POWER = "entry without power"
NO_TIME = "entry without a readable time"
UNREADABLE = "entry with an unreadable power"
OUT_OF_ORDER = "average not between minimum and maximum"
ALL_ZERO = "entry whose power is 0 throughout: nothing was read"
_AVERAGES = ("power_avg", "power_avg_w", "power_mean", "avg_power", "gpu_power_avg")
_TIMES = ("timestamp", "time", "_timestamp", "_runtime")
_UTILIZATIONS = ("util", "utilization", "gpu_util", "util_avg")
_TEMPERATURES = ("temp", "temperature", "gpu_temp", "temp_avg")
_SIGNATURE = re.compile(rf'"({"|".join(_AVERAGES)})"\s*:')


def claims(head: Head) -> Claim | None:
    """Whether it is JSON with an average power among its keys."""
    text = head.text.lstrip("\0 \t\r\n")
    match = _SIGNATURE.search(text)
    if match is None or not text.startswith(("[", "{")):
        return None
    return Claim(score=85, why=f"a trainer's JSON history with {match[1]}")


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """Open it as a stream.

    Raises:
        FormatError: the text is no JSON of that shape.
    """
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    ledger.is_aggregated = True
    ledger.power_kind = PowerKind.AVERAGE
    ledger.note("power is an average over a logged step; what happened within a step is not seen")
    entries = _entries(source)
    for trouble, count in source.troubles.items():
        ledger.count(trouble, count)
    return ReaderStream(table, ledger, _Reader(entries, options, table, ledger).chunks())


def _entries(source: TextSource) -> Sequence[Any]:
    text = source.read_all().lstrip("\ufeff")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = [line for line in text.splitlines() if line.strip()]
        first = parse_object(lines[0]) if lines else None
        if first is None:
            raise refusal(source.path, "the JSON is cut or damaged") from error
        return [parse_object(line) for line in lines]
    if isinstance(value, dict):
        history = cast("dict[str, Any]", value).get("log_history")
        return cast("list[Any]", history) if isinstance(history, list) else [value]
    if isinstance(value, list):
        return cast("list[Any]", value)
    raise refusal(source.path, "the JSON holds no list of logged steps")


class _Reader:
    """One pass over the entries."""

    def __init__(
        self, entries: Sequence[Any], options: Options, table: GpuTable, ledger: Ledger
    ) -> None:
        self._entries = entries
        self._period_s = options.period_s
        self._table = table
        self._ledger = ledger
        self._clock = Clock()
        self._num_steps = 0

    def chunks(self) -> Iterator[SampleBatch]:
        """The batches."""
        rows = Rows()
        for entry in self._entries:
            if isinstance(entry, dict):
                self._enter(cast("dict[str, Any]", entry), rows)
            else:
                self._ledger.drop(NO_RECORD)
            if rows.is_full:
                yield rows.take()
        if not self._clock.has_zone:
            self._ledger.note("times carry no zone and are read as UTC")
        yield rows.take()

    def _enter(self, entry: Mapping[str, Any], rows: Rows) -> None:
        key = next((key for key in _AVERAGES if key in entry), None)
        if key is None:
            self._ledger.drop(NO_POWER)
            return
        power_w = self._power_w(entry, key)
        t_s = self._time(entry)
        if power_w is None or t_s is None:
            return
        self._ledger.columns.setdefault("power", key)
        gpu = self._table.position(GpuId(host="", index=0, uuid=None, name=None))
        rows.add(
            t_s,
            gpu,
            power_w,
            utilization_pct=self._number(
                entry, "utilization", _UTILIZATIONS, Quantity.PERCENT, is_zero_missing=False
            ),
            temperature_c=self._number(
                entry, "temperature", _TEMPERATURES, Quantity.TEMPERATURE_C, is_zero_missing=True
            ),
        )

    def _power_w(self, entry: Mapping[str, Any], key: str) -> float | None:
        """Average watts, or None where the entry is dropped."""
        try:
            average, low, high = (
                read(cell(entry.get(name)), Quantity.POWER, "w")
                for name in (key, *_bounds_of(key, entry))
            )
        except CellError:
            self._ledger.drop(UNREADABLE)
            return None
        if average == 0.0 and not high > 0.0:
            self._ledger.drop(ALL_ZERO)
            return None
        if low > average or high < average:
            self._ledger.drop(OUT_OF_ORDER)
            return None
        return average

    def _number(
        self,
        entry: Mapping[str, Any],
        role: str,
        keys: Sequence[str],
        quantity: Quantity,
        *,
        is_zero_missing: bool,
    ) -> float:
        key = next((key for key in keys if key in entry), None)
        if key is None:
            return NAN
        try:
            value = read(cell(entry[key]), quantity)
        except CellError:
            self._ledger.count(f"unreadable {role}, left out")
            return NAN
        self._ledger.columns.setdefault(role, key)
        return NAN if is_zero_missing and value == 0.0 else value

    def _time(self, entry: Mapping[str, Any]) -> float | None:
        key = self._ledger.columns.get("time") or next((k for k in _TIMES if k in entry), None)
        if key is None:
            return self._time_by_period()
        self._ledger.columns["time"] = key
        try:
            t_s = self._clock.read(cell(entry.get(key)))
        except CellError:
            self._ledger.drop(NO_TIME)
            return None
        self._ledger.is_relative = self._clock.is_relative
        return t_s

    def _time_by_period(self) -> float:
        if self._period_s is None:
            raise refusal(
                self._ledger.path, f"no times ({', '.join(_TIMES)}); give --period SECONDS"
            )
        self._ledger.is_relative = True
        self._num_steps += 1
        return (self._num_steps - 1) * self._period_s


def _bounds_of(key: str, entry: Mapping[str, Any]) -> tuple[str, str]:
    """The keys of the minimum and the maximum beside an average; absent ones read as missing."""
    word = "mean" if "mean" in key else "avg"
    low, high = key.replace(word, "min"), key.replace(word, "max")
    return (low if low in entry else "", high if high in entry else "")
