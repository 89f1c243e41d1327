"""What triage finds, as plain data: for the terminal, Markdown, JSON, the picture and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.samples import Account, GpuId
from harness.triage.cuts import Basis, Limit
from harness.triage.evaluate import Evaluation
from harness.triage.stalls import Stall
from harness.triage.states import FOUND, Episode, State, StateArray, Verdict
from harness.triage.windows import Windows


class Confidence(StrEnum):
    """How far a result is to be trusted."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResult:
    """One GPU: shares of its observed time, and its episodes.

    ``snapshot_w`` and ``snapshot_pct`` are its only reading, where a file holds a single tick.
    """

    gpu: GpuId
    label: str
    limit: Limit
    basis: Basis
    observed_s: float
    shares: Mapping[State, float]
    episodes: tuple[Episode, ...]
    baseline_shares: Mapping[State, float]
    snapshot_w: float | None = None
    snapshot_pct: float | None = None
    snapshot_state: State | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """One job; ``gpus`` and ``odd_gpus`` are labels."""

    gpus: tuple[str, ...]
    verdict: Verdict
    reason: str
    odd_gpus: tuple[str, ...]
    lost_gpu_hours: float
    lost_money: float | None
    shares: Mapping[State, float]
    episodes: tuple[Episode, ...]
    stalls: tuple[Stall, ...]
    deciding: Stall | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnergy:
    """What may be said of a node meter: joules over the observed time, no verdict."""

    path: str
    joules: float
    observed_s: float
    mean_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Windows with their states, for the picture; ``labels`` by number of the GPU."""

    windows: Windows
    states: StateArray
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageResult:
    """Everything that triage says about some files together.

    Attributes:
        accounts: What each reader did with its file.
        table: Name of the table, or null.
        confidence: How far to trust it, with ``reasons``.
        window_s: Length of a window; null for a single tick.
        gpus: One per GPU with power of its own.
        absent: GPU -> why it has no power of its own.
        jobs: One per job; empty for a single tick.
        evaluation: Watts and utilization scored against the file's own labels, where it has any.
        refused: Why nothing is said, or null.
        energy: Of node meters.
        traces: For the picture.
        is_snapshot: Whether the files hold a single tick.
    """

    accounts: tuple[Account, ...]
    table: str | None
    confidence: Confidence
    reasons: tuple[str, ...]
    window_s: float | None
    gpus: tuple[GpuResult, ...]
    absent: Mapping[str, str]
    jobs: tuple[JobResult, ...]
    evaluation: Evaluation | None
    refused: str | None
    energy: tuple[NodeEnergy, ...]
    traces: Traces | None
    is_snapshot: bool


def exit_code(result: TriageResult, *, strict: bool) -> int:
    """0 fine (warnings too, unless strict), 1 found, 2 could not tell; the first of 1, 2, 0."""
    if result.refused is not None or not result.jobs:
        return 2
    codes = {_code(job.verdict, strict=strict) for job in result.jobs}
    return next(code for code in (1, 2, 0) if code in codes)


def refusal(reason: str, accounts: Sequence[Account] = ()) -> TriageResult:
    """A result that says nothing but why."""
    return TriageResult(
        accounts=tuple(accounts),
        table=None,
        confidence=Confidence.LOW,
        reasons=(reason,),
        window_s=None,
        gpus=(),
        absent={},
        jobs=(),
        evaluation=None,
        refused=reason,
        energy=(),
        traces=None,
        is_snapshot=False,
    )


def _code(verdict: Verdict, *, strict: bool) -> int:
    if verdict in FOUND:
        return 1
    if verdict is Verdict.UNKNOWN:
        return 2
    return int(strict and verdict in (Verdict.SLOW, Verdict.STARVING))
