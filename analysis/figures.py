"""Every picture, drawn: ``python -m analysis.figures``; here, throughput and efficiency by GPUs.

Every machine and group has a row of panels of its own, because a laptop and 16 GPUs share no axis.
The report's points stand in a row of their own, and beside GPU runs of the same model. Axes start
at zero. The same records give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import console, drawing
from analysis.figure_data import Point, Row, Series, figure_rows
from analysis.groups import Group
from analysis.power_figure import draw_power, power_rows
from analysis.reported import Reported
from analysis.table import DAGGER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.tables import Analysis

IDEAL_COLOUR = drawing.GREY
_WIDTH_IN, _FOOT_IN = 9.0, 0.4
_HEAD_IN, _PANEL_IN, _AXIS_IN = 0.85, 2.15, 0.6  # title, panel, axis labels of one row
_LEFTS_IN, _PANEL_WIDTH_IN = (0.75, 5.2), 3.6
_FOOTNOTE = (
    f"Bars: 95 % intervals over runs; small dots: single runs.  {DAGGER} secondary: from a third"
    " party's summary of the report."
)


def draw_all(analysis: Analysis, out: Path) -> tuple[Path, ...]:
    """Draw every picture below ``out`` and give the paths.

    Raises:
        MissingExtraError: matplotlib is not installed.
        RecordError: the folder cannot be written.
    """
    rows = power_rows(analysis.calibrations, analysis.report_table, analysis.traces_table)
    return (
        *draw_scaling(analysis.scaling_groups, analysis.reported, out),
        *draw_power(rows, out),
    )


def draw_scaling(groups: Sequence[Group], reported: Reported, out: Path) -> tuple[Path, ...]:
    """Write scaling.svg and scaling.png below ``out`` and give their paths.

    Raises:
        MissingExtraError: matplotlib is not installed.
        RecordError: the folder cannot be written.
    """
    rows = figure_rows(groups, reported)
    with drawing.style():
        from matplotlib.figure import Figure

        height = (_HEAD_IN + _PANEL_IN + _AXIS_IN) * len(rows) + _FOOT_IN
        figure = Figure(figsize=(_WIDTH_IN, height), dpi=drawing.DPI)
        _draw_rows(figure, rows, height)
        return tuple(drawing.save(figure, out / f"scaling.{kind}") for kind in ("svg", "png"))


def _draw_rows(figure: Figure, rows: Sequence[Row], height: float) -> None:
    top = height
    for row in rows:
        bottom = top - _HEAD_IN - _PANEL_IN
        left, right = (
            figure.add_axes(
                (x / _WIDTH_IN, bottom / height, _PANEL_WIDTH_IN / _WIDTH_IN, _PANEL_IN / height)
            )
            for x in _LEFTS_IN
        )
        _throughput_panel(left, row)
        _efficiency_panel(right, row)
        figure.text(
            _LEFTS_IN[0] / _WIDTH_IN,
            (top - 0.12) / height,
            row.title,
            fontweight="bold",
            va="top",
        )
        top = bottom - _AXIS_IN
    figure.text(
        _LEFTS_IN[0] / _WIDTH_IN, 0.14 / height, _FOOTNOTE, fontsize=7.5, color=IDEAL_COLOUR
    )


def _throughput_panel(axes: Axes, row: Row) -> None:
    axes.set_title("Throughput (tokens/s)", loc="left", fontsize=9)
    first = row.series[0].throughput[0]
    last = row.world_sizes[-1]
    ideal = first.value / first.gpus * last
    axes.plot([0, last], [0, ideal], "--", color=IDEAL_COLOUR, lw=1, zorder=1)
    where = (0.62 * last, 0.62 * ideal)
    _note(
        axes,
        f"ideal from {first.gpus}",
        at=where,
        offset=(-7, 5),
        colour=IDEAL_COLOUR,
        align="right",
    )
    points = [p for series in row.series for p in series.throughput]
    highest = 1.2 * max([ideal, *(p.high or p.value for p in points)])
    axes.set_ylim(0, highest)
    for number, series in enumerate(row.series):
        _plot(axes, series, series.throughput)
        for point in series.throughput:
            low = point.low if point.low is not None else point.value
            # A second series is labelled on the other side; near the axis there is no room below.
            below = (8, -4) if low < 0.12 * highest else (5, -13)
            offset, align = ((-6, 7), "right") if number else (below, "left")
            at = (point.gpus, point.value if number else low)
            _note(
                axes,
                _kilo(point.value),
                at=at,
                offset=offset,
                colour=series.colour,
                align=align,
            )
    _finish(axes, row, last)


def _efficiency_panel(axes: Axes, row: Row) -> None:
    axes.set_title("Strong-scaling efficiency (% of ideal)", loc="left", fontsize=9)
    axes.axhline(100, ls="--", color=IDEAL_COLOUR, lw=1, zorder=1)
    tops = [100.0]
    for number, series in enumerate(row.series):
        _plot(axes, series, series.efficiency)
        tops += [p.high or p.value for p in series.efficiency]
        for point in series.efficiency:
            text = f"{point.value:{series.efficiency_format}}"
            low = point.low if point.low is not None else point.value
            offset, y = ((0, 8), point.value) if number else ((0, -16), low)
            _note(
                axes,
                text,
                at=(point.gpus, y),
                offset=offset,
                colour=series.colour,
                align="center",
            )
    legend = axes.legend(loc="lower left", frameon=False, fontsize=8.5, borderaxespad=0.2)
    for text, series in zip(legend.get_texts(), row.series, strict=True):
        text.set_color(series.colour)
    axes.set_ylim(0, max(125.0, 1.1 * max(tops)))
    _finish(axes, row, row.world_sizes[-1])


def _plot(axes: Axes, series: Series, points: Sequence[Point]) -> None:
    for point in points:
        xs = [point.gpus] * len(point.singles)
        axes.plot(xs, point.singles, ".", color=series.colour, alpha=0.35, ms=4, zorder=2)
        if point.low is not None and point.high is not None:
            axes.errorbar(
                [point.gpus],
                [point.value],
                yerr=[[point.value - point.low], [point.high - point.value]],
                color=series.colour,
                capsize=4,
                lw=1.3,
                zorder=3,
            )
    axes.plot(
        [p.gpus for p in points],
        [p.value for p in points],
        series.marker,
        color=series.colour,
        ms=6,
        mfc="white" if series.marker == "D" else series.colour,
        mew=1.4,
        zorder=4,
        ls="",
        label=series.name,
    )


def _note(
    axes: Axes,
    text: str,
    *,
    at: tuple[float, float],
    offset: tuple[float, float],
    colour: str,
    align: str,
) -> None:
    axes.annotate(
        text,
        xy=at,
        xytext=offset,
        textcoords="offset points",
        color=colour,
        ha=align,
        fontsize=8.5,
        bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
    )


def _finish(axes: Axes, row: Row, last: int) -> None:
    axes.set_xlim(0, 1.14 * last)
    axes.set_xticks(row.world_sizes)
    axes.set_xlabel(row.unit)
    axes.yaxis.set_major_formatter(lambda value, _: _kilo(value))
    axes.grid(axis="y", color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)


def _kilo(value: float) -> str:
    """Short and exact enough: 26.7k, 53k, 3,313, 450."""
    if value >= 10_000:
        return f"{value / 1000:.1f}".removesuffix(".0") + "k"
    return f"{value:,.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see ``--help``."""
    from analysis.tables import add_folders, analyse

    parser = argparse.ArgumentParser(prog="python -m analysis.figures", description=__doc__)
    add_folders(parser)
    args = parser.parse_args(argv)

    def command() -> int:
        root = console.results_folder(args.results)
        analysis = analyse(root)
        out = (args.out or root / "tables") / "figures"
        paths = draw_all(analysis, out)
        console.warn(analysis.results.warnings)
        console.show("drawn: " + ", ".join(str(p) for p in paths))
        return 0

    return console.guarded(command)


if __name__ == "__main__":
    sys.exit(main())
