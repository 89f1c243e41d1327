from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.load import Run, load_results
from harness.errors import RecordError
from harness.record.schema import Status
from harness.record.summary import summarise

GOLDEN = Path(__file__).parent / "data" / "golden" / "results"
LAPTOP = Path("measured") / "golden-laptop" / "scaling"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "results")
    return tmp_path / "results"


def by_id(root: Path, run_id: str) -> Run:
    return next(
        r
        for r in load_results(root).runs
        if r.manifest.trial.run_id == run_id and r.machine == "golden-laptop"
    )


def test_every_run_folder_is_a_run_and_the_rest_is_named() -> None:
    results = load_results(GOLDEN)
    assert len(results.runs) == 24
    assert results.num_skipped == 1
    assert len(results.warnings) == 1
    assert "schema version 0" in results.warnings[0]
    assert results.warnings[0].startswith("skipped: measured/golden-laptop/scaling/")


def test_the_machine_is_the_folder_under_measured_else_the_first_host() -> None:
    machines = {r.machine for r in load_results(GOLDEN).runs}
    assert machines == {"golden-laptop", "golden-endings", "golden-node"}
    inside = load_results(GOLDEN / "measured")
    assert {r.machine for r in inside.runs} == {"golden-laptop", "golden-endings"}
    assert {r.machine for r in load_results(GOLDEN / "measured" / "golden-laptop").runs} == {
        "golden-laptop"
    }


def test_earlier_tries_are_counted_and_not_tabulated() -> None:
    run = by_id(GOLDEN, "scaling-g2-5ca1ab1e-r0")
    ids = [r.manifest.trial.run_id for r in load_results(GOLDEN).runs]
    assert run.tries == 2
    assert not [i for i in ids if ".try" in i]


def test_renamed_campaigns_are_passed_over(tree: Path) -> None:
    before = len(load_results(tree).runs)
    shutil.copytree(tree / "scaling", tree / "scaling.old2")
    assert len(load_results(tree).runs) == before


def test_a_torn_last_line_is_counted() -> None:
    run = next(
        r
        for r in load_results(GOLDEN).runs
        if r.machine == "golden-laptop" and r.manifest.trial.run_id == "scaling-g2-5ca1ab1e-r1"
    )
    assert run.torn_lines == 1
    assert len(run.steps[1]) == 14
    assert run.problem == ""


def test_a_run_without_summary_is_interrupted_and_rebuilt() -> None:
    run = by_id(GOLDEN, "scaling-g1-5ca1ab1e-r3")
    assert run.is_summary_rebuilt
    assert run.summary.status is Status.INTERRUPTED
    assert run.summary.last_step == 6
    assert run.summary.num_steps_planned == 14
    assert run.summary.peak_memory_bytes == 310_000_000


def test_a_run_killed_before_its_first_step_has_no_last_step(tree: Path) -> None:
    folder = tree / LAPTOP / "scaling-g1-5ca1ab1e-r3"
    shutil.rmtree(folder / "steps")
    run = by_id(tree, "scaling-g1-5ca1ab1e-r3")
    assert run.summary.last_step is None
    assert run.summary.peak_memory_bytes is None


def test_a_planned_trial_without_record_is_pending() -> None:
    results = load_results(GOLDEN)
    assert [(p.machine, p.trial.run_id) for p in results.pending] == [
        ("golden-laptop", "scaling-g2-5ca1ab1e-r3")
    ]


def test_a_broken_line_is_named_and_the_run_stays_a_row(tree: Path) -> None:
    path = tree / LAPTOP / "scaling-g2-5ca1ab1e-r0" / "steps" / "rank00001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0\0\0\n" + b"".join(lines[1:]))
    run = next(r for r in load_results(tree).runs if r.problem)
    assert run.manifest.trial.run_id == "scaling-g2-5ca1ab1e-r0"
    assert run.problem.startswith("steps/rank00001.jsonl:2:")


def test_broken_events_are_named_too(tree: Path) -> None:
    path = tree / LAPTOP / "scaling-g2-5ca1ab1e-r0" / "events" / "rank00000.jsonl"
    path.write_text('{"t_unix_s":1,"kind":"party","rank":0,"detail":{}}\n')
    run = next(r for r in load_results(tree).runs if r.problem)
    assert "events/rank00000.jsonl:1" in run.problem
    assert run.events == ()


def test_torn_telemetry_is_counted(tree: Path) -> None:
    path = tree / "scaling" / "scaling-g2-5ca1ab1e-r0" / "telemetry" / "node000.jsonl"
    with path.open("a") as file:
        file.write('{"t_unix_s":1796000000.0,"host":"golden-node","gp')
    run = next(r for r in load_results(tree).runs if r.machine == "golden-node")
    assert run.torn_lines == 1
    assert [t.gpu for t in run.power] == ["GPU-0", "GPU-1"]


def test_runs_without_a_campaign_are_read_and_said(tree: Path) -> None:
    (tree / "scaling" / "campaign.json").unlink()
    results = load_results(tree)
    assert any("campaign.json: missing" in w for w in results.warnings)
    assert next(r.factors for r in results.runs if r.machine == "golden-node") == ("gpus",)


def test_a_campaign_of_another_schema_version_is_named_and_counted(tree: Path) -> None:
    path = tree / "scaling" / "campaign.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))
    results = load_results(tree)
    assert results.num_skipped == 2
    assert len(results.runs) == 24


@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_or_missing_folder_holds_no_runs(tmp_path: Path, exists: bool) -> None:
    root = tmp_path / "results"
    if exists:
        root.mkdir()
    results = load_results(root)
    assert results.runs == ()
    assert results.warnings == ()


def test_a_campaign_that_has_not_started_is_pending_on_an_unknown_machine(tree: Path) -> None:
    for folder in (tree / "scaling").iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    pending = [p for p in load_results(tree).pending if p.machine == "unknown"]
    assert len(pending) == 6


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_text("")
    with pytest.raises(RecordError, match="not a folder"):
        load_results(path)


def test_records_without_a_manifest_are_named_and_counted(tree: Path) -> None:
    """A run folder that had lost its manifest was passed over without a word."""
    (tree / LAPTOP / "scaling-g2-5ca1ab1e-r2" / "manifest.json").unlink()
    results = load_results(tree)
    assert results.num_skipped == 2
    assert any("scaling-g2-5ca1ab1e-r2: it holds records" in w for w in results.warnings)


def test_a_rebuilt_summary_is_the_one_that_the_harness_would_have_written(tree: Path) -> None:
    """Two rules told the last step: one run had two, with and without its summary."""
    for path in (tree / LAPTOP).glob("*/summary.json"):
        folder = path.parent
        if ".try" in folder.name or folder.name.endswith("-r9"):
            continue
        written = summarise(folder, tries=1, drift=())
        path.unlink()
        rebuilt = by_id(tree, folder.name).summary
        assert rebuilt.detail.endswith(written.detail)
        assert replace(rebuilt, status=written.status, detail=written.detail, tries=1) == written
