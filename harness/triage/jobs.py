"""GPUs -> jobs, before any verdict: who works and waits at the same times belongs together.

A 688 W group and a 128 W group are never averaged. GPUs of several hosts of one job come together
by the same rule. Two jobs that never differ in time or watts cannot be told apart: they count as
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.samples import GpuId
from harness.triage.classify import MINORITY, BoolArray, LevelArray
from harness.triage.states import ACTIVE_LEVELS, HANG_S, HOT_LEVELS, MIN_WINDOWS, Level
from harness.triage.windows import FloatArray, Windows

_TOGETHER = 0.3  # of the time in which one of two GPUs is hot, both are at work
_WAIT_TOGETHER = 0.5
_SAME_WORK = 1.5  # ratio of watts at work, at most
_MAX_CELLS = 4096
_WAITING = (Level.WAIT, Level.WEDGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Levels on a common grid: rows are GPUs, columns cells of time."""

    seconds: float  # of one column
    level: LevelArray  # -1 where a GPU was not observed
    power_w: FloatArray

    def has(self, *levels: Level) -> BoolArray:
        return np.isin(self.level, levels)


def group_jobs(
    windows: Windows,
    levels: LevelArray,
    gpus: Sequence[GpuId],
    clock_of_gpu: Sequence[int],
) -> tuple[tuple[int, ...], ...]:
    """Numbers of the GPUs of each job, idle ones by host at the end.

    Args:
        windows: In order of GPU and time.
        levels: One per window.
        gpus: Identity by number.
        clock_of_gpu: GPUs of different clocks (files without times of their own) never share a job.
    """
    # A GPU without a single reading of power is in no job.
    seen = [int(g) for g in np.unique(windows.gpu[np.isfinite(windows.power_w)])]
    if not seen:
        return ()
    grid = _make_grid(windows, levels, len(gpus))
    worked = grid.has(*ACTIVE_LEVELS, *_WAITING).sum(axis=1)
    busy = [g for g in seen if worked[g] >= min(MIN_WINDOWS, (grid.level[g] >= 0).sum())]
    clock = np.asarray(clock_of_gpu)
    linked = _links(grid, busy) & (clock[busy][:, None] == clock[busy][None, :])
    jobs = [
        part
        for component in _components(linked)
        for part in _split(grid, [busy[i] for i in component])
    ]
    rest = [g for g in seen if g not in set(busy)]
    jobs = _adopt_odd_ranks(grid, jobs, rest, gpus)
    taken = {g for job in jobs for g in job}
    idle: dict[tuple[int, str], list[int]] = {}
    for g in rest:
        if g not in taken:
            idle.setdefault((int(clock[g]), gpus[g].host), []).append(g)
    ordered = sorted(tuple(sorted(job)) for job in jobs)
    return (*ordered, *(tuple(members) for members in idle.values()))


