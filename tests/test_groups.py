from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.derive import Measures, measure
from analysis.efficiency import Efficiency, EfficiencyMethod, efficiency, paired_rates
from analysis.groups import (
    Cell,
    ComparabilityError,
    differing_keys,
    group_runs,
    require_comparable,
    throughput,
)
from analysis.load import load_results
from harness.record.schema import Status

GOLDEN = Path(__file__).parent / "data" / "golden" / "results"
FACTORS = ("gpus",)


@pytest.fixture(scope="module")
def measures() -> tuple[Measures, ...]:
    return tuple(measure(run) for run in load_results(GOLDEN).runs)


def with_key(m: Measures, **changes: Any) -> Measures:
    manifest = m.run.manifest
    key = dict(manifest.comparability) | changes
    return replace(m, run=replace(m.run, manifest=replace(manifest, comparability=key)))


def with_rate(m: Measures, world_size: int, rate: float, block: int = 0) -> Measures:
    manifest = m.run.manifest
    trial = replace(manifest.trial, world_size=world_size, block=block)
    run = replace(m.run, manifest=replace(manifest, trial=trial))
    return replace(m, run=run, tokens_per_second=rate, is_clean=True, status="finished")


def cell(m: Measures, world_size: int, *rates: float) -> Cell:
    """Runs of these rates that all stand in one block, as in a sequential design."""
    runs = tuple(with_rate(m, world_size, rate) for rate in rates)
    return Cell(world_size=world_size, runs=runs)


def blocks(m: Measures, world_size: int, rates: dict[int, float]) -> Cell:
    """One run of each block."""
    runs = tuple(with_rate(m, world_size, rate, block) for block, rate in rates.items())
    return Cell(world_size=world_size, runs=runs)


def test_runs_that_differ_beyond_the_factor_stand_in_groups_named_by_it(
    measures: tuple[Measures, ...],
) -> None:
    groups = group_runs(measures, FACTORS)
    assert [(g.machine, g.name) for g in groups] == [
        ("golden-endings", ""),
        ("golden-laptop", "train.precision=bf16"),
        ("golden-laptop", "train.precision=fp32"),
        ("golden-node", ""),
    ]
    assert [c.world_size for c in groups[2].cells] == [1, 2]


def test_no_run_is_lost_in_grouping(measures: tuple[Measures, ...]) -> None:
    groups = group_runs(measures, FACTORS)
    assert sum(len(c.runs) for g in groups for c in g.cells) == len(measures)


def test_world_size_alone_may_differ(measures: tuple[Measures, ...]) -> None:
    changed = with_key(measures[0], world_size=64, num_nodes=8, gradient_accumulation_steps=1)
    require_comparable("efficiency", measures[0], changed, FACTORS)
    with pytest.raises(ComparabilityError, match="world_size"):
        require_comparable("efficiency", measures[0], changed, ())


def test_an_efficiency_across_groups_is_refused_and_the_key_named(
    measures: tuple[Measures, ...],
) -> None:
    one = cell(measures[0], 1, 100.0)
    other = Cell(world_size=2, runs=(with_key(with_rate(measures[0], 2, 190.0), commit="beef"),))
    with pytest.raises(ComparabilityError, match=r"efficiency refused.*commit") as caught:
        efficiency(other, one, FACTORS)
    assert caught.value.keys == ("commit",)


def test_other_machines_are_refused_even_with_equal_settings(
    measures: tuple[Measures, ...],
) -> None:
    elsewhere = replace(measures[0], run=replace(measures[0].run, machine="elsewhere"))
    with pytest.raises(ComparabilityError, match="machine"):
        require_comparable("ratio", measures[0], elsewhere, FACTORS)


def test_a_factor_of_a_dotted_setting_frees_that_setting(measures: tuple[Measures, ...]) -> None:
    changed = with_key(measures[0], **{"train.precision": "fp8"})
    require_comparable("ratio", measures[0], changed, ("train.precision",))
    with pytest.raises(ComparabilityError, match=r"train\.precision"):
        require_comparable("ratio", measures[0], changed, FACTORS)


def test_a_missing_setting_differs_from_null() -> None:
    assert differing_keys({"a": None, "b": 1}, {"b": 1}) == ("a",)


