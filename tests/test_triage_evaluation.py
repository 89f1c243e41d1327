"""The tables, the picture and the page that analysis makes of calibrations."""

import csv
import dataclasses

import pytest

from analysis import figures, report, tables
from analysis.calibrations import band_interval, load_calibrations
from analysis.drawing import save
from analysis.load import load_results
from analysis.power_figure import power_rows
from analysis.table import to_text
from analysis.tables import analyse
from analysis.triage_evaluation import verdict
from harness.record.run_dir import RunDir, write_json
from harness.record.schema import Label, Status
from harness.triage.states import State


@pytest.fixture
def replayed(make_calibration):
    """A results folder with a replayed calibration."""
    return make_calibration().parent


@pytest.fixture
def measured(make_calibration, tmp_path):
    """``results/measured`` with a calibration of two GPUs, two runs of it."""
    root = tmp_path / "results" / "measured"
    make_calibration("gpus=2", is_real=True, root=root / "h100-box" / "calibration")
    return root


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(root, out, name):
    assert tables.main(["--results", str(root), "--out", str(out), "--no-figures"]) == 0
    return rows_of(out / f"{name}.csv")


def test_without_a_calibration_the_tables_hold_the_references_and_the_command(tmp_path):
    power = written(tmp_path, tmp_path / "out", "power")
    assert {row["origin"] for row in power} == {"reference", "measured"}
    (missing,) = [row for row in power if row["origin"] == "measured"]
    assert (missing["status"], missing["n"]) == ("not_measured", "0")
    assert missing["note"] == "python -m harness experiment=calibration gpus=8"
    by_state = {row["state"]: row for row in power if "B300" in row["device"]}
    assert by_state["checkpoint_or_deadlock"]["power_w"] == "190"
    assert by_state["checkpoint_or_deadlock"]["label"] == "secondary"
    assert by_state["data_starvation"]["power_w"] == ""
    assert by_state["data_starvation"]["label"] == "abstract"
    h100 = [row for row in power if "H100" in row["device"]]
    assert {row["label"] for row in h100} == {"inferred"}
    (row,) = rows_of(tmp_path / "out" / "triage_evaluation.csv")
    assert (row["status"], row["note"]) == ("not_measured", missing["note"])


def test_a_replay_is_a_row_of_its_own_label_and_leaves_the_gpu_cell_empty(replayed, tmp_path):
    """A table made from a replay must never pass for one measured on a GPU."""
    for name in ("power", "triage_evaluation"):
        rows = written(replayed, tmp_path / "out", name)
        own = [row for row in rows if row["machine"]]
        assert own
        assert {row["label"] for row in own} == {"replay"}
        assert {row["device"] for row in own} == {"synthetic GPU (no hardware)"}
        assert [row["status"] for row in rows].count("not_measured") == 1
    text = to_text(analyse(replayed).table("power"))
    assert "Replay, nothing measured: calibration on node-a" in text
    assert "these watts say nothing about" in text


def test_measured_rows_have_n_and_an_interval_over_runs(measured, tmp_path):
    rows = [r for r in written(measured, tmp_path / "out", "power") if r["machine"]]
    assert {row["machine"] for row in rows} == {"h100-box"}
    assert {(row["label"], row["n"], row["status"]) for row in rows} == {("real", "2", "finished")}
    compute = next(r for r in rows if r["state"] == "compute" and r["variant"] == "")
    assert float(compute["ci_low"]) <= float(compute["power_w"]) <= float(compute["ci_high"])
    assert float(compute["limit_pct"]) == pytest.approx(90, abs=2)
    spin = next(r for r in rows if r["state"] == "communication")
    assert spin["not_told_apart_from"] == "checkpoint_or_deadlock"
    assert "95 %" in to_text(analyse(measured).table("power"))
    assert "not measured" not in to_text(analyse(measured).table("power")).lower()


def test_both_classifiers_are_scored_on_the_same_windows(measured, tmp_path):
    rows = [r for r in written(measured, tmp_path / "out", "triage_evaluation") if r["machine"]]
    support = {(r["classifier"], r["state"]): r["support"] for r in rows}
    states = {state for _, state in support}
    assert "mean over states" in states
    for state in states:
        assert support["watts", state] == support["utilization", state]
    spin = {r["classifier"]: r for r in rows if r["state"] == "communication"}
    assert (spin["watts"]["recall"], spin["utilization"]["recall"]) == ("1", "0")
    assert spin["utilization"]["called"] == f"compute {spin['utilization']['support']}"


def test_the_verdict_is_the_row_of_the_means_and_names_what_is_never_found(measured):
    analysis = analyse(measured)
    (calibration,) = analysis.calibrations
    sentence = verdict(calibration)
    means = [
        r for r in analysis.table("triage_evaluation").rows if r["state"] == "mean over states"
    ]
    for row in means:
        assert f"{row['f1']:.2f} by {row['classifier']}" in sentence
    assert "utilization never finds communication" in sentence
    assert sentence.startswith("calibration on h100-box (real)")


def test_a_calibration_is_no_incomplete_training_run(replayed):
    analysis = analyse(replayed)
    (measures,) = analysis.measures
    assert measures.status == "finished"
    assert analysis.scaling_groups == ()