def _make_grid(windows: Windows, levels: LevelArray, num_gpus: int) -> _Grid:
    cells, column = np.unique(windows.cell, return_inverse=True)
    stride = -(-len(cells) // _MAX_CELLS)
    keep = column % stride == 0
    shape = (num_gpus, -(-len(cells) // stride))
    level = np.full(shape, -1, dtype=np.int8)
    power_w = np.full(shape, np.nan)
    rows, columns = windows.gpu[keep], column[keep] // stride
    level[rows, columns] = levels[keep]
    power_w[rows, columns] = windows.power_w[keep]
    seconds = float(np.median(windows.duration_s)) * stride
    return _Grid(seconds=seconds, level=level, power_w=power_w)


def _links(grid: _Grid, busy: Sequence[int]) -> BoolArray:
    """Which pairs of busy GPUs work together."""
    rows = np.asarray(busy, dtype=np.int64)
    hot = grid.has(*HOT_LEVELS)[rows].astype(np.float32)
    act = grid.has(*ACTIVE_LEVELS)[rows].astype(np.float32)
    wait = grid.has(*_WAITING)[rows].astype(np.float32)
    seen = (grid.level[rows] >= 0).astype(np.float32)
    either = hot @ seen.T + seen @ hot.T - hot @ hot.T
    any_act = act @ seen.T + seen @ act.T - act @ act.T
    base = np.where(either >= MIN_WINDOWS, either, any_act)
    work = (act @ act.T >= _TOGETHER * base) & (base > 0)
    unhindered = grid.has(Level.COMPUTE, Level.TRANSFER, Level.PARTIAL)[rows]
    work &= _is_same_work(grid.power_w[rows], unhindered)
    waits = np.minimum(wait.sum(axis=1)[:, None], wait.sum(axis=1)[None, :])
    idle = (act.sum(axis=1)[:, None] == 0) & (act.sum(axis=1)[None, :] == 0)
    return work | (idle & (waits > 0) & (wait @ wait.T >= _WAIT_TOGETHER * waits))


def _is_same_work(power_w: FloatArray, at_work: BoolArray) -> BoolArray:
    """Whether two GPUs draw about the same at work; one that was always throttled fits any."""
    pairs = zip(power_w, at_work, strict=True)
    medians = np.array([np.median(p[at]) if at.any() else np.nan for p, at in pairs])
    ratio = medians[:, None] / np.maximum(medians[None, :], 1e-9)
    return ~((ratio > _SAME_WORK) | (ratio < 1.0 / _SAME_WORK))


def _components(linked: BoolArray) -> list[list[int]]:
    left, found = set(range(len(linked))), list[list[int]]()
    while left:
        frontier, members = {min(left)}, set[int]()
        while frontier:
            members |= frontier
            reached = np.flatnonzero(linked[sorted(frontier)].any(axis=0))
            frontier = {int(i) for i in reached} - members
        left -= members
        found.append(sorted(members))
    return found


def _split(grid: _Grid, members: list[int]) -> list[list[int]]:
    """Take out GPUs that for the length of a hang did the opposite of the others.

    A rank cannot wait in a collective for minutes while its peers go on computing. The other way
    round it can: a few that compute while all others wait are odd ranks, and stay.
    """
    if len(members) < 2:
        return [members]
    hot, cold = grid.has(*HOT_LEVELS)[members], grid.has(*_WAITING, Level.HOST, Level.BARE)[members]
    seen = np.maximum((grid.level[members] >= 0).sum(axis=0), 1)
    most_hot, most_cold = hot.sum(axis=0) * 2 >= seen, cold.sum(axis=0) * 2 > seen
    left_out = [m for i, m in enumerate(members) if _lasts(cold[i] & most_hot, grid.seconds)]
    odd = [m for i, m in enumerate(members) if _lasts(hot[i] & most_cold, grid.seconds)]
    if len(odd) > MINORITY * len(members):
        left_out += [m for m in odd if m not in left_out]
    kept = [m for m in members if m not in left_out]
    if not left_out or not kept:
        return [members]
    parts = _components(_links(grid, left_out))
    return [kept, *([left_out[i] for i in part] for part in parts)]


def _lasts(mask: BoolArray, seconds: float) -> bool:
    """Whether a mask holds without a break for as long as a hang."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return bool(len(edges)) and float((edges[1::2] - edges[::2]).max()) * seconds >= HANG_S


def _adopt_odd_ranks(
    grid: _Grid, jobs: list[list[int]], rest: Sequence[int], gpus: Sequence[GpuId]
) -> list[list[int]]:
    """A few GPUs that hold a context while all others of their hosts wait are odd ranks of theirs.

    Only where the job was never seen at work: a GPU that held a context then was no part of it.
    """
    held = grid.has(Level.HOST)
    adopted = [list(job) for job in jobs]
    for job in adopted:
        if grid.has(*HOT_LEVELS)[job].any() or not grid.has(*_WAITING)[job].any():
            continue
        hosts = {gpus[g].host for g in job}
        odd = [g for g in rest if gpus[g].host in hosts and held[g].mean() > 0.5]
        if 0 < len(odd) <= max(1.0, MINORITY * (len(job) + len(odd))):
            job.extend(odd)
    return adopted
