"""MLPerf power logs: ``:::MLLOG {...}`` lines whose key is ``power_reading``.

The meter is the node's, at its plug or its power supplies, so no GPU can be judged by it: the
samples are one pseudo-GPU called ``node`` of scope ``node``, good for energy over time only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from harness.formats.cells import CellError, Clock, Quantity, read
from harness.formats.delimited import TORN
from harness.formats.jsontext import cell, parse_object
from harness.formats.recipe import refusal
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import GpuId, PowerScope, SampleBatch

NAME = "mlperf mllog"

NO_OBJECT = "MLLOG line without a JSON object"
OTHER_LINE = "line is no MLLOG line"
NO_TIME = "reading without a readable time_ms"
UNREADABLE = "unreadable value"
_PREFIX = ":::MLLOG"
_KEY = "power_reading"


def claims(head: Head) -> Claim | None:
    """Whether it has MLLOG lines."""
    if any(line.lstrip().startswith(_PREFIX) for line in head.lines):
        return Claim(score=90, why=f"MLPerf log ({_PREFIX} lines)")
    return None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """Open it as a stream."""
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    ledger.power_scope = PowerScope.NODE
    ledger.columns = {"time": "time_ms", "power": f"value of {_KEY}"}
    ledger.note("the meter is the whole node's: energy over time, and no verdict on a GPU")
    if options.period_s is not None:
        ledger.note("--period is ignored: the readings carry times")
    return ReaderStream(table, ledger, _chunks(source, table, ledger))


def _chunks(source: TextSource, table: GpuTable, ledger: Ledger) -> Iterator[SampleBatch]:
    rows, clock, found = Rows(), Clock(), False
    for line in source.lines():
        text = line.text.strip()
        if not text.startswith(_PREFIX):
            ledger.drop(TORN if line.torn else OTHER_LINE)
            continue
        record = parse_object(text.removeprefix(_PREFIX))
        if record is None:
            ledger.drop(TORN if line.torn else NO_OBJECT)
            continue
        if record.get("key") != _KEY:
            continue
        found = True
        t_s, power_w = _reading(record, clock, ledger)
        if math.isnan(t_s):
            continue
        gpu = table.position(GpuId(host="", index=None, uuid="node", name=None))
        rows.add(t_s, gpu, power_w)
        if rows.is_full:
            yield rows.take()
    for trouble, count in source.troubles.items():
        ledger.count(trouble, count)
    if not found:
        raise refusal(source.path, f"no power: the MLPerf log has no {_KEY} event")
    yield rows.take()


def _reading(record: dict[str, Any], clock: Clock, ledger: Ledger) -> tuple[float, float]:
    """Time and watts; the time is NaN where the reading cannot be used."""
    try:
        t_s = clock.read(cell(record.get("time_ms")))
    except CellError:
        ledger.drop(NO_TIME)
        return math.nan, math.nan
    try:
        return t_s, read(cell(record.get("value")), Quantity.POWER, "w")
    except CellError:
        ledger.drop(UNREADABLE)
        return math.nan, math.nan
