"""The plan: batch arithmetic, arms and their order, run ids, what a trial's hash covers."""

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import plan as planning
from harness.config import Order
from harness.errors import ConfigError
from harness.plan import batch, make_plan


def designed(config, *, factors=None, **design):
    """``config`` with other factors or another design."""
    experiment = config.experiment
    experiment = dataclasses.replace(
        experiment,
        factors=experiment.factors if factors is None else factors,
        design=dataclasses.replace(experiment.design, **design),
    )
    return dataclasses.replace(config, experiment=experiment)


def trained(config, **changes):
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


@given(micro=st.integers(1, 64), world_size=st.integers(1, 512), accumulation=st.integers(1, 1000))
def test_global_batch_is_micro_batch_times_accumulation_times_ranks(
    scaling_config, micro, world_size, accumulation
):
    config = trained(
        scaling_config,
        micro_batch_size=micro,
        global_batch_size=micro * world_size * accumulation,
    )
    b = batch(config, world_size)
    assert b.gradient_accumulation_steps == accumulation
    assert b.global_batch_size == (
        b.micro_batch_size * b.gradient_accumulation_steps * b.data_parallel_size
    )
    assert b.tokens_per_step == b.global_batch_size * config.train.sequence_length


@given(
    micro=st.integers(1, 64),
    world_size=st.integers(1, 512),
    global_batch_size=st.integers(1, 10_000),
)
def test_a_batch_that_does_not_divide_is_refused_with_batches_that_do(
    scaling_config, micro, world_size, global_batch_size
):
    per_pass = micro * world_size
    config = trained(scaling_config, micro_batch_size=micro, global_batch_size=global_batch_size)
    if global_batch_size % per_pass == 0:
        assert batch(config, world_size).global_batch_size == global_batch_size
        return
    with pytest.raises(ConfigError) as caught:
        batch(config, world_size)
    for word in str(caught.value).rpartition("use ")[2].split(" or "):
        assert int(word) % per_pass == 0
        assert abs(int(word) - global_batch_size) < per_pass


def test_a_batch_that_does_not_divide_shows_the_arithmetic(scaling_config):
    config = trained(scaling_config, global_batch_size=100, micro_batch_size=4)
    with pytest.raises(ConfigError) as caught:
        make_plan(config)
    assert str(caught.value) == (
        "train.global_batch_size=100: not a multiple of 64"
        " (train.micro_batch_size 4 x data-parallel size 16); use 64 or 128"
    )


designs = st.fixed_dictionaries(
    {"repeats": st.integers(1, 5), "seed": st.integers(0, 1000), "order": st.sampled_from(Order)}
)


@settings(max_examples=25)
@given(
    design=designs,
    points=st.lists(st.sampled_from([1, 2, 4, 8, 16, 32]), min_size=1, max_size=4, unique=True),
    rates=st.lists(st.sampled_from([1e-5, 1e-4, 1e-3]), max_size=2, unique=True),
)
def test_every_arm_runs_once_per_repeat_and_no_run_id_twice(scaling_config, design, points, rates):
    factors = {"gpus": (), **({"train.learning_rate": tuple(rates)} if rates else {})}
    config = dataclasses.replace(
        designed(scaling_config, factors=factors, **design), points=tuple(points)
    )
    plan = make_plan(config)
    num_arms = len(points) * max(1, len(rates))
    assert [trial.index for trial in plan.trials] == list(range(num_arms * design["repeats"]))
    assert len({trial.run_id for trial in plan.trials}) == len(plan.trials)
    assert len({(trial.arm, trial.repeat) for trial in plan.trials}) == len(plan.trials)
    assert len({trial.arm for trial in plan.trials}) == num_arms
    if design["order"] is Order.INTERLEAVED:
        blocks = [trial.block for trial in plan.trials]
        assert blocks == sorted(blocks)
        for block in range(design["repeats"]):
            arms = [trial.arm for trial in plan.trials if trial.block == block]
            assert len(arms) == len(set(arms)) == num_arms
    assert make_plan(config) == plan


def test_another_seed_is_another_order_of_the_same_trials(scaling_config):
    def run_ids(seed):
        return [t.run_id for t in make_plan(designed(scaling_config, seed=seed, repeats=5)).trials]

    orders = {tuple(run_ids(seed)) for seed in range(5)}
    assert len(orders) == 5
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_interleaved_blocks_are_not_all_in_the_same_order(scaling_config):
    trials = make_plan(designed(scaling_config, repeats=6)).trials
    orders = {tuple(t.world_size for t in trials if t.block == block) for block in range(6)}
    assert len(orders) > 1


