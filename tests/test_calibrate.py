"""Calibration: labelled windows to a table, its thresholds, its overlaps, its scores."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import MetricError
from harness.samples import PowerKind, PowerScope
from harness.triage.bands import TableLabel, parse_table, table_to_yaml
from harness.triage.calibrate import (
    CalibrationMeta,
    PhaseSamples,
    calibrate,
)
from harness.triage.states import State
from harness.triage.thresholds import find_cut

# Watts, spread, utilization, memory of each phase; the order is that of their watts.
PHASES = {
    State.IDLE_BARE: (70.0, 1.0, 0.0, 0.0),
    State.IDLE_CONTEXT: (120.0, 1.0, 0.0, 2e9),
    State.COMMUNICATION: (150.0, 1.0, 100.0, 4e10),
    State.DATA_STARVATION: (260.0, 8.0, 45.0, 4e10),
    State.COMPUTE: (650.0, 10.0, 100.0, 4e10),
}


@pytest.fixture
def meta():
    return CalibrationMeta(
        name="mine",
        device="a GPU",
        device_names=("NVIDIA GPU",),
        limit_w=700.0,
        power_kind=PowerKind.INSTANT,
        power_scope=PowerScope.GPU,
        driver="580.1",
        num_gpus=1,
        label=TableLabel.REAL,
        source="calibration",
        date="2026-01-01",
    )


def make_phase(state, rng, *, watts=None, variant=None, emulated=False, seconds=20):
    mean_w, spread_w, pct, memory = PHASES.get(state, (watts, 1.0, 0.0, 2e9))
    t_s = np.arange(seconds * 10) * 0.1
    return PhaseSamples(
        state=state,
        variant=variant,
        t_s=t_s,
        power_w=(watts or mean_w) + spread_w * rng.standard_normal(len(t_s)),
        utilization_pct=np.full(len(t_s), pct),
        memory_used_bytes=memory,
        is_emulated=emulated,
    )


@pytest.fixture
def phases():
    rng = np.random.default_rng(3)
    return [make_phase(state, rng) for _ in range(6) for state in PHASES]


def test_every_state_gets_a_band_in_order_of_watts(phases, meta):
    table = calibrate(phases, meta).table
    assert [band.state for band in table.bands] == list(PHASES)
    for band in table.bands:
        assert band.median_w == pytest.approx(PHASES[band.state][0], rel=0.02)
        assert band.low_w <= band.median_w <= band.high_w
        assert (band.windows, band.samples) == (80, 800)
        assert band.utilization_pct == PHASES[band.state][2]


def test_neighbours_get_a_threshold_between_their_bands_with_an_interval(phases, meta):
    table = calibrate(phases, meta).table
    bands = {band.state: band for band in table.bands}
    for below, above in zip(list(PHASES)[:-1], list(PHASES)[1:], strict=True):
        cut = next(t for t in table.thresholds if (t.below, t.above) == (below, above))
        assert bands[below].high_w < cut.watts < bands[above].low_w
        assert cut.low_w <= cut.watts <= cut.high_w
        assert "bootstrap" in cut.rule
    assert table.overlaps == ()


def test_the_table_reads_back_and_says_what_it_is(phases, meta):
    table = calibrate(phases, meta).table
    assert parse_table(table_to_yaml(table), where="x") == table
    assert table.driver == "580.1"
    assert not table.provenance.emulated_collective


def test_states_that_draw_the_same_overlap_and_get_no_threshold(phases, meta):
    rng = np.random.default_rng(4)
    saves = [make_phase(State.CHECKPOINT, rng, watts=120.2) for _ in range(6)]
    result = calibrate([*phases, *saves], meta)
    overlap = next(o for o in result.overlaps if State.CHECKPOINT in (o.below, o.above))
    assert {overlap.below, overlap.above} == {State.CHECKPOINT, State.IDLE_CONTEXT}
    assert overlap.error_rate > 0.05
    pairs = {frozenset((t.below, t.above)) for t in result.table.thresholds}
    assert frozenset((State.CHECKPOINT, State.IDLE_CONTEXT)) not in pairs
    assert result.table.overlaps == result.overlaps


def test_held_out_windows_score_watts_above_utilization(phases, meta):
    result = calibrate(phases, meta)
    assert (result.num_windows, result.num_held_out) == (400, 200)
    assert result.confusion_watts.accuracy > 0.99
    assert result.confusion_baseline.accuracy < 0.85
    missed = result.confusion_baseline.confusion[State.COMMUNICATION]
    assert missed == {State.COMPUTE: 40}


def test_a_save_seen_by_one_window_is_scored_as_the_context_that_it_looks_like(phases, meta):
    rng = np.random.default_rng(4)
    saves = [make_phase(State.CHECKPOINT, rng, watts=120.2) for _ in range(3)]
    result = calibrate([*phases, *saves], meta)
    assert State.CHECKPOINT not in result.confusion_watts.confusion
    assert result.confusion_watts.confusion[State.IDLE_CONTEXT] == {State.IDLE_CONTEXT: 60}


def test_without_enough_windows_nothing_is_held_out_and_no_interval_is_claimed(meta):
    rng = np.random.default_rng(3)
    result = calibrate([make_phase(state, rng) for state in PHASES], meta)
    assert result.confusion_watts is None
    assert result.confusion_baseline is None
    assert all(t.low_w is None and t.high_w is None for t in result.table.thresholds)


def test_variants_of_a_state_are_bands_of_their_own(phases, meta):
    rng = np.random.default_rng(4)
    more = [make_phase(State.COMPUTE, rng, watts=480.0, variant="memory_bound") for _ in range(3)]
    bands = [b for b in calibrate([*phases, *more], meta).table.bands if b.state is State.COMPUTE]
    assert {b.variant for b in bands} == {None, "memory_bound"}


def test_an_emulated_collective_is_marked(phases, meta):
    rng = np.random.default_rng(4)
    spin = make_phase(State.COMMUNICATION, rng, emulated=True)
    assert calibrate([*phases, spin], meta).table.provenance.emulated_collective


def test_missing_readings_are_left_out_and_a_phase_without_any_is_none(phases, meta):
    blind = dataclasses.replace(phases[0], power_w=np.full(len(phases[0].t_s), np.nan))
    holed = dataclasses.replace(
        phases[1], power_w=np.where(phases[1].t_s < 10.0, np.nan, phases[1].power_w)
    )
    result = calibrate([blind, holed, *phases[2:]], meta)
    bands = {b.state: b for b in result.table.bands}
    assert bands[State.IDLE_BARE].samples == 800
    assert bands[State.IDLE_CONTEXT].samples == 700


def test_unknown_utilization_stays_unknown(phases, meta):
    blind = [dataclasses.replace(p, utilization_pct=np.full(len(p.t_s), np.nan)) for p in phases]
    result = calibrate(blind, meta)
    assert all(band.utilization_pct is None for band in result.table.bands)
    assert set(result.confusion_baseline.confusion[State.COMPUTE]) == {State.UNKNOWN}


def test_one_state_makes_no_table(phases, meta):
    with pytest.raises(MetricError, match=r"1 state\(s\) \(idle_bare\)"):
        calibrate([p for p in phases if p.state is State.IDLE_BARE], meta)


def test_the_same_windows_give_the_same_table(phases, meta):
    assert calibrate(phases, meta).table == calibrate(phases, meta).table


def test_a_cut_of_apart_samples_lies_midway_without_error():
    cut_w, error = find_cut(np.array([70.0, 72.0]), np.array([118.0, 120.0]))
    assert (cut_w, error) == (95.0, 0.0)


def test_a_cut_of_equal_samples_errs_by_half():
    assert find_cut(np.array([5.0, 5.0]), np.array([5.0])) == (5.0, 0.5)


watts = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(watts, watts)
def test_no_other_cut_errs_less(below, above):
    low, high = np.array(below, dtype=np.float64), np.array(above, dtype=np.float64)
    cut_w, error = find_cut(low, high)
    assert error == pytest.approx((np.mean(low > cut_w) + np.mean(high <= cut_w)) / 2) or (
        len(set(below + above)) == 1
    )
    for other in np.arange(0.5, 41.0):
        inside = min(*below, *above) < other < max(*below, *above)
        other_error = (np.mean(low > other) + np.mean(high <= other)) / 2
        assert not inside or error <= other_error + 1e-9
