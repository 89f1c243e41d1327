"""A recording by calibration phase as a power source: each GPU plays what its rank is doing.

It stands in for a meter where there is no GPU, so that a calibration can be run from end to end.
The phase of a rank is read from its events, the watts come from the recording, and what a sensor
does to watts (a mean over the last second, nvml.h) is done here, so that settling matters. The
packaged recording is made up; its provenance says so and goes into every record.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml

from harness.config import CalibrationPhase, PowerSource
from harness.errors import ConfigError, RecordError
from harness.parse import parse
from harness.power.reading import Reading
from harness.record.run_dir import RunDir
from harness.record.schema import EventKind
from harness.samples import GpuSample, PowerKind, PowerScope

NOT_STARTED = "no rank has started yet"
_SUFFIXES = (".yaml", ".yml")
_STEP_PER_WINDOW = 37  # samples; each window and each GPU begins elsewhere in its segment
_STEP_PER_GPU = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one phase draws: readings of one period each, of one length, played round and round."""

    power_w: tuple[float, ...]
    utilization_pct: tuple[float, ...]
    memory_used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRecording:
    """A recording by phase; ``is_synthetic`` where no meter has ever shown these watts."""

    name: str
    is_synthetic: bool
    provenance: str
    device: str
    enforced_limit_w: float
    period_s: float
    sensor_average_s: float
    segments: Mapping[str, Segment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """Which segment a GPU plays, for which window of the calibration."""

    segment: str
    window: int


def is_by_phase(name_or_path: str) -> bool:
    """Whether a replay path means a recording by phase: YAML, or the name of a packaged one."""
    return name_or_path.endswith(_SUFFIXES) or name_or_path in packaged_recordings()


def packaged_recordings() -> tuple[str, ...]:
    """Names of the recordings by phase that come with the package."""
    files = resources.files("harness.power").iterdir()
    return tuple(sorted(Path(f.name).stem for f in files if f.name.endswith(_SUFFIXES)))


def read_phase_recording(name_or_path: str) -> PhaseRecording:
    """Read a recording by phase, packaged or a file.

    Raises:
        RecordError: it is missing, not YAML, or not a recording by phase; says what is wrong.
    """
    path: Any = Path(name_or_path)
    if name_or_path in packaged_recordings():
        path = resources.files("harness.power").joinpath(f"{name_or_path}.yaml")
    try:
        plain: object = yaml.safe_load(path.read_text(encoding="utf-8"))
        recording = parse(PhaseRecording, cast("Any", plain))
    except (OSError, ValueError, TypeError, yaml.YAMLError, ConfigError) as error:
        raise RecordError(
            f"{name_or_path}: not a recording by phase ({error}); packaged are"
            f" {', '.join(packaged_recordings())}"
        ) from error
    _check(name_or_path, recording)
    return recording


def _check(name: str, recording: PhaseRecording) -> None:
    needed = {CalibrationPhase.BARE_IDLE.value, CalibrationPhase.CONTEXT_IDLE.value}
    if missing := needed - set(recording.segments):
        raise RecordError(f"{name}: no segment {', '.join(sorted(missing))}: it is played between")
    for phase, segment in recording.segments.items():
        if not 0 < len(segment.power_w) == len(segment.utilization_pct):
            raise RecordError(
                f"{name}: segments.{phase}: {len(segment.power_w)} of power_w and"
                f" {len(segment.utilization_pct)} of utilization_pct; expected as many of both"
            )


class PhaseFollower:
    """Knows what the ranks of one host are doing, from the events that they write."""

    def __init__(self, run_dir: RunDir, host: str) -> None:
        """Follow the ranks of ``host`` in ``run_dir``."""
        self._events = run_dir.events("rank").parent
        self._host = host
        self._offsets: dict[Path, int] = {}
        self._gpu_of: dict[Path, int] = {}
        self._playing: dict[Path, Playing] = {}

    def playing(self) -> Mapping[int, Playing]:
        """What each GPU plays now, by its index: the local rank."""
        for path in sorted(self._events.glob("rank*.jsonl")):
            for event in self._new_events(path):
                self._take(path, event)
        return {gpu: self._playing[path] for path, gpu in self._gpu_of.items()}

    def _new_events(self, path: Path) -> Iterator[dict[str, Any]]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the rest of it comes at the next tick
                self._offsets[path] = self._offsets.get(path, 0) + len(line)
                yield json.loads(line)

    def _take(self, path: Path, event: Mapping[str, Any]) -> None:
        detail: Mapping[str, Any] = event["detail"]
        if event["kind"] == EventKind.RANK_STARTED and detail["host"] == self._host:
            self._gpu_of[path] = int(detail["local_rank"])
            self._playing[path] = Playing(segment=CalibrationPhase.BARE_IDLE.value, window=0)
        elif event["kind"] == EventKind.RANK_READY:
            self._playing[path] = Playing(segment=CalibrationPhase.CONTEXT_IDLE.value, window=0)
        elif event["kind"] == EventKind.PHASE_BEGIN:
            # A rank that is late, or writes on the host, leaves its GPU idle in its context.
            is_idle = detail["role"] in {"late", "writes"}
            segment = CalibrationPhase.CONTEXT_IDLE.value if is_idle else str(detail["phase"])
            self._playing[path] = Playing(segment=segment, window=int(detail["window"]))
        elif event["kind"] == EventKind.PHASE_END:
            between = CalibrationPhase.CONTEXT_IDLE
            if detail["phase"] == CalibrationPhase.BARE_IDLE:
                between = CalibrationPhase.BARE_IDLE
            self._playing[path] = Playing(segment=between.value, window=int(detail["window"]))


class PhaseReplaySource:
    """Plays a recording by phase, one GPU per rank that has started."""

    source = PowerSource.REPLAY

    def __init__(
        self,
        recording: PhaseRecording,
        playing: Callable[[], Mapping[int, Playing]],
        *,
        host: str,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Play ``recording`` as ``playing`` says, which gives what each GPU plays now."""
        self._recording = recording
        self._playing = playing
        self._host = host
        self._wall = wall
        self._recent: dict[int, deque[tuple[float, float, float]]] = {}

    def read(self) -> Reading:
        """Give one row per GPU: the means over the sensor's time up to now."""
        t_unix_s = self._wall()
        rows = tuple(
            self._row(gpu, playing, t_unix_s) for gpu, playing in sorted(self._playing().items())
        )
        return Reading(samples=rows, faults=(), reason=None if rows else NOT_STARTED)

    def close(self) -> None:
        """Nothing is held."""

    def _row(self, gpu: int, playing: Playing, t_unix_s: float) -> GpuSample:
        recording = self._recording
        segment = recording.segments[playing.segment]
        start = playing.window * _STEP_PER_WINDOW + gpu * _STEP_PER_GPU
        at = (start + int(t_unix_s / recording.period_s)) % len(segment.power_w)
        recent = self._recent.setdefault(gpu, deque())
        recent.append((t_unix_s, segment.power_w[at], segment.utilization_pct[at]))
        while recent[0][0] <= t_unix_s - recording.sensor_average_s:
            recent.popleft()
        return GpuSample(
            t_unix_s=t_unix_s,
            host=self._host,
            gpu=gpu,
            gpu_uuid=None,
            power_w=round(sum(w for _, w, _ in recent) / len(recent), 3),
            power_kind=PowerKind.AVERAGE,
            power_scope=PowerScope.GPU,
            enforced_limit_w=recording.enforced_limit_w,
            energy_j=None,
            utilization_pct=round(sum(u for _, _, u in recent) / len(recent), 1),
            memory_used_bytes=segment.memory_used_bytes,
            sm_clock_mhz=None,
            temperature_c=None,
            clock_event_reasons=None,
            gpm=None,
            reason=f"replay of {recording.name}: {recording.provenance}",
        )
