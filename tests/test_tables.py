from __future__ import annotations

import csv
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import cli, console, tables
from analysis.derive import measure
from analysis.load import load_results
from analysis.markdown import escape, prose, section_markdown, to_markdown
from analysis.run_rows import statistics_table
from analysis.table import (
    Column,
    Section,
    Table,
    field,
    in_words,
    number,
    significant,
    to_csv,
    to_text,
)
from harness.record.schema import Status

DATA = Path(__file__).parent / "data"
GOLDEN = DATA / "golden" / "results"
EXPECTED = DATA / "golden" / "expected"
NAMES = ("scaling", "power", "triage_evaluation", "statistics", "audit")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def run_tables(*arguments: str) -> int:
    return tables.main([*arguments, "--no-figures"])


@pytest.fixture
def golden_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run_tables("--results", str(GOLDEN), "--out", str(tmp_path)) == 0
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["csv", "md"])
def test_golden_runs_give_the_same_bytes(golden_out: Path, name: str, kind: str) -> None:
    """Made anew, where a change is meant, by tests/data/make_golden.py."""
    file = f"{name}.{kind}"
    assert (golden_out / file).read_bytes() == (EXPECTED / file).read_bytes()


def test_every_row_has_origin_and_label_and_measured_rows_their_columns(golden_out: Path) -> None:
    for name in NAMES:
        for row in rows_of(golden_out / f"{name}.csv"):
            assert row["origin"] in {"reference", "measured"}
            # inferred: states of published traces, told by other signs than watts.
            known = {"abstract", "secondary", "inferred", "real", "emulated", "replay"}
            assert row["label"] in known
    for row in rows_of(golden_out / "scaling.csv"):
        if row["origin"] == "measured" and row["status"] != "not_measured":
            assert row["machine"]
            assert int(row["n"]) >= 0
            assert (row["ci_low"] == "") == (int(row["n"]) < 2)


