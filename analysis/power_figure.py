"""The calibration picture: watts by state, and watts against utilization.

A row of panels per source: the report, every calibration, recorded jobs of others. Left the watts
of each state with the thresholds between neighbours, right what utilization shows of the same:
states that stand above one another there are those that utilization cannot tell apart. A replay
says in its title that nothing was measured. The same records give the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis import drawing
from analysis.calibrations import Calibration
from analysis.power import section_title
from analysis.table import DAGGER
from harness.triage.bands import Band, Table, TableLabel, Threshold
from harness.triage.states import State

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_IN, _HEAD_IN, _AXIS_IN, _FOOT_IN = 9.0, 0.5, 0.65, 0.55
_BAND_IN, _LEAST_PANEL_IN = 0.32, 1.7
_LEFT_IN, _LEFT_WIDTH_IN, _RIGHT_IN, _RIGHT_WIDTH_IN = 2.3, 3.7, 6.75, 2.0
_COLOURS = {
    State.IDLE_BARE: "#9a9a9a",
    State.IDLE_CONTEXT: "#56708a",
    State.IDLE: "#9a9a9a",
    State.CHECKPOINT: "#b07aa1",
    State.CHECKPOINT_OR_DEADLOCK: "#8f4a8f",
    State.COMMUNICATION: "#d07c1f",
    State.DATA_STARVATION: "#c0392b",
    State.COMPUTE: "#2a7f4f",
}
_OTHER = "#333333"
_FOOTNOTE = (
    "Bars: percentiles 5 to 95 of one-second windows, ticks: medians; dashed: thresholds between"
    " neighbours, shaded: their intervals as\nthe table gives them; dotted: the enforced limit. "
    f" {DAGGER} secondary: from a third party's summary of the report."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One window, or one band where no windows are known: utilization (%) against watts."""

    state: State
    utilization_pct: float
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRow:
    """One source: its bands in order of watts, thresholds between neighbours, and dots."""

    title: str
    limit_w: float
    bands: tuple[Band, ...]
    thresholds: tuple[Threshold, ...]
    dots: tuple[Dot, ...]


def power_rows(
    calibrations: Sequence[Calibration], report_table: Table, traces: Table
) -> tuple[PowerRow, ...]:
    """What is drawn: bands without watts and campaigns without a table are not."""
    rows = [
        _row(
            f"The report: {report_table.device}, limit {report_table.limit_w:g} W",
            report_table,
            _band_dots(report_table),
        )
    ]
    for calibration in calibrations:
        if calibration.calibrated is not None:
            table = calibration.calibrated.table
            rows.append(_row(section_title(calibration), table, _window_dots(calibration)))
    title = f"Recorded jobs of others: {traces.device}, limit {traces.limit_w:g} W"
    return (*rows, _row(title, traces, _band_dots(traces)))


def draw_power(rows: Sequence[PowerRow], out: Path) -> tuple[Path, ...]:
    """Write power.svg and power.png below ``out`` and give their paths.

    Raises:
        MissingExtraError: matplotlib is not installed.
        RecordError: the folder cannot be written.
    """
    with drawing.style():
        from matplotlib.figure import Figure

        height = sum(_height(row) for row in rows) + _FOOT_IN
        figure = Figure(figsize=(_WIDTH_IN, height), dpi=drawing.DPI)
        draw_rows(figure, rows, height)
        return tuple(drawing.save(figure, out / f"power.{kind}") for kind in ("svg", "png"))


def draw_rows(figure: Figure, rows: Sequence[PowerRow], height: float) -> None:
    """Draw every row from the top of a figure of ``height`` inches."""
    top = height
    for row in rows:
        panel_in = _panel_in(row)
        bottom = (top - _HEAD_IN - panel_in) / height
        boxes = ((_LEFT_IN, _LEFT_WIDTH_IN), (_RIGHT_IN, _RIGHT_WIDTH_IN))
        left, right = (
            figure.add_axes((x / _WIDTH_IN, bottom, width / _WIDTH_IN, panel_in / height))
            for x, width in boxes
        )
        _bands_panel(left, row)
        _dots_panel(right, row)
        at = ((0.25 / _WIDTH_IN), (top - 0.15) / height)
        figure.text(*at, row.title, fontweight="bold", va="top")
        top -= _height(row)
    figure.text(
        0.25 / _WIDTH_IN, 0.12 / height, _FOOTNOTE, fontsize=7.5, color=drawing.GREY, va="bottom"
    )


