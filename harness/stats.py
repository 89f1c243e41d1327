"""Steady state and confidence intervals; the run is the unit of replication, not the step.

Pure arithmetic on sequences of numbers. Nothing here reads a record, and nothing here decides
whether two groups may be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from harness.errors import MetricError

# Spratt 1998 (M.S. thesis, University of Virginia): the MSER statistic on means of five.
MSER_BATCH = 5
# With fewer than four batches the first half is one batch, or none, and cannot show a settling.
MIN_SETTLED_LENGTH = 4 * MSER_BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Where a series settles.

    ``start`` is the index of the first value to keep. ``settled`` is False where that index is only
    the best available: the series is shorter than ``MIN_SETTLED_LENGTH``, or the statistic still
    falls at the middle of the series.
    """

    start: int
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with a two-sided interval.

    ``low`` and ``high`` are None where one run gives no spread. ``n`` is the number of runs behind
    the estimate; for a ratio of two groups, that of the smaller group.
    """

    estimate: float
    low: float | None
    high: float | None
    confidence: float
    n: int


def find_steady_state(values: Sequence[float]) -> SteadyState:
    """Detect the end of the warm-up by MSER-5.

    The rule (White 1997, Simulation 69:323-334; in batches of five: Spratt 1998) keeps the tail
    whose mean has the smallest estimated standard error: over truncations d it minimises
    ``sum((x - mean)**2) / (n - d)**2`` of what remains. As usual for this rule, d is only sought in
    the first half: near the end few values remain and agree by chance. A minimum at the middle
    itself means that no steady state was shown; half of the series is then dropped and ``settled``
    is False. A series of fewer than twenty values uses the same statistic on single values and is
    never ``settled``. An incomplete last batch takes no part in the search but is not dropped.

    Args:
        values: One value per step in order (durations, seconds, say), length n >= 1.

    Raises:
        MetricError: the series is empty or holds a value that is not finite.
    """
    series = _finite_array(values, "steady state")
    if len(series) < MIN_SETTLED_LENGTH:
        return SteadyState(start=_best_truncation(series)[0], settled=False)
    num_batches = len(series) // MSER_BATCH
    batches = series[: num_batches * MSER_BATCH].reshape(num_batches, MSER_BATCH).mean(axis=1)
    truncation, is_inside = _best_truncation(batches)
    return SteadyState(start=truncation * MSER_BATCH, settled=is_inside)


def steady_state_start(values: Sequence[float]) -> int:
    """Index of the first value after the warm-up, by :func:`find_steady_state`.

    Raises:
        MetricError: the series is empty or holds a value that is not finite.
    """
    return find_steady_state(values).start


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of one value per run, with Student's t interval.

    Args:
        values: One value per run, length n >= 1. One run has an estimate and no interval.
        confidence: Coverage, between 0 and 1.

    Raises:
        MetricError: no value, a value that is not finite, or a confidence outside (0, 1).
    """
    sample = _finite_array(values, "mean")
    estimate = float(sample.mean())
    half = _half_width(_variance_of_mean(sample), len(sample) - 1, confidence)
    return Interval(
        estimate=estimate,
        low=None if half is None else estimate - half,
        high=None if half is None else estimate + half,
        confidence=confidence,
        n=len(sample),
    )


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Ratio of the geometric means of two independent groups of runs.

    Welch's interval on the logarithms with the Welch-Satterthwaite degrees of freedom, so the
    groups may differ in size and spread. Runs that share blocks belong in
    :func:`paired_ratio_interval`.

    Args:
        numerators: One positive value per run of the first group.
        denominators: One positive value per run of the second group.
        confidence: Coverage, between 0 and 1.

    Raises:
        MetricError: an empty group, a value that is not positive, or a confidence outside (0, 1).
    """
    top = _log_array(numerators, "numerators")
    bottom = _log_array(denominators, "denominators")
    variances = (_variance_of_mean(top), _variance_of_mean(bottom))
    dof = _welch_dof(variances, (len(top), len(bottom)))
    variance = None if None in variances else sum(v for v in variances if v is not None)
    half = _half_width(variance, dof, confidence)
    return _from_log(
        float(top.mean() - bottom.mean()), half, confidence, n=min(len(top), len(bottom))
    )


def paired_ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Geometric mean of ratios of runs of the same block, with Student's t interval on the logs.

    Interleaving puts one run of each arm into every block; what a block does to both of its runs
    cancels here.

    Args:
        numerators: One positive value per block.
        denominators: The other arm's value of the same block, same length.
        confidence: Coverage, between 0 and 1.

    Raises:
        MetricError: lengths differ, no pair, a value that is not positive, or a confidence outside
            (0, 1).
    """
    if len(numerators) != len(denominators):
        raise MetricError(
            f"paired ratio: {len(numerators)} numerators and {len(denominators)} denominators;"
            " give one of each per block, or use ratio_interval"
        )
    logs = _log_array(numerators, "numerators") - _log_array(denominators, "denominators")
    half = _half_width(_variance_of_mean(logs), len(logs) - 1, confidence)
    return _from_log(float(logs.mean()), half, confidence, n=len(logs))