def test_rate_times_step_time_is_the_global_batch_on_every_row(golden_out: Path) -> None:
    """Means of rates and of step times broke it as soon as runs differed by 7 %."""
    with (golden_out / "scaling.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["step_time_s"]]
    assert rows
    for row in rows:
        tokens = float(row["tokens_per_second"]) * float(row["step_time_s"])
        whole = round(tokens / 256) * 256
        assert tokens == pytest.approx(whole, rel=0.005)


def test_the_sixteen_gpu_row_of_both_kinds_is_secondary(golden_out: Path) -> None:
    row = next(r for r in rows_of(golden_out / "scaling.csv") if r["gpus"] == "16")
    assert row["source"].startswith("abstract")
    assert row["label"] == "secondary"
    assert "16\u2020" in (golden_out / "scaling.md").read_text(encoding="utf-8")


def test_what_is_not_measured_shows_the_command_that_fills_it(golden_out: Path) -> None:
    missing = [r for r in rows_of(golden_out / "scaling.csv") if r["status"] == "not_measured"]
    assert [r["gpus"] for r in missing] == ["8", "16"]
    assert missing[1]["note"] == "python -m harness experiment=scaling gpus=16 'points=[16]'"
    assert missing[1]["tokens_per_second"] == ""


def test_failed_and_planned_trials_are_rows(golden_out: Path) -> None:
    statuses = [r["status"] for r in rows_of(golden_out / "statistics.csv")]
    assert {*Status, "incomplete", "not_run"} <= set(statuses)
    assert len(statuses) == 25


@pytest.mark.parametrize("status", Status)
def test_no_status_ever_vanishes(golden_out: Path, status: Status) -> None:
    """One golden run ended in each way: a row of its own, and counted where it left a mean."""
    rows = [r for r in rows_of(golden_out / "statistics.csv") if r["machine"] == "golden-endings"]
    own = next(r for r in rows if r["status"] == status)
    assert own["is_clean"] == ("yes" if status is Status.FINISHED else "no")
    assert own["last_step"] == {"finished": "14", "refused": "", "oom": "1"}.get(
        status, own["last_step"]
    )
    scaling = [r for r in rows_of(golden_out / "scaling.csv") if r["machine"] == "golden-endings"]
    assert f"1 {status}" in scaling[0]["status"]
    assert own["note"] in scaling[0]["note"]


def test_a_world_size_without_a_clean_run_is_a_row(golden_out: Path) -> None:
    rows = [r for r in rows_of(golden_out / "scaling.csv") if r["machine"] == "golden-endings"]
    row = next(r for r in rows if r["gpus"] == "2")
    assert (row["n"], row["status"], row["last_step"]) == ("0", "hang", "13")
    assert (row["tokens_per_second"], row["efficiency_pct"]) == ("", "")


def test_a_row_says_how_its_interval_was_made_and_which_runs_never_settled(
    golden_out: Path,
) -> None:
    rows = rows_of(golden_out / "scaling.csv")
    methods = {(r["machine"], r["gpus"]): r["efficiency_method"] for r in rows if r["machine"]}
    assert methods["golden-node", "2"] == "baseline"
    assert methods["golden-node", "4"] == "paired"
    notes = {(r["machine"], r["gpus"]): r["note"] for r in rows}
    assert "2 of 2 runs never settled: fewer than 20 steps" in notes["golden-laptop", "2"]
    assert "1 of 2 runs never settled: step times still" in notes["golden-node", "4"]
    page = (golden_out / "scaling.md").read_text(encoding="utf-8")
    assert "Efficiency intervals: at 4 paired by block (2 blocks)." in page


def test_compile_time_is_explained_where_it_is_shown() -> None:
    """It was taken for compilation alone, and holds the set-up of communicators, too."""
    results = load_results(GOLDEN)
    compiled = replace(results.runs[0], summary=replace(results.runs[0].summary, compile_time_s=9))
    notes = statistics_table(results, [measure(compiled)]).notes
    assert any("compile_time_s" in note and "communicators" in note for note in notes)
    assert not any("compile_time_s" in note for note in statistics_table(results, []).notes)


def test_the_printed_table_fits_and_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tables("--results", str(GOLDEN), "--out", "/dev/null/x") == 2
    capsys.readouterr()
    analysis = tables.analyse(GOLDEN)
    for table in analysis.tables:
        text = to_text(table)
        assert "..." not in text
        assert "\u2026" not in text
        assert max(len(line) for line in text.splitlines()) <= 100


def test_an_empty_results_folder_shows_the_reference_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tables("--results", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "No measured runs in this results folder: reference only." in printed
    assert "53,000" in printed
    assert (tmp_path / "tables" / "scaling.csv").exists()
    assert len(rows_of(tmp_path / "tables" / "scaling.csv")) == 6


def test_the_default_folder_need_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_tables() == 0
    assert (tmp_path / "results" / "tables" / "audit.md").exists()
    assert "reference only" in capsys.readouterr().out


def test_tables_written_into_the_results_are_not_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tables("--results", str(tmp_path)) == 0
    assert run_tables("--results", str(tmp_path)) == 0
    assert capsys.readouterr().err == ""


def test_a_folder_that_is_not_there_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tables("--results", str(tmp_path / "nowhere")) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --results")
    assert error.count("\n") == 1


def test_records_of_another_version_are_a_warning_and_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tables("--results", str(GOLDEN), "--out", str(tmp_path)) == 0
    error = capsys.readouterr().err
    assert "schema version 0" in error
    assert "1 records" in error


def test_an_ascii_terminal_gets_a_plus_for_the_dagger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A C locale raised UnicodeEncodeError, or showed a question mark after every figure."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    console.show("16\u2020 \u00e9")
    stream.flush()
    assert stream.buffer.getvalue() == b"16+ ?\n"  # type: ignore[attr-defined]


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tables.main(["--nonsense"])
    assert caught.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


def test_torch_and_matplotlib_stay_out_of_tables_without_figures(tmp_path: Path) -> None:
    code = (
        "import sys; from analysis import tables;"
        f"tables.main(['--results', {str(tmp_path)!r}, '--no-figures']);"
        "print(sorted({'torch', 'matplotlib', 'pandas', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=DATA.parents[1],
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    """Piping into head printed a BrokenPipeError traceback."""
    command = f"{sys.executable} -m analysis.tables --results {tmp_path} --no-figures | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=DATA.parents[1],
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def small_table(**cells: str) -> Table:
    columns = tuple(field(name, name) for name in cells)
    section = Section(title="one", rows=(cells,), shown=columns)
    return Table(name="t", title="T", fields=tuple(cells), sections=(section,))


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_cell_can_break_a_markdown_row(left: str, right: str) -> None:
    lines = section_markdown(small_table(a=left, b=right).sections[0]).split("\n")
    assert len(lines) == 3
    unescaped = lines[2].replace("\\\\", "").replace("\\|", "")
    assert unescaped.count("|") == 3


@given(st.text(max_size=40))
def test_csv_cells_come_back_on_one_line(text: str) -> None:
    """A lone carriage return was written unquoted and split its row in two."""
    written = to_csv(small_table(a=text, b="x"))
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert rows[1] == [text.replace("\r", " ").replace("\n", " "), "x"]


def test_markdown_is_escaped_and_commands_are_code() -> None:
    assert escape("a_b|*c*\n<d>") == "a\\_b\\|\\*c\\* \\<d\\>"
    assert prose("run `a_b 'p=[1]'` now_") == "run `a_b 'p=[1]'` now\\_"
    assert prose("one ` alone") == "one \\` alone"
    assert "# a\\_b" in to_markdown(Table(name="t", title="a_b", fields=(), sections=()))


def test_text_columns_wrap_and_number_columns_do_not() -> None:
    columns = (
        field("name", "name"),
        Column(heading="value", cell=lambda row: number(row["value"], 1)),
    )
    row: dict[str, Any] = {"name": "word " * 20, "value": 123456.0}
    section = Section(title="s", rows=(row,), shown=columns)
    table = Table(name="t", title="T", fields=("name", "value"), sections=(section,))
    text = to_text(table, width=40)
    assert "123,456.0" in text
    assert max(len(line) for line in text.splitlines()) <= 40
    assert text.count("word") == 20


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("x", "x"),
        (0, "0"),
        (12345.6, "12,346"),
        (0.18873, "0.1887"),
        (1.2e-5, "1.2e-05"),
    ],
)
def test_significant_digits(value: Any, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.01e9, "1.01 billion"),
        (32_762_123_264.0, "32.8 billion"),
        (2.5e12, "2.5 trillion"),
        (1e6, "1 million"),
        (262_144.0, "262,144"),
        (83.773, "83.8"),
    ],
)
def test_large_numbers_are_said_in_words(value: float, text: str) -> None:
    assert in_words(value) == text