def test_a_failed_calibration_is_a_row_with_the_reason(replayed, make_summary, tmp_path):
    (path,) = replayed.glob("calibration/*/summary.json")
    write_json(path, make_summary(run_id=path.parent.name, status=Status.CRASH))
    (row,) = [r for r in written(replayed, tmp_path / "out", "power") if r["machine"]]
    assert (row["status"], row["n"], row["state"]) == ("1 crash", "0", "")
    assert row["note"] == "no power table: no run of this calibration has finished"
    (calibration,) = analyse(replayed).calibrations
    assert verdict(calibration).endswith("has finished.")
    assert "Without a table (replay)" in to_text(analyse(replayed).table("power"))


def test_too_few_windows_to_hold_any_out_is_said(make_calibration, tmp_path):
    folder = make_calibration("calibration.windows_per_phase=1", "gpus=1")
    (row,) = [
        r for r in written(folder.parent, tmp_path / "out", "triage_evaluation") if r["machine"]
    ]
    assert row["note"] == "no window was held out: it takes three windows a phase"
    assert row["f1"] == ""


def test_real_campaigns_come_before_replays_and_each_keeps_to_itself(make_calibration, measured):
    make_calibration(root=measured / "a-laptop" / "calibration")
    found = load_calibrations(load_results(measured))
    assert [(c.label, c.machine) for c in found] == [
        (Label.REAL, "h100-box"),
        (Label.REPLAY, "a-laptop"),
    ]
    assert len(found[0].runs) == 2


def test_the_interval_of_a_band_is_over_runs(measured):
    (calibration,) = load_calibrations(load_results(measured))
    calibrated = calibration.calibrated
    band = next(b for b in calibrated.table.bands if b.state is State.IDLE_BARE)
    interval = band_interval(calibrated, band)
    assert interval.n == 2
    assert interval.low < interval.estimate < interval.high
    one = dataclasses.replace(
        calibrated,
        windows=tuple(w for w in calibrated.windows if w.run_id == calibrated.run_ids[0]),
    )
    assert band_interval(one, band).low is None


def test_the_picture_has_a_row_per_source_and_thresholds_of_neighbours(measured):
    analysis = analyse(measured)
    rows = power_rows(analysis.calibrations, analysis.report_table, analysis.traces_table)
    assert [row.title.split(":")[0] for row in rows] == [
        "The report",
        "Measured (real)",
        "Recorded jobs of others",
    ]
    medians = [band.median_w for band in rows[1].bands]
    assert medians == sorted(medians)
    order = list(dict.fromkeys(band.state for band in rows[1].bands))
    for cut in rows[1].thresholds:
        assert order.index(cut.above) - order.index(cut.below) == 1
    assert len(rows[1].dots) == sum(
        w.state is not None for w in analysis.calibrations[0].calibrated.windows
    )


def test_a_replay_says_in_its_title_that_nothing_was_measured(replayed):
    analysis = analyse(replayed)
    rows = power_rows(analysis.calibrations, analysis.report_table, analysis.traces_table)
    assert rows[1].title.startswith("Replay, nothing measured")


def test_the_same_records_give_the_same_picture(measured, tmp_path):
    analysis = analyse(measured)
    drawn = [figures.draw_all(analysis, tmp_path / name) for name in ("one", "two")]
    names = [path.name for path in drawn[0]]
    assert names == ["scaling.svg", "scaling.png", "power.svg", "power.png"]
    for first, second in zip(*drawn, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_what_is_emulated_says_so_in_the_picture(make_calibration, tmp_path):
    folder = make_calibration("gpus=1", is_real=True)
    analysis = analyse(folder.parent)
    rows = power_rows(analysis.calibrations, analysis.report_table, analysis.traces_table)
    from matplotlib.figure import Figure

    from analysis.power_figure import draw_rows

    figure = Figure(figsize=(9, 12))
    draw_rows(figure, rows, 12.0)
    ticks = [t.get_text() for axes in figure.axes for t in axes.get_yticklabels()]
    assert "communication (emulated)" in ticks
    save(figure, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").exists()


def test_the_page_has_both_sections_with_question_picture_and_verdict(measured, tmp_path):
    page = tmp_path / "REPORT.md"
    arguments = ["--results", str(measured), "--path", str(page)]
    assert report.main(arguments) == 0
    text = page.read_text(encoding="utf-8")
    assert "## Power by state" in text
    assert "(results/measured/figures/power.svg)" in text
    assert "watts do not tell apart" in text
    assert "## Triage by watts against triage by utilization" in text
    assert (measured / "figures" / "power.svg").exists()
    assert report.main([*arguments, "--check"]) == 0
    (measured / "figures" / "power.svg").unlink()
    assert report.main([*arguments, "--check"]) == 1


def test_the_page_without_calibrations_says_how_to_fill_it(tmp_path):
    page = report.report_markdown(analyse(tmp_path), "figures")
    assert page.count("`python -m harness experiment=calibration gpus=8`") >= 2
    assert "None yet: no calibration has been recorded." in page


def test_a_run_without_a_table_of_its_own_is_enough(replayed):
    """The table beside the records is for people: analysis makes its own from the records."""
    assert not (replayed / "calibration" / "table.yaml").exists()
    assert RunDir(next(replayed.glob("calibration/calibration-*"))).manifest.exists()
    assert analyse(replayed).calibrations[0].calibrated is not None
