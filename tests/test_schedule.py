"""The learning-rate schedule: warm-up, cosine, and their seams."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.train.schedule import learning_rate_at


def at(step: int, num_steps: int = 10, warmup_steps: int = 4, min_ratio: float = 0.1) -> float:
    return learning_rate_at(
        step, num_steps=num_steps, warmup_steps=warmup_steps, peak=2.0, min_ratio=min_ratio
    )


def test_warm_up_is_a_straight_line_that_ends_at_the_peak():
    assert [at(step) for step in (1, 2, 3, 4)] == [0.5, 1.0, 1.5, 2.0]


def test_last_step_has_the_smallest_learning_rate():
    assert at(10) == pytest.approx(0.2)


def test_middle_of_the_cosine_is_halfway_between_peak_and_minimum():
    assert at(7) == pytest.approx((2.0 + 0.2) / 2)


def test_no_warm_up_starts_on_the_cosine():
    expected = 2.0 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 10)))
    assert at(1, warmup_steps=0) == pytest.approx(expected)


def test_warm_up_longer_than_the_run_never_reaches_the_peak():
    assert at(10, warmup_steps=40) == pytest.approx(0.5)


def test_step_outside_the_run_is_a_bug_of_the_caller():
    with pytest.raises(AssertionError):
        at(11)


@given(
    num_steps=st.integers(1, 300),
    warmup_steps=st.integers(0, 300),
    min_ratio=st.floats(0, 1),
    data=st.data(),
)
def test_rises_until_the_warm_up_ends_and_never_after(num_steps, warmup_steps, min_ratio, data):
    rates = [at(s, num_steps, warmup_steps, min_ratio) for s in range(1, num_steps + 1)]
    index = data.draw(st.integers(0, num_steps - 1))
    assert 0 <= rates[index] <= 2.0 + 1e-12
    if index > 0:
        is_warming = index + 1 <= warmup_steps
        step_up = rates[index] - rates[index - 1]
        assert step_up > 0 if is_warming else step_up <= 1e-12