def _best_truncation(series: NDArray[np.float64]) -> tuple[int, bool]:
    """The truncation in the first half with the least MSER; is it short of the half itself?"""
    last = len(series) // 2
    # At least two values must remain, or the statistic is zero for want of anything to compare.
    last = min(last, max(len(series) - 2, 0))
    # Centred and summed from the end, so that a huge first value does not drown the rest.
    tail = (series - np.median(series))[::-1]
    count = np.arange(1, len(series) + 1)
    squares = np.cumsum(tail**2) - np.cumsum(tail) ** 2 / count
    statistic = (np.maximum(squares, 0.0) / count**2)[::-1][: last + 1]
    best = int(np.argmin(statistic))
    return best, best < last


def _variance_of_mean(sample: NDArray[np.float64]) -> float | None:
    if len(sample) < 2:
        return None
    return float(sample.var(ddof=1)) / len(sample)


def _welch_dof(variances: tuple[float | None, float | None], sizes: tuple[int, int]) -> float:
    terms = [(v, n) for v, n in zip(variances, sizes, strict=True) if v is not None]
    total = sum(v for v, _ in terms)
    if total == 0.0:
        return float(sum(n - 1 for _, n in terms))
    # Shares instead of raw variances: squares of tiny variances would underflow.
    return 1.0 / sum((v / total) ** 2 / (n - 1) for v, n in terms)


def _half_width(variance: float | None, dof: float, confidence: float) -> float | None:
    if not 0.0 < confidence < 1.0:
        raise MetricError(f"confidence={confidence}: expected a number between 0 and 1, as 0.95")
    if variance is None:
        return None
    return float(stdtrit(dof, 0.5 + confidence / 2.0)) * math.sqrt(variance)


def _from_log(log_ratio: float, half: float | None, confidence: float, n: int) -> Interval:
    return Interval(
        estimate=math.exp(log_ratio),
        low=None if half is None else math.exp(log_ratio - half),
        high=None if half is None else math.exp(log_ratio + half),
        confidence=confidence,
        n=n,
    )


def _finite_array(values: Sequence[float], what: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise MetricError(f"{what}: no values; give at least one")
    if not np.isfinite(array).all():
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise MetricError(f"{what}: value {where} is {array[where]}; expected finite numbers")
    return array


def _log_array(values: Sequence[float], what: str) -> NDArray[np.float64]:
    array = _finite_array(values, what)
    if not (array > 0.0).all():
        where = int(np.flatnonzero(array <= 0.0)[0])
        raise MetricError(f"{what}: value {where} is {array[where]}; a ratio needs values above 0")
    return np.log(array)
