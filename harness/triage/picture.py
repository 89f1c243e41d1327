# pyright: standard
"""The picture: watts per GPU over time, a band of states per GPU below, utilization at the foot.

The only module outside analysis that needs matplotlib, and only the command imports it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import MissingExtraError
from harness.triage.report import gpu_range
from harness.triage.result import Traces, TriageResult
from harness.triage.states import STATE_CODE, STATE_ORDER, State

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Work is blue, a stall is warm and a hang the darkest red, idling is grey. Neighbours differ in
# lightness too, so that they hold apart in print and for the colour-blind.
COLOURS: Mapping[State, str] = {
    State.COMPUTE: "#2f6fb3",
    State.COMMUNICATION: "#8fc1e3",
    State.DATA_STARVATION: "#e8c547",
    State.CHECKPOINT_OR_DEADLOCK: "#e58a3c",
    State.CHECKPOINT: "#f3b562",
    State.DEADLOCK: "#a4161a",
    State.WEDGED: "#5c0f3c",
    State.THROTTLED: "#7a5ea8",
    State.IDLE_BARE: "#e6e6e6",
    State.IDLE_CONTEXT: "#c4c4c4",
    State.IDLE: "#d5d5d5",
    State.UNKNOWN: "#ffffff",
}
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "wattline",
}
_DPI = 150
_WIDTH_IN, _ROW_IN = 11.0, 0.17
_MAX_ROWS = 64
_MAX_POINTS = 4000
_LIGHT_FROM = 12  # lines of more GPUs than these are drawn thin
_DAY_S = 86_400.0
_GREYS = ("#1b1b1b", "#4c72b0", "#55a868", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#64b5cd")
_ODD = "#c1121f"


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What is drawn: traces against time in ``scale`` seconds from ``origin_s``."""

    traces: Traces
    origin_s: float
    scale: float

    def at(self, t_s: NDArray[np.float64]) -> NDArray[np.float64]:
        return (t_s - self.origin_s) / self.scale


