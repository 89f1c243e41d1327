from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis import report
from analysis.tables import analyse

GOLDEN = Path(__file__).parent / "data" / "golden" / "results"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "measured", tmp_path / "results" / "measured")
    return tmp_path


def arguments(project: Path, *more: str) -> list[str]:
    measured = project / "results" / "measured"
    return ["--results", str(measured), "--path", str(project / "REPORT.md"), *more]


def test_the_page_answers_question_verdict_and_what_is_missing(project: Path) -> None:
    assert report.main(arguments(project)) == 0
    page = (project / "REPORT.md").read_text(encoding="utf-8")
    assert "**Question.** How do throughput and GPU-hours" in page
    assert (
        "2 against 1: 97.5 % of ideal (n = 2, paired by block), 95 % interval 95.4 to 99.7 %:"
        " below ideal." in page
    )
    assert "`python -m harness experiment=scaling gpus=16 'points=[16]'`" in page
    assert "(results/measured/figures/scaling.svg)" in page
    assert (project / "results" / "measured" / "figures" / "scaling.svg").exists()
    assert "25 of 28 figures follow" in page


def test_a_current_page_passes_and_a_changed_record_makes_it_stale(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main(arguments(project)) == 0
    assert report.main(arguments(project, "--check")) == 0
    run = project / "results/measured/golden-laptop/scaling/scaling-g2-5ca1ab1e-r0"
    shutil.rmtree(run)
    capsys.readouterr()
    assert report.main(arguments(project, "--check")) == 1
    assert "REPORT.md is stale; run python -m analysis.report" in capsys.readouterr().err


def test_check_writes_nothing_and_finds_a_missing_page(project: Path) -> None:
    assert report.main(arguments(project, "--check")) == 1
    assert not (project / "REPORT.md").exists()
    assert not (project / "results" / "measured" / "figures").exists()


def test_check_finds_a_missing_figure(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(arguments(project)) == 0
    (project / "results" / "measured" / "figures" / "scaling.svg").unlink()
    assert report.main(arguments(project, "--check")) == 1
    assert "scaling.svg is missing" in capsys.readouterr().err


def test_an_empty_folder_gives_the_reference_only(tmp_path: Path) -> None:
    (tmp_path / "results" / "measured").mkdir(parents=True)
    assert report.main(arguments(tmp_path)) == 0
    page = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert "no recorded runs yet, only the reference" in page
    assert "No measured efficiency yet." in page
    assert "experiment=scaling gpus=2 on=laptop" in page


def test_a_missing_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(arguments(tmp_path)) == 2
    assert capsys.readouterr().err.startswith("error: --results")


def test_planned_trials_without_a_record_are_not_measured(project: Path) -> None:
    page = report.report_markdown(analyse(project / "results" / "measured"), "x.svg")
    assert "Planned and without a record: 1 trials of scaling on golden-laptop" in page


def test_every_number_of_a_verdict_stands_in_its_row() -> None:
    row: dict[str, Any] = {
        "gpus": 2,
        "baseline_gpus": 1,
        "efficiency_n": 3,
        "efficiency_method": "welch",
        "efficiency_pct": 97.25,
        "efficiency_ci_low": 94.5,
        "efficiency_ci_high": 99.5,
    }
    numbers = re.findall(r"\d+\.\d|\d+", report.efficiency_verdict(row))
    assert numbers == ["2", "1", "97.2", "3", "95", "94.5", "99.5"]


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (94.5, 99.5, "below ideal"),
        (94.5, 101.0, "not told apart from ideal"),
        (100.5, 103.0, "above ideal"),
        (None, None, "no verdict"),
    ],
)
def test_the_interval_decides_the_verdict(
    low: float | None, high: float | None, words: str
) -> None:
    row: dict[str, Any] = {
        "gpus": 2,
        "baseline_gpus": 1,
        "efficiency_n": 3,
        "efficiency_method": "welch",
        "efficiency_pct": 99.0,
        "efficiency_ci_low": low,
        "efficiency_ci_high": high,
    }
    assert words in report.efficiency_verdict(row)
