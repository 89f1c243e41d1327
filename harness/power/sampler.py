"""The telemetry sampler: a power source and the host's meters, read on a schedule, onto disk.

Ticks are multiples of the interval from the start, so a slow reading delays one tick and shifts
none; ticks that passed meanwhile are counted as missed. Between ticks the process blocks. A full
disk ends it with a RecordError: silence would look like a sleeping GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.config import PowerSource
from harness.errors import ConfigError
from harness.power.amd_smi import AmdSmiSource
from harness.power.bounded import BoundedSource
from harness.power.none import NoneSource
from harness.power.nvml_source import NvmlSource
from harness.power.phase_replay import (
    PhaseFollower,
    PhaseReplaySource,
    is_by_phase,
    read_phase_recording,
)
from harness.power.reading import Reading
from harness.power.replay import ReplaySource, read_recording
from harness.record.run_dir import EventWriter, JsonlWriter, RunDir
from harness.record.schema import EventKind
from harness.samples import HostSample

NVML_TIMEOUT_S = 2.0
"""A reading takes milliseconds; a driver that needs longer is stuck, and the tick is null."""
NVML_OPEN_TIMEOUT_S = 30.0
"""Without persistence mode the driver wakes every GPU at the first call, seconds for each."""
NVML_MIN_INTERVAL_S = 0.05
"""Sensors read faster than 20 Hz answer NotSupported or zero."""
AMD_SMI_TIMEOUT_S = 2.0
AMD_SMI_OPEN_TIMEOUT_S = 30.0
"""AMD SMI's calls are bounded as NVML's are; its driver too may wake a GPU first."""
FAULT_REPEAT_S = 60.0
"""A fault that lasts is an event again after this long, not at every tick."""


class Source(Protocol):
    """Where watts come from; structural, a backend does not know of it."""

    source: PowerSource

    def read(self) -> Reading:
        """Give the rows of one tick."""
        ...

    def close(self) -> None:
        """Let go of the meter."""
        ...


class Meter(Protocol):
    """Where the row of the host comes from."""

    def read(self, power_reason: str | None) -> HostSample:
        """Read the host once; ``power_reason`` says why there are no GPU rows, or is null."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSource:
    """A source that is ready, and the reason why it has no GPU to read, or null.

    ``recording`` says of a recording by phase what it stands for: name, device, provenance.
    """

    source: Source
    reason: str | None
    recording: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What one run of the sampler did; ``longest_gap_s`` is between the ends of two ticks."""

    num_ticks: int
    num_missed_ticks: int
    num_gpu_rows: int
    num_null_power_rows: int
    longest_gap_s: float
    cpu_s: float
    stopped_by: str


def open_source(
    wanted: PowerSource,
    *,
    host: str,
    interval_s: float,
    replay_path: Path | None,
    run_dir: RunDir | None = None,
) -> OpenSource:
    """Open the source that was asked for; ``auto`` is NVML or AMD SMI, whose driver answers.

    A recording by phase follows the ranks of ``run_dir``.

    Raises:
        ConfigError: the interval is shorter than NVML's sensors bear, or a replay names no file.
        RecordError: the recording cannot be replayed.
    """
    if wanted is PowerSource.NONE:
        return _none("power.source=none")
    if wanted is PowerSource.REPLAY:
        if replay_path is None:
            raise ConfigError("power.source=replay: name the recording with power.replay_path=FILE")
        if run_dir is not None and is_by_phase(str(replay_path)):
            return _open_phases(str(replay_path), run_dir, host)
        return OpenSource(source=ReplaySource(read_recording(replay_path)), reason=None)
    reasons: list[str] = []
    if wanted is not PowerSource.AMD_SMI:
        opened = _open_nvml(host, interval_s=interval_s, is_optional=wanted is PowerSource.AUTO)
        if wanted is PowerSource.NVML or opened.reason is None:
            return opened
        opened.source.close()
        reasons.append(opened.reason)
    opened = _open_amd_smi(host)
    if wanted is PowerSource.AMD_SMI or opened.reason is None:
        return opened
    opened.source.close()
    return _none("; ".join((*reasons, opened.reason)))


def _open_nvml(host: str, *, interval_s: float, is_optional: bool) -> OpenSource:
    source = BoundedSource(
        NvmlSource(host), timeout_s=NVML_TIMEOUT_S, first_timeout_s=NVML_OPEN_TIMEOUT_S
    )
    reason = source.read().reason
    is_used = reason is None or not is_optional
    if is_used and interval_s < NVML_MIN_INTERVAL_S:
        source.close()
        raise ConfigError(
            f"power.interval_s={interval_s:g}: NVML's sensors answer at most 20 times a second;"
            f" use {NVML_MIN_INTERVAL_S} or more"
        )
    return OpenSource(source=source, reason=reason)


def _open_amd_smi(host: str) -> OpenSource:
    source = BoundedSource(
        AmdSmiSource(host), timeout_s=AMD_SMI_TIMEOUT_S, first_timeout_s=AMD_SMI_OPEN_TIMEOUT_S
    )
    return OpenSource(source=source, reason=source.read().reason)


def sample(
    source: Source,
    meter: Meter,
    telemetry: JsonlWriter,
    events: EventWriter,
    *,
    interval_s: float,
    wait: Callable[[float], str | None],
    monotonic: Callable[[], float] = time.monotonic,
    cpu_time: Callable[[], float] = time.process_time,
) -> Counts:
    """Sample until ``wait`` says why to stop.

    Args:
        source: Gives the GPU rows; a reading without rows says why.
        meter: Gives the row of the host, at every tick.
        telemetry: Takes the rows, one line each.
        events: Takes the faults.
        interval_s: Seconds between ticks.
        wait: Blocks for so many seconds and gives null, or at once the reason to stop.
        monotonic: Clock of the schedule, seconds.
        cpu_time: CPU seconds of this process.

    Raises:
        RecordError: the disk is full.
    """
    faults = FaultLog(events, monotonic)
    start_s = last_s = monotonic()
    start_cpu_s = cpu_time()
    tick = num_ticks = num_gpu_rows = num_null = 0
    longest_gap_s = 0.0
    while True:
        reading = source.read()
        for row in (*reading.samples, meter.read(reading.reason)):
            telemetry.append(row)
        faults.note(reading.faults)
        now_s = monotonic()
        longest_gap_s, last_s = max(longest_gap_s, now_s - last_s), now_s
        num_gpu_rows += len(reading.samples)
        num_null += sum(row.power_w is None for row in reading.samples)
        num_ticks += 1
        tick = max(tick, int((now_s - start_s) / interval_s)) + 1
        if stopped_by := wait(max(0.0, start_s + tick * interval_s - now_s)):
            break
    return Counts(
        num_ticks=num_ticks,
        num_missed_ticks=tick - num_ticks,
        num_gpu_rows=num_gpu_rows,
        num_null_power_rows=num_null,
        longest_gap_s=longest_gap_s,
        cpu_s=cpu_time() - start_cpu_s,
        stopped_by=stopped_by,
    )


class FaultLog:
    """Writes a ``sampler_fault`` event when a kind of fault begins, and rarely while it lasts."""

    def __init__(self, events: EventWriter, monotonic: Callable[[], float]) -> None:
        """Store where events go."""
        self._events = events
        self._monotonic = monotonic
        self._last_s: dict[str, float] = {}
        self._unwritten: dict[str, int] = {}

    def note(self, faults: tuple[str, ...]) -> None:
        """Record the faults of one tick.

        Raises:
            RecordError: the disk is full.
        """
        now_s = self._monotonic()
        for fault in faults:
            self._unwritten[fault] = self._unwritten.get(fault, 0) + 1
            if now_s - self._last_s.get(fault, -float("inf")) >= FAULT_REPEAT_S:
                self._last_s[fault] = now_s
                num_ticks = self._unwritten.pop(fault)
                self._events.write(EventKind.SAMPLER_FAULT, fault=fault, num_ticks=num_ticks)


def _open_phases(name_or_path: str, run_dir: RunDir, host: str) -> OpenSource:
    recording = read_phase_recording(name_or_path)
    follower = PhaseFollower(run_dir, host)
    return OpenSource(
        source=PhaseReplaySource(recording, follower.playing, host=host),
        reason=None,
        recording={
            "name": recording.name,
            "device": recording.device,
            "is_synthetic": recording.is_synthetic,
            "provenance": recording.provenance,
        },
    )


def _none(reason: str) -> OpenSource:
    return OpenSource(source=NoneSource(reason), reason=reason)
