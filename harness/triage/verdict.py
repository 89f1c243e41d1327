"""A job's states and stalls -> one verdict, the odd GPUs, and what was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.triage.stalls import Outcome, Stall
from harness.triage.states import (
    IDLE_STATES,
    LOST_STATES,
    MIN_WINDOWS,
    State,
    Verdict,
)

_WEDGED_S = 30.0
_STARVING_SHARE = 0.3
_SLOW_SHARE = 0.3
_THROTTLED_SHARE = 0.1
_IDLE_SHARE = 0.10
_UNKNOWN_SHARE = 0.5
_SECONDS_PER_HOUR = 3600.0
_SLOWING = (
    State.CHECKPOINT,
    State.CHECKPOINT_OR_DEADLOCK,
    State.COMMUNICATION,
    State.THROTTLED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvidence:
    """What a verdict rests on.

    Attributes:
        seconds: State -> observed GPU-seconds over all GPUs of the job.
        seconds_of_gpu: The same per GPU.
        stalls: Every stall of the job.
        is_wedged_at_end: Whether a GPU was wedged when it was last seen.
        can_tell_hangs: False for averages over a trainer's step, in which no hang can be seen.
        num_windows: Windows of the GPU that has most.
        faulty_s: GPU -> seconds without a reading in a file whose meters report faults.
    """

    seconds: Mapping[State, float]
    seconds_of_gpu: Mapping[int, Mapping[State, float]]
    stalls: Sequence[Stall]
    is_wedged_at_end: bool
    can_tell_hangs: bool
    num_windows: int
    faulty_s: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict with its reason, who was odd, and the stall that decided it, if one did."""

    verdict: Verdict
    reason: str
    odd: tuple[int, ...]
    stall: Stall | None


def judge(evidence: JobEvidence) -> Judgement:
    """The verdict on one job."""
    if evidence.num_windows < MIN_WINDOWS:
        return _say(Verdict.UNKNOWN, f"fewer than {MIN_WINDOWS} windows of it were seen")
    found = _judge_hang(evidence) if evidence.can_tell_hangs else None
    return found or _judge_faults(evidence) or _judge_shares(evidence)


def lost_gpu_hours(evidence: JobEvidence) -> float:
    """GPU-hours that made no progress: stalls, wedges, starvation, and dead ranks' idle time."""
    seconds = sum(evidence.seconds.get(state, 0.0) for state in LOST_STATES)
    seconds += sum(s.observed_s * len(s.dead) for s in evidence.stalls if s.is_crash)
    return seconds / _SECONDS_PER_HOUR


def _judge_hang(evidence: JobEvidence) -> Judgement | None:
    hung = [s for s in evidence.stalls if s.state is State.DEADLOCK]
    crashed = [s for s in hung if s.is_crash]
    is_wedged = evidence.seconds.get(State.WEDGED, 0.0) >= _WEDGED_S
    if is_wedged and evidence.is_wedged_at_end:
        return _judge_wedged(evidence)
    if crashed:
        stall = max(crashed, key=lambda s: s.observed_s)
        why = f"a rank lost its process and its peers waited for {stall.observed_s:.0f} s"
        return _say(Verdict.CRASHED_RANK, why, stall.dead, stall)
    if hung:
        stall = max(hung, key=lambda s: s.observed_s)
        how = "and still wait" if stall.outcome is Outcome.OPEN else "until their processes ended"
        why = f"its GPUs waited for {stall.observed_s:.0f} s, flat, {how}"
        return _say(Verdict.DEADLOCK, why, stall.odd, stall)
    stopped = [
        s for s in evidence.stalls if s.is_long and s.is_resumed and s.had_work and not s.hot
    ]
    stopped = [s for s in stopped if s.state is not State.UNKNOWN]
    if stopped:
        stall = max(stopped, key=lambda s: s.observed_s)
        why = f"its GPUs waited for {stall.observed_s:.0f} s and then went on"
        return _say(Verdict.STALLED_SAVE, why, stall.odd, stall)
    return _judge_wedged(evidence) if is_wedged else None


def _judge_faults(evidence: JobEvidence) -> Judgement | None:
    faulty = [gpu for gpu, seconds in evidence.faulty_s.items() if seconds >= _WEDGED_S]
    if not faulty:
        return None
    longest_s = max(evidence.faulty_s[gpu] for gpu in faulty)
    why = f"a meter reads a fault (ERR!, GPU requires reset) for {longest_s:.0f} s"
    return _say(Verdict.WEDGED, why, faulty)


def _judge_wedged(evidence: JobEvidence) -> Judgement:
    odd = [
        g for g, seconds in evidence.seconds_of_gpu.items() if seconds.get(State.WEDGED, 0.0) > 0
    ]
    return _say(Verdict.WEDGED, "utilization is high, watts are low, no process is there", odd)


def _judge_shares(evidence: JobEvidence) -> Judgement:
    total = sum(evidence.seconds.values())
    idle = sum(evidence.seconds.get(state, 0.0) for state in IDLE_STATES)
    unknown = evidence.seconds.get(State.UNKNOWN, 0.0)
    busy = total - idle - unknown
    odd = _odd_over(evidence.stalls)
    if total <= 0 or unknown >= _UNKNOWN_SHARE * total:
        return _say(Verdict.UNKNOWN, "most of its time fits no state")
    if busy < _IDLE_SHARE * total:
        return _say(Verdict.IDLE, "next to nothing ran")
    starved = evidence.seconds.get(State.DATA_STARVATION, 0.0) / busy
    slowed = sum(evidence.seconds.get(state, 0.0) for state in _SLOWING) / busy
    throttled = [
        gpu
        for gpu, seconds in evidence.seconds_of_gpu.items()
        if seconds.get(State.THROTTLED, 0.0) > _THROTTLED_SHARE * sum(seconds.values())
    ]
    if throttled:
        odd = throttled if len(throttled) < len(evidence.seconds_of_gpu) else []
        why = f"{len(throttled)} of {len(evidence.seconds_of_gpu)} GPUs were throttled"
        return _say(Verdict.SLOW, why, odd)
    if starved >= _STARVING_SHARE and starved >= slowed:
        return _say(
            Verdict.STARVING, f"{starved:.0%} of its busy time its host fed it nothing", odd
        )
    if slowed >= _SLOW_SHARE:
        return _say(Verdict.SLOW, f"{slowed:.0%} of its busy time it waited", odd)
    return _say(Verdict.HEALTHY, f"it waited or starved {slowed + starved:.0%} of its time", odd)


def _odd_over(stalls: Sequence[Stall]) -> list[int]:
    """GPUs that stood out for most of the time of all lasting stalls."""
    lasting = [s for s in stalls if s.num_cells >= MIN_WINDOWS]
    total = sum(s.observed_s for s in lasting)
    seconds: dict[int, float] = {}
    for stall in lasting:
        for gpu in stall.odd:
            seconds[gpu] = seconds.get(gpu, 0.0) + stall.observed_s
    return sorted(gpu for gpu, s in seconds.items() if s > total / 2.0)


def _say(
    verdict: Verdict, reason: str, odd: Sequence[int] = (), stall: Stall | None = None
) -> Judgement:
    return Judgement(verdict=verdict, reason=reason, odd=tuple(sorted(odd)), stall=stall)
