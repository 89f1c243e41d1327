"""A recording of our own telemetry as a power source, played in real time.

Every recorded GPU row comes exactly once, when its own offset has passed; nothing is held or
interpolated, and rows of hosts are left out. Only ``t_unix_s`` is rewritten. The whole recording is
read and checked before it starts; after its end every GPU is a row of nulls. It does not loop.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.config import PowerSource
from harness.errors import ConfigError, RecordError
from harness.parse import parse
from harness.power.reading import Reading, silenced
from harness.samples import GpuSample, HostSample

ENDED = "recording ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """GPU rows in order of time; ``period_s`` is the median gap between a GPU's rows."""

    rows: tuple[GpuSample, ...]
    period_s: float
    torn: int


def read_recording(path: Path) -> Recording:
    """Read a telemetry file of ours, ``telemetry/node000.jsonl``.

    Raises:
        RecordError: it is missing, holds no row of a GPU, or a line is not ours; names
            ``file:line``.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordError(
            f"{path}: cannot read the recording ({error.strerror}); power.replay_path names a"
            " telemetry/node000.jsonl of an earlier run"
        ) from error
    parsed = [_row(path, number, line) for number, line in enumerate(lines[:-1], start=1)]
    rows = sorted((r for r in parsed if r is not None), key=lambda row: row.t_unix_s)
    if not rows:
        raise RecordError(
            f"{path}: no row of a GPU in {len(parsed)} lines; record one on a machine with GPUs"
            " (power=nvml), its telemetry/node000.jsonl can be replayed"
        )
    return Recording(rows=tuple(rows), period_s=_period_s(rows), torn=1 if lines[-1] else 0)


class ReplaySource:
    """Plays a recording from the first time it is read."""

    source = PowerSource.REPLAY

    def __init__(
        self,
        recording: Recording,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the recording; time starts at the first reading."""
        self._rows = recording.rows
        self._period_s = recording.period_s
        self._wall = wall
        self._monotonic = monotonic
        self._start: tuple[float, float] | None = None  # wall and monotonic clock, seconds
        self._next = 0
        self._last = {_identity(row): row for row in recording.rows}

    def read(self) -> Reading:
        """Give the rows that have come due since the last reading, stamped when they did."""
        if self._start is None:
            self._start = self._wall(), self._monotonic()
        start_unix_s, start_s = self._start
        elapsed_s = self._monotonic() - start_s
        first_s = self._rows[0].t_unix_s
        if elapsed_s > self._rows[-1].t_unix_s - first_s + self._period_s and not self._left():
            return self._ended(start_unix_s + elapsed_s)
        due: list[GpuSample] = []
        while self._left() and self._rows[self._next].t_unix_s - first_s <= elapsed_s:
            due.append(self._rows[self._next])
            self._next += 1
        stamped = tuple(replace(row, t_unix_s=start_unix_s + row.t_unix_s - first_s) for row in due)
        return Reading(samples=stamped, faults=(), reason=None)

    def close(self) -> None:
        """Nothing is held."""

    def _left(self) -> int:
        return len(self._rows) - self._next

    def _ended(self, t_unix_s: float) -> Reading:
        rows = (silenced(row, t_unix_s=t_unix_s, reason=ENDED) for row in self._last.values())
        return Reading(samples=tuple(rows), faults=(ENDED,), reason=None)


def _row(path: Path, number: int, line: bytes) -> GpuSample | None:
    try:
        value: Any = json.loads(line)
        if "host_cpu_pct" in value:
            parse(HostSample, value)
            return None
        return parse(GpuSample, value)
    except (ValueError, TypeError, ConfigError) as error:
        raise RecordError(
            f"{path}:{number}: not a telemetry row of ours ({error}); power.replay_path takes a"
            " telemetry/node000.jsonl of an earlier run"
        ) from error


def _identity(row: GpuSample) -> tuple[str, str | int | None]:
    return row.host, row.gpu_uuid if row.gpu_uuid is not None else row.gpu


def _period_s(rows: list[GpuSample]) -> float:
    gaps: list[float] = []
    before: dict[tuple[str, str | int | None], float] = {}
    for row in rows:
        identity = _identity(row)
        if identity in before:
            gaps.append(row.t_unix_s - before[identity])
        before[identity] = row.t_unix_s
    return statistics.median(gaps) if gaps else 0.0
