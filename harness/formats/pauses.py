"""The order of time of a stream: rows that go back, the period, and the sampler's pauses.

Works batch by batch in constant memory; every figure is of sample times only.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from harness.samples import Gap

GAP_PERIODS = 3.0
MAX_PAUSES = 100_000
"""Candidates kept; a file with more real gaps than this reports the first so many."""

_RESOLUTION_S = 1e-3
_EXACT_S = 100.0


class Pauses:
    """Times of all GPUs of one stream."""

    def __init__(self) -> None:
        self._last = np.full(0, -np.inf)
        self._ticks = np.zeros(0, dtype=np.int64)
        self._steps: Counter[int] = Counter()
        self._latest = -np.inf
        self._candidates: list[Gap] = []
        self._shortest_period = np.inf

    @property
    def num_ticks(self) -> int:
        """Different times of the GPU that has most."""
        return int(self._ticks.max()) if self._ticks.size else 0

    @property
    def period_s(self) -> float | None:
        """Median time between two samples of one GPU, to a millisecond; None for one tick."""
        total = sum(self._steps.values())
        seen = 0
        for step in sorted(self._steps):
            seen += self._steps[step]
            if 2 * seen >= total:
                return max(step, 1) * _RESOLUTION_S
        return None

    def gaps(self, period_s: float | None) -> tuple[Gap, ...]:
        """Pauses of more than ``GAP_PERIODS`` periods in which no GPU has a sample."""
        if period_s is None:
            return ()
        least = GAP_PERIODS * period_s
        return tuple(gap for gap in self._candidates if gap.end_s - gap.start_s > least)

    def in_order(self, t_s: NDArray[np.float64], gpu: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which rows do not go back in the time of their GPU; NaN never does right.

        A single row far ahead of those after it is the one that is wrong, not they.
        """
        good = ~np.isnan(t_s)
        if not t_s.size:
            return good
        self._grow(int(gpu.max()) + 1)
        order = np.argsort(gpu.astype(np.int16), kind="stable")
        starts, groups = _groups(gpu[order])
        sorted_t = t_s[order]
        if good.all() and self._is_ordered(sorted_t, starts, groups):
            return good
        bounds = [*starts.tolist(), t_s.size]
        for number, which in enumerate(groups.tolist()):
            rows = order[bounds[number] : bounds[number + 1]]
            good[rows] = _ordered_rows(t_s[rows], float(self._last[which]))
        return good

    def enter(self, t_s: NDArray[np.float64], gpu: NDArray[np.int32]) -> None:
        """Take in rows that are in order."""
        if not t_s.size:
            return
        self._enter_steps(t_s, gpu)
        latest = np.maximum.accumulate(np.concatenate(([self._latest], t_s)))
        if np.isfinite(self._latest):
            before, after = latest[:-1], t_s
        else:
            before, after = latest[1:-1], t_s[1:]
        self._enter_pauses(before, after)
        self._latest = float(latest[-1])

    def _enter_steps(self, t_s: NDArray[np.float64], gpu: NDArray[np.int32]) -> None:
        order = np.argsort(gpu.astype(np.int16), kind="stable")
        starts, groups = _groups(gpu[order])
        self._grow(int(groups[-1]) + 1)
        sorted_t = t_s[order]
        before = np.empty_like(sorted_t)
        before[1:] = sorted_t[:-1]
        before[starts] = self._last[groups]
        steps = sorted_t - before
        self._last[groups] = sorted_t[np.append(starts[1:], t_s.size) - 1]
        fresh = steps > 0.0
        self._ticks[groups] += np.add.reduceat(fresh.astype(np.int64), starts)
        steps = steps[fresh & np.isfinite(steps)]
        # To the millisecond up to 100 s and to the second beyond keeps the table small.
        millis = np.rint(steps / _RESOLUTION_S)
        coarse = steps > _EXACT_S
        millis[coarse] = np.rint(np.minimum(steps[coarse], 1e12)) * 1000.0
        values, counts = np.unique(millis.astype(np.int64), return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._steps[value] += count

    def _enter_pauses(self, before: NDArray[np.float64], after: NDArray[np.float64]) -> None:
        period_s = self.period_s
        if period_s is not None:
            self._shortest_period = min(self._shortest_period, period_s)
        if not np.isfinite(self._shortest_period):
            return
        # The final period may come out shorter than today's: keep twice as many candidates.
        long = np.flatnonzero(after - before > GAP_PERIODS / 2.0 * self._shortest_period)
        room = MAX_PAUSES - len(self._candidates)
        for i in long[: max(room, 0)].tolist():
            self._candidates.append(Gap(start_s=float(before[i]), end_s=float(after[i])))

    def _is_ordered(
        self, sorted_t: NDArray[np.float64], starts: NDArray[np.int64], groups: NDArray[np.int32]
    ) -> bool:
        steps = np.diff(sorted_t)
        steps[starts[1:] - 1] = 0.0
        return bool((steps >= 0.0).all() and (sorted_t[starts] >= self._last[groups]).all())

    def _grow(self, size: int) -> None:
        missing = size - self._last.size
        if missing > 0:
            self._last = np.concatenate((self._last, np.full(missing, -np.inf)))
            self._ticks = np.concatenate((self._ticks, np.zeros(missing, dtype=np.int64)))


def _groups(gpu: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where each GPU starts in a sorted column, and which it is."""
    starts = np.flatnonzero(np.concatenate(([True], gpu[1:] != gpu[:-1])))
    return starts, gpu[starts]


def _ordered_rows(t_s: NDArray[np.float64], last: float) -> NDArray[np.bool_]:
    """One GPU's rows: drop what lies before ``last``, and lone leaps that the next two undo."""
    good = np.zeros(t_s.size, dtype=np.bool_)
    times = t_s.tolist()
    for i, t in enumerate(times):
        following = [later for later in times[i + 1 : i + 3] if later >= last]
        is_leap = bool(following) and len(following) == len(times[i + 1 : i + 3])
        is_leap = is_leap and max(following) < t
        if t >= last and not is_leap:
            good[i] = True
            last = t
    return good
