"""One window of one GPU, judged by itself: by a table, and by utilization alone.

No peers, no time: what is lost thereby is what a table alone can say.
"""

from __future__ import annotations

import numpy as np

from harness.triage.assign import state_of_level
from harness.triage.bands import Table
from harness.triage.baseline import find_baseline_states
from harness.triage.classify import find_levels
from harness.triage.cuts import make_cuts
from harness.triage.states import Level, State, states_of
from harness.triage.windows import FloatArray, Windows


def predict_by_table(
    table: Table,
    power_w: FloatArray,
    utilization_pct: FloatArray,
    memory_used_bytes: float | None,
) -> list[State]:
    """The state of each window by the table's watts and by utilization.

    Args:
        table: The bands.
        power_w: Window medians, length n.
        utilization_pct: Means, length n; NaN is unknown.
        memory_used_bytes: Held in all of them; None is unknown.
    """
    windows = _windows(power_w, utilization_pct, memory_used_bytes)
    cuts = make_cuts(windows, table=table, limits=(), tops_w=np.full(1, np.nan))
    levels = find_levels(windows, cuts, utilization_pct)
    return [state_of_level(Level(level)) for level in levels.tolist()]


def predict_by_baseline(utilization_pct: FloatArray) -> list[State]:
    """The state of each window by utilization alone."""
    return states_of(find_baseline_states(utilization_pct))


def _windows(
    power_w: FloatArray, utilization_pct: FloatArray, memory_used_bytes: float | None
) -> Windows:
    number = len(power_w)
    unknown, steps = np.full(number, np.nan), np.arange(number, dtype=np.float64)
    held = np.nan if memory_used_bytes is None else memory_used_bytes
    return Windows(
        start_s=steps,
        end_s=steps + 1.0,
        cell=steps.astype(np.int64),
        gpu=np.zeros(number, dtype=np.int32),
        count=np.ones(number, dtype=np.int64),
        power_w=power_w,
        mean_w=power_w,
        std_w=np.zeros(number),
        max_w=power_w,
        utilization_pct=utilization_pct,
        memory_used_bytes=np.full(number, held),
        throttled=unknown,
        limit_w=unknown,
        label=np.full(number, None, dtype=object),
    )
