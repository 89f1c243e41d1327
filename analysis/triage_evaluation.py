"""Watts against utilization on held-out windows of a calibration: precision, recall, F1. Pure.

Both classifiers see the same windows of known states, none of which made the table. A window is one
second of one GPU: neither peers nor time are looked at, so what only these can tell apart counts as
one state (a wait for a save as one for a late rank, a rank that writes as one that idles).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.calibrations import Calibration
from analysis.power import COMMAND, NOT_MEASURED, is_measured, section_title
from analysis.table import Column, Section, Table, Value, field, number
from harness.record.schema import Label
from harness.triage.evaluate import Score, Scores
from harness.triage.states import State

WATTS, UTILIZATION = "watts", "utilization"
ALL_STATES = "mean over states"
FIELDS = (
    "origin", "label", "experiment", "machine", "device", "limit_w", "classifier", "state", "n",
    "status", "support", "precision", "recall", "f1", "ci_low", "ci_high", "called", "note",
)  # fmt: skip
_NOTES = (
    (
        "Windows are one second of one GPU, held out from the table: every third of a phase. Those"
        " of one run are not independent, so there is no interval."
    ),
    (
        "By watts is by the table together with utilization, as triage judges one window; by"
        " utilization is the baseline: busy is compute, partly busy starved, not busy idle."
    ),
)


def evaluation_table(calibrations: Sequence[Calibration]) -> Table:
    """Both classifiers, state by state, for every calibration that held windows out."""
    sections = [_section(c) for c in calibrations]
    if not is_measured(calibrations):
        sections.append(_missing())
    return Table(
        name="triage_evaluation",
        title="Triage by watts against triage by utilization",
        fields=FIELDS,
        sections=tuple(sections),
        notes=_NOTES,
    )


def verdict(calibration: Calibration) -> str:
    """What the scores say, in one sentence that names what was replayed."""
    scores = _scores(calibration)
    where = f"{calibration.experiment} on {calibration.machine} ({calibration.label})"
    if scores is None:
        return f"{where}: no scores; {_why_no_scores(calibration)}."
    watts, utilization = scores
    missed = [s.state.value for s in utilization.per_state if not s.f1]
    blind = f"; utilization never finds {', '.join(missed)}" if missed else ""
    return (
        f"{where}: mean F1 over states {number(watts.macro_f1, 2)} by watts,"
        f" {number(utilization.macro_f1, 2)} by utilization alone{blind}."
    )


def _section(calibration: Calibration) -> Section:
    scores = _scores(calibration)
    base = _base(calibration)
    if scores is None:
        rows: tuple[dict[str, Value], ...] = ({**base, "note": _why_no_scores(calibration)},)
        return Section(title=section_title(calibration), rows=rows, shown=_columns())
    watts, utilization = scores
    rows = (*_rows(base, WATTS, watts), *_rows(base, UTILIZATION, utilization))
    return Section(title=section_title(calibration), rows=rows, shown=_columns())


def _scores(calibration: Calibration) -> tuple[Scores, Scores] | None:
    if calibration.calibrated is None:
        return None
    result = calibration.calibrated.result
    if result.confusion_watts is None or result.confusion_baseline is None:
        return None
    return result.confusion_watts, result.confusion_baseline


def _why_no_scores(calibration: Calibration) -> str:
    return calibration.problem or "no window was held out: it takes three windows a phase"


def _base(calibration: Calibration) -> dict[str, Value]:
    table = calibration.calibrated.table if calibration.calibrated else None
    return _blank(
        origin="measured",
        label=calibration.label.value,
        experiment=calibration.experiment,
        machine=calibration.machine,
        device=table.device if table else None,
        limit_w=table.limit_w if table else None,
        n=calibration.num_finished,
        status=calibration.status,
    )


def _rows(
    base: Mapping[str, Value], classifier: str, scores: Scores
) -> tuple[dict[str, Value], ...]:
    each = tuple(
        {**base, "classifier": classifier, **_score_row(score, scores)}
        for score in scores.per_state
    )
    mean = {
        **base,
        "classifier": classifier,
        "state": ALL_STATES,
        "support": sum(score.support for score in scores.per_state),
        "f1": scores.macro_f1,
    }
    return (*each, mean)


def _score_row(score: Score, scores: Scores) -> dict[str, Value]:
    called: Mapping[State, int] = scores.confusion[score.state]
    return {
        "state": score.state.value,
        "support": score.support,
        "precision": score.precision,
        "recall": score.recall,
        "f1": score.f1,
        "called": ", ".join(f"{state.value} {count}" for state, count in called.items()),
    }


def _missing() -> Section:
    row = _blank(
        origin="measured",
        label=Label.REAL.value,  # what the command in the note would bring
        experiment="calibration",
        n=0,
        status=NOT_MEASURED,
        note=COMMAND,
    )
    return Section(
        title="On a GPU: not measured here",
        rows=(),
        shown=_columns(),
        notes=(f"Fill with: `{COMMAND}`",),
        csv_only=(row,),
    )


def _columns() -> tuple[Column, ...]:
    return (
        field("classifier", "by"),
        field("state", "state"),
        field("support", "windows", number),
        field("precision", "precision", _two_digits),
        field("recall", "recall", _two_digits),
        field("f1", "F1", _two_digits),
        field("called", "called"),
        field("note", "note"),
    )


def _two_digits(value: Value) -> str:
    return number(value, 2)


def _blank(**known: Value) -> dict[str, Value]:
    row: dict[str, Value] = dict.fromkeys(FIELDS)
    assert set(known) <= set(FIELDS)
    return row | known
