"""Joules of a run's steady window from its telemetry: the counter first, watts as a cross-check.

Pure. A window that the samples do not cover well enough has no energy, and the reason is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from analysis.power_trace import PowerTrace
from harness.errors import HarnessError
from harness.metrics import CoveredEnergy, energy_from_counter, energy_over_gaps

MIN_COVERAGE = 0.8  # share of the window that the samples must span
CROSS_CHECK_TOLERANCE = 0.05  # counter against integrated watts
_MAX_GAP_PERIODS = 3.0  # a longer pause between two readings is not bridged
_DEVICE_SCOPES = ("gpu", "module")


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Joules over all GPUs; null with the ``reason`` where they are unknown."""

    joules: float | None
    method: str
    reason: str


def window_energy(
    traces: Sequence[PowerTrace], start_s: float, end_s: float, num_gpus: int
) -> Energy:
    """Energy of ``num_gpus`` GPUs between two unix times, scaled from what the samples cover."""
    if not any(p is not None or e is not None for t in traces for p, e in _readings(t)):
        return Energy(joules=None, method="", reason="no power reading")
    scopes = {t.scope for t in traces if t.scope in _DEVICE_SCOPES}
    if len(scopes) != 1:
        found = ", ".join(sorted({t.scope for t in traces}))
        return Energy(joules=None, method="", reason=f"power scope {found} is not one GPU's")
    devices = [t for t in traces if t.scope in scopes]
    if len(devices) != num_gpus:
        reason = f"telemetry of {len(devices)} GPUs for {num_gpus} ranks"
        return Energy(joules=None, method="", reason=reason)
    parts = [_one_gpu(_cut(t, start_s, end_s), end_s - start_s) for t in devices]
    for part in parts:
        if part.joules is None:
            return part
    methods = sorted({p.method for p in parts})
    notes = sorted({p.reason for p in parts if p.reason})
    total = sum(p.joules for p in parts if p.joules is not None)
    return Energy(joules=total, method="+".join(methods), reason="; ".join(notes))


def _one_gpu(trace: PowerTrace, window_s: float) -> Energy:
    try:
        counter = energy_from_counter(trace.t_s, trace.energy_j)
        gaps = [b - a for a, b in zip(trace.t_s, trace.t_s[1:], strict=False)]
        limit_s = _MAX_GAP_PERIODS * median(gaps)
        watts = energy_over_gaps(trace.t_s, trace.power_w, max_gap_s=limit_s)
    except HarnessError as error:
        return Energy(joules=None, method="", reason=f"{trace.gpu}: {error}")
    by_counter = _scaled(counter, window_s)
    by_watts = _scaled(watts, window_s)
    if by_counter is None and by_watts is None:
        covered = max(counter.covered_s, watts.covered_s)
        reason = f"{trace.gpu}: samples cover {covered:.1f} of {window_s:.1f} s"
        return Energy(joules=None, method="", reason=reason)
    if by_counter is None:
        return Energy(joules=by_watts, method="trapezoid", reason="")
    note = ""
    if by_watts is not None and abs(by_watts / by_counter - 1) > CROSS_CHECK_TOLERANCE:
        note = f"{trace.gpu}: watts give {by_watts / by_counter - 1:+.1%} against the counter"
    return Energy(joules=by_counter, method="counter", reason=note)


def _scaled(energy: CoveredEnergy, window_s: float) -> float | None:
    """Mean power over the covered time, held over the whole window."""
    if energy.energy_j <= 0 or energy.covered_s < MIN_COVERAGE * window_s:
        return None
    return energy.energy_j / energy.covered_s * window_s


def _cut(trace: PowerTrace, start_s: float, end_s: float) -> PowerTrace:
    kept = [i for i, t in enumerate(trace.t_s) if start_s <= t <= end_s]
    return PowerTrace(
        gpu=trace.gpu,
        scope=trace.scope,
        t_s=tuple(trace.t_s[i] for i in kept),
        power_w=tuple(trace.power_w[i] for i in kept),
        energy_j=tuple(trace.energy_j[i] for i in kept),
    )


def _readings(trace: PowerTrace) -> zip[tuple[float | None, float | None]]:
    return zip(trace.power_w, trace.energy_j, strict=True)
