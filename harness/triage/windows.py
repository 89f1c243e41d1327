"""Samples -> windows: one row per GPU and stretch of time, vectorised, in constant memory.

Windows of all GPUs and hosts lie on one grid of absolute time, so that peers can be compared. A
pause of the sampler closes a window: nothing is ever averaged, or counted as observed, across it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.samples import SampleBatch

SENSOR_WINDOW_S = 1.0  # power is a 1-s average on Ampere and newer (nvml.h)
GAP_PERIODS = 3.0
_WATT_STEPS = 100.0  # the median is exact to 0.01 W
_KEY_BITS = 24
_MISSING_WATTS = (1 << _KEY_BITS) - 1

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows as columns of one length, in order of GPU and time.

    Attributes:
        start_s: Time of the first sample.
        end_s: Time of the sample that follows, or one period after the last before a pause.
        cell: Place on the time grid that all GPUs share.
        gpu: Number of the GPU.
        count: Samples in it.
        power_w: Median board power; NaN where no sample has one.
        mean_w: Mean board power.
        std_w: Standard deviation of power inside the window.
        max_w: Highest sample.
        utilization_pct: Mean; NaN is unknown.
        memory_used_bytes: Highest; NaN is unknown.
        throttled: Share of samples with a hardware slowdown; NaN is unknown.
        limit_w: Enforced limit at the end; NaN is unknown.
        label: The file's label of the middle sample, or None.
    """

    start_s: FloatArray
    end_s: FloatArray
    cell: NDArray[np.int64]
    gpu: NDArray[np.int32]
    count: NDArray[np.int64]
    power_w: FloatArray
    mean_w: FloatArray
    std_w: FloatArray
    max_w: FloatArray
    utilization_pct: FloatArray
    memory_used_bytes: FloatArray
    throttled: FloatArray
    limit_w: FloatArray
    label: NDArray[Any]

    @property
    def duration_s(self) -> FloatArray:
        """Observed seconds of each window."""
        return self.end_s - self.start_s

    def take(self, rows: NDArray[Any]) -> Windows:
        """The given rows: a mask or positions."""
        return Windows(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def choose_window_s(period_s: float) -> float:
    """Length of a window: one second, or one period of a slower sampler."""
    return max(SENSOR_WINDOW_S, period_s)


def concatenate(parts: Sequence[Windows]) -> Windows:
    """All parts as one, in order of GPU and time."""
    if not parts:
        return _empty()
    columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Windows)}
    order = np.lexsort((columns["start_s"], columns["gpu"]))
    return Windows(**{name: column[order] for name, column in columns.items()})


def gap_before(windows: Windows) -> NDArray[np.bool_]:
    """Whether a window does not follow the one before it without a pause, on the same GPU."""
    gaps = np.ones(len(windows.gpu), dtype=np.bool_)
    same = windows.gpu[1:] == windows.gpu[:-1]
    gaps[1:] = ~same | (np.abs(windows.start_s[1:] - windows.end_s[:-1]) > 1e-6)
    return gaps


def estimate_period_s(batches: Sequence[SampleBatch]) -> tuple[float | None, int]:
    """Median time between samples of one GPU, and how many intervals of one GPU it rests on."""
    if not batches:
        return None, 0
    t_s = np.concatenate([batch.t_s for batch in batches])
    gpu = np.concatenate([batch.gpu for batch in batches])
    order = np.argsort(gpu.astype(np.int16), kind="stable")
    t_s, gpu = t_s[order], gpu[order]
    steps = np.diff(t_s)
    keep = (gpu[1:] == gpu[:-1]) & (steps > 0)
    if not keep.any():
        return None, 0
    return float(np.median(steps[keep])), int(np.bincount(gpu[1:][keep]).max())


