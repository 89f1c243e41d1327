"""How far to trust a result: every ground that lowers it is named, the lowest one counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.samples import Account, GpuId, PowerKind
from harness.triage.bands import Table, TableLabel
from harness.triage.cuts import Limit
from harness.triage.result import Confidence
from harness.triage.states import State

_SLOW_PERIOD_S, _COARSE_PERIOD_S = 2.0, 10.0
_SOME_GAPS, _MANY_GAPS = 0.05, 0.20
_MUCH_UNKNOWN = 0.2
_ORDER = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What trust rests on; ``observed_s`` is the mean over GPUs."""

    accounts: Sequence[Account]
    gpus: Sequence[GpuId]
    limits: Sequence[Limit]
    table: Table | None
    shares: Mapping[State, float]
    has_utilization: bool
    observed_s: float
    job_sizes: Sequence[int]
    has_deadlock: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The confidence, and why it is not higher; where it is high, what it rests on."""

    confidence: Confidence
    reasons: tuple[str, ...]


def weigh(grounds: Grounds) -> Trust:
    """The confidence in a result."""
    found = [*_of_bands(grounds), *_of_sampling(grounds), *_of_evidence(grounds)]
    worst = min((c for c, _ in found), key=_ORDER.index, default=Confidence.HIGH)
    return Trust(confidence=worst, reasons=tuple(reason for _, reason in found))


def _of_bands(grounds: Grounds) -> list[tuple[Confidence, str]]:
    found: list[tuple[Confidence, str]] = []
    table = grounds.table
    if table is None:
        return [_uncalibrated(grounds)]
    names = {gpu.name for gpu in grounds.gpus if gpu.name}
    if not names:
        found.append(
            (
                Confidence.MEDIUM,
                f"the file names no device; the table {table.name} is for {table.device}",
            )
        )
    elif not names <= set(table.device_names):
        found.append(
            (
                Confidence.LOW,
                f"the table is for {table.device}, the GPUs are {', '.join(sorted(names))}",
            )
        )
    if table.label is not TableLabel.REAL:
        found.append((Confidence.MEDIUM, f"the table's figures are {table.label}, not calibrated"))
    incomplete = [b.state for b in table.bands if b.median_w is None]
    if incomplete:
        found.append((Confidence.MEDIUM, f"the table has no watts for {', '.join(incomplete)}"))
    found += [
        (Confidence.MEDIUM, f"the table cannot tell {o.below} from {o.above} by watts")
        for o in table.overlaps
        if grounds.shares.get(o.below, 0.0) + grounds.shares.get(o.above, 0.0) > 0.0
    ]
    return found


def _uncalibrated(grounds: Grounds) -> tuple[Confidence, str]:
    sources = sorted({limit.source for limit in grounds.limits if limit.watts is not None})
    if sources and all(limit.watts is not None for limit in grounds.limits):
        by = " and ".join(sources)
        return (
            Confidence.MEDIUM,
            f"uncalibrated: judged by the share of the enforced limit, which is from {by}",
        )
    why = "no power limit in the file or from the device name: judged by the trace's shape and by"
    return Confidence.LOW, f"{why} peers only; give --limit W"


def _of_sampling(grounds: Grounds) -> list[tuple[Confidence, str]]:
    found: list[tuple[Confidence, str]] = []
    periods = [a.period_s for a in grounds.accounts if a.period_s is not None]
    slowest = max(periods, default=None)
    if slowest is None:
        found.append((Confidence.LOW, "a single reading per GPU: no shape, no time"))
    elif slowest > _COARSE_PERIOD_S:
        found.append((Confidence.LOW, f"one sample every {slowest:.3g} s hides what is shorter"))
    elif slowest > _SLOW_PERIOD_S:
        found.append((Confidence.MEDIUM, f"one sample every {slowest:.3g} s hides what is shorter"))
    if any(a.is_aggregated for a in grounds.accounts):
        found.append((Confidence.LOW, "averages over long steps: shares only, no hang can be seen"))
    if any(a.is_relative and a.num_ticks > 1 for a in grounds.accounts):
        found.append((Confidence.MEDIUM, "no times in the file: the period is taken on trust"))
    paused_s = max(
        (sum(g.end_s - g.start_s for g in a.gaps) for a in grounds.accounts), default=0.0
    )
    share = paused_s / max(paused_s + grounds.observed_s, 1e-9)
    if share > _SOME_GAPS:
        level = Confidence.LOW if share > _MANY_GAPS else Confidence.MEDIUM
        found.append((level, f"the sampler paused for {share:.0%} of the time"))
    kinds = {a.power_kind for a in grounds.accounts}
    if len(kinds) > 1:
        found.append(
            (Confidence.MEDIUM, f"the files mix kinds of power: {', '.join(sorted(kinds))}")
        )
    elif kinds == {PowerKind.UNKNOWN} and grounds.table is not None:
        found.append((Confidence.MEDIUM, "whether power is averaged or instant is not said"))
    return found


def _of_evidence(grounds: Grounds) -> list[tuple[Confidence, str]]:
    found: list[tuple[Confidence, str]] = []
    if not grounds.has_utilization:
        level = Confidence.LOW if grounds.table is None else Confidence.MEDIUM
        found.append((level, "no utilization: waiting and idling look alike"))
    if grounds.shares.get(State.UNKNOWN, 0.0) > _MUCH_UNKNOWN:
        found.append(
            (Confidence.LOW, f"{grounds.shares[State.UNKNOWN]:.0%} of the time is unknown")
        )
    if any("power smoothing" in note.lower() for a in grounds.accounts for note in a.notes):
        found.append(
            (Confidence.LOW, "power smoothing: a hung GPU may burn watts; calibrate with it on")
        )
    if grounds.has_deadlock and max(grounds.job_sizes, default=0) == 1:
        found.append((Confidence.LOW, "a single GPU was seen: whom it waits for is unknown"))
    return found
