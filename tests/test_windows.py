"""Windows: the grid, medians, pauses, and the same result for every cut into batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.samples import SampleBatch
from harness.triage.windows import (
    WindowBuilder,
    choose_window_s,
    concatenate,
    estimate_period_s,
    gap_before,
)


def make_batch(t_s, power_w, gpu=None, pct=None, label=None):
    number = len(t_s)
    unknown = np.full(number, np.nan)
    return SampleBatch(
        t_s=np.asarray(t_s, dtype=np.float64),
        gpu=np.zeros(number, np.int32) if gpu is None else np.asarray(gpu, np.int32),
        power_w=np.asarray(power_w, dtype=np.float64),
        limit_w=unknown,
        utilization_pct=unknown if pct is None else np.asarray(pct, np.float64),
        memory_used_bytes=unknown,
        sm_clock_mhz=unknown,
        temperature_c=unknown,
        throttled=np.full(number, -1, np.int8),
        label=label,
    )


def build(batches, *, window_s=1.0, period_s=0.1):
    builder = WindowBuilder(window_s=window_s, period_s=period_s)
    return concatenate([*(builder.feed(batch) for batch in batches), builder.finish()])


def test_a_window_is_one_second_or_one_period_of_a_slower_sampler():
    assert [choose_window_s(p) for p in (0.1, 0.5, 1.0, 2.0, 30.0)] == [1.0, 1.0, 1.0, 2.0, 30.0]


def test_median_mean_spread_and_maximum_are_those_of_the_samples():
    power_w = [100.0, 300.0, 120.0, 110.0, 130.0]
    windows = build(
        [make_batch(np.arange(5) * 0.2, power_w, pct=[0, 100, 50, 50, 50])], period_s=0.2
    )
    assert len(windows.gpu) == 1
    assert windows.power_w[0] == 120.0
    assert windows.mean_w[0] == pytest.approx(np.mean(power_w))
    assert windows.std_w[0] == pytest.approx(np.std(power_w))
    assert windows.max_w[0] == 300.0
    assert windows.utilization_pct[0] == 50.0
    assert windows.duration_s[0] == pytest.approx(1.0)


def test_the_median_of_an_even_number_lies_between():
    windows = build([make_batch([0.0, 0.5], [100.0, 200.0])], period_s=0.5)
    assert windows.power_w[0] == 150.0


def test_a_reading_that_is_missing_or_zero_watts_is_no_power():
    """Sensors read faster than 20 Hz answer 0 W; that made medians too low."""
    windows = build([make_batch([0.0, 0.1, 0.2, 0.3], [np.nan, 0.0, 400.0, 402.0])])
    assert windows.power_w[0] == 401.0
    assert windows.count[0] == 4


def test_a_window_without_any_reading_has_no_power():
    windows = build([make_batch([0.0, 0.1], [np.nan, np.nan], pct=[100, 100])])
    assert np.isnan(windows.power_w[0])
    assert np.isnan(windows.mean_w[0])
    assert windows.utilization_pct[0] == 100.0


def test_a_pause_of_the_sampler_closes_a_window_and_is_not_counted_as_observed():
    windows = build([make_batch([0.0, 0.1, 0.2, 0.8, 0.9], [100.0] * 5)])
    assert len(windows.gpu) == 2
    assert windows.duration_s == pytest.approx([0.3, 0.2])
    assert gap_before(windows).tolist() == [True, True]


def test_windows_that_follow_each_other_have_no_pause_between():
    windows = build([make_batch(np.arange(40) * 0.1, np.full(40, 100.0))])
    assert gap_before(windows).tolist() == [True, False, False, False]


def test_a_clock_that_steps_back_is_a_pause():
    windows = build([make_batch([5.0, 5.1, 3.0, 3.1], [100.0] * 4)])
    assert len(windows.gpu) == 2


def test_the_label_is_that_of_the_middle_sample():
    label = np.array(["a", "b", "b", "b", "c"], dtype=object)
    windows = build([make_batch(np.arange(5) * 0.2, [1.0] * 5, label=label)], period_s=0.2)
    assert windows.label[0] == "b"


def test_batches_with_and_without_labels_go_together():
    label = np.array(["a"], dtype=object)
    windows = build([make_batch([0.0], [1.0]), make_batch([0.1], [1.0], label=label)])
    assert len(windows.gpu) == 1


def test_no_batches_give_no_windows():
    assert len(build([]).gpu) == 0
    assert len(build([make_batch([], [])]).gpu) == 0


def test_the_period_is_the_median_step_of_one_gpu():
    batch = make_batch([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 9.0, 9.0], [1.0] * 8, gpu=[0, 1] * 4)
    assert estimate_period_s([batch]) == (1.0, 3)
    assert estimate_period_s([make_batch([0.0, 0.0], [1.0, 1.0], gpu=[0, 1])]) == (None, 0)
    assert estimate_period_s([]) == (None, 0)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(50, 700)), min_size=1),
    st.integers(1, 17),
)
def test_any_cut_into_batches_gives_the_same_windows(rows, size):
    clock, t_s = [0, 0, 0], []
    for gpu, step, _ in rows:
        clock[gpu] += step
        t_s.append(clock[gpu] * 0.1)
    gpus, watts = [r[0] for r in rows], [float(r[2]) for r in rows]
    whole = build([make_batch(t_s, watts, gpu=gpus)])
    parts = [
        make_batch(t_s[i : i + size], watts[i : i + size], gpu=gpus[i : i + size])
        for i in range(0, len(rows), size)
    ]
    cut = build(parts)
    assert whole.gpu.tolist() == cut.gpu.tolist()
    for name in ("start_s", "end_s", "power_w", "std_w", "max_w", "count"):
        assert np.allclose(getattr(whole, name), getattr(cut, name))
    assert int(whole.count.sum()) == len(rows)
