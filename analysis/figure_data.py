"""What the scaling figure shows: points of series, in rows of panels. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.devices import is_cpu
from analysis.groups import Group
from analysis.reference import ReferenceLabel
from analysis.reported import Reported
from analysis.scaling import matches_reference
from analysis.scaling_rows import group_rows, reference_rows
from analysis.table import DAGGER

# Okabe and Ito's palette: told apart by people with any colour vision.
MEASURED_COLOUR = "#0072B2"
REFERENCE_COLOUR = "#D55E00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One world size of one series; ``singles`` are the runs behind a mean."""

    gpus: int
    value: float
    low: float | None
    high: float | None
    singles: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one origin with the style that tells it apart without colour, too.

    ``efficiency_format`` shows no more digits than the origin states.
    """

    name: str
    colour: str
    marker: str
    efficiency_format: str
    throughput: tuple[Point, ...]
    efficiency: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of panels."""

    title: str
    unit: str
    series: tuple[Series, ...]

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Every number of GPUs that a series has a point at."""
        return tuple(sorted({p.gpus for s in self.series for p in s.throughput}))


def figure_rows(groups: Sequence[Group], reported: Reported) -> tuple[Row, ...]:
    """What to draw: the report alone unless a group ran its model, then every measured group."""
    report = _reference_series(reported)
    drawable = [g for g in groups if any(cell.rates for cell in g.cells)]
    rows = [
        Row(
            title=_title(group),
            unit="CPU ranks" if is_cpu(group.first.run) else "GPUs",
            series=(
                _measured_series(group),
                *((report,) if matches_reference(group) else ()),
            ),
        )
        for group in drawable
    ]
    if not any(matches_reference(g) for g in drawable):
        title = "\n".join(textwrap.wrap(reported.title, 110))
        rows.insert(0, Row(title=title, unit="GPUs", series=(report,)))
    return tuple(rows)


def _measured_series(group: Group) -> Series:
    rows = [r for r in group_rows(group) if r["tokens_per_second"] is not None]
    rates = {cell.world_size: cell.rates for cell in group.cells}
    return Series(
        name=f"measured ({group.label}), n = {_counts([int(r['n'] or 0) for r in rows])}",
        colour=MEASURED_COLOUR,
        marker="o",
        efficiency_format=".1f",
        throughput=tuple(
            _point(r, "tokens_per_second", "ci_low", "ci_high", rates[int(r["gpus"] or 0)])
            for r in rows
        ),
        efficiency=tuple(
            _point(r, "efficiency_pct", "efficiency_ci_low", "efficiency_ci_high", ()) for r in rows
        ),
    )


def _reference_series(reported: Reported) -> Series:
    rows = reference_rows(reported)
    is_secondary = any(r["label"] == ReferenceLabel.SECONDARY for r in rows)
    return Series(
        name=f"the report{DAGGER if is_secondary else ''}",
        colour=REFERENCE_COLOUR,
        marker="D",
        efficiency_format="g",
        throughput=tuple(_point(r, "tokens_per_second", "ci_low", "ci_high", ()) for r in rows),
        efficiency=tuple(
            _point(r, "efficiency_pct", "efficiency_ci_low", "efficiency_ci_high", ()) for r in rows
        ),
    )


def _point(
    row: Mapping[str, Any], value: str, low: str, high: str, singles: tuple[float, ...]
) -> Point:
    return Point(gpus=row["gpus"], value=row[value], low=row[low], high=row[high], singles=singles)


def _counts(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else " / ".join(str(c) for c in counts)


def _title(group: Group) -> str:
    model = group.first.run.manifest.config.get("model", {}).get("name")
    title = f"{group.experiment} on {group.machine}: {group.first.device}, {model}"
    apart = f"\napart by {group.name}" if group.name else ""
    return "\n".join(textwrap.wrap(title, 110)) + apart
