"""From made-up records of a calibration to its table: joining, settling, labels, refusals."""

import json
import shutil

import numpy as np
import pytest

from harness.calibration import TABLE_FILE, calibrate_runs, is_usable, write_table
from harness.errors import MetricError, RecordError
from harness.phase_windows import read_phase_run
from harness.record.run_dir import RunDir, write_json
from harness.record.schema import Status
from harness.triage.bands import TableLabel, load_table
from harness.triage.states import State


def runs_of(folder):
    return sorted(path.parent for path in folder.glob("*/manifest.json"))


def bands(table):
    return {(band.state, band.variant): band for band in table.bands}


@pytest.fixture
def replayed(make_calibration):
    return make_calibration()


def test_every_window_holds_only_readings_after_settling(replayed):
    """The sensor averages over a second: what came before a window showed in its first readings."""
    (root,) = runs_of(replayed)
    run = read_phase_run(root)
    assert len(run.windows) == 2 * 21
    for window in run.windows:
        assert 19 <= len(window.t_s) <= 21
        assert window.power_w.std() < 40
    bare = [w.power_w.mean() for w in run.windows if w.phase == "bare_idle"]
    assert bare == pytest.approx([100.0] * 6, abs=1.0)


def test_readings_before_settling_do_hold_what_was_before(replayed):
    (root,) = runs_of(replayed)
    settled = read_phase_run(root).windows
    for path in root.glob("events/rank*.jsonl"):
        path.write_text(path.read_text().replace('"settle_s":1.5', '"settle_s":0.0'))
    mixed = read_phase_run(root).windows
    spread = [np.std(w.power_w) for w in settled if w.phase == "context_idle"]
    worse = [np.std(w.power_w) for w in mixed if w.phase == "context_idle"]
    assert max(worse) > 10 * max(spread)


def test_each_rank_is_in_the_state_of_its_own_role(replayed):
    (root,) = runs_of(replayed)
    states = {(w.phase, w.role): w.state for w in read_phase_run(root).windows}
    assert states == {
        ("bare_idle", "all"): State.IDLE_BARE,
        ("context_idle", "all"): State.IDLE_CONTEXT,
        ("compute_burn", "all"): State.COMPUTE,
        ("memory_burn", "all"): State.COMPUTE,
        ("collective_wait", "waits"): State.COMMUNICATION,
        ("collective_wait", "late"): None,
        ("starved_loader", "all"): State.DATA_STARVATION,
        ("blocking_save", "waits"): State.CHECKPOINT_OR_DEADLOCK,
        ("blocking_save", "writes"): State.CHECKPOINT,
    }


def test_a_replay_is_called_so_everywhere_and_never_a_gpu(replayed):
    written = write_table(replayed)
    table = load_table(str(replayed / TABLE_FILE))
    assert table.label is TableLabel.REPLAY
    assert {band.label for band in table.bands} == {TableLabel.REPLAY}
    assert table.name.startswith("replay-")
    assert table.device_names == ()
    assert table.driver is None
    assert "synthetic recording" in table.provenance.source
    assert any("say nothing about any GPU" in note for note in table.provenance.notes)
    assert any(note.startswith("slept through: ") for note in table.provenance.notes)
    assert written[0].startswith("power table (replay)")
    assert "# Made by python -m harness" in (replayed / TABLE_FILE).read_text()


def test_watts_come_back_as_the_meter_showed_them(replayed):
    table = calibrate_runs(runs_of(replayed)).table
    found = {key: band.median_w for key, band in bands(table).items()}
    assert found == pytest.approx(
        {
            (State.IDLE_BARE, None): 100,
            (State.IDLE_CONTEXT, None): 150,
            (State.CHECKPOINT, None): 150,
            (State.COMMUNICATION, None): 200,
            (State.CHECKPOINT_OR_DEADLOCK, None): 200,
            (State.DATA_STARVATION, None): 280,
            (State.COMPUTE, "memory_bound"): 597,
            (State.COMPUTE, None): 899,
        },
        rel=0.05,
    )


def test_what_draws_the_same_is_an_overlap_and_has_no_threshold(replayed):
    table = calibrate_runs(runs_of(replayed)).table
    same = {frozenset((overlap.below, overlap.above)) for overlap in table.overlaps}
    assert same == {
        frozenset((State.COMMUNICATION, State.CHECKPOINT_OR_DEADLOCK)),
        frozenset((State.IDLE_CONTEXT, State.CHECKPOINT)),
    }
    cut = table.cut_w(State.IDLE_BARE, State.IDLE_CONTEXT)
    assert cut == pytest.approx(125, abs=3)
    intervals = [(t.low_w, t.watts, t.high_w) for t in table.thresholds]
    assert all(low <= watts <= high for low, watts, high in intervals)


def test_held_out_windows_score_both_classifiers_and_utilization_misses_the_spin(replayed):
    result = calibrate_runs(runs_of(replayed)).result
    watts, baseline = result.confusion_watts, result.confusion_baseline
    assert watts.confusion[State.COMMUNICATION] == {State.COMMUNICATION: 4}
    assert baseline.confusion[State.COMMUNICATION] == {State.COMPUTE: 4}


