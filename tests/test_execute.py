"""From a plan to records, with a stand-in for the node process: order, skipping, ends, drift."""

import dataclasses
import io
import os
import signal
import subprocess

import pytest
from rich.console import Console

from harness import execute as module
from harness import manifest as manifest_module
from harness.config import Device
from harness.data.build import StoreInfo
from harness.errors import DataError, MissingExtraError, RecordError
from harness.execute import run_campaign
from harness.plan import make_plan
from harness.progress import View
from harness.record.read import read_campaign, read_events, read_manifest, read_summary
from harness.record.run_dir import EventWriter, RunDir
from harness.record.schema import EventKind, GpuInfo, Label, Status

STORE = StoreInfo(
    path="/store",
    store_hash="a" * 64,
    corpus_hash="b" * 64,
    tokenizer_hash="e" * 64,
    num_blocks=100,
    num_tokens=25_600,
    num_documents=3,
    eos_token_id=0,
    vocab_size=4096,
    sequence_length=256,
    built=True,
)


def gpu(index, name="NVIDIA B300", limit_w=1100.0):
    return GpuInfo(
        index=index,
        name=name,
        uuid=f"GPU-{index}",
        pci_bus_id=None,
        enforced_limit_w=limit_w,
        default_limit_w=None,
        max_sm_clock_mhz=None,
        memory_total_bytes=None,
        mig_enabled=None,
        ecc_enabled=None,
        power_smoothing=None,
        reason=None,
    )


NODE_COMMANDS = {
    "finish": "true",
    "crash": "false",
    "hang": "exec sleep 60",
    "interrupt": "sleep 0.3; kill -INT $PPID; exec sleep 60",
}


class Nodes:
    """Stands in for the launcher: each start plays the next end, and remembers its run."""

    def __init__(self):
        self.started = []
        self.ends = []

    def start(self, run_dir):
        self.started.append(run_dir.root.name)
        end = self.ends.pop(0) if self.ends else "finish"
        manifest = read_manifest(run_dir.manifest)
        events = EventWriter(run_dir, "node000")
        if end == "finish":
            for rank in range(manifest.trial.world_size):
                events.write(EventKind.RANK_FINISHED, rank)
        if end == "crash":
            events.write(EventKind.RANK_ERROR, 0, message="boom")
        if end != "interrupt":
            events.write(EventKind.NODE_FINISHED)
        events.close()
        return subprocess.Popen(
            ["sh", "-c", NODE_COMMANDS[end]],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )


@pytest.fixture
def nodes(monkeypatch, make_host, make_code):
    fake = Nodes()
    monkeypatch.setattr(module, "start_node", fake.start)
    monkeypatch.setattr(module, "prepare_store", lambda *_, **__: STORE)
    monkeypatch.setattr(module, "collect_host", lambda _: make_host())
    monkeypatch.setattr(module, "collect_code_state", lambda _: make_code())
    monkeypatch.setattr(module, "POLL_S", 0.05)
    return fake


@pytest.fixture
def campaign(tmp_path, compose_config):
    """Run the smoke's two trials; settings by keyword; gives the code and what was printed."""
    base = dataclasses.replace(
        compose_config("experiment=smoke"), results_dir=str(tmp_path / "results")
    )

    def run(**changes):
        config = dataclasses.replace(base, **changes)
        plan = make_plan(config)
        out = io.StringIO()
        view = View(Console(file=out, width=200), len(plan.trials))
        code = run_campaign(config, plan, ["experiment=smoke"], view)
        return code, out.getvalue()

    run.folder = tmp_path / "results" / "smoke"
    run.names = [trial.run_id for trial in make_plan(base).trials]
    return run


def summary_of(campaign, name):
    return read_summary(RunDir(campaign.folder / name).summary)


def test_a_campaign_runs_every_trial_in_order_and_leaves_whole_records(nodes, campaign):
    code, printed = campaign()
    assert code == 0
    assert nodes.started == campaign.names
    stored = read_campaign(campaign.folder / "campaign.json")
    assert [trial.run_id for trial in stored.trials] == campaign.names
    for trial in stored.trials:
        run_dir = RunDir(campaign.folder / trial.run_id)
        manifest = read_manifest(run_dir.manifest)
        assert manifest.trial == trial
        assert manifest.config["gpus"] == trial.world_size
        assert manifest.data is not None
        assert manifest.data.num_blocks == 100
        assert manifest.label is Label.REAL
        summary = summary_of(campaign, trial.run_id)
        assert (summary.status, summary.tries) == (Status.FINISHED, 1)
        exits = [e for e in read_events(run_dir.root).records if e.kind is EventKind.CHILD_EXIT]
        assert exits[-1].detail == {"child": "node000", "exitcode": 0}
    assert "block store built: 100 blocks" in printed
    assert f"records: {campaign.folder}" in printed


