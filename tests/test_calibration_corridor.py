"""What the corridor does differently for task=calibrate: plan, manifest, node, progress, end."""

import dataclasses
import io
import subprocess

import pytest
from rich.console import Console

from harness import execute, show_plan
from harness import plan as planning
from harness.calibration import TABLE_FILE
from harness.errors import ConfigError, LaunchError, RecordError
from harness.execute import run_campaign
from harness.manifest import check_devices, check_power
from harness.node import Node, sampler_command, torchrun_command
from harness.parse import to_plain
from harness.plan import make_plan
from harness.progress import View
from harness.record.read import read_manifest, read_summary
from harness.record.run_dir import EventWriter, RunDir
from harness.record.schema import Event, EventKind, Heartbeat, Label, Phase, Status
from harness.record.summary import summarise


@pytest.fixture
def laptop(compose_config):
    return compose_config("experiment=calibration", "on=laptop")


def test_settings_of_the_calibration_do_not_move_the_training_trials(scaling_config):
    calibration = dataclasses.replace(scaling_config.calibration, window_s=99.0)
    changed = dataclasses.replace(scaling_config, calibration=calibration)
    assert planning.spec(changed) == planning.spec(scaling_config)
    assert "calibration.window_s" not in planning.speed_settings(scaling_config)


def test_settings_of_the_calibration_make_another_calibration_trial(laptop):
    calibration = dataclasses.replace(laptop.calibration, window_s=99.0)
    changed = dataclasses.replace(laptop, calibration=calibration)
    names = [make_plan(config).trials[0].run_id for config in (laptop, changed)]
    assert names[0] != names[1]


def test_the_planned_duration_is_that_of_the_windows(laptop):
    duration_s = planning.duration_s(laptop, make_plan(laptop), None)
    assert duration_s == pytest.approx(12 + 7 * 4 * (2 + 1.5))
    assert 60 < duration_s < 130


def test_the_ci_size_fits_a_minute(compose_config):
    config = compose_config("experiment=calibration", "size=ci")
    assert planning.duration_s(config, make_plan(config), None) <= 60
    assert make_plan(config).trials[0].world_size == 2


def test_the_plan_shows_phases_and_windows_and_says_that_nothing_is_measured(laptop):
    out = io.StringIO()
    show_plan.show_plan(Console(file=out, width=40), laptop, make_plan(laptop))
    text = out.getvalue()
    assert "phases      bare_idle, context_idle, compute_burn" in text
    assert "power       replay of synthetic_phases: nothing is measured, every 0.1 s" in text
    assert "windows     4 a phase of 2 s, each after 1.5 s of settling" in text
    assert "from calibration.windows_per_phase" in text
    assert "blocks      " not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("experiment=smoke", "power=synthetic"), "task=train has no phases"),
        (
            ("experiment=calibration", "on=laptop", "power=replay", "power.replay_path=x.jsonl"),
            "needs a recording by phase",
        ),
    ],
)
def test_a_recording_of_the_wrong_kind_is_refused(compose_config, words, message):
    with pytest.raises(ConfigError, match=message):
        check_power(compose_config(*words))


def test_a_recording_without_a_wanted_phase_is_refused(laptop, tmp_path):
    path = tmp_path / "mine.yaml"
    segment = "{power_w: [1.0], utilization_pct: [0.0], memory_used_bytes: 0}"
    path.write_text(
        "{name: mine, is_synthetic: true, provenance: p, device: d, enforced_limit_w: 1.0,"
        " period_s: 0.1, sensor_average_s: 1.0, segments:"
        f" {{bare_idle: {segment}, context_idle: {segment}}}}}"
    )
    power = dataclasses.replace(laptop.power, replay_path=str(path))
    with pytest.raises(ConfigError, match="no segment for compute_burn, memory_burn"):
        check_power(dataclasses.replace(laptop, power=power))
    missing = dataclasses.replace(laptop.power, replay_path=str(tmp_path / "no.yaml"))
    with pytest.raises(RecordError, match=r"no.yaml"):
        check_power(dataclasses.replace(laptop, power=missing))
    check_power(laptop)


