"""The windows of a calibration run: which state each GPU was in by design, and what it drew.

A rank's events say when a phase began, telemetry what its GPU drew; both are joined here. What the
sensor shows in the first ``settle_s`` seconds of a window is left out: it still holds what was
before. Reads one run folder; decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import RecordError
from harness.record.read import read_events
from harness.record.schema import Event, EventKind
from harness.triage.states import State

MIN_SAMPLES = 3
MEMORY_BURN_VARIANT = "memory_bound"
BARE_MAX_BYTES = 2**30
"""More than a driver keeps for itself; whoever holds it is a process that is not ours."""

# By phase and role. On its own GPU a rank that writes looks idle; its peers look as in a hang. A
# rank that is late is in no state of its own: nothing is learnt from it.
_STATES: Mapping[tuple[str, str], State] = {
    ("bare_idle", "all"): State.IDLE_BARE,
    ("context_idle", "all"): State.IDLE_CONTEXT,
    ("compute_burn", "all"): State.COMPUTE,
    ("memory_burn", "all"): State.COMPUTE,
    ("collective_wait", "waits"): State.COMMUNICATION,
    ("starved_loader", "all"): State.DATA_STARVATION,
    ("blocking_save", "waits"): State.CHECKPOINT_OR_DEADLOCK,
    ("blocking_save", "writes"): State.CHECKPOINT,
}

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseWindow:
    """One GPU in one window after settling; ``utilization_pct`` is NaN where unknown.

    ``memory_used_bytes`` is the most that was held. ``load`` says how real it was: ``real``,
    ``emulated`` or ``slept``. ``round`` counts the windows of one phase in one run from 0.
    """

    run_id: str
    gpu: str
    phase: str
    role: str
    load: str
    window: int
    round: int
    state: State | None
    variant: str | None
    t_s: FloatArray
    power_w: FloatArray
    utilization_pct: FloatArray
    memory_used_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRun:
    """The windows of one run and what its telemetry says of the meter; each set is sorted.

    ``notes`` are sentences about windows that are missing or doubtful.
    """

    windows: tuple[PhaseWindow, ...]
    gpus: tuple[str, ...]
    limits_w: tuple[float, ...]
    power_kinds: tuple[str, ...]
    power_scopes: tuple[str, ...]
    recording: Mapping[str, Any] | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """The telemetry of one GPU as columns of one length, and the row that came first."""

    t_s: FloatArray
    power_w: FloatArray
    utilization_pct: FloatArray
    memory_bytes: FloatArray
    rows: tuple[Mapping[str, Any], ...]


def read_phase_run(run_root: Path) -> PhaseRun:
    """Join the events and the telemetry of one run.

    Raises:
        RecordError: a record cannot be read; names the file.
    """
    events = read_events(run_root).records
    gpu_of_rank = _gpus(events)
    traces = _traces(run_root)
    windows: list[PhaseWindow] = []
    notes: list[str] = []
    own = {gpu: traces[gpu] for gpu in gpu_of_rank.values() if gpu in traces}
    for rank, gpu in sorted(gpu_of_rank.items()):
        if gpu not in own:
            notes.append(f"{run_root.name}: no telemetry of rank {rank}'s GPU {gpu}")
            continue
        found, why = _windows(run_root.name, gpu, [e for e in events if e.rank == rank], own[gpu])
        windows += found
        notes += why
    rows = [row for trace in own.values() for row in trace.rows]
    return PhaseRun(
        windows=tuple(windows),
        gpus=tuple(sorted(own)),
        limits_w=tuple(
            sorted({float(r["enforced_limit_w"]) for r in rows if r["enforced_limit_w"]})
        ),
        power_kinds=tuple(sorted({str(row["power_kind"]) for row in rows})),
        power_scopes=tuple(sorted({str(row["power_scope"]) for row in rows})),
        recording=_recording(events),
        notes=tuple(notes),
    )


def _gpus(events: Sequence[Event]) -> dict[int, str]:
    """The GPU of each rank: by its uuid, or by host and local rank where there is none."""
    found: dict[int, str] = {}
    for event in events:
        if event.rank is None:
            continue
        if event.kind is EventKind.RANK_STARTED:
            found[event.rank] = f"{event.detail['host']}:{event.detail['local_rank']}"
        if event.kind is EventKind.RANK_READY and event.detail.get("gpu_uuid") is not None:
            found[event.rank] = str(event.detail["gpu_uuid"])
    return found


def _recording(events: Sequence[Event]) -> Mapping[str, Any] | None:
    started = [e for e in events if e.kind is EventKind.SAMPLER_STARTED]
    return started[0].detail.get("recording") if started else None


def _windows(
    run_id: str, gpu: str, events: Sequence[Event], trace: _Trace
) -> tuple[list[PhaseWindow], list[str]]:
    ends = {e.detail["window"]: e.t_unix_s for e in events if e.kind is EventKind.PHASE_END}
    windows: list[PhaseWindow] = []
    notes: list[str] = []
    for event in (e for e in events if e.kind is EventKind.PHASE_BEGIN):
        detail = event.detail
        name = f"{run_id}: {gpu}, window {detail['window']} ({detail['phase']})"
        if detail["window"] not in ends:
            notes.append(f"{name} has no end and is left out")
            continue
        start_s = event.t_unix_s + float(detail["settle_s"])
        end_s = min(ends[detail["window"]], start_s + float(detail["window_s"]))
        inside = (trace.t_s >= start_s) & (trace.t_s <= end_s)
        kept = inside & np.isfinite(trace.power_w)
        if int(kept.sum()) < MIN_SAMPLES:
            notes.append(f"{name} has {int(kept.sum())} readings of power and is left out")
            continue
        held = trace.memory_bytes[kept]
        if detail["phase"] == "bare_idle" and np.nanmax(np.append(held, 0.0)) > BARE_MAX_BYTES:
            notes.append(
                f"{name}: {np.nanmax(held) / 1e9:.1f} GB were held, by a process that is not ours;"
                " it is left out"
            )
            continue
        windows.append(_window(run_id, gpu, detail, trace, kept))
    return windows, notes


def _window(
    run_id: str, gpu: str, detail: Mapping[str, Any], trace: _Trace, kept: NDArray[np.bool_]
) -> PhaseWindow:
    phase, role = str(detail["phase"]), str(detail["role"])
    held = trace.memory_bytes[kept]
    return PhaseWindow(
        run_id=run_id,
        gpu=gpu,
        phase=phase,
        role=role,
        load=str(detail["load"]),
        window=int(detail["window"]),
        round=int(detail["round"]),
        state=_STATES.get((phase, role)),
        variant=MEMORY_BURN_VARIANT if phase == "memory_burn" else None,
        t_s=trace.t_s[kept],
        power_w=trace.power_w[kept],
        utilization_pct=trace.utilization_pct[kept],
        memory_used_bytes=float(np.nanmax(held)) if np.isfinite(held).any() else None,
    )


def _traces(run_root: Path) -> dict[str, _Trace]:
    """Telemetry by GPU, under its uuid and under host and index alike; torn lines are passed over.

    Plain parsing: at ten readings a second a run of eight GPUs has 1e5 rows.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for path in sorted((run_root / "telemetry").glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
            if b'"power_w"' not in line:
                continue
            try:
                row: Mapping[str, Any] = json.loads(line)
                keys = {f"{row['host']}:{row['gpu']}", str(row["gpu_uuid"])}
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(f"{path}:{number}: not a telemetry row ({error})") from error
            for key in keys - {"None"}:
                rows.setdefault(key, []).append(row)
    return {gpu: _trace(own) for gpu, own in rows.items()}


def _trace(rows: Sequence[Mapping[str, Any]]) -> _Trace:
    def column(name: str) -> FloatArray:
        values = [np.nan if row[name] is None else float(row[name]) for row in rows]
        return np.array(values, dtype=np.float64)

    return _Trace(
        t_s=column("t_unix_s"),
        power_w=column("power_w"),
        utilization_pct=column("utilization_pct"),
        memory_bytes=column("memory_used_bytes"),
        rows=tuple(rows),
    )
