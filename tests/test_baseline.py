"""The utilization baseline: what it sees, and what it cannot."""

import numpy as np

from harness.triage.baseline import find_baseline_states
from harness.triage.states import State, states_of


def test_utilization_alone_knows_three_states_and_the_unknown():
    found = states_of(find_baseline_states(np.array([0.0, 10.0, 11.0, 79.0, 80.0, 100.0, np.nan])))
    assert found == [
        State.IDLE,
        State.IDLE,
        State.DATA_STARVATION,
        State.DATA_STARVATION,
        State.COMPUTE,
        State.COMPUTE,
        State.UNKNOWN,
    ]