def test_mig_is_refused_before_anything_is_burnt(compose_config, make_host, make_gpu):
    config = compose_config("experiment=calibration", "gpus=1")
    host = make_host(gpus=(make_gpu(0, mig_enabled=True),))
    with pytest.raises(LaunchError, match="no watts of its own"):
        check_devices(config, make_plan(config), host)
    check_devices(config, make_plan(config), make_host(gpus=(make_gpu(0),)))


def test_the_node_tells_its_ranks_to_calibrate_and_its_sampler_what_to_play(
    tmp_path, laptop, make_manifest, make_trial
):
    manifest = make_manifest(config=to_plain(laptop), trial=make_trial(), data=None)
    node = Node(run_dir=RunDir(tmp_path), node_rank=0, manifest=manifest)
    assert torchrun_command(node)[-2:] == ["--task", "calibrate"]
    assert sampler_command(node)[-2:] == ["--replay", "synthetic_phases"]


def test_progress_counts_windows_and_tells_no_tokens(
    laptop, make_manifest, make_trial, tmp_path, monkeypatch
):
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    view = View(console, 1)
    beats = iter(
        Heartbeat(step=step, phase=Phase.CALIBRATE, t_unix_s=100.0 + 5 * step) for step in (1, 3)
    )
    monkeypatch.setattr("harness.progress.read_heartbeat", lambda _: next(beats))
    config = to_plain(laptop)
    config["train"]["num_steps"] = 28
    view.trial_starts(make_trial(), make_manifest(config=config, data=None))
    for _ in range(2):
        view.poll(RunDir(tmp_path))
    (task,) = view._progress.tasks
    assert (task.completed, task.total, task.fields["rate"]) == (3, 28, "125 s left")
    view.trial_over()


def test_the_last_window_that_every_rank_completed_is_the_last_step(write_run):
    ends = [
        Event(t_unix_s=1.0 + n, kind=EventKind.PHASE_END, rank=rank, detail={"window": n})
        for rank, last in ((0, 5), (1, 4))
        for n in range(1, last + 1)
    ]
    run_dir = write_run(events={"rank00000": ends})
    assert summarise(run_dir.root, tries=1, drift=()).last_step == 4


@pytest.fixture
def campaign(tmp_path, laptop, monkeypatch, make_host, make_code):
    """Run the campaign with nodes that only say that their ranks have finished."""

    def start(run_dir):
        events = EventWriter(run_dir, "node000")
        for rank in range(2):
            events.write(EventKind.RANK_FINISHED, rank)
        events.write(EventKind.NODE_FINISHED)
        events.close()
        return subprocess.Popen(["true"], stdin=subprocess.PIPE, start_new_session=True)

    def no_store(*_, **__):
        raise AssertionError("a calibration reads no corpus")

    monkeypatch.setattr(execute, "start_node", start)
    monkeypatch.setattr(execute, "prepare_store", no_store)
    monkeypatch.setattr(execute, "collect_host", lambda _: make_host())
    monkeypatch.setattr(execute, "collect_code_state", lambda _: make_code())
    config = dataclasses.replace(laptop, results_dir=str(tmp_path / "results"))

    def run(writes=None):
        out = io.StringIO()
        plan = make_plan(config)
        if writes is not None:
            monkeypatch.setattr(execute, "write_table", writes)
        code = run_campaign(config, plan, [], View(Console(file=out, width=200), 1))
        (trial,) = plan.trials
        return code, out.getvalue(), RunDir(tmp_path / "results" / "calibration" / trial.run_id)

    return run


def test_a_calibration_reads_no_corpus_and_its_manifest_says_replay(campaign):
    code, printed, run_dir = campaign()
    assert code == 0
    manifest = read_manifest(run_dir.manifest)
    assert (manifest.label, manifest.data) == (Label.REPLAY, None)
    assert manifest.config["train"]["num_steps"] == 28
    assert manifest.comparability["corpus_hash"] is None
    assert read_summary(run_dir.summary).status is Status.FINISHED
    assert "no power table: " in printed
    assert not (run_dir.root.parent / TABLE_FILE).exists()


def test_what_the_table_says_is_printed_after_the_trials(campaign):
    asked = []

    def write(folder):
        asked.append(folder.name)
        return ("power table (replay): here",)

    _, printed, _ = campaign(write)
    assert asked == ["calibration"]
    assert printed.rstrip().endswith("power table (replay): here")
