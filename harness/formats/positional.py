"""Rows without a GPU identity: which GPU a row is, from its place within the tick.

``nvidia-smi`` prints one row per GPU in a fixed order, a few milliseconds apart, then sleeps. The
number of GPUs is the repetition of that pattern. A tick that does not have exactly that many rows
is dropped and counted, as is one beside an unreadable row. A pause of the sampler *inside* a tick
is not a new tick: its pieces belong together when they add up between two regular ticks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.formats.recipe import refusal
from harness.formats.ticks import GpuTable, Ledger, select
from harness.samples import GpuId, SampleBatch

IRREGULAR = "tick with another number of rows than GPUs"
LEARN_ROWS = 4096
LEAST_REGULAR = 0.5
MAX_GPUS = 128
_MAX_PIECES = 16


class PositionalTicks:
    """Gives rows their GPU; a buffer of the last ticks is all it holds."""

    def __init__(self, table: GpuTable, ledger: Ledger, name: str | None) -> None:
        self._table = table
        self._ledger = ledger
        self._name = name
        self._num_gpus = 0
        self._pause_s = 0.0
        self._held: SampleBatch | None = None
        self._holes = np.zeros(0, dtype=np.bool_)
        self._is_regular_before = False

    def push(self, batch: SampleBatch, holes: NDArray[np.bool_]) -> Iterator[SampleBatch]:
        """Take rows in the order of the file; give those whose tick is complete.

        Args:
            batch: Rows; ``gpu`` is ignored.
            holes: Whether something unreadable stands between a row and the one before.
        """
        self._held = batch if self._held is None else _concatenate(self._held, batch)
        self._holes = np.concatenate((self._holes, holes))
        if not self._num_gpus:
            if self._held.t_s.size < LEARN_ROWS:
                return
            self._learn()
        yield from self._assign(is_end=False)

    def finish(self) -> Iterator[SampleBatch]:
        """The rest of the file."""
        if self._held is None or not self._held.t_s.size:
            return
        if not self._num_gpus:
            self._learn()
        yield from self._assign(is_end=True)

    def _learn(self) -> None:
        assert self._held is not None
        self._num_gpus, self._pause_s, share = rows_per_tick(self._held.t_s, self._holes)
        if share < LEAST_REGULAR:
            raise refusal(
                self._ledger.path,
                "the rows name no GPU and come in no regular ticks"
                f" ({self._num_gpus} rows a tick in only {100 * share:.0f} % of them)",
            )
        for index in range(self._num_gpus):
            self._table.position(GpuId(host="", index=index, uuid=None, name=self._name))
        self._ledger.columns["gpu"] = f"position within a tick of {self._num_gpus} rows"

    def _assign(self, *, is_end: bool) -> Iterator[SampleBatch]:
        assert self._held is not None
        bounds = _segments(self._held.t_s, self._holes, self._pause_s)
        sizes = np.diff(bounds)
        regular = (sizes % self._num_gpus == 0) & (sizes > 0)
        # A tick of one GPU is whole at once; others may go on in the next block.
        done = sizes.size if is_end else sizes.size - 1
        if not is_end:
            # An irregular run is decided only once the regular tick behind it is known.
            while done > 0 and not regular[done - 1]:
                done -= 1
            done = done if done > 0 or sizes.size <= 4 * _MAX_PIECES else sizes.size - 1
        keep = np.zeros(int(bounds[done]), dtype=np.bool_)
        for first, last in _runs(regular[:done]):
            begin, end = int(bounds[first]), int(bounds[last])
            if regular[first]:
                keep[begin:end] = True
            elif self._is_pause_inside(bounds, sizes, first, last, done, is_end=is_end):
                keep[begin:end] = True
                self._ledger.count("ticks with a pause of the sampler inside, taken by position")
            else:
                self._ledger.drop(IRREGULAR, end - begin)
            self._is_regular_before = bool(regular[first])
        yield from self._release(keep)

    def _is_pause_inside(
        self,
        bounds: NDArray[np.int64],
        sizes: NDArray[np.int64],
        first: int,
        last: int,
        done: int,
        *,
        is_end: bool,
    ) -> bool:
        """Whether irregular pieces are whole ticks that the sampler interrupted."""
        has_hole = bool(self._holes[bounds[first] : bounds[last] + (last < sizes.size)].any())
        is_last = is_end and last == done
        if last - first > _MAX_PIECES or is_last or has_hole or not self._is_regular_before:
            return False
        assert self._held is not None
        if (np.diff(self._held.t_s[bounds[first] : bounds[last] + 1]) < 0.0).any():
            return False
        pieces: list[int] = sizes[first:last].tolist()
        if len(pieces) > 2 and len(set(pieces)) == 1:
            # Half of the GPUs gone for some ticks looks like this; pauses do not.
            return False
        filled = 0
        for size in pieces:
            filled += size
            if filled > self._num_gpus:
                return False
            filled %= self._num_gpus
        return filled == 0

    def _release(self, keep: NDArray[np.bool_]) -> Iterator[SampleBatch]:
        assert self._held is not None
        size = keep.size
        ready = select(self._held, np.flatnonzero(keep))
        self._held = select(self._held, slice_of(size, self._held.t_s.size))
        self._holes = self._holes[size:]
        if ready.t_s.size:
            gpu = np.arange(ready.t_s.size, dtype=np.int32) % np.int32(self._num_gpus)
            yield replace(ready, gpu=gpu)


def rows_per_tick(t_s: NDArray[np.float64], holes: NDArray[np.bool_]) -> tuple[int, float, float]:
    """How many rows make a tick, the pause that parts two ticks, and the share of regular rows.

    A candidate pause is good when most rows stand in ticks of one size and such a tick is shorter
    than the pause behind it; the most rows a tick win, since any rows are regular one by one.
    """
    best = (1, 0.0, 1.0)
    if t_s.size < 2:
        return best
    if t_s[-1] - t_s[0] < 1e-9 or (t_s.size <= MAX_GPUS and np.ptp(t_s) < 0.05):
        return int(t_s.size), float("inf"), 1.0
    found: list[tuple[int, float, float]] = []
    for pause_s in np.geomspace(5e-4, 30.0, 48).tolist():
        bounds = _segments(t_s, holes, pause_s)
        sizes = np.diff(bounds)
        size = _mode(sizes)
        share = float(sizes[sizes == size].sum() / t_s.size)
        if size < 2 or size > MAX_GPUS or not _is_tick(t_s, bounds, sizes, size):
            continue
        found.append((size, pause_s, share))
    good = [entry for entry in found if entry[2] >= LEAST_REGULAR]
    if good:
        size = max(good, key=lambda entry: (entry[2] > 0.8, entry[0]))[0]
        plateau = [entry for entry in good if entry[0] == size]
        widest = max(entry[2] for entry in plateau)
        pauses = [pause_s for _, pause_s, share in plateau if share >= widest - 0.01]
        return size, float(np.sqrt(pauses[0] * pauses[-1])), widest
    return max(found, key=lambda e: e[2]) if _is_bunched(t_s) and found else best


def _is_bunched(t_s: NDArray[np.float64]) -> bool:
    """Whether most rows come together rather than one by one."""
    steps = np.diff(t_s)
    return bool(np.median(steps) < 0.2 * np.mean(steps))


def _is_tick(
    t_s: NDArray[np.float64], bounds: NDArray[np.int64], sizes: NDArray[np.int64], size: int
) -> bool:
    """Whether segments of ``size`` rows are shorter than what follows them."""
    which = np.flatnonzero((sizes == size) & (np.arange(sizes.size) < sizes.size - 1))
    if not which.size:
        return False
    first, behind = bounds[which], bounds[which + 1]
    return bool(np.median(t_s[behind - 1] - t_s[first]) < np.median(t_s[behind] - t_s[behind - 1]))


def _mode(sizes: NDArray[np.int64]) -> int:
    """The size that holds most rows."""
    values, counts = np.unique(sizes, return_counts=True)
    return int(values[np.argmax(values * counts)])


def _segments(
    t_s: NDArray[np.float64], holes: NDArray[np.bool_], pause_s: float
) -> NDArray[np.int64]:
    """Bounds of runs of rows without a pause or a hole; starts with 0 and ends with the length."""
    steps = np.diff(t_s)
    # Within a tick time never goes back: rows in another order would be other GPUs' rows.
    parted = (steps >= pause_s) | (steps < 0.0) | holes[1:]
    return np.concatenate(([0], np.flatnonzero(parted) + 1, [t_s.size])).astype(np.int64)


def _runs(regular: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """First and last-plus-one of each run of equal values."""
    edges = np.flatnonzero(regular[1:] != regular[:-1]) + 1
    bounds = [0, *edges.tolist(), regular.size]
    for first, last in itertools.pairwise(bounds):
        if last > first:
            yield first, last


def slice_of(start: int, stop: int) -> NDArray[np.int64]:
    """Row numbers from ``start`` to ``stop``."""
    return np.arange(start, stop, dtype=np.int64)


def _concatenate(one: SampleBatch, two: SampleBatch) -> SampleBatch:
    label = None
    if one.label is not None or two.label is not None:
        label = np.concatenate(
            [
                np.full(part.t_s.size, None, dtype=object) if part.label is None else part.label
                for part in (one, two)
            ]
        )
    return SampleBatch(
        t_s=np.concatenate((one.t_s, two.t_s)),
        gpu=np.concatenate((one.gpu, two.gpu)),
        power_w=np.concatenate((one.power_w, two.power_w)),
        limit_w=np.concatenate((one.limit_w, two.limit_w)),
        utilization_pct=np.concatenate((one.utilization_pct, two.utilization_pct)),
        memory_used_bytes=np.concatenate((one.memory_used_bytes, two.memory_used_bytes)),
        sm_clock_mhz=np.concatenate((one.sm_clock_mhz, two.sm_clock_mhz)),
        temperature_c=np.concatenate((one.temperature_c, two.temperature_c)),
        throttled=np.concatenate((one.throttled, two.throttled)),
        label=label,
    )