@given(
    st.dictionaries(st.text(max_size=3), st.integers() | st.none() | st.booleans(), max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers() | st.none() | st.booleans(), max_size=5),
)
def test_differing_keys_are_symmetric_and_empty_only_for_equals(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    assert differing_keys(a, b) == differing_keys(b, a)
    assert differing_keys(a, a) == ()
    if not differing_keys(a, b):
        assert a == b


def test_linear_scaling_is_an_efficiency_of_one(measures: tuple[Measures, ...]) -> None:
    base = cell(measures[0], 2, 100.0, 100.0, 100.0)
    result = efficiency(cell(measures[0], 8, 400.0, 400.0, 400.0), base, FACTORS)
    assert result is not None
    assert result.estimate == pytest.approx(1.0)
    assert result.low == pytest.approx(1.0)


def test_the_interval_of_an_efficiency_is_over_runs(measures: tuple[Measures, ...]) -> None:
    base = cell(measures[0], 1, 99.0, 100.0, 101.0)
    result = efficiency(cell(measures[0], 2, 178.0, 180.0, 182.0), base, FACTORS)
    assert result is not None
    assert result.low is not None
    assert result.high is not None
    assert result.low < 0.9 < result.high < 1.0
    assert result.n == 3


def test_the_baseline_is_one_by_definition_without_an_interval(
    measures: tuple[Measures, ...],
) -> None:
    base = cell(measures[0], 1, 99.0, 101.0)
    result = efficiency(base, base, FACTORS)
    assert result is not None
    assert (result.estimate, result.low, result.high) == (1.0, None, None)


def test_a_cell_without_clean_runs_has_no_throughput_and_no_efficiency(
    measures: tuple[Measures, ...],
) -> None:
    failed = Cell(world_size=2, runs=tuple(m for m in measures if m.status == "oom")[:1])
    assert throughput(failed) is None
    assert efficiency(failed, cell(measures[0], 1, 100.0), FACTORS) is None
    assert failed.status == "oom"


def test_a_cell_counts_how_its_runs_ended(measures: tuple[Measures, ...]) -> None:
    groups = group_runs(measures, FACTORS)
    statuses = [c.status for g in groups for c in g.cells]
    assert statuses == [
        ", ".join(f"1 {status}" for status in Status),
        "hang",
        "finished",
        "3 finished, 1 interrupted",
        "2 finished, 1 oom",
        "2 finished, 1 marked",
        "2 finished, 1 incomplete",
    ]


def test_hashes_in_a_group_name_are_short(measures: tuple[Measures, ...]) -> None:
    other = with_key(measures[0], commit="f" * 40, driver=None)
    names = [g.name for g in group_runs([with_key(measures[0], driver="580"), other], FACTORS)]
    assert "commit=ffffffffffff, driver=unset" in names


def certain(result: Efficiency | None) -> Efficiency:
    assert result is not None
    return result


def test_what_a_block_does_to_both_of_its_runs_cancels(measures: tuple[Measures, ...]) -> None:
    """Interleaved arms were compared as independent: a slow block widened every interval."""
    slow = {0: 1.0, 1: 0.8, 2: 0.6}
    base = blocks(measures[0], 1, {b: 100.0 * s for b, s in slow.items()})
    double = blocks(measures[0], 2, {b: 180.0 * s for b, s in slow.items()})
    result = certain(efficiency(double, base, FACTORS))
    assert (result.method, result.n) == (EfficiencyMethod.PAIRED, 3)
    assert (result.low, result.high) == (pytest.approx(0.9), pytest.approx(0.9))
    loose = certain(
        efficiency(cell(measures[0], 2, *double.rates), cell(measures[0], 1, *base.rates), FACTORS)
    )
    assert loose.method is EfficiencyMethod.WELCH
    assert loose.low is not None
    assert loose.low < 0.7


@pytest.mark.parametrize(
    ("own", "base", "pairs"),
    [
        ((0, 1, 2), (0, 1, 2), 3),
        (
            (0, 1),
            (0, 1, 2),
            2,
        ),  # the third has no partner, the smaller cell is covered
        ((0, 1, 3), (0, 1, 2), 0),  # a run of the smaller cell would be dropped
        ((0,), (0, 1, 2), 0),  # one pair gives no spread
        ((3, 4), (0, 1), 0),
    ],
)
def test_pairs_cover_every_run_of_the_smaller_cell_or_none(
    measures: tuple[Measures, ...], own: tuple[int, ...], base: tuple[int, ...], pairs: int
) -> None:
    double = blocks(measures[0], 2, {b: 180.0 + b for b in own})
    single = blocks(measures[0], 1, {b: 100.0 + b for b in base})
    assert len(paired_rates(double, single)) == pairs
    assert len(paired_rates(single, double)) == pairs


def test_runs_of_one_block_are_not_paired(measures: tuple[Measures, ...]) -> None:
    """A sequential design puts every run into block 0."""
    assert paired_rates(cell(measures[0], 2, 1.0, 2.0), cell(measures[0], 1, 1.0, 2.0)) == ()


def test_single_runs_have_an_efficiency_and_no_interval(measures: tuple[Measures, ...]) -> None:
    result = certain(
        efficiency(cell(measures[0], 2, 180.0), cell(measures[0], 1, 100.0, 101.0), FACTORS)
    )
    assert result.method is EfficiencyMethod.NO_INTERVAL
    assert (result.low, result.high) == (None, None)


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=2, max_size=6))
def test_a_paired_efficiency_is_the_geometric_mean_of_ratios(
    rates: list[tuple[float, float]],
) -> None:
    m = measure(load_results(GOLDEN).runs[0])
    double = blocks(m, 2, {b: own for b, (own, _) in enumerate(rates)})
    single = blocks(m, 1, {b: base for b, (_, base) in enumerate(rates)})
    result = certain(efficiency(double, single, FACTORS))
    logs = [math.log(own / base) for own, base in rates]
    assert result.estimate == pytest.approx(math.exp(sum(logs) / len(logs)) / 2)
    assert result.method is EfficiencyMethod.PAIRED
