import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from harness.errors import MetricError
from harness.stats import (
    SteadyState,
    find_steady_state,
    mean_interval,
    paired_ratio_interval,
    ratio_interval,
    steady_state_start,
)

POSITIVE = st.lists(st.floats(0.1, 1e6), min_size=2, max_size=20)


def noisy(mean, sd, size, seed):
    return list(np.random.default_rng(seed).normal(mean, sd, size))


def test_a_slow_start_is_cut_at_the_batch_in_which_it_ends():
    values = [31.0, 4.0, 2.0, *noisy(1.0, 0.01, 97, seed=1)]
    assert find_steady_state(values) == SteadyState(start=5, settled=True)


def test_a_decaying_start_is_cut_once_it_is_below_the_noise():
    decay = [10.0 * math.exp(-i / 10.0) for i in range(200)]
    values = [d + v for d, v in zip(decay, noisy(1.0, 0.1, 200, seed=2), strict=True)]
    start = steady_state_start(values)
    assert 20 <= start <= 80
    assert decay[start] < 1.0


def test_a_constant_series_is_steady_from_its_first_value():
    assert find_steady_state([0.1] * 40) == SteadyState(start=0, settled=True)


def test_a_series_that_never_settles_says_so_and_keeps_its_second_half():
    assert find_steady_state([float(i) for i in range(100)]) == SteadyState(start=50, settled=False)


def test_a_disturbance_at_the_end_is_not_mistaken_for_warm_up():
    values = [*noisy(1.0, 0.01, 90, seed=3), *noisy(3.0, 0.01, 10, seed=4)]
    assert steady_state_start(values) <= 50


def test_stationary_noise_mostly_keeps_nearly_everything():
    kept = [1.0 - steady_state_start(noisy(1.0, 0.05, 200, seed=s)) / 200 for s in range(200)]
    assert statistics.median(kept) > 0.9


def test_the_rule_agrees_with_its_definition_computed_the_long_way():
    values = [5.0, 3.0, *noisy(1.0, 0.2, 61, seed=5)]
    batches = [statistics.fmean(values[i : i + 5]) for i in range(0, 60, 5)]

    def mser(d):
        rest = batches[d:]
        mean = statistics.fmean(rest)
        return sum((x - mean) ** 2 for x in rest) / len(rest) ** 2

    assert steady_state_start(values) == 5 * min(range(7), key=mser)


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ([7.0], 0),
        ([31.0, 1.0], 0),
        ([31.0, 1.0, 1.1], 1),
        ([31.0, 1.0, 1.1, 0.9], 1),
        ([31.0, 1.0, 1.3, 0.7, 1.2, 0.8, 1.3, 0.7], 1),
        ([31.0, *[1.0, 1.3, 0.7] * 6], 1),
    ],
)
def test_a_short_series_drops_a_slow_first_step_and_never_claims_to_be_settled(values, start):
    found = find_steady_state(values)
    assert found.start == start
    assert not found.settled


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80))
def test_the_start_lies_in_the_first_half_and_leaves_two_values(values):
    start = steady_state_start(values)
    assert 0 <= start <= len(values) // 2
    assert len(values) - start >= min(2, len(values))


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_a_series_that_is_empty_or_not_finite_is_refused(values):
    with pytest.raises(MetricError, match="steady state"):
        find_steady_state(values)