def test_a_table_too_wide_gives_way_at_text_then_headings_then_gaps() -> None:
    columns = (
        field("rate", "tokens per second", number),
        field("n", "a b", number),
        field("name", "name"),
    )
    row = {"name": "word " * 8, "rate": 12345, "n": 1}
    section = Section(title="s", rows=(row,), shown=columns)
    table = Table(name="t", title="T", fields=tuple(row), sections=(section,))

    def grid(width: int) -> list[str]:
        return to_text(table, width=width).splitlines()[5:]

    assert grid(70)[0] == "tokens per second  a b  name"
    assert grid(40)[0] == "tokens per second  a b  name"
    assert grid(26)[:3] == ["tokens", "   per  a", "second  b  name"]
    assert grid(21)[3].startswith("------ - ------------")
    assert max(len(line) for line in grid(21)) == 21


def test_the_script_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "tables" in capsys.readouterr().out
    assert cli.main([]) == 2


def test_the_script_refuses_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tabels"]) == 2
    assert "tabels" in capsys.readouterr().err


def test_the_script_runs_each_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tables", "--results", str(tmp_path), "--no-figures"]) == 0
    assert cli.main(["figures", "--results", str(tmp_path)]) == 0
    page = str(tmp_path / "REPORT.md")
    assert cli.main(["report", "--results", str(tmp_path), "--path", page]) == 0
    assert "drawn" in capsys.readouterr().out
