"""The cut between two states by watts: least balanced error, with a bootstrap interval.

The interval resamples *phase windows*: the samples inside one are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.triage.windows import FloatArray

RULE = "least balanced error; 95 % bootstrap over phase windows"
_RESAMPLES = 400


def find_cut(below_w: FloatArray, above_w: FloatArray) -> tuple[float, float]:
    """The watts with the least balanced error between two samples, and that error.

    Args:
        below_w: Window medians of the state that draws less, length >= 1.
        above_w: Of the one that draws more, length >= 1.
    """
    values = np.unique(np.concatenate([below_w, above_w]))
    if len(values) == 1:
        return float(values[0]), 0.5
    cuts = (values[1:] + values[:-1]) / 2.0
    missed_below = 1.0 - np.searchsorted(np.sort(below_w), cuts, side="right") / len(below_w)
    missed_above = np.searchsorted(np.sort(above_w), cuts, side="right") / len(above_w)
    errors = (missed_below + missed_above) / 2.0
    best = np.flatnonzero(np.isclose(errors, errors.min()))
    return float(cuts[best[len(best) // 2]]), float(errors.min())


def find_interval(
    below: Sequence[FloatArray], above: Sequence[FloatArray], rng: np.random.Generator
) -> tuple[float | None, float | None]:
    """The 95 % interval of the cut; null where a single phase window shows no spread.

    Args:
        below: Window medians of the lower state, one array per phase window.
        above: Of the higher state.
        rng: Draws the resamples.
    """
    if min(len(below), len(above)) < 2:
        return None, None
    cuts = [find_cut(_resample(below, rng), _resample(above, rng))[0] for _ in range(_RESAMPLES)]
    low_w, high_w = np.percentile(cuts, (2.5, 97.5))
    return round(float(low_w), 2), round(float(high_w), 2)


def _resample(windows_w: Sequence[FloatArray], rng: np.random.Generator) -> FloatArray:
    drawn: list[int] = rng.integers(len(windows_w), size=len(windows_w)).tolist()
    return np.concatenate([windows_w[i] for i in drawn])