@given(POSITIVE, st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_the_interval_of_a_mean_is_that_of_scipy(values, confidence):
    if np.ptp(values) < 1e-6 * max(values):
        return
    interval = mean_interval(values, confidence)
    expected = scipy_stats.t.interval(
        confidence, len(values) - 1, np.mean(values), scipy_stats.sem(values)
    )
    assert (interval.low, interval.high) == pytest.approx(expected)
    assert interval.n == len(values)


@given(POSITIVE, POSITIVE)
def test_the_interval_of_a_ratio_is_welchs_on_the_logarithms(top, bottom):
    logs = np.log(top), np.log(bottom)
    if min(np.ptp(v) for v in logs) < 1e-6:
        return
    interval = ratio_interval(top, bottom)
    test = scipy_stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert interval.low is not None
    assert interval.high is not None
    assert math.log(interval.low) == pytest.approx(test.low, abs=1e-9)
    assert math.log(interval.high) == pytest.approx(test.high, abs=1e-9)
    assert interval.n == min(len(top), len(bottom))


def test_the_paired_interval_is_that_of_a_paired_t_test_on_the_logarithms():
    top, bottom = noisy(20.0, 1.0, 6, seed=6), noisy(10.0, 1.0, 6, seed=7)
    test = scipy_stats.ttest_rel(np.log(top), np.log(bottom)).confidence_interval(0.95)
    interval = paired_ratio_interval(top, bottom)
    assert (interval.low, interval.high) == pytest.approx((math.exp(test.low), math.exp(test.high)))


def test_pairing_cancels_what_a_block_does_to_both_of_its_runs():
    block = [1.0, 2.0, 0.5, 4.0]
    bottom = [10.0 * b for b in block]
    top = [20.0 * b for b in block]
    paired, unpaired = paired_ratio_interval(top, bottom), ratio_interval(top, bottom)
    assert (paired.low, paired.high) == pytest.approx((2.0, 2.0))
    assert unpaired.low is not None
    assert unpaired.low < 1.0


@given(POSITIVE, POSITIVE)
def test_swapping_the_groups_inverts_the_ratio_and_its_interval(top, bottom):
    ratio, inverse = ratio_interval(top, bottom), ratio_interval(bottom, top)
    assert ratio.low is not None
    assert ratio.high is not None
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx(
        (1 / inverse.estimate, 1 / inverse.high, 1 / inverse.low), rel=1e-9
    )


@given(POSITIVE, st.floats(1e-3, 1e3))
def test_a_change_of_units_scales_the_mean_and_leaves_the_ratio(values, scale):
    scaled = [scale * v for v in values]
    mean, other = mean_interval(values), mean_interval(scaled)
    assert other.estimate == pytest.approx(scale * mean.estimate)
    ratio = ratio_interval(scaled, scaled)
    assert ratio.estimate == pytest.approx(1.0)


def test_one_run_has_an_estimate_and_no_interval():
    for interval in (
        mean_interval([3.0]),
        ratio_interval([3.0], [1.0, 1.0]),
        ratio_interval([3.0, 3.0], [1.0]),
        paired_ratio_interval([3.0], [1.0]),
    ):
        assert interval.estimate == pytest.approx(3.0)
        assert interval.low is None
        assert interval.high is None
        assert interval.n == 1


def test_equal_runs_have_an_interval_of_no_width():
    ratio = ratio_interval([2.0, 2.0], [1.0, 1.0, 1.0])
    assert (ratio.low, ratio.high) == pytest.approx((2.0, 2.0))
    assert mean_interval([2.0, 2.0]).low == 2.0


def test_one_group_without_spread_takes_the_freedom_of_the_other():
    interval = ratio_interval([2.0, 2.0], [1.0, 1.1, 0.9])
    alone = mean_interval([-math.log(v) for v in (1.0, 1.1, 0.9)])
    assert alone.high is not None
    assert interval.high == pytest.approx(2.0 * math.exp(alone.high))


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95.0])
def test_a_confidence_that_is_no_fraction_is_refused(confidence):
    with pytest.raises(MetricError, match="confidence="):
        mean_interval([1.0, 2.0], confidence)


@pytest.mark.parametrize(
    ("top", "bottom", "message"),
    [
        ([], [1.0], "numerators: no values"),
        ([1.0], [], "denominators: no values"),
        ([1.0, 0.0], [1.0, 1.0], "numerators: value 1 is 0.0"),
        ([1.0, 1.0], [-2.0, 1.0], "denominators: value 0 is -2.0"),
    ],
)
def test_a_ratio_of_what_is_not_positive_is_refused_with_the_place(top, bottom, message):
    with pytest.raises(MetricError, match=message):
        ratio_interval(top, bottom)


def test_pairs_of_different_length_are_refused():
    with pytest.raises(MetricError, match="2 numerators and 1 denominators"):
        paired_ratio_interval([1.0, 2.0], [1.0])


NUM_SIMULATIONS = 1500


def assert_covers_95_percent(hits):
    # Four standard errors of a binomial share: a right interval fails once in 16,000 seeds.
    slack = 4.0 * math.sqrt(0.95 * 0.05 / NUM_SIMULATIONS)
    assert hits / NUM_SIMULATIONS == pytest.approx(0.95, abs=slack)


@pytest.mark.parametrize("num_runs", [2, 3, 5])
def test_the_interval_of_a_mean_covers_the_truth_in_95_percent_of_campaigns(num_runs):
    runs = np.random.default_rng(11).normal(100.0, 1.0, (NUM_SIMULATIONS, num_runs))
    intervals = [mean_interval(list(row)) for row in runs]
    assert_covers_95_percent(sum(i.low <= 100.0 <= i.high for i in intervals))


def test_the_paired_interval_covers_the_truth_whatever_the_blocks_do():
    rng = np.random.default_rng(12)
    block = rng.normal(0.0, 0.3, (NUM_SIMULATIONS, 5))
    top = np.exp(math.log(2.0) + block + rng.normal(0.0, 0.01, block.shape))
    bottom = np.exp(block + rng.normal(0.0, 0.01, block.shape))
    intervals = [paired_ratio_interval(list(a), list(b)) for a, b in zip(top, bottom, strict=True)]
    assert_covers_95_percent(sum(i.low <= 2.0 <= i.high for i in intervals))


def test_the_ratio_of_groups_of_unequal_size_and_spread_covers_the_truth():
    rng = np.random.default_rng(13)
    top = np.exp(rng.normal(math.log(2.0), 0.05, (NUM_SIMULATIONS, 10)))
    bottom = np.exp(rng.normal(0.0, 0.01, (NUM_SIMULATIONS, 6)))
    intervals = [ratio_interval(list(a), list(b)) for a, b in zip(top, bottom, strict=True)]
    assert_covers_95_percent(sum(i.low <= 2.0 <= i.high for i in intervals))