def test_the_same_command_again_starts_nothing(nodes, campaign):
    campaign()
    code, printed = campaign()
    assert code == 0
    assert nodes.started == campaign.names
    assert printed.count("stands from before: finished") == 2


def test_a_failed_trial_is_code_1_and_the_next_one_runs_and_it_stands(nodes, campaign):
    nodes.ends = ["crash"]
    code, printed = campaign()
    assert code == 1
    assert nodes.started == campaign.names
    assert summary_of(campaign, campaign.names[0]).status is Status.CRASH
    assert "rank 0: rank error (message boom)" in printed
    assert campaign()[0] == 1
    assert nodes.started == campaign.names


def test_retry_failed_runs_it_again_and_keeps_the_first_try(nodes, campaign):
    nodes.ends = ["crash"]
    campaign()
    code, _ = campaign(retry_failed=True)
    assert code == 0
    first = campaign.names[0]
    assert nodes.started == [*campaign.names, first]
    assert summary_of(campaign, f"{first}.try1").status is Status.CRASH
    assert summary_of(campaign, first).tries == 2


@pytest.mark.usefixtures("nodes")
def test_saves_of_two_results_folders_never_share_a_place(campaign):
    """Run ids repeat in another results folder: the second campaign replaced the first's saves."""
    campaign()
    other = campaign.folder.parent.with_name("other")
    campaign(results_dir=str(other))
    folders = {
        read_manifest(RunDir(root / "smoke" / campaign.names[0]).manifest).config["train"][
            "checkpoint_dir"
        ]
        for root in (campaign.folder.parent, other)
    }
    assert len(folders) == 2


def test_an_interruption_stops_the_campaign_and_the_same_command_completes_it(nodes, campaign):
    nodes.ends = ["interrupt"]
    code, printed = campaign()
    assert code == 1
    assert nodes.started == campaign.names[:1]
    first = campaign.names[0]
    assert summary_of(campaign, first).status is Status.INTERRUPTED
    assert ["not", "run", "1"] in [line.split() for line in printed.splitlines()]
    assert campaign()[0] == 0
    assert nodes.started == [first, *campaign.names]
    assert summary_of(campaign, first).tries == 2


def test_sigterm_between_trials_is_code_1_and_counts_what_was_not_run(nodes, campaign, monkeypatch):
    asked = []

    def interrupt(*_, **__):
        asked.append(1)
        if len(asked) > 1:  # the first is the look ahead: is there anything to run?
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(module, "ended", interrupt)
    before = signal.getsignal(signal.SIGTERM)
    code, printed = campaign()
    assert code == 1
    assert ["not", "run", "2"] in [line.split() for line in printed.splitlines()]
    assert not nodes.started
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("error", [DataError("corpus.path=/x: no text"), KeyboardInterrupt()])
def test_a_corpus_that_cannot_be_read_starts_no_campaign_and_keeps_the_old_one(
    nodes, campaign, monkeypatch, error
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, "prepare_store", fail)
    with pytest.raises(type(error)):
        campaign()
    assert not campaign.folder.exists()
    monkeypatch.setattr(module, "prepare_store", lambda *_, **__: STORE)
    campaign()
    monkeypatch.setattr(module, "prepare_store", fail)
    with pytest.raises(type(error)):
        campaign(fresh=True)
    assert (campaign.folder / "campaign.json").exists()
    assert nodes.started == campaign.names


def test_a_missing_extra_is_refused_before_anything_is_written(nodes, campaign, monkeypatch):
    monkeypatch.setattr(manifest_module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"torch is not installed; .*wattline\[train\]"):
        campaign()
    assert not campaign.folder.parent.exists()
    assert not nodes.started


def test_a_node_that_never_ends_is_stopped_and_told_as_a_timeout(nodes, campaign, monkeypatch):
    """It was told as an interruption, and so ran again for ever."""
    monkeypatch.setattr(module, "_LIMIT_MARGIN_S", 0.0)
    nodes.ends = ["hang", "finish"]
    code, _ = campaign(trial_timeout_s=0.1)
    assert code == 1
    assert summary_of(campaign, campaign.names[0]).status is Status.TIMEOUT