def test_sequential_order_runs_arm_after_arm(scaling_config):
    trials = make_plan(designed(scaling_config, order=Order.SEQUENTIAL, repeats=2)).trials
    assert [(t.world_size, t.repeat) for t in trials] == [
        (4, 0), (4, 1), (8, 0), (8, 1), (16, 0), (16, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "expected"), [(16, {4, 8, 16}), (2, {1, 2}), (1, {1}), (3, {3}), (6, {3, 6})]
)
def test_points_are_a_quarter_a_half_and_all_where_whole(scaling_config, gpus, expected):
    config = dataclasses.replace(trained(scaling_config, global_batch_size=96), gpus=gpus)
    plan = make_plan(config)
    assert {trial.world_size for trial in plan.trials} == expected
    assert not plan.skipped_points


def test_a_declared_point_that_the_batch_does_not_allow_is_left_out_with_the_reason(scaling_config):
    plan = make_plan(designed(scaling_config, factors={"gpus": (3, 4, 16)}))
    assert {trial.world_size for trial in plan.trials} == {4, 16}
    assert list(plan.skipped_points) == [3]
    assert "not a multiple of 3" in plan.skipped_points[3]


def test_points_asked_for_are_run_whatever_gpus_says_and_must_divide(scaling_config):
    config = dataclasses.replace(scaling_config, points=(16, 2))
    assert {trial.world_size for trial in make_plan(config).trials} == {16, 2}
    with pytest.raises(ConfigError, match="not a multiple of 3"):
        make_plan(dataclasses.replace(scaling_config, points=(3,)))


@pytest.mark.parametrize("points", [(), (0,), (-4,), (4, 4)])
def test_points_are_different_and_above_zero(scaling_config, points):
    with pytest.raises(ConfigError, match=r"^points=\[.*\]: expected different whole numbers"):
        make_plan(dataclasses.replace(scaling_config, points=points))


@pytest.mark.parametrize("levels", [(0,), ("abc",), (True,), (1.5,), (4, 4)])
def test_declared_world_sizes_are_whole_numbers(scaling_config, levels):
    """experiment.factors.gpus=[0] ended in a ZeroDivisionError, =[abc] in a TypeError."""
    with pytest.raises(ConfigError, match=r"^experiment\.factors\.gpus=\[.*\]: expected different"):
        make_plan(designed(scaling_config, factors={"gpus": levels}))


def test_no_declared_world_size_that_divides_says_why(scaling_config):
    """The message said "give at least one" where three had been given."""
    with pytest.raises(ConfigError, match=r"no levels; .*not a multiple of 5.*not a multiple of 3"):
        make_plan(designed(scaling_config, factors={"gpus": (5, 3)}))


def test_a_factor_without_levels_is_refused(scaling_config):
    with pytest.raises(ConfigError, match=r"train\.compile: no levels; give at least one"):
        make_plan(designed(scaling_config, factors={"train.compile": ()}))