class WindowBuilder:
    """Holds the samples of the windows that are still open, one per GPU."""

    def __init__(self, *, window_s: float, period_s: float) -> None:
        """Make windows of ``window_s`` seconds from samples about ``period_s`` seconds apart."""
        self._window_s = window_s
        self._period_s = period_s
        self._open: SampleBatch | None = None

    def feed(self, batch: SampleBatch) -> Windows:
        """Take samples; give the windows that they close."""
        merged = batch if self._open is None else _join(self._open, batch)
        if not len(merged.t_s):
            return _empty()
        # 0 W is what a sensor without an answer reads; a board never draws it.
        power_w = np.where(merged.power_w > 0.0, merged.power_w, np.nan)
        merged = dataclasses.replace(merged, power_w=power_w)
        merged = _take(merged, np.argsort(merged.gpu.astype(np.int16), kind="stable"))
        starts, is_gap = self._cut(merged)
        last_of_gpu = np.append(merged.gpu[starts[1:]] != merged.gpu[starts[:-1]], True)
        ends = np.append(starts[1:], len(merged.t_s))
        is_open = np.repeat(last_of_gpu, ends - starts)
        self._open = _take(merged, is_open)
        return self._reduce(merged, starts, ends, is_gap, ~last_of_gpu)

    def finish(self) -> Windows:
        """Close what is open."""
        rest = self._open
        self._open = None
        if rest is None or not len(rest.t_s):
            return _empty()
        starts, is_gap = self._cut(rest)
        ends = np.append(starts[1:], len(rest.t_s))
        return self._reduce(rest, starts, ends, is_gap, np.ones(len(starts), dtype=np.bool_))

    def _cut(self, batch: SampleBatch) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """First row of each window, and per row whether the row after it lies beyond a pause."""
        cell = np.floor(batch.t_s / self._window_s)
        step = np.diff(batch.t_s)
        breaks = (batch.gpu[1:] != batch.gpu[:-1]) | (step > GAP_PERIODS * self._period_s)
        breaks |= step < 0
        cuts = breaks | (cell[1:] != cell[:-1])
        return np.append(0, np.flatnonzero(cuts) + 1), np.append(breaks, True)

    def _reduce(
        self,
        rows: SampleBatch,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        is_gap: NDArray[np.bool_],
        keep: NDArray[np.bool_],
    ) -> Windows:
        last = ends - 1
        following = rows.t_s[np.minimum(ends, len(rows.t_s) - 1)]
        end_s = np.where(is_gap[last], rows.t_s[last] + self._period_s, following)
        throttled = np.where(rows.throttled >= 0, rows.throttled, np.nan).astype(np.float64)
        mean_w, std_w = _moments(rows.power_w, starts)
        columns = Windows(
            start_s=rows.t_s[starts],
            end_s=end_s,
            cell=np.floor(rows.t_s[starts] / self._window_s).astype(np.int64),
            gpu=rows.gpu[starts],
            count=ends - starts,
            power_w=_medians(rows.power_w, starts, ends),
            mean_w=mean_w,
            std_w=std_w,
            max_w=np.fmax.reduceat(rows.power_w, starts),
            utilization_pct=_moments(rows.utilization_pct, starts)[0],
            memory_used_bytes=np.fmax.reduceat(rows.memory_used_bytes, starts),
            throttled=_moments(throttled, starts)[0],
            limit_w=rows.limit_w[last],
            label=_labels(rows, starts, ends),
        )
        return columns if keep.all() else columns.take(keep)


def _moments(values: FloatArray, starts: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of the known values of each window; NaN where none is known."""
    known = np.isfinite(values)
    if known.all():
        filled, count = values, np.diff(np.append(starts, len(values))).astype(np.float64)
    else:
        filled = np.where(known, values, 0.0)
        count = np.add.reduceat(known.astype(np.float64), starts)
        count[count == 0] = np.nan
    mean = np.add.reduceat(filled, starts) / count
    square = np.add.reduceat(filled * filled, starts) / count
    return mean, np.sqrt(np.maximum(square - mean * mean, 0.0))


def _medians(values: FloatArray, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> FloatArray:
    """Median of the known values of each window, by one sort of integers."""
    known = np.isfinite(values)
    steps = np.where(known, np.clip(values * _WATT_STEPS, 0, _MISSING_WATTS - 1), _MISSING_WATTS)
    window = np.repeat(np.arange(len(starts), dtype=np.int64), ends - starts)
    keys = (window << _KEY_BITS) | np.rint(steps).astype(np.int64)
    keys.sort()
    count = np.add.reduceat(known.astype(np.int64), starts)
    lower = keys[starts + np.maximum(count - 1, 0) // 2] & _MISSING_WATTS
    upper = keys[starts + np.minimum(count // 2, ends - starts - 1)] & _MISSING_WATTS
    return np.where(count > 0, (lower + upper) / (2.0 * _WATT_STEPS), np.nan)


def _labels(rows: SampleBatch, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[Any]:
    if rows.label is None:
        return np.full(len(starts), None, dtype=object)
    return rows.label[(starts + ends - 1) // 2]


def _take(batch: SampleBatch, rows: NDArray[Any]) -> SampleBatch:
    columns: dict[str, Any] = {}
    for field in fields(batch):
        column = getattr(batch, field.name)
        columns[field.name] = None if column is None else column[rows]
    return SampleBatch(**columns)


def _join(first: SampleBatch, second: SampleBatch) -> SampleBatch:
    columns: dict[str, Any] = {}
    for field in fields(SampleBatch):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if field.name == "label" and (a is None) != (b is None):
            a = np.full(len(first.t_s), None, dtype=object) if a is None else a
            b = np.full(len(second.t_s), None, dtype=object) if b is None else b
        columns[field.name] = None if a is None else np.concatenate([a, b])
    return SampleBatch(**columns)


def _empty() -> Windows:
    kinds: dict[str, Any] = {"cell": np.int64, "gpu": np.int32, "count": np.int64, "label": object}
    columns: dict[str, Any] = {
        f.name: np.empty(0, dtype=kinds.get(f.name, np.float64)) for f in fields(Windows)
    }
    return Windows(**columns)
