"""The calibration as real processes against the synthetic recording: phases, meter, table."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.calibration import TABLE_FILE
from harness.record.read import read_campaign, read_events, read_manifest, read_summary
from harness.record.run_dir import RunDir
from harness.record.schema import EventKind, Label, Status
from harness.triage.bands import TableLabel, load_table
from harness.triage.states import State

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def run(results, *words):
    command = [sys.executable, "-m", "harness", "experiment=calibration", "size=ci", *words]
    return subprocess.run(
        [*command, f"results_dir={results}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """The ci size, run once: its results folder and what was printed."""
    results = tmp_path_factory.mktemp("calibration") / "results"
    done = run(results)
    assert done.returncode == 0, done.stdout + done.stderr
    return results, done.stdout


@pytest.fixture
def run_dir(calibrated):
    results, _ = calibrated
    (trial,) = read_campaign(results / "calibration" / "campaign.json").trials
    return RunDir(results / "calibration" / trial.run_id)


def test_every_rank_goes_through_every_window_in_step(run_dir):
    summary = read_summary(run_dir.summary)
    assert (summary.status, summary.last_step, summary.num_steps_planned) == (
        Status.FINISHED,
        21,
        21,
    )
    assert summary.num_ranks_finished == 2
    manifest = read_manifest(run_dir.manifest)
    assert (manifest.label, manifest.data) == (Label.REPLAY, None)
    begun = [e for e in read_events(run_dir.root).records if e.kind is EventKind.PHASE_BEGIN]
    by_window = {}
    for event in begun:
        by_window.setdefault(event.detail["window"], []).append(event)
    assert len(by_window) == 21
    for events in by_window.values():
        assert {event.rank for event in events} == {0, 1}
        assert len({event.detail["phase"] for event in events}) == 1
        if events[0].detail["phase"] != "bare_idle":
            assert abs(events[0].t_unix_s - events[1].t_unix_s) < 0.3


def test_a_rank_that_waits_is_held_by_the_one_that_is_late(run_dir):
    events = read_events(run_dir.root).records
    ends = {
        (e.detail["window"], e.detail["role"]): e.t_unix_s
        for e in events
        if e.kind is EventKind.PHASE_END and e.detail["phase"] == "collective_wait"
    }
    windows = {window for window, _ in ends}
    assert len(windows) == 3
    for window in windows:
        assert abs(ends[window, "waits"] - ends[window, "late"]) < 0.3


def test_the_table_follows_the_phases_and_is_labelled_replay(calibrated):
    results, printed = calibrated
    table = load_table(str(results / "calibration" / TABLE_FILE))
    assert table.label is TableLabel.REPLAY
    assert table.median_w(State.IDLE_BARE) == pytest.approx(100, abs=3)
    assert table.median_w(State.IDLE_CONTEXT) == pytest.approx(150, abs=3)
    assert table.median_w(State.COMMUNICATION) == pytest.approx(200, abs=4)
    compute = [band.median_w for band in table.bands if band.state is State.COMPUTE]
    assert max(compute) == pytest.approx(900, abs=15)
    assert "power table (replay)" in printed
    assert "Replay, nothing measured" in printed


def test_nothing_is_left_of_the_saves_and_the_records_hold_no_steps(run_dir):
    manifest = read_manifest(run_dir.manifest)
    assert not list(Path(manifest.config["train"]["checkpoint_dir"]).glob("*"))
    assert not list((run_dir.root / "steps").iterdir())


def test_the_same_command_again_runs_nothing_and_makes_the_same_table(calibrated):
    results, _ = calibrated
    path = results / "calibration" / TABLE_FILE
    before = path.read_text()
    path.unlink()
    again = run(results)
    assert again.returncode == 0
    assert "stands from before: finished" in again.stdout
    assert path.read_text() == before


def test_without_a_gpu_the_default_says_how_to_run_it_anyway(tmp_path):
    done = run(tmp_path / "results", "on=gpus", "power=nvml", "gpus=64")
    assert done.returncode == 2
    assert "on=laptop" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_recording_that_follows_no_phases_is_refused(tmp_path):
    done = run(tmp_path / "results", "power=replay", "power.replay_path=node000.jsonl")
    assert done.returncode == 2
    assert "needs a recording by phase" in done.stderr
