"""What plan=true prints."""

import dataclasses
import io

import pytest
from rich.console import Console

from harness import show_plan as module
from harness.errors import DataError
from harness.plan import make_plan
from harness.show_plan import show_plan


@pytest.fixture
def printed(monkeypatch):
    """The plan of a config, as text, with ``blocks`` for an estimate."""

    def run(config, blocks=(1000, False)):
        def estimate(*_, **__):
            if isinstance(blocks, Exception):
                raise blocks
            return blocks

        monkeypatch.setattr(module, "estimate_blocks", estimate)
        out = io.StringIO()
        show_plan(Console(file=out, width=40), config, make_plan(config))
        return out.getvalue()

    return run


def test_a_plan_shows_trials_batch_arithmetic_tokens_steps_and_duration(printed, scaling_config):
    text = printed(scaling_config)
    for part in (
        "experiment  scaling (size full, on gpus)",
        "model       qwen3_32b, 32,762,123,264 parameters",
        "strategy    fsdp2, bf16, device cuda",
        "records     results/scaling",
        "blocks      1,000 of 2048 tokens (estimated; exact once the store is built)",
        "batch       128 sequences x 2048 tokens = 262,144 tokens per step",
        "steps       50 per trial; steps per epoch: 8",
        "9 trials in this order (interleaved, seed 2608):",
        "planned duration  about ",
    ):
        assert part in text
    rows = [line.split() for line in text.splitlines() if " x " in line and " = " in line]
    assert ["4", "1", "x", "32", "x", "4", "=", "128"] in rows
    assert ["16", "1", "x", "8", "x", "16", "=", "128"] in rows


def test_the_trials_stand_in_the_order_they_will_run(printed, scaling_config):
    text = printed(scaling_config)
    run_ids = [trial.run_id for trial in make_plan(scaling_config).trials]
    assert [word for word in text.split() if word.startswith("scaling-g")] == run_ids


def test_a_stored_epoch_is_exact_and_an_unknown_one_says_so(printed, compose_config):
    config = compose_config("experiment=smoke", "train.num_steps=null")
    text = printed(config, (80, True))
    assert "80 of 256 tokens (as stored)" in text
    assert "steps       one epoch: 10" in text
    text = printed(config, None)
    assert "blocks      unknown until the corpus has been tokenised" in text
    assert "steps       one epoch: unknown" in text
    assert "planned duration  unknown: no expected rate" in text


def test_a_corpus_that_cannot_be_read_is_no_reason_to_show_no_plan(printed, smoke_config):
    text = printed(smoke_config, DataError("corpus.path=/x: there is no such folder"))
    assert "blocks      unknown: corpus.path=/x: there is no such folder" in text
    assert "steps per epoch: unknown" in text


def test_world_sizes_that_were_left_out_are_named_with_the_reason(printed, scaling_config):
    experiment = dataclasses.replace(scaling_config.experiment, factors={"gpus": (3, 16)})
    text = printed(dataclasses.replace(scaling_config, experiment=experiment))
    assert "3   left out: train.global_batch_size=128: not a multiple of 3" in text


def test_brackets_in_a_folder_are_printed_as_they_are(printed, smoke_config):
    text = printed(dataclasses.replace(smoke_config, results_dir="[/red]"))
    assert "records     [/red]/smoke" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (49.4, "about 0 min 49 s, "),
        (60, "about 1 min 0 s, "),
        (3599.6, "about 1 h 0 min, "),
        (7380, "about 2 h 3 min, "),
        (None, "unknown: "),
    ],
)
def test_durations_are_in_minutes_or_hours(seconds, text):
    assert module._duration(seconds).startswith(text)
