"""Labelled windows of one GPU model -> its power table, and how well the table tells them apart.

Rule of a threshold: the watts that minimise the balanced error (the mean of the two shares on the
wrong side), midway between the two window medians next to it. Its interval is the 95 % percentile
bootstrap over *phase windows*, for the samples inside one are not independent. Two states whose
balanced error exceeds 5 % are not separable: they get an overlap and no threshold. Every third
window of each phase is held out: it makes no band, it is what both classifiers are scored on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.errors import MetricError
from harness.samples import PowerKind, PowerScope
from harness.triage.bands import Band, Overlap, Provenance, Table, TableLabel, Threshold
from harness.triage.evaluate import Scores, score
from harness.triage.single import predict_by_baseline, predict_by_table
from harness.triage.states import State
from harness.triage.thresholds import RULE, find_cut, find_interval
from harness.triage.windows import FloatArray

MAX_ERROR = 0.05
HELD_OUT_EVERY = 3
_QUANTILES = (5.0, 50.0, 95.0)
# Beside neighbours, the pairs that triage asks a table for.
_ASKED = (
    (State.IDLE_BARE, State.IDLE_CONTEXT),
    (State.IDLE_CONTEXT, State.COMMUNICATION),
    (State.IDLE_CONTEXT, State.CHECKPOINT_OR_DEADLOCK),
    (State.COMMUNICATION, State.COMPUTE),
    (State.CHECKPOINT_OR_DEADLOCK, State.COMPUTE),
)
# What one window of one GPU cannot tell apart by any means: peers and time do.
SAME_IN_ONE_WINDOW: Mapping[State, State] = {
    State.CHECKPOINT_OR_DEADLOCK: State.COMMUNICATION,
    State.CHECKPOINT: State.IDLE_CONTEXT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSamples:
    """One window of one phase on one GPU, settling already cut off.

    Attributes:
        state: What the GPU was made to do.
        variant: One of several ways into that state, as ``memory_bound``, or None.
        t_s: Times, seconds, rising, length n >= 1.
        power_w: Board power, length n; NaN is left out.
        utilization_pct: Length n; NaN is unknown.
        memory_used_bytes: What was held; None is unknown.
        is_emulated: A stand-in, as a spin on a flag for a collective.
    """

    state: State
    variant: str | None
    t_s: FloatArray
    power_w: FloatArray
    utilization_pct: FloatArray
    memory_used_bytes: float | None = None
    is_emulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationMeta:
    """What the table says of itself; ``window_s`` is the length of the windows behind its bands."""

    name: str
    device: str
    device_names: tuple[str, ...]
    limit_w: float
    power_kind: PowerKind
    power_scope: PowerScope
    driver: str | None
    num_gpus: int
    label: TableLabel
    source: str
    date: str
    window_s: float = 1.0
    seed: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """A table with its scores on windows that did not make it.

    The scores are null where no window was held out. ``num_windows`` made the bands,
    ``num_held_out`` were scored.
    """

    table: Table
    confusion_watts: Scores | None
    confusion_baseline: Scores | None
    overlaps: tuple[Overlap, ...]
    num_windows: int
    num_held_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """The window medians of one phase window."""

    state: State
    variant: str | None
    power_w: FloatArray
    utilization_pct: FloatArray
    memory_used_bytes: float | None
    num_samples: int


def calibrate(phases: Sequence[PhaseSamples], meta: CalibrationMeta) -> CalibrationResult:
    """Make the table of one GPU model.

    Raises:
        MetricError: fewer than two states have a reading of power.
    """
    clusters = [c for c in (_cluster(p, meta.window_s) for p in phases) if len(c.power_w)]
    made, held = _hold_out(clusters)
    states = sorted({c.state for c in made}, key=lambda s: float(np.median(_pool(made, s))))
    if len(states) < 2:
        found = ", ".join(states) or "none"
        raise MetricError(
            f"calibration: readings of power for {len(states)} state(s) ({found}); a table needs at"
            " least two"
        )
    thresholds, overlaps = _separate(made, states, meta.seed)
    table = Table(
        name=meta.name,
        device=meta.device,
        device_names=meta.device_names,
        limit_w=meta.limit_w,
        power_kind=meta.power_kind,
        power_scope=meta.power_scope,
        driver=meta.driver,
        window_s=meta.window_s,
        label=meta.label,
        provenance=_provenance(phases, meta),
        bands=_bands(made, states, meta),
        thresholds=thresholds,
        overlaps=overlaps,
    )
    watts, baseline = _score(table, held)
    return CalibrationResult(
        table=table,
        confusion_watts=watts,
        confusion_baseline=baseline,
        overlaps=overlaps,
        num_windows=sum(len(c.power_w) for c in made),
        num_held_out=sum(len(c.power_w) for c in held),
    )


def _cluster(phase: PhaseSamples, window_s: float) -> _Cluster:
    known = np.isfinite(phase.power_w)
    t_s, power_w, pct = phase.t_s[known], phase.power_w[known], phase.utilization_pct[known]
    number = np.floor((t_s - t_s[0]) / window_s) if len(t_s) else t_s
    cuts = np.flatnonzero(np.diff(number)) + 1
    parts = [p for p in np.split(power_w, cuts) if len(p)]
    return _Cluster(
        state=phase.state,
        variant=phase.variant,
        power_w=np.array([np.median(p) for p in parts], dtype=np.float64),
        utilization_pct=np.array(
            [np.mean(p) for p in np.split(pct, cuts) if len(p)], dtype=np.float64
        ),
        memory_used_bytes=phase.memory_used_bytes,
        num_samples=len(power_w),
    )


def _hold_out(clusters: Sequence[_Cluster]) -> tuple[list[_Cluster], list[_Cluster]]:
    made: list[_Cluster] = []
    held: list[_Cluster] = []
    seen: dict[tuple[State, str | None], int] = {}
    for cluster in clusters:
        key = (cluster.state, cluster.variant)
        seen[key] = seen.get(key, 0) + 1
        (held if seen[key] % HELD_OUT_EVERY == 0 else made).append(cluster)
    return made, held


def _pool(clusters: Sequence[_Cluster], state: State) -> FloatArray:
    return np.concatenate([c.power_w for c in clusters if c.state is state])


def _separate(
    clusters: Sequence[_Cluster], states: Sequence[State], seed: int
) -> tuple[tuple[Threshold, ...], tuple[Overlap, ...]]:
    """Thresholds of neighbours and asked pairs; overlaps of all pairs."""
    rng = np.random.default_rng(seed)
    thresholds: list[Threshold] = []
    overlaps: list[Overlap] = []
    neighbours = set(itertools.pairwise(states))
    for below, above in itertools.combinations(states, 2):
        cut_w, error = find_cut(_pool(clusters, below), _pool(clusters, above))
        if error > MAX_ERROR:
            overlaps.append(Overlap(below=below, above=above, error_rate=round(error, 4)))
        elif (below, above) in neighbours or (below, above) in _ASKED:
            lows = [c.power_w for c in clusters if c.state is below]
            highs = [c.power_w for c in clusters if c.state is above]
            low_w, high_w = find_interval(lows, highs, rng)
            thresholds.append(
                Threshold(
                    below=below,
                    above=above,
                    watts=round(cut_w, 2),
                    low_w=low_w,
                    high_w=high_w,
                    rule=RULE,
                )
            )
    return tuple(thresholds), tuple(overlaps)


def _bands(
    clusters: Sequence[_Cluster], states: Sequence[State], meta: CalibrationMeta
) -> tuple[Band, ...]:
    bands: list[Band] = []
    for state in states:
        own = [c for c in clusters if c.state is state]
        for variant in sorted({c.variant for c in own}, key=lambda v: v or ""):
            part = [c for c in own if c.variant == variant]
            power_w = np.concatenate([c.power_w for c in part])
            pct = np.concatenate([c.utilization_pct for c in part])
            low_w, median_w, high_w = (
                round(float(q), 2) for q in np.percentile(power_w, _QUANTILES)
            )
            bands.append(
                Band(
                    state=state,
                    label=meta.label,
                    source=meta.source,
                    variant=variant,
                    low_w=low_w,
                    median_w=median_w,
                    high_w=high_w,
                    utilization_pct=round(float(np.nanmean(pct)), 1)
                    if np.isfinite(pct).any()
                    else None,
                    windows=len(power_w),
                    samples=sum(c.num_samples for c in part),
                )
            )
    return tuple(bands)


def _provenance(phases: Sequence[PhaseSamples], meta: CalibrationMeta) -> Provenance:
    return Provenance(
        source=meta.source,
        method=f"medians of {meta.window_s:g}-s windows, percentiles 5, 50, 95; {RULE}",
        date=meta.date,
        num_gpus=meta.num_gpus,
        emulated_collective=any(p.is_emulated and p.state is State.COMMUNICATION for p in phases),
        notes=meta.notes,
    )


def _score(table: Table, held: Sequence[_Cluster]) -> tuple[Scores | None, Scores | None]:
    if not held:
        return None, None
    truth: list[State] = []
    watts: list[State] = []
    baseline: list[State] = []
    for cluster in held:
        state = SAME_IN_ONE_WINDOW.get(cluster.state, cluster.state)
        truth += [state] * len(cluster.power_w)
        pct = cluster.utilization_pct
        watts += predict_by_table(table, cluster.power_w, pct, cluster.memory_used_bytes)
        baseline += predict_by_baseline(pct)
    return score(truth, watts), score(truth, baseline)
