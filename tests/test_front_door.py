"""The front door: overrides, help, and one line with exit code 2 for every mistake."""

import re
import signal
import subprocess

import pytest

from harness.__main__ import compose, config_root, main
from harness.errors import ConfigError


@pytest.fixture
def refuse(capsys, tmp_path):
    """Run a command line that must be refused: one line, code 2, nothing written."""

    def run(*words):
        results = tmp_path / "results"
        assert main([*words, f"results_dir={results}"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("wattline: ")
        assert err.count("\n") == 1
        assert not results.exists()
        return err.removeprefix("wattline: ").rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("experiment=scalling", r"experiment=scalling: there is .*smoke.*; did you mean scaling\?"),
        ("experiment=", "experiment=: there is "),
        ("model=qwen4", r"model=qwen4: there is .*qwen3_tiny"),
        ("power=nvm", r"power=nvm: .*did you mean nvml\?"),
        ("gpu=2", r"gpu=2: unknown key gpu; did you mean gpus\?"),
        (
            "train.micro_batchsize=2",
            (
                r"train.micro_batchsize=2: unknown key train.micro_batchsize;"
                r" did you mean train.micro_batch_size\?"
            ),
        ),
        ("train.zzz=1", r"unknown key train.zzz; known here: activation_checkpointing, "),
        ("gpus.a=1", r"unknown key gpus.a; known here: none"),
        ("train=5", r"train=5: train is a group of settings; set one of train.strategy, "),
        ("gpus", r"gpus: expected key=value, for example gpus=2; python -m harness --help"),
        ("--gpus=2", r"--gpus=2: expected key=value"),
        ("+gpus=2", r"\+gpus=2: expected key=value"),
        ("~gpus=2", r"~gpus=2: expected key=value"),
        ("=2", r"=2: expected key=value"),
        ("gpus=abc", r"^gpus='abc': expected a whole number$"),
        ("gpus=0", r"^gpus=0: expected a number above 0$"),
        ("gpus=[", r"no viable alternative"),
        ("gpus=${nothing}", r"Interpolation key 'nothing' not found"),
        ("points=[a]", r"^points=\['a'\]: expected a list of a whole number or null$"),
        ("points=[1,1]", r"^points=\[1, 1\]: expected different whole numbers"),
        ("size=huge", r"^size=huge: experiment smoke has the sizes ci, full, laptop$"),
        (
            "train.global_batch_size=9",
            (
                r"^train.global_batch_size=9: not a multiple of 8 \(train.micro_batch_size 4 x"
                r" data-parallel size 2\); use 8 or 16$"
            ),
        ),
        ("experiment.name=../other", r"^experiment.name='../other': it names a folder"),
        ("model.num_attention_heads=7", r"not a multiple of model.num_key_value_heads=4$"),
        ("corpus.bpe_vocab_size=1000000", r"qwen3_tiny has model.vocab_size=4096; use at most"),
        ("results_dir=/tmp/a=b", r"quotes of its own: 'key=\"VALUE\"'$"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_names_it(refuse, word, message):
    assert re.search(message, refuse(word))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("size=[1]", "size=[1]: expected text"),
        ("trial_timeout_s=inf", "trial_timeout_s=inf: expected a finite number"),
        (
            "experiment.sizes.laptop=null",
            "experiment.sizes.laptop=None: expected a list of text",
        ),
        (
            "experiment.expected_tokens_per_second_per_gpu=0",
            "experiment.expected_tokens_per_second_per_gpu=0.0: expected a number above 0",
        ),
    ],
)
def test_values_that_used_to_end_in_a_traceback_are_refused_like_any_other(refuse, word, message):
    """TypeError, ValueError at the manifest, TypeError and ZeroDivisionError, in this order."""
    assert refuse(word) == message


def test_sixteen_gpus_where_there_are_none_says_what_there_is_and_what_would_do(
    refuse, monkeypatch, make_host
):
    monkeypatch.setattr("harness.execute.collect_host", lambda _paths: make_host())
    message = refuse("experiment=scaling", "gpus=16")
    assert message.startswith("gpus=16: this machine has no GPU (no NVIDIA driver)")
    for way_out in ("launcher=local", "gpus=N", "plan=true", "on=laptop"):
        assert way_out in message


def test_a_file_where_the_results_folder_should_be_is_named(tmp_path, capsys):
    (tmp_path / "results").write_text("not a folder")
    assert main([f"results_dir={tmp_path / 'results'}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"wattline: cannot write {tmp_path / 'results'}: a file stands where")
    assert (tmp_path / "results").read_text() == "not a folder"


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_is_ours_and_lists_what_there_is(word, capsys):
    assert main(["experiment=smoke", word]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: python -m harness")
    assert "scaling, smoke" in out
    assert "qwen3_32b" in out
    assert "Hydra" not in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_plan_is_printed_and_nothing_is_written(tmp_path, capsys):
    results = tmp_path / "results"
    assert main(["experiment=scaling", "gpus=16", "plan=true", f"results_dir={results}"]) == 0
    out = capsys.readouterr().out
    assert "9 trials in this order" in out
    assert "= 262,144 tokens per step" in out
    assert not results.exists()


def test_ctrl_c_before_anything_has_started_is_one_line_and_code_1(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.plan.make_plan", interrupt)
    assert main(["experiment=smoke"]) == 1
    assert capsys.readouterr().err == "wattline: interrupted\n"


def test_the_command_line_reaches_the_campaign_as_it_was_typed_and_then_the_table(
    monkeypatch, tmp_path
):
    seen, commands = [], []

    def run_campaign(config, plan, argv, _view):
        seen.append((config.gpus, [trial.world_size for trial in plan.trials], argv))
        return 1

    monkeypatch.setattr("harness.execute.run_campaign", run_campaign)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    words = ["experiment=smoke", "points=[2]", f"results_dir={tmp_path}"]
    assert main(words) == 1
    assert seen == [(2, [2], words)]
    (command,) = commands
    assert command[1:5] == ["-m", "analysis.tables", "--results", str(tmp_path)]


def test_the_command_line_beats_the_size_and_the_size_beats_the_experiment():
    plain = compose(["experiment=smoke", "size=ci", "train.num_steps=7"])
    assert plain["train"]["num_steps"] == 7
    assert plain["train"]["global_batch_size"] == 4
    assert plain["train"]["adam_beta1"] == 0.9


def test_a_group_said_on_the_command_line_beats_the_size_s_and_keeps_its_settings():
    plain = compose(["experiment=smoke", "model=qwen3_0_6b", "model.weights=/somewhere"])
    assert (plain["model"]["name"], plain["model"]["weights"]) == ("qwen3_0_6b", "/somewhere")


def test_a_path_may_hold_an_equals_sign():
    assert compose(["experiment=smoke", "results_dir='a=b'"])["results_dir"] == "a=b"


def test_composing_leaves_neither_files_nor_state_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    compose(["experiment=smoke"])
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_experiment_file_that_does_not_compose_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("defaults: [nothing, _self_]\n")
    monkeypatch.setattr("harness.__main__.config_root", lambda: tmp_path)
    with pytest.raises(ConfigError) as caught:
        compose([])
    assert "nothing" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_experiments_lie_in_the_package():
    assert (config_root() / "config.yaml").is_file()