def test_a_real_run_is_joined_by_uuid_and_names_device_and_driver(make_calibration):
    folder = make_calibration("gpus=2", is_real=True)
    calibrated = calibrate_runs(runs_of(folder))
    table = calibrated.table
    assert len(runs_of(folder)) == 2
    assert (table.label, table.limit_w, table.driver) == (TableLabel.REAL, 1000.0, "580.1")
    assert table.device_names == ("NVIDIA H100 80GB HBM3",)
    assert table.name == "nvidia-h100-80gb-hbm3-1000w"
    assert table.provenance.num_gpus == 2
    assert not table.provenance.emulated_collective
    assert {window.gpu for window in calibrated.windows} == {"GPU-0", "GPU-1"}
    assert table.provenance.notes == ()


def test_on_one_gpu_the_collective_is_emulated_and_the_save_is_the_writers(make_calibration):
    folder = make_calibration("gpus=1", is_real=True)
    table = calibrate_runs(runs_of(folder)).table
    assert table.provenance.emulated_collective
    labels = {key: band.label for key, band in bands(table).items()}
    assert labels[State.COMMUNICATION, None] is TableLabel.EMULATED
    assert set(labels.values()) == {TableLabel.EMULATED, TableLabel.REAL}
    assert (State.CHECKPOINT, None) in labels
    assert (State.CHECKPOINT_OR_DEADLOCK, None) not in labels
    assert "emulated: collective_wait" in table.provenance.notes


def test_power_smoothing_is_noted(make_calibration, make_gpu):
    folder = make_calibration("gpus=1", is_real=True, gpus=(make_gpu(0, power_smoothing=True),))
    (note,) = [n for n in calibrate_runs(runs_of(folder)).table.provenance.notes if "smooth" in n]
    assert "may burn watts" in note


def test_a_replay_is_marked_replay_only_not_emulated(make_calibration):
    folder = make_calibration("gpus=1")
    table = calibrate_runs(runs_of(folder)).table
    assert {band.label for band in table.bands} == {TableLabel.REPLAY}


def test_a_window_without_an_end_is_left_out_and_named(make_calibration):
    folder = make_calibration(leave_out=[(1, 21)])
    calibrated = calibrate_runs(runs_of(folder))
    assert len(calibrated.windows) == 2 * 21 - 1
    (note,) = calibrated.notes
    assert "node-a:1, window 21" in note
    assert "has no end" in note


def edit_telemetry(root, change):
    path = RunDir(root).telemetry(0)
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_windows_without_readings_are_left_out_and_named(replayed):
    (root,) = runs_of(replayed)
    edit_telemetry(root, lambda row: row | {"power_w": None} if row["gpu"] == 1 else row)
    run = read_phase_run(root)
    assert {window.gpu for window in run.windows} == {"node-a:0"}
    assert len(run.notes) == 21
    assert "0 readings of power" in run.notes[0]


def test_a_gpu_without_telemetry_is_named(replayed):
    (root,) = runs_of(replayed)
    edit_telemetry(root, lambda row: row | {"gpu": 0})
    notes = read_phase_run(root).notes
    assert any("no telemetry of rank 1" in note for note in notes)


def test_memory_held_by_others_spoils_bare_idle(replayed):
    (root,) = runs_of(replayed)
    edit_telemetry(root, lambda row: row | {"memory_used_bytes": 5_000_000_000})
    run = read_phase_run(root)
    assert not [window for window in run.windows if window.phase == "bare_idle"]
    assert sum("by a process that is not ours" in note for note in run.notes) == 6


def test_a_broken_row_of_telemetry_is_named_by_line(replayed):
    (root,) = runs_of(replayed)
    path = RunDir(root).telemetry(0)
    path.write_text('{"power_w": 1}\n' + path.read_text())
    with pytest.raises(RecordError, match=r"node000.jsonl:1: not a telemetry row"):
        read_phase_run(root)


def test_two_models_are_refused(make_calibration, make_gpu):
    folder = make_calibration(
        "gpus=2", is_real=True, gpus=(make_gpu(0), make_gpu(1, name="NVIDIA A100"))
    )
    with pytest.raises(RecordError, match=r"found 2 GPU models \(NVIDIA A100, NVIDIA H100"):
        calibrate_runs(runs_of(folder))


def test_two_limits_are_refused(replayed):
    (root,) = runs_of(replayed)
    edit_telemetry(root, lambda row: row | {"enforced_limit_w": 700.0 + row["gpu"]})
    with pytest.raises(RecordError, match="enforced power limits"):
        calibrate_runs([root])


def test_nothing_finished_is_a_sentence_and_no_file(replayed, make_summary):
    (root,) = runs_of(replayed)
    write_json(RunDir(root).summary, make_summary(status=Status.CRASH))
    assert not is_usable(root)
    (told,) = write_table(replayed)
    assert told == "no power table: no run of this calibration has finished"
    assert not (replayed / TABLE_FILE).exists()


def test_earlier_tries_do_not_count(replayed):
    (root,) = runs_of(replayed)
    aside = root.with_name(f"{root.name}.try1")
    shutil.copytree(root, aside)
    assert is_usable(root)
    assert not is_usable(aside)


def test_a_single_state_is_no_table(make_calibration):
    folder = make_calibration("calibration.phases=[bare_idle]")
    with pytest.raises(MetricError, match="at least two"):
        calibrate_runs(runs_of(folder))
    (told,) = write_table(folder)
    assert told.startswith("no power table: calibration: readings of power for 1 state(s)")
