"""Levels and stalls -> the state of every window of a job, and the shares of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.triage.classify import BoolArray, LevelArray
from harness.triage.stalls import Stall
from harness.triage.states import HANG_S, STATE_CODE, STATE_ORDER, Level, State, StateArray
from harness.triage.timeline import Timeline
from harness.triage.windows import FloatArray, Windows

WORKING_MIN_PCT = 3.0
_LONG_S = 30.0

_OF_LEVEL = {
    Level.UNKNOWN: State.UNKNOWN,
    Level.BARE: State.IDLE_BARE,
    Level.HOST: State.IDLE_CONTEXT,
    Level.WAIT: State.COMMUNICATION,
    Level.PARTIAL: State.DATA_STARVATION,
    Level.COMPUTE: State.COMPUTE,
    Level.THROTTLED: State.THROTTLED,
    Level.WEDGED: State.WEDGED,
    Level.TRANSFER: State.COMMUNICATION,
}
_CODE_OF_LEVEL = np.array([STATE_CODE[_OF_LEVEL[Level(i)]] for i in range(len(Level))], np.int8)


def state_of_level(level: Level) -> State:
    """What a level is called without peers and time."""
    return _OF_LEVEL[level]


def find_states(
    windows: Windows,
    levels: LevelArray,
    utilization_pct: FloatArray,
    timeline: Timeline,
    stalls: Sequence[Stall],
) -> StateArray:
    """The state of every window of one job, as a position in ``STATE_ORDER``.

    A GPU that runs nothing between two stretches of work less than a hang apart is starved by its
    host; so is one that runs a few small kernels all the time.
    """
    states = _CODE_OF_LEVEL[levels]
    host = levels == Level.HOST
    row = np.searchsorted(timeline.cell, windows.cell)
    hungry = host & (
        _is_between_work(timeline)[row] | _keeps_working(windows, host, utilization_pct)
    )
    states[hungry] = STATE_CODE[State.DATA_STARVATION]
    stall_code = np.full(len(timeline.cell), -1, dtype=np.int8)
    for stall in stalls:
        first, last = np.searchsorted(timeline.cell, (stall.first_cell, stall.last_cell))
        stall_code[first : last + 1] = STATE_CODE[stall.state]
    inside = stall_code[row]
    waits = (inside >= 0) & (levels == Level.WAIT)
    states[waits] = inside[waits]
    short = STATE_CODE[State.COMMUNICATION]
    holds_up = (inside >= 0) & (inside != short) & host
    states[holds_up] = inside[holds_up]
    return states


def find_shares(
    states: StateArray, duration_s: FloatArray, *, paused_s: float = 0.0
) -> dict[State, float]:
    """Share of the time in each state that occurs; they sum to 1.

    Args:
        states: One per window.
        duration_s: Observed seconds of each window.
        paused_s: Seconds in which the sampler paused; what happened then is unknown.
    """
    seconds = np.bincount(states, weights=duration_s, minlength=len(STATE_ORDER))
    seconds[STATE_CODE[State.UNKNOWN]] += paused_s
    total = float(seconds.sum())
    if total <= 0:
        return {}
    return {s: float(x) / total for s, x in zip(STATE_ORDER, seconds, strict=True) if x > 0}


def paused_s(windows: Windows) -> float:
    """Seconds between the first and the last sample of some GPUs that no window covers."""
    if not len(windows.gpu):
        return 0.0
    step_s = windows.start_s[1:] - windows.end_s[:-1]
    same = windows.gpu[1:] == windows.gpu[:-1]
    return float(np.maximum(step_s[same], 0.0).sum())


def find_job_states(
    windows: Windows, states: StateArray, timeline: Timeline, stalls: Sequence[Stall]
) -> StateArray:
    """The state of a job in each of its cells: that of the stall, else of most of its GPUs."""
    row = np.searchsorted(timeline.cell, windows.cell)
    shape = (len(timeline.cell), len(STATE_ORDER))
    counts = np.bincount(row * shape[1] + states, minlength=shape[0] * shape[1]).reshape(shape)
    job = counts.argmax(axis=1).astype(np.int8)
    for stall in stalls:
        first, last = np.searchsorted(timeline.cell, (stall.first_cell, stall.last_cell))
        job[first : last + 1] = STATE_CODE[stall.state]
    return job


def _keeps_working(windows: Windows, host: BoolArray, utilization_pct: FloatArray) -> BoolArray:
    """Windows in a long stretch of next to no kernels that are yet more than none."""
    if not len(host):
        return host
    change = (windows.gpu[1:] != windows.gpu[:-1]) | (host[1:] != host[:-1])
    starts = np.append(0, np.flatnonzero(change) + 1)
    lengths = np.diff(np.append(starts, len(host)))
    seconds = np.add.reduceat(windows.duration_s, starts)
    mean_pct = np.add.reduceat(np.nan_to_num(utilization_pct), starts) / lengths
    return host & np.repeat((seconds >= _LONG_S) & (mean_pct > WORKING_MIN_PCT), lengths)


def _is_between_work(timeline: Timeline) -> BoolArray:
    """Rows whose stretch without work is shorter than a hang and has work on both sides."""
    active = timeline.has_work
    before = np.where(active, timeline.end_s, -np.inf)
    after = np.where(active, timeline.start_s, np.inf)
    last_s = np.maximum.accumulate(before)
    next_s = np.minimum.accumulate(after[::-1])[::-1]
    return active | (next_s - last_s < HANG_S)
