"""Stalls of a job: stretches in which its GPUs wait and (but for a few) none computes.

What a stall was is told by how it ends, how long it lasted and who did not wait. A pause of the
sampler inside one is not bridged: only observed seconds count, and because work may hide in the
pause, a stall with pauses must be seen for twice as long before it is a hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from harness.triage.classify import MINORITY, NO_PROCESS_MAX_BYTES, LevelArray
from harness.triage.states import (
    ACTIVE_LEVELS,
    CRASH_S,
    HANG_S,
    HOT_LEVELS,
    MIN_WINDOWS,
    Level,
    State,
)
from harness.triage.timeline import Timeline
from harness.triage.windows import FloatArray, Windows

_LONGEST_PAUSE_S = 30.0
_RESUME_S = 10.0
_SHORT_S = 10.0
_FLAT_SPREAD = 0.20  # of the watts, 10th to 90th percentile; a waiting board still cools by 10 %
_ODD_WATTS = 0.15
_DEAD_WATTS = 0.6  # of what the waiting ones draw, where memory does not tell


class Outcome(StrEnum):
    """How a stall ended."""

    RESUMED = "resumed"
    ENDED = "ended"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """One stall, in seconds of the stream's clock; ``observed_s`` leaves the pauses out.

    ``odd`` are the GPUs that did not wait, ``dead`` those of them that lost their process, ``hot``
    those that drew the watts of work. ``had_work`` says whether the job was seen at work before.
    """

    start_s: float
    end_s: float
    first_cell: int
    last_cell: int
    observed_s: float
    num_pauses: int
    num_cells: int
    outcome: Outcome
    odd: tuple[int, ...]
    dead: tuple[int, ...]
    hot: tuple[int, ...]
    is_flat: bool
    had_work: bool

    @property
    def needed_s(self) -> float:
        """Observed seconds from which on this stall is a hang."""
        return HANG_S * (2.0 if self.num_pauses else 1.0)

    @property
    def is_long(self) -> bool:
        """Seen for long enough to be a hang."""
        return self.observed_s >= self.needed_s

    @property
    def is_crash(self) -> bool:
        """A rank lost its process, and its peers wait for it."""
        return bool(self.dead) and self.observed_s >= CRASH_S and not self.is_resumed

    @property
    def is_resumed(self) -> bool:
        """Work went on after it."""
        return self.outcome is Outcome.RESUMED

    @property
    def state(self) -> State:
        """What the waiting GPUs did."""
        if self.num_cells < MIN_WINDOWS or (self.hot and not self.is_long):
            return State.COMMUNICATION
        if self.is_crash:
            return State.DEADLOCK
        if self.is_long and not self.is_flat:
            return State.UNKNOWN
        if self.is_resumed and self.is_long:
            return self._state_of_long_and_resumed
        if self.is_long:
            return State.DEADLOCK
        if self.outcome is Outcome.OPEN and (self.odd or self.observed_s >= _SHORT_S):
            return State.CHECKPOINT_OR_DEADLOCK
        return State.CHECKPOINT if self.odd else State.COMMUNICATION

    @property
    def _state_of_long_and_resumed(self) -> State:
        if not self.had_work:
            return State.COMMUNICATION  # ranks that are ready wait for the last to load
        return State.CHECKPOINT if self.odd else State.CHECKPOINT_OR_DEADLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class _Who:
    """The GPUs that stand out in a stall, and whether the watts of the others are flat."""

    odd: tuple[int, ...] = ()
    bare: tuple[int, ...] = ()
    hot: tuple[int, ...] = ()
    is_flat: bool = True


def find_stalls(
    windows: Windows,
    levels: LevelArray,
    timeline: Timeline,
    stream_of_gpu: Mapping[int, int],
) -> tuple[Stall, ...]:
    """Every stall of one job, in order of time.

    Args:
        windows: Those of its GPUs alone.
        levels: One per window.
        timeline: The job's cells.
        stream_of_gpu: Every GPU of the job -> the stream that it is from.
    """
    order = np.argsort(windows.cell, kind="stable")
    windows, levels = windows.take(order), levels[order]
    first_work_s = _first_work_s(windows, levels)
    found: list[Stall] = []
    for first, last in _stretches(timeline):
        cells = (int(timeline.cell[first]), int(timeline.cell[last]) + 1)
        rows = slice(*np.searchsorted(windows.cell, cells).tolist())
        is_short = last + 1 - first < MIN_WINDOWS
        who = _Who() if is_short else _who(windows, levels, rows, stream_of_gpu)
        found.append(_stall(timeline, first, last, who, first_work_s))
    return tuple(found)


def _stretches(timeline: Timeline) -> list[tuple[int, int]]:
    """First and last row of each stretch of waiting, over a few rows that are merely quiet."""
    rows = np.flatnonzero(timeline.is_waiting)
    if not len(rows):
        return []
    num_active = np.concatenate([[0], np.cumsum(timeline.is_active)])
    between_active = num_active[rows[1:]] - num_active[rows[:-1]]
    pause_s = timeline.start_s[rows[1:]] - timeline.end_s[rows[:-1]]
    cut = (between_active > 0) | (np.diff(rows) > MIN_WINDOWS + 1) | (pause_s > _LONGEST_PAUSE_S)
    firsts = np.append(0, np.flatnonzero(cut) + 1)
    lasts = np.append(firsts[1:], len(rows)) - 1
    return [(int(rows[a]), int(rows[b])) for a, b in zip(firsts, lasts, strict=True)]


def _stall(
    timeline: Timeline, first: int, last: int, who: _Who, first_work_s: dict[int, float]
) -> Stall:
    start_s = float(timeline.start_s[first])
    return Stall(
        start_s=start_s,
        end_s=float(timeline.end_s[last]),
        first_cell=int(timeline.cell[first]),
        last_cell=int(timeline.cell[last]),
        observed_s=float(timeline.observed_s[first : last + 1].sum()),
        num_pauses=int(timeline.has_pause_before[first + 1 : last + 1].sum()),
        num_cells=last + 1 - first,
        outcome=_outcome(timeline, last),
        odd=who.odd,
        dead=tuple(g for g in who.bare if first_work_s.get(g, np.inf) < start_s),
        hot=who.hot,
        is_flat=who.is_flat,
        had_work=bool(timeline.is_active[:first].any()),
    )


def _outcome(timeline: Timeline, last: int) -> Outcome:
    if last + 1 >= len(timeline.cell) or timeline.is_waiting[last + 1]:
        return Outcome.OPEN  # the record ends, or its sampler stopped for long and found it waiting
    after = np.flatnonzero(timeline.is_active[last + 1 :])
    if len(after):
        wait_s = timeline.start_s[last + 1 + int(after[0])] - timeline.end_s[last]
        if wait_s <= _RESUME_S or int(after[0]) <= MIN_WINDOWS:
            return Outcome.RESUMED
    return Outcome.ENDED


def _who(
    windows: Windows, levels: LevelArray, rows: slice, stream_of_gpu: Mapping[int, int]
) -> _Who:
    gpu, level, power_w = windows.gpu[rows], levels[rows], windows.power_w[rows]
    memory = windows.memory_used_bytes[rows]
    seen = {int(number) for number in np.unique(gpu)}
    streams = {stream_of_gpu[number] for number in seen}
    # A GPU without samples is gone only where the others of its stream still give some.
    gone = {g for g, stream in stream_of_gpu.items() if g not in seen and stream in streams}
    most = {g: int(np.bincount(level[gpu == g]).argmax()) for g in seen}
    waiting = [g for g in seen if most[g] == Level.WAIT]
    watts, spreads = _watts(gpu, power_w, level, waiting)
    odd = sorted(gone | (seen - set(waiting)))
    wait_w = float(np.median(list(watts.values()))) if watts else np.inf
    dead = list(gone)
    for number in (g for g in seen if most[g] == Level.BARE):
        mine = gpu == number
        is_cold = float(np.median(power_w[mine])) <= _DEAD_WATTS * wait_w
        if is_cold or bool((memory[mine] <= NO_PROCESS_MAX_BYTES).any()):
            dead.append(number)
    return _Who(
        odd=tuple(odd or _odd_by_watts(watts)),
        bare=tuple(sorted(dead)),
        hot=tuple(g for g in odd if most.get(g) in HOT_LEVELS),
        is_flat=bool(spreads) and float(np.median(spreads)) <= _FLAT_SPREAD,
    )


def _watts(
    gpu: NDArray[np.int32], power_w: FloatArray, level: LevelArray, waiting: Sequence[int]
) -> tuple[dict[int, float], list[float]]:
    """Median watts and relative spread of each waiting GPU."""
    watts: dict[int, float] = {}
    spreads: list[float] = []
    for number in waiting:
        own_w = power_w[(gpu == number) & (level == Level.WAIT)]
        low, middle, high = (float(x) for x in np.percentile(own_w, (10, 50, 90)))
        watts[number] = middle
        spreads.append((high - low) / max(middle, 1e-9))
    return watts, spreads


def _odd_by_watts(watts: dict[int, float]) -> list[int]:
    """A few GPUs whose watts differ from those of the others, where all of them wait."""
    if len(watts) < 3:
        return []
    middle = float(np.median(list(watts.values())))
    odd = [g for g, w in watts.items() if abs(w - middle) > _ODD_WATTS * middle]
    return odd if len(odd) <= MINORITY * len(watts) else []


def _first_work_s(windows: Windows, levels: LevelArray) -> dict[int, float]:
    """When each GPU was first at work, or waited."""
    worked = np.isin(levels, (*ACTIVE_LEVELS, Level.WAIT))
    gpu, first = np.unique(windows.gpu[worked], return_index=True)
    return dict(zip(gpu.tolist(), windows.start_s[worked][first].tolist(), strict=True))
