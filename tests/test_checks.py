"""Settings that are well typed and still make no sense."""

import pytest

from harness.checks import check
from harness.errors import ConfigError
from harness.parse import parse, to_plain

POSITIVE = [
    "gpus",
    "trial_timeout_s",
    "experiment.design.repeats",
    "experiment.expected_tokens_per_second_per_gpu",
    "train.sequence_length",
    "train.global_batch_size",
    "train.micro_batch_size",
    "train.num_steps",
    "train.learning_rate",
    "train.max_grad_norm",
    "train.eval_every_steps",
    "train.save_every_steps",
    "train.cpu_threads_per_rank",
    "train.collective_timeout_s",
    "corpus.bpe_vocab_size",
    "corpus.max_bytes",
    "power.interval_s",
    "launcher.gpus_per_node",
]


def changed(config, **settings):
    """``config`` with dotted settings, written with two underscores for a dot, replaced."""
    plain = to_plain(config)
    for key, value in settings.items():
        *parents, leaf = key.split("__")
        node = plain
        for parent in parents:
            node = node[parent]
        assert leaf in node
        node[leaf] = value
    return parse(type(config), plain)


def test_settings_as_shipped_are_accepted(smoke_config, scaling_config):
    check(smoke_config)
    check(scaling_config)


@pytest.mark.parametrize("key", POSITIVE)
@pytest.mark.parametrize("value", [0, -1])
def test_counts_durations_and_rates_are_above_zero(smoke_config, key, value):
    config = changed(smoke_config, **{key.replace(".", "__"): value})
    with pytest.raises(ConfigError, match=rf"^{key}={value}(\.0)?: expected a number above 0$"):
        check(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data__eval_num_blocks": -1}, "data.eval_num_blocks=-1: expected 0 or more"),
        ({"train__warmup_steps": -1}, "train.warmup_steps=-1: expected 0 or more"),
        (
            {"train__adam_beta2": 1.0},
            "train.adam_beta2=1.0: expected a number from 0 to below 1",
        ),
        ({"results_dir": ""}, "results_dir='': expected a folder; results is the default"),
        (
            {"train__sequence_length": 4097},
            (
                "train.sequence_length=4097: qwen3_tiny takes at most 4096"
                " (model.max_position_embeddings)"
            ),
        ),
        (
            {"on__backend": "nccl"},
            "on.backend=nccl: on.device=cpu takes on.backend=gloo",
        ),
        (
            {"train__eval_every_steps": 5},
            (
                "train.eval_every_steps=5: there is nothing to evaluate on; set"
                " data.eval_num_blocks=16, say"
            ),
        ),
        (
            {"power__source": "replay"},
            "power.source=replay: name the recording with power.replay_path=FILE",
        ),
        ({"size": "huge"}, "size=huge: experiment smoke has the sizes ci, full, laptop"),
    ],
)
def test_settings_that_contradict_each_other_are_named(smoke_config, settings, message):
    with pytest.raises(ConfigError) as caught:
        check(changed(smoke_config, **settings))
    assert str(caught.value) == message


def test_evaluation_and_replay_are_accepted_with_what_they_need(smoke_config):
    check(changed(smoke_config, train__eval_every_steps=5, data__eval_num_blocks=16))
    check(changed(smoke_config, power__source="replay", power__replay_path="watts.csv"))
