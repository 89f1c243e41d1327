from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis import figures, tables
from analysis.figure_data import figure_rows
from analysis.tables import Analysis, analyse

GOLDEN = Path(__file__).parent / "data" / "golden" / "results"


@pytest.fixture(scope="module")
def golden() -> Analysis:
    return analyse(GOLDEN)


def test_every_machine_and_group_has_a_row_of_its_own(golden: Analysis) -> None:
    rows = figure_rows(golden.scaling_groups, golden.reported)
    assert [row.unit for row in rows] == ["CPU ranks", "CPU ranks", "CPU ranks", "GPUs"]
    assert [len(row.series) for row in rows] == [1, 1, 1, 2]
    assert "train.precision=bf16" in rows[1].title


def test_the_report_stands_alone_when_nothing_of_its_kind_was_measured(golden: Analysis) -> None:
    laptop = [g for g in golden.scaling_groups if g.machine == "golden-laptop"]
    for groups in ([], laptop):
        rows = figure_rows(groups, golden.reported)
        assert rows[0].world_sizes == (4, 8, 16)
        assert rows[0].series[0].name == "the report\u2020"
        assert len(rows) == 1 + len(groups)


def test_points_are_the_rows_of_the_table(golden: Analysis) -> None:
    rows = figure_rows(golden.scaling_groups, golden.reported)
    point = rows[2].series[0].throughput[1]
    cell = golden.scaling_groups[2].cells[1]
    assert point.singles == cell.rates
    assert point.low is not None
    assert point.low < min(point.singles)
    efficiency = rows[2].series[0].efficiency
    assert efficiency[0].value == 100.0
    assert efficiency[0].low is None


def test_a_group_without_a_clean_run_is_not_drawn(golden: Analysis) -> None:
    group = golden.scaling_groups[0]
    bare = type(group)(
        experiment=group.experiment,
        machine=group.machine,
        label=group.label,
        name=group.name,
        key=group.key,
        cells=(type(group.cells[0])(world_size=1, runs=()),),
    )
    assert len(figure_rows([bare], golden.reported)) == 1


def test_the_same_records_give_the_same_bytes(golden: Analysis, tmp_path: Path) -> None:
    drawn = [
        figures.draw_scaling(golden.scaling_groups, golden.reported, tmp_path / name)
        for name in ("one", "two")
    ]
    for first, second in zip(*drawn, strict=True):
        assert first.read_bytes() == second.read_bytes()
    svg = (tmp_path / "one" / "scaling.svg").read_text(encoding="utf-8")
    assert not re.search(r"<dc:date>|20\d\d-\d\d-\d\dT", svg)
    assert (tmp_path / "one" / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_axes_start_at_zero_and_texts_do_not_overlap(golden: Analysis) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = figure_rows(golden.scaling_groups, golden.reported)
    figure = Figure(figsize=(9.0, 11.0))
    canvas = FigureCanvasAgg(figure)
    figures._draw_rows(figure, rows, 11.0)
    canvas.draw()
    for axes in figure.axes:
        assert axes.get_ylim()[0] == 0
        assert axes.get_xlim()[0] == 0
        boxes = [t.get_window_extent() for t in axes.texts]
        for i, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[i + 1 :]), axes.texts[i]


def test_tables_draw_by_default_and_say_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables.main(["--results", str(GOLDEN), "--out", str(tmp_path)]) == 0
    assert "figures/scaling.svg" in capsys.readouterr().out
    assert (tmp_path / "figures" / "scaling.png").exists()


def test_figures_alone_are_drawn_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["--results", str(GOLDEN), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "figures" / "scaling.svg").exists()
    assert "schema version 0" in capsys.readouterr().err


def test_a_missing_matplotlib_is_one_line_after_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Mapping[str, Any]) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert tables.main(["--results", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: matplotlib is not installed; pip install 'wattline[analysis]'\n"
    assert (tmp_path / "tables" / "scaling.csv").exists()