def test_points_of_an_experiment_that_does_not_vary_gpus_are_refused(scaling_config):
    config = designed(scaling_config, factors={"train.compile": (True, False)})
    with pytest.raises(ConfigError, match=r"points=\[4\].*does not vary the number of GPUs"):
        make_plan(dataclasses.replace(config, points=(4,)))


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"train.speed": (1,)}, "train.speed is not a setting"),
        ({"train": (1,)}, "train is not a setting"),
        ({"train.num_steps": ("abc",)}, "train.num_steps='abc': expected a whole number"),
        ({"train.precision": ("fp8",)}, "train.precision='fp8': expected one of bf16, fp32"),
    ],
)
def test_a_factor_or_level_that_is_no_setting_is_named(scaling_config, factors, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(designed(scaling_config, factors=factors))


def test_a_trial_carries_the_levels_of_its_arm(scaling_config):
    config = designed(scaling_config, factors={"train.compile": (True,), "gpus": (16,)}, repeats=1)
    (trial,) = make_plan(config).trials
    assert trial.levels == {"train.compile": True, "gpus": 16}
    assert trial.arm == "train.compile=True gpus=16"
    assert (trial.world_size, trial.num_nodes, trial.gradient_accumulation_steps) == (16, 2, 8)
    assert trial.run_id == f"scaling-g16-{trial.spec_hash}-r0"
    resolved = planning.trial_config(config, trial.levels)
    assert (resolved.train.compile, resolved.gpus, resolved.points) == (True, 16, None)


@pytest.mark.parametrize(
    "change",
    [
        {"results_dir": "elsewhere"},
        {"cache_dir": "/elsewhere"},
        {"plan": True},
        {"fresh": True},
        {"accept_drift": True},
        {"retry_failed": True},
        {"trial_timeout_s": 1.0},
        {"size": "other"},
    ],
)
def test_settings_that_are_not_the_trial_leave_its_id_alone(scaling_config, change):
    changed = dataclasses.replace(scaling_config, **change)
    assert make_plan(changed).trials == make_plan(scaling_config).trials


def test_more_repeats_keep_the_ids_of_those_that_ran(scaling_config):
    few = {t.run_id for t in make_plan(designed(scaling_config, repeats=2)).trials}
    many = {t.run_id for t in make_plan(designed(scaling_config, repeats=4)).trials}
    assert few < many


def test_a_setting_of_the_trial_changes_its_id(scaling_config):
    def run_ids(config):
        return {t.run_id for t in make_plan(config).trials}

    assert not run_ids(scaling_config) & run_ids(trained(scaling_config, learning_rate=1.0))


def test_the_comparability_key_holds_what_changes_speed_and_nothing_else(scaling_config):
    key = planning.speed_settings(scaling_config)
    assert key["train.sequence_length"] == 2048
    assert key["train.compile"] is False
    assert key["model.num_layers"] == 64
    hidden = ("train.learning_rate", "train.seed", "gpus", "corpus.path", "results_dir")
    assert not [name for name in hidden if name in key]
    assert set(key) < set(planning.spec(scaling_config))


def test_nested_settings_become_dotted_keys_and_lists_json():
    assert planning.flatten({"a": {"b": 1, "c": {"d": [1, "x"]}}, "e": None}) == {
        "a.b": 1,
        "a.c.d": '[1, "x"]',
        "e": None,
    }


def test_cache_folder_is_the_setting_then_xdg_then_home(scaling_config, tmp_path):
    said = dataclasses.replace(scaling_config, cache_dir="here")
    assert planning.cache_folder(said, {}) == Path("here").absolute()
    xdg = {"XDG_CACHE_HOME": str(tmp_path)}
    assert planning.cache_folder(scaling_config, xdg) == tmp_path / "wattline"
    home = Path.home() / ".cache" / "wattline"
    assert planning.cache_folder(scaling_config, {}) == home
    assert planning.cache_folder(scaling_config, {"XDG_CACHE_HOME": ""}) == home


@given(num_blocks=st.integers(0, 10_000), held_out=st.integers(0, 50))
def test_an_epoch_covers_every_training_block_and_has_a_step(scaling_config, num_blocks, held_out):
    data = dataclasses.replace(scaling_config.data, eval_num_blocks=held_out)
    config = dataclasses.replace(scaling_config, data=data)
    steps = planning.steps_per_epoch(config, num_blocks)
    assert steps == max(1, math.ceil((num_blocks - held_out) / 128))


def test_planned_duration_adds_startup_and_tokens_over_the_expected_rate(scaling_config):
    config = designed(scaling_config, repeats=1)
    plan = make_plan(config)
    tokens = 50 * 128 * 2048
    expected = sum(180 + tokens / (3350 * n) for n in (4, 8, 16))
    assert planning.duration_s(config, plan, None) == pytest.approx(expected)


def test_planned_duration_is_unknown_without_a_rate_or_a_number_of_steps(scaling_config):
    plan = make_plan(scaling_config)
    epoch = trained(scaling_config, num_steps=None)
    assert planning.duration_s(epoch, plan, None) is None
    assert planning.duration_s(epoch, plan, 50) == planning.duration_s(scaling_config, plan, 7)
    no_rate = dataclasses.replace(
        scaling_config,
        experiment=dataclasses.replace(
            scaling_config.experiment, expected_tokens_per_second_per_gpu=None
        ),
    )
    assert planning.duration_s(no_rate, plan, 50) is None
