"""Every file in experiments/ composes, parses, makes sense and plans at every size it declares."""

import pytest
import yaml

from harness.__main__ import config_root
from harness.checks import check
from harness.config import (
    CorpusConfig,
    LauncherConfig,
    ModelConfig,
    OnConfig,
    PowerConfig,
)
from harness.parse import parse
from harness.plan import make_plan


def options(group):
    return sorted(path.stem for path in (config_root() / group).glob("*.yaml"))


EXPERIMENTS = options("experiment")
SIZES = ("full", "laptop", "ci")


def test_the_experiments_of_this_version_are_there():
    assert {"smoke", "scaling"} <= set(EXPERIMENTS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_composes_parses_and_plans_at_every_size(compose_config, name, size):
    config = compose_config(f"experiment={name}", f"size={size}")
    check(config)
    assert config.experiment.name == name
    assert set(config.experiment.sizes) == set(SIZES)
    assert config.experiment.question.endswith("?")
    plan = make_plan(config)
    assert plan.trials
    assert not plan.skipped_points
    assert {trial.experiment for trial in plan.trials} == {name}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_ci_size_is_small_and_meets_every_level_of_every_factor(compose_config, name):
    config = compose_config(f"experiment={name}", "size=ci")
    trials = make_plan(config).trials
    assert len(trials) <= 5
    assert max(trial.world_size for trial in trials) <= 2
    assert config.trial_timeout_s <= 120
    for factor, levels in config.experiment.factors.items():
        met = {trial.levels[factor] for trial in trials}
        assert met == set(levels or met)
        assert len(met) > 1


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_on_laptop_is_cpu_gloo_and_the_size_that_fits(compose_config, name):
    config = compose_config(f"experiment={name}", "on=laptop")
    assert (config.on.device, config.on.backend, config.size) == ("cpu", "gloo", "laptop")
    assert config.model.name == "qwen3_tiny"
    check(config)


def test_on_defaults_to_gpus_except_for_the_smoke(smoke_config, scaling_config):
    assert (smoke_config.on.name, smoke_config.size) == ("laptop", "laptop")
    assert (scaling_config.on.name, scaling_config.size) == ("gpus", "full")


GROUPS = {
    "model": ModelConfig,
    "corpus": CorpusConfig,
    "on": OnConfig,
    "power": PowerConfig,
    "launcher": LauncherConfig,
}


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_of_every_group_parses_and_is_called_like_its_file(group):
    assert options(group)
    for option in options(group):
        plain = yaml.safe_load((config_root() / group / f"{option}.yaml").read_text())
        part = parse(GROUPS[group], plain, group)
        assert getattr(part, "name", option) == option


def test_every_group_of_options_is_covered_here():
    folders = {p.name for p in config_root().iterdir() if p.is_dir() and not p.name.startswith("_")}
    assert folders == {*GROUPS, "experiment"}


def test_scaling_is_the_report_s_setting(scaling_config):
    train = scaling_config.train
    assert (train.global_batch_size, train.sequence_length) == (128, 2048)
    assert scaling_config.model.name == "qwen3_32b"
    assert {trial.world_size for trial in make_plan(scaling_config).trials} == {4, 8, 16}


def test_more_gpus_than_a_preset_has_are_taken_at_their_word(compose_config):
    """smoke gpus=1 planned 1 and 2 ranks: the preset's points beat the command line."""
    plan = make_plan(compose_config("experiment=smoke", "gpus=1"))
    assert [trial.world_size for trial in plan.trials] == [1]


def test_another_model_has_no_expected_rate(compose_config):
    """Qwen3-32B on a laptop was planned to take seven minutes."""
    config = compose_config("experiment=scaling", "on=laptop", "model=qwen3_0_6b")
    assert config.experiment.expected_tokens_per_second_per_gpu is None
    known = compose_config("experiment=scaling", "on=laptop")
    assert known.experiment.expected_tokens_per_second_per_gpu is not None
