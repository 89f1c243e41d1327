"""The sections of REPORT.md on power by state, and on watts against utilization. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.calibrations import Calibration
from analysis.markdown import bullets, escape, prose, section_markdown
from analysis.power import COMMAND, is_measured
from analysis.table import Table
from analysis.triage_evaluation import verdict

if TYPE_CHECKING:
    from analysis.tables import Analysis

_POWER_QUESTION = "Which board watts belong to which state of a GPU?"
_EVALUATION_QUESTION = "Do watts tell the states of a GPU apart better than utilization does?"
_NO_VERDICT = "None yet: no calibration has been recorded."


def power_section(analysis: Analysis, figure_link: str) -> str:
    """The watts of every state by source, with the picture."""
    return "\n\n".join(
        [
            "## Power by state",
            f"**Question.** {_POWER_QUESTION}",
            *_sections(analysis.table("power")),
            f"![Watts by state, and watts against utilization]({figure_link})",
            "**Verdict.**",
            bullets(_separations(analysis.calibrations)),
            "**Not measured.**",
            bullets(_missing(analysis.calibrations)),
        ]
    )


def evaluation_section(analysis: Analysis) -> str:
    """Both classifiers on the windows that made no table."""
    table = analysis.table("triage_evaluation")
    return "\n\n".join(
        [
            "## Triage by watts against triage by utilization",
            f"**Question.** {_EVALUATION_QUESTION}",
            *_sections(table),
            *(prose(note) for note in table.notes),
            "**Verdict.**",
            bullets([verdict(c) for c in analysis.calibrations] or [_NO_VERDICT]),
            "**Not measured.**",
            bullets(_missing(analysis.calibrations)),
        ]
    )


def _sections(table: Table) -> list[str]:
    parts: list[str] = []
    for section in table.sections:
        if section.rows:
            parts += [f"### {escape(section.title)}", section_markdown(section)]
    return parts


def _separations(calibrations: Sequence[Calibration]) -> list[str]:
    found: list[str] = []
    for calibration in calibrations:
        where = f"{calibration.experiment} on {calibration.machine} ({calibration.label})"
        if calibration.calibrated is None:
            found.append(f"{where}: {calibration.problem}.")
            continue
        table = calibration.calibrated.table
        pairs = [f"{overlap.below} and {overlap.above}" for overlap in table.overlaps]
        told = f"do not tell apart {', '.join(pairs)}" if pairs else "tell all states apart"
        found.append(f"{where}: {len(table.thresholds)} thresholds; watts {told}.")
    return found or [_NO_VERDICT]


def _missing(calibrations: Sequence[Calibration]) -> list[str]:
    if is_measured(calibrations):
        return ["Nothing that was planned."]
    return [f"The table of a GPU: `{COMMAND}`"]