def test_a_node_that_ignores_its_stop_is_killed(monkeypatch):
    monkeypatch.setattr(module, "STOP_GRACE_S", 0.02)
    node = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo ready; sleep 60 & wait; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert node.stdout.readline() == b"ready\n"
        module._stop(node)
        assert node.returncode == -signal.SIGKILL
    finally:
        os.killpg(node.pid, signal.SIGKILL)
        node.stdout.close()


def test_fresh_sets_the_old_campaign_aside(nodes, campaign):
    campaign()
    code, printed = campaign(fresh=True)
    assert code == 0
    assert nodes.started == campaign.names * 2
    old = campaign.folder.with_name("smoke.old1")
    assert (old / "campaign.json").exists()
    assert f"the old campaign is kept in {old}" in printed


def test_accepted_drift_is_printed_and_marks_every_row_that_ran(
    nodes, campaign, monkeypatch, make_code
):
    nodes.ends = ["interrupt"]
    campaign()
    monkeypatch.setattr(module, "collect_code_state", lambda _: make_code(source_hash="e" * 64))
    code, printed = campaign(accept_drift=True)
    assert code == 0
    drift = "source_hash was 555555555555, is eeeeeeeeeeee"
    assert f"drift accepted: {drift}" in printed
    assert summary_of(campaign, campaign.names[1]).drift == (drift,)


def test_a_summary_of_another_version_refuses_the_resume(nodes, campaign):
    campaign()
    path = RunDir(campaign.folder / campaign.names[0]).summary
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(RecordError, match="schema version 99"):
        campaign()
    assert nodes.started == campaign.names


@pytest.mark.usefixtures("nodes")
def test_an_open_number_of_steps_is_the_epoch_of_the_store(campaign, smoke_config):
    campaign(train=dataclasses.replace(smoke_config.train, num_steps=None))
    (folder, *_) = campaign.folder.glob("smoke-g*")
    config = read_manifest(RunDir(folder).manifest).config
    assert config["train"]["num_steps"] == 13  # 100 blocks, 8 a step
    assert config["cache_dir"] == os.environ["XDG_CACHE_HOME"] + "/wattline"


@pytest.mark.usefixtures("nodes")
def test_a_replayed_meter_labels_the_run(campaign, smoke_config):
    power = dataclasses.replace(smoke_config.power, source="replay", replay_path="/watts.csv")
    campaign(power=power)
    (folder, *_) = campaign.folder.glob("smoke-g*")
    assert read_manifest(RunDir(folder).manifest).label is Label.REPLAY


@pytest.mark.usefixtures("nodes")
def test_the_comparability_key_names_settings_device_data_and_code(campaign):
    campaign()
    one, two = (
        read_manifest(RunDir(campaign.folder / name).manifest).comparability
        for name in sorted(campaign.names)
    )
    assert {key for key in one if one[key] != two[key]} == {
        "world_size",
        "gradient_accumulation_steps",
    }
    assert one["device_model"] == "cpu: a CPU"
    assert "enforced_limit_w" not in one
    assert (one["source_hash"], one["corpus_hash"]) == ("5" * 64, "b" * 64)
    assert one["train.precision"] == "fp32"
    assert one["affinity_cpus"] == 2
    assert not {"train.learning_rate", "on.default_size"} & set(one)


@pytest.mark.usefixtures("nodes")
def test_on_gpus_the_key_and_the_campaign_name_model_limit_and_driver(
    campaign, monkeypatch, make_host, smoke_config
):
    host = make_host(gpus=(gpu(0), gpu(1)), driver="580.1")
    monkeypatch.setattr(module, "collect_host", lambda _: host)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    campaign(on=dataclasses.replace(smoke_config.on, device=Device.CUDA))
    key = read_manifest(RunDir(campaign.folder / read_names(campaign)[0]).manifest).comparability
    assert (key["device_model"], key["enforced_limit_w"], key["driver"]) == (
        "NVIDIA B300",
        "1100",
        "580.1",
    )
    assert key["environment.NCCL_ALGO"] == "Ring"
    assert "environment.NCCL_DEBUG" not in key
    stored = read_campaign(campaign.folder / "campaign.json")
    assert stored.devices == {"here device": "NVIDIA B300", "here driver": "580.1"}


def read_names(campaign):
    return [trial.run_id for trial in read_campaign(campaign.folder / "campaign.json").trials]


def test_a_signal_that_is_ignored_already_stays_ignored():
    """A run under nohup was interrupted when its terminal closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with module._terminate_as_interrupt():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
