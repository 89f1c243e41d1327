"""Windows -> levels -> jobs -> stalls -> states, of all GPUs at once; the heart of triage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.samples import FAULT_NOTE, Account
from harness.triage.assign import find_shares, find_states
from harness.triage.bands import Table
from harness.triage.classify import (
    BoolArray,
    LevelArray,
    find_bursts,
    find_levels,
    usable_utilization,
)
from harness.triage.collect import Collected
from harness.triage.cuts import Limit, find_limits, find_tops, make_cuts
from harness.triage.jobs import group_jobs
from harness.triage.stalls import Stall, find_stalls
from harness.triage.states import STATE_CODE, Level, State, StateArray
from harness.triage.timeline import Timeline, make_timeline
from harness.triage.verdict import JobEvidence, Judgement, judge
from harness.triage.windows import FloatArray, Windows, gap_before


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnalysis:
    """One job in the middle of triage: its windows with states, cells and stalls."""

    gpus: tuple[int, ...]
    rows: BoolArray
    states: StateArray
    timeline: Timeline
    stalls: tuple[Stall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All windows with levels and states, and the jobs."""

    levels: LevelArray
    states: StateArray
    pauses: BoolArray
    utilization_pct: FloatArray
    limits: tuple[Limit, ...]
    jobs: tuple[JobAnalysis, ...]


def analyse(collected: Collected, *, table: Table | None, limit_w: float | None) -> Analysis:
    """Windows -> levels -> jobs -> stalls -> states."""
    windows = collected.windows
    limits = find_limits(windows, collected.gpus, limit_w)
    tops = find_tops(windows, collected.stream_of_gpu)
    cuts = make_cuts(windows, table=table, limits=limits, tops_w=tops)
    utilization = usable_utilization(windows, collected.gpus, cuts)
    levels = find_levels(windows, cuts, utilization)
    bursts, pauses = find_bursts(windows, cuts), gap_before(windows)
    states = np.full(len(levels), STATE_CODE[State.UNKNOWN], dtype=np.int8)
    jobs: list[JobAnalysis] = []
    for job in group_jobs(windows, levels, collected.gpus, collected.clock_of_gpu):
        rows = np.isin(windows.gpu, job)
        own, own_levels = windows.take(rows), levels[rows]
        timeline = make_timeline(own, own_levels, bursts[rows], pauses[rows], len(job))
        stalls = find_stalls(
            own, own_levels, timeline, {g: collected.stream_of_gpu[g] for g in job}
        )
        states[rows] = find_states(own, own_levels, utilization[rows], timeline, stalls)
        jobs.append(
            JobAnalysis(gpus=job, rows=rows, states=states[rows], timeline=timeline, stalls=stalls)
        )
    _blur_idle(states, windows, limits)
    return Analysis(
        levels=levels,
        states=states,
        pauses=pauses,
        utilization_pct=utilization,
        limits=limits,
        jobs=tuple(jobs),
    )


def _blur_idle(states: StateArray, windows: Windows, limits: Sequence[Limit]) -> None:
    """Without a limit and without memory, which of the two idles it is cannot be known."""
    no_limit = np.array([limit.watts is None for limit in limits], dtype=np.bool_)
    blurred = ~np.isfinite(windows.memory_used_bytes) & (states == STATE_CODE[State.IDLE_CONTEXT])
    if len(limits):
        states[blurred & no_limit[windows.gpu]] = STATE_CODE[State.IDLE]


def job_judgement(collected: Collected, analysis: Analysis, job: JobAnalysis) -> Judgement:
    """The verdict on one job of an analysis."""
    return judge(job_evidence(collected, analysis, job))


def job_evidence(collected: Collected, analysis: Analysis, job: JobAnalysis) -> JobEvidence:
    """What the verdict on one job rests on."""
    windows, rows = collected.windows, job.rows
    gpu, states, seconds = windows.gpu[rows], analysis.states[rows], windows.duration_s[rows]
    masks = {g: gpu == g for g in job.gpus}
    accounts = accounts_of(collected, job)
    return JobEvidence(
        seconds=_seconds(states, seconds),
        seconds_of_gpu={g: _seconds(states[m], seconds[m]) for g, m in masks.items() if m.any()},
        stalls=job.stalls,
        is_wedged_at_end=_is_wedged_at_end(gpu, analysis.levels[rows]),
        can_tell_hangs=not any(account.is_aggregated for account in accounts),
        num_windows=max(int(m.sum()) for m in masks.values()),
        faulty_s=_faulty_seconds(accounts, masks, windows.power_w[rows], seconds),
    )


def _faulty_seconds(
    accounts: Sequence[Account],
    masks: Mapping[int, BoolArray],
    power_w: FloatArray,
    seconds: FloatArray,
) -> dict[int, float]:
    """Seconds without watts per GPU, where a file says that its meters report faults."""
    notes = [note for account in accounts for note in account.notes]
    if not any(note.startswith(FAULT_NOTE) for note in notes):
        return {}
    blind = ~np.isfinite(power_w)
    return {gpu: float(seconds[mask & blind].sum()) for gpu, mask in masks.items()}


def accounts_of(collected: Collected, job: JobAnalysis) -> tuple[Account, ...]:
    """The accounts of the streams that the GPUs of a job are from; none of a live source."""
    if not collected.accounts:
        return ()
    streams = {collected.stream_of_gpu[g] for g in job.gpus}
    return tuple(collected.accounts[s] for s in sorted(streams))


def _seconds(states: StateArray, seconds: FloatArray) -> dict[State, float]:
    total = float(seconds.sum())
    return {state: share * total for state, share in find_shares(states, seconds).items()}


def _is_wedged_at_end(gpu: NDArray[np.int32], levels: LevelArray) -> bool:
    last = np.append(gpu[1:] != gpu[:-1], True)
    return bool((levels[last] == Level.WEDGED).any())