def _row(title: str, table: Table, dots: tuple[Dot, ...]) -> PowerRow:
    known = [band for band in table.bands if band.median_w is not None]
    known.sort(key=lambda band: band.median_w or 0.0)
    states = list(dict.fromkeys(band.state for band in known))
    neighbours = set(itertools.pairwise(states))
    return PowerRow(
        title=title,
        limit_w=table.limit_w,
        bands=tuple(known),
        thresholds=tuple(t for t in table.thresholds if (t.below, t.above) in neighbours),
        dots=dots,
    )


def _band_dots(table: Table) -> tuple[Dot, ...]:
    return tuple(
        Dot(state=band.state, utilization_pct=band.utilization_pct, power_w=band.median_w)
        for band in table.bands
        if band.median_w is not None and band.utilization_pct is not None
    )


def _window_dots(calibration: Calibration) -> tuple[Dot, ...]:
    assert calibration.calibrated is not None
    return tuple(
        Dot(
            state=window.state,
            utilization_pct=float(np.nanmean(window.utilization_pct)),
            power_w=float(np.median(window.power_w)),
        )
        for window in calibration.calibrated.windows
        if window.state is not None and np.isfinite(window.utilization_pct).any()
    )


def _bands_panel(axes: Axes, row: PowerRow) -> None:
    for threshold in row.thresholds:
        axes.axvline(threshold.watts, ls="--", lw=0.8, color=drawing.GREY, zorder=1)
        if threshold.low_w is not None and threshold.high_w is not None:
            axes.axvspan(threshold.low_w, threshold.high_w, color="#e8e8e8", lw=0, zorder=0)
    for place, band in enumerate(row.bands):
        assert band.median_w is not None
        colour = _COLOURS.get(band.state, _OTHER)
        if band.low_w is not None and band.high_w is not None:
            width = band.high_w - band.low_w
            axes.barh(place, width, left=band.low_w, height=0.5, color=colour, alpha=0.4)
        axes.plot([band.median_w], [place], "|", color=colour, ms=11, mew=2)
        is_right = band.median_w > 0.75 * row.limit_w
        axes.annotate(
            f"{band.median_w:.0f}",
            xy=((band.low_w if is_right else band.high_w) or band.median_w, place),
            xytext=(-5 if is_right else 5, 0),
            textcoords="offset points",
            ha="right" if is_right else "left",
            va="center",
            fontsize=8.5,
            color=colour,
            bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8},
        )
    axes.set_yticks(range(len(row.bands)), [_name(band) for band in row.bands])
    axes.set_ylim(-0.7, len(row.bands) - 0.3)
    axes.axvline(row.limit_w, ls=":", color=drawing.GREY, lw=1)
    axes.set_xlim(0, 1.06 * row.limit_w)
    axes.set_xlabel("board power (W)")


def _dots_panel(axes: Axes, row: PowerRow) -> None:
    for state in dict.fromkeys(dot.state for dot in row.dots):
        own = [dot for dot in row.dots if dot.state is state]
        axes.plot(
            [dot.utilization_pct for dot in own],
            [dot.power_w for dot in own],
            "o",
            color=_COLOURS.get(state, _OTHER),
            ms=4,
            alpha=0.6,
            mew=0,
        )
    axes.axhline(row.limit_w, ls=":", color=drawing.GREY, lw=1)
    axes.set_xlim(-6, 106)
    axes.set_ylim(0, 1.06 * row.limit_w)
    axes.set_xlabel("utilization (%)")
    axes.set_ylabel("W")
    axes.grid(color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)


def _name(band: Band) -> str:
    mark = DAGGER if band.label is TableLabel.SECONDARY else ""
    name = f"{band.state}{mark}"
    if band.label is TableLabel.EMULATED:
        name += " (emulated)"
    return f"{name}\n({band.variant})" if band.variant else name


def _panel_in(row: PowerRow) -> float:
    return max(_LEAST_PANEL_IN, _BAND_IN * (len(row.bands) + 1))


def _height(row: PowerRow) -> float:
    return _HEAD_IN + _panel_in(row) + _AXIS_IN
