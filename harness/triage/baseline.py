"""The baseline: utilization alone, as dashboards and most watchdogs judge.

A GPU whose kernels run is computing, one whose kernels run part of the time is starved, one whose
kernels do not run is idle. It is scored on the same windows as the watts, and cannot see a spin.
"""

from __future__ import annotations

import numpy as np

from harness.triage.classify import BUSY_MIN_PCT, IDLE_MAX_PCT
from harness.triage.states import STATE_CODE, State, StateArray
from harness.triage.windows import FloatArray


def find_baseline_states(utilization_pct: FloatArray) -> StateArray:
    """The state of every window by its mean utilization; unknown where there is none."""
    states = np.full(len(utilization_pct), STATE_CODE[State.UNKNOWN], dtype=np.int8)
    states[utilization_pct <= IDLE_MAX_PCT] = STATE_CODE[State.IDLE]
    states[utilization_pct > IDLE_MAX_PCT] = STATE_CODE[State.DATA_STARVATION]
    states[utilization_pct >= BUSY_MIN_PCT] = STATE_CODE[State.COMPUTE]
    return states
