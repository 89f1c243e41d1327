"""Our own telemetry, ``telemetry/node000.jsonl`` of a run, as a stream.

Rows of hosts are not GPU samples and are only counted. One file holds one kind of reading: rows of
another kind than the first are dropped and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from harness.errors import ConfigError
from harness.formats.cells import NAN
from harness.formats.delimited import TORN
from harness.formats.text import Head, Line, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.parse import parse
from harness.samples import GpuId, GpuSample, PowerKind, PowerScope, SampleBatch

NAME = "wattline jsonl"

NOT_OURS = "line that is no telemetry row of ours"
OTHER_KIND = "row of another kind or scope of power than the first"
THROTTLING = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)


def claims(head: Head) -> Claim | None:
    """Sure of a JSON line with our own keys."""
    for line in head.lines[:4]:
        if line.startswith("{") and '"t_unix_s"' in line and '"host"' in line:
            return Claim(score=95, why="JSON lines with t_unix_s and host, our own telemetry")
    return None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:  # noqa: ARG001 - shape
    """The stream of such a file."""
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    names = ("power_w", "enforced_limit_w", "utilization_pct", "memory_used_bytes", "sm_clock_mhz")
    ours = ("power", "limit", "utilization", "memory", "clock")
    ledger.columns.update(zip(ours, names, strict=True))
    return ReaderStream(table, ledger, _chunks(source, table, ledger))


def _chunks(source: TextSource, table: GpuTable, ledger: Ledger) -> Iterator[SampleBatch]:
    rows = Rows()
    first: tuple[PowerKind, PowerScope] | None = None
    for line in source.lines():
        sample = _sample(line, ledger)
        if sample is None:
            continue
        kind = (sample.power_kind, sample.power_scope)
        if first is None and sample.power_w is not None:
            first = ledger.power_kind, ledger.power_scope = kind
        if first is not None and kind != first and sample.power_w is not None:
            ledger.drop(OTHER_KIND)
            continue
        _add(rows, table, sample)
        if rows.is_full:
            yield rows.take()
    yield rows.take()
    for trouble, count in source.troubles.items():
        ledger.count(trouble, count)


def _sample(line: Line, ledger: Ledger) -> GpuSample | None:
    try:
        row: Any = json.loads(line.text)
    except ValueError:
        ledger.drop(TORN if line.torn else NOT_OURS)
        return None
    if isinstance(row, dict) and "host_cpu_pct" in row:
        ledger.count("rows of hosts, not of GPUs")
        return None
    try:
        return parse(GpuSample, cast("object", row))
    except ConfigError:
        ledger.drop(NOT_OURS)
        return None


def _add(rows: Rows, table: GpuTable, sample: GpuSample) -> None:
    gpu = GpuId(host=sample.host, index=sample.gpu, uuid=sample.gpu_uuid, name=None)
    reasons = sample.clock_event_reasons
    rows.add(
        sample.t_unix_s,
        table.position(gpu),
        _known(sample.power_w),
        limit_w=_known(sample.enforced_limit_w),
        utilization_pct=_known(sample.utilization_pct),
        memory_used_bytes=_known(sample.memory_used_bytes),
        sm_clock_mhz=_known(sample.sm_clock_mhz),
        temperature_c=_known(sample.temperature_c),
        throttled=-1 if reasons is None else int(bool(THROTTLING.intersection(reasons))),
    )


def _known(value: float | None) -> float:
    return NAN if value is None else float(value)