def draw(result: TriageResult, path: Path) -> None:
    """Write the picture of a result that holds traces.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "analysis") from error
    assert result.traces is not None
    with mpl.rc_context(_STYLE):
        figure = _draw(result, result.traces, Figure)
        figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _draw(result: TriageResult, traces: Traces, new_figure: type[Figure]) -> Figure:
    order = _order(result, traces)[:_MAX_ROWS]
    bands_in = max(_ROW_IN * len(order), 0.35)
    heights = (2.6, bands_in, 1.0)
    figure = new_figure(figsize=(_WIDTH_IN, sum(heights) + 2.05))
    watts, bands, percent = figure.subplots(
        3, 1, sharex=True, height_ratios=heights, gridspec_kw={"hspace": 0.12}
    )
    odd = {label for job in result.jobs for label in job.odd_gpus}
    origin_s = float(traces.windows.start_s.min())
    scale, unit = _unit(float(traces.windows.end_s.max()) - origin_s)
    view = _View(traces=traces, origin_s=origin_s, scale=scale)
    for number, gpu in enumerate(order):
        line = _line_style(number, len(order), is_odd=traces.labels[gpu] in odd)
        mine = traces.windows.gpu == gpu
        _plot(watts, view, mine, traces.windows.power_w, line)
        _plot(percent, view, mine, traces.windows.utilization_pct, line)
        _plot_band(bands, view, mine, len(order) - 1 - number)
    _finish_watts(watts, result)
    _finish_bands(bands, [traces.labels[g] for g in order], odd)
    percent.set_ylabel("utilization\n%")
    percent.set_ylim(-4, 104)
    percent.set_xlabel(_time_label(result, origin_s, unit))
    percent.set_xlim(0.0, (float(traces.windows.end_s.max()) - origin_s) / scale)
    _shade_pauses((watts, percent), result, origin_s, scale)
    _legend(figure, traces, odd)
    figure.suptitle(
        _title(result), x=0.07, y=1.0 - 0.14 / figure.get_figheight(), ha="left", va="top"
    )
    figure.subplots_adjust(
        left=0.07,
        right=0.985,
        top=1.0 - (0.42 + 0.17 * min(len(result.jobs), 4)) / figure.get_figheight(),
        bottom=0.95 / figure.get_figheight(),
    )
    return figure


def _order(result: TriageResult, traces: Traces) -> list[int]:
    """Numbers of the GPUs, job by job."""
    number = {label: n for n, label in enumerate(traces.labels)}
    listed = [number[label] for job in result.jobs for label in job.gpus if label in number]
    seen = set(np.unique(traces.windows.gpu).tolist())
    return [n for n in [*listed, *sorted(seen - set(listed))] if n in seen]


def _line_style(number: int, count: int, *, is_odd: bool) -> dict[str, Any]:
    if is_odd:
        return {"color": _ODD, "linewidth": 1.1, "zorder": 5}
    thin = 0.5 if count > _LIGHT_FROM else 0.8
    return {"color": _GREYS[number % len(_GREYS)], "linewidth": thin, "alpha": 0.75}


def _plot(
    axes: Axes,
    view: _View,
    mine: NDArray[np.bool_],
    values: NDArray[np.float64],
    style: dict[str, Any],
) -> None:
    """One line, broken where the sampler paused, thinned by keeping lows and highs."""
    windows, value = view.traces.windows, values[mine]
    start_s, end_s = windows.start_s[mine], windows.end_s[mine]
    if not np.isfinite(value).any():
        return
    is_single = len(value) == 1
    times = view.at((start_s + end_s) / 2.0)
    breaks = np.flatnonzero(start_s[1:] - end_s[:-1] > 1e-6) + 1
    rows = np.insert(np.arange(len(value)), breaks, -1)
    x, y = np.where(rows < 0, np.nan, times[rows]), np.where(rows < 0, np.nan, value[rows])
    x, y = _thin(x, y)
    axes.plot(x, y, marker="o" if is_single else None, **style)


def _thin(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most ``_MAX_POINTS`` points: the lowest and highest of each bundle, in order."""
    if len(x) <= _MAX_POINTS:
        return x, y
    size = -(-len(x) // (_MAX_POINTS // 2))
    starts = np.arange(0, len(x), size)
    keep: list[int] = []
    for start in starts.tolist():
        part = y[start : start + size]
        if np.isfinite(part).any():
            keep += sorted({start + int(np.nanargmin(part)), start + int(np.nanargmax(part))})
        if not np.isfinite(part).all():
            keep.append(start + int(np.flatnonzero(~np.isfinite(part))[0]))
    rows = np.unique(keep)
    return x[rows], y[rows]


def _plot_band(axes: Axes, view: _View, mine: NDArray[np.bool_], row: int) -> None:
    windows, states = view.traces.windows, view.traces.states[mine]
    start_s, end_s = windows.start_s[mine], windows.end_s[mine]
    cuts = np.flatnonzero((np.diff(states) != 0) | (start_s[1:] - end_s[:-1] > 1e-6)) + 1
    firsts, lasts = np.append(0, cuts), np.append(cuts, len(states)) - 1
    for code in np.unique(states).tolist():
        of_state = states[firsts] == code
        since = view.at(start_s[firsts[of_state]])
        width = view.at(end_s[lasts[of_state]]) - since
        spans = list(zip(since.tolist(), width.tolist(), strict=True))
        colour = COLOURS[STATE_ORDER[code]]
        axes.broken_barh(spans, (row - 0.42, 0.84), facecolors=colour, edgecolor="none")


def _finish_watts(axes: Axes, result: TriageResult) -> None:
    limits = sorted({gpu.limit.watts for gpu in result.gpus if gpu.limit.watts is not None})
    for limit in limits[:4]:
        axes.axhline(limit, color="#999999", linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(
            f"limit {limit:.0f} W",
            (1.0, limit),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color="#777777",
        )
    axes.set_ylim(bottom=0.0)
    if limits:
        axes.set_ylim(top=max(axes.get_ylim()[1], limits[-1] * 1.1))
    axes.set_ylabel("board power\nW")


def _finish_bands(axes: Axes, labels: Sequence[str], odd: set[str]) -> None:
    rows = list(range(len(labels) - 1, -1, -1))
    step = max(1, -(-len(labels) // 32))
    axes.set_yticks(
        rows[::step], [f"{label} *" if label in odd else label for label in labels[::step]]
    )
    axes.tick_params(axis="y", labelsize=7, length=0)
    for tick, label in zip(axes.get_yticklabels(), labels[::step], strict=True):
        tick.set_color(_ODD if label in odd else "#333333")
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.spines["left"].set_visible(False)


def _shade_pauses(
    many: Sequence[Axes], result: TriageResult, origin_s: float, scale: float
) -> None:
    """Grey where every sampler that knows the time paused."""
    if len(result.accounts) != 1:
        return
    for gap in result.accounts[0].gaps:
        for axes in many:
            axes.axvspan(
                (gap.start_s - origin_s) / scale,
                (gap.end_s - origin_s) / scale,
                color="#f0e9dc",
                linewidth=0,
                zorder=0,
            )


def _legend(figure: Figure, traces: Traces, odd: set[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    present = [s for s in STATE_ORDER if (traces.states == STATE_CODE[s]).any()]
    handles: list[Any] = [
        Patch(
            facecolor=COLOURS[s],
            edgecolor="#999999",
            linewidth=0.4,
            label=s.value.replace("_", " "),
        )
        for s in present
    ]
    if odd:
        handles.append(Line2D([], [], color=_ODD, label="odd GPU"))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.06, 0.0),
        ncols=7,
        frameon=False,
        fontsize=8,
    )


def _title(result: TriageResult) -> str:
    lines: list[str] = []
    for job in result.jobs[:4]:
        line = f"{gpu_range(job.gpus)}: {job.verdict.replace('_', ' ')} - {job.reason}"
        if job.odd_gpus:
            line += f"; odd: {gpu_range(job.odd_gpus)}"
        lines.append(line if len(line) <= 130 else line[:127] + "...")
    if len(result.jobs) > 4:
        lines[-1] += f"   (and {len(result.jobs) - 4} more jobs)"
    return "\n".join(lines)


def _unit(span_s: float) -> tuple[float, str]:
    if span_s <= 300:
        return 1.0, "s"
    return (60.0, "min") if span_s <= 4 * 3600 else (3600.0, "h")


def _time_label(result: TriageResult, origin_s: float, unit: str) -> str:
    if origin_s < _DAY_S or any(a.is_relative for a in result.accounts):
        return f"{unit} from the first sample"
    stamp = datetime.datetime.fromtimestamp(origin_s, tz=datetime.UTC)
    return f"{unit} from {stamp:%Y-%m-%d %H:%M:%S} UTC"
