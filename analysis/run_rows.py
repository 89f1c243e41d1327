"""The table of single runs and the audit of the reference's arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.audit_row import AuditRow
from analysis.derive import Measures
from analysis.load import Pending, Results
from analysis.reference import ReferenceLabel
from analysis.table import (
    DAGGER,
    Column,
    Section,
    Table,
    Value,
    field,
    in_words,
    number,
    significant,
)
from harness.record.schema import Label
from harness.stats import MIN_SETTLED_LENGTH

RUN_FIELDS = (
    "origin", "label", "experiment", "machine", "run_id", "world_size", "repeat", "status",
    "is_clean", "steps", "steps_planned", "last_step", "warmup_steps", "settled",
    "tokens_per_second", "step_time_s", "data_wait_pct", "alloc_retries", "teardown_aborts",
    "tries", "torn_lines", "compile_time_s", "drift", "note",
)  # fmt: skip
AUDIT_FIELDS = (
    "origin", "label", "check", "unit", "stated", "recomputed", "low", "high", "difference_pct",
    "verdict", "note",
)  # fmt: skip


def statistics_table(results: Results, measures: Sequence[Measures]) -> Table:
    """One row per run, failed ones too; trials without a record are rows, as well."""
    by_place: dict[tuple[str, str], list[Mapping[str, Value]]] = {}
    rows = [*(_run_row(m) for m in measures), *(_pending_row(results, p) for p in results.pending)]
    for row in rows:
        by_place.setdefault((str(row["experiment"]), str(row["machine"])), []).append(row)
    sections = tuple(
        Section(title=f"{experiment} on {machine}", rows=tuple(members), shown=_RUN_COLUMNS)
        for (experiment, machine), members in by_place.items()
    )
    notes = ["Warm-up steps are detected by MSER-5 (White 1997) and left out of the rates."]
    if any(m.num_steps and not m.is_settled for m in measures):
        notes.append(
            f"settled: no means that the run has fewer than {MIN_SETTLED_LENGTH} steps or that its"
            " step times still changed half way; its rate may hold warm-up."
        )
    if any(m.run.summary.compile_time_s is not None for m in measures):
        notes.append(
            "compile_time_s (in the CSV) is the first step beyond the median of the later ones: it"
            " holds whatever a first step does, setting up communicators included."
        )
    notes += [f"warning: {warning}" for warning in results.warnings]
    if results.num_skipped:
        notes.append(f"skipped, named above: {results.num_skipped} records.")
    title = "Runs, one by one" if rows else "Runs, one by one: none in this results folder"
    return Table(
        name="statistics", title=title, fields=RUN_FIELDS, sections=sections, notes=tuple(notes)
    )


def audit_table(audit: Sequence[AuditRow]) -> Table:
    """The reference's stated figures against the same figures recomputed from its others."""
    rows = tuple(_audit_row(row) for row in audit)
    differ = sum(not row.agrees for row in audit)
    return Table(
        name="audit",
        title="Audit: the report's own arithmetic, recomputed",
        fields=AUDIT_FIELDS,
        sections=(
            Section(
                title=f"{len(rows)} figures recomputed; {differ} do not follow from the others",
                rows=rows,
                shown=_AUDIT_COLUMNS,
                notes=tuple(f"{r.check}: {r.note}" for r in audit if not r.agrees),
            ),
        ),
        notes=(
            (
                f"{DAGGER} secondary: from a third party's summary of the report; not checked"
                " against it."
            ),
        ),
    )


def _run_row(m: Measures) -> dict[str, Value]:
    summary, trial = m.run.summary, m.run.manifest.trial
    return {
        "origin": "measured",
        "label": m.run.manifest.label.value,
        "experiment": m.run.experiment,
        "machine": m.run.machine,
        "run_id": trial.run_id,
        "world_size": m.world_size,
        "repeat": trial.repeat,
        "status": m.status,
        "is_clean": _yes(m.is_clean),
        "steps": m.num_steps,
        "steps_planned": summary.num_steps_planned,
        "last_step": summary.last_step,
        "warmup_steps": m.num_warmup_steps,
        "settled": _yes(m.is_settled),
        "tokens_per_second": m.tokens_per_second,
        "step_time_s": m.step_time_s,
        "data_wait_pct": None if m.data_wait_share is None else 100.0 * m.data_wait_share,
        "alloc_retries": m.alloc_retries,
        "teardown_aborts": summary.teardown_aborts,
        "tries": m.run.tries,
        "torn_lines": m.run.torn_lines,
        "compile_time_s": summary.compile_time_s,
        "drift": ", ".join(summary.drift),
        "note": "; ".join(m.notes),
    }


def _pending_row(results: Results, pending: Pending) -> dict[str, Value]:
    place = (pending.machine, pending.trial.experiment)
    labels = [r.manifest.label for r in results.runs if (r.machine, r.experiment) == place]
    row: dict[str, Value] = dict.fromkeys(RUN_FIELDS)
    return row | {
        "origin": "measured",
        "label": (labels or [Label.REAL])[0].value,
        "experiment": pending.trial.experiment,
        "machine": pending.machine,
        "run_id": pending.trial.run_id,
        "world_size": pending.trial.world_size,
        "repeat": pending.trial.repeat,
        "status": "not_run",
        "is_clean": _yes(False),
        "tries": pending.tries,
        "note": "planned; no record yet",
    }


def _audit_row(row: AuditRow) -> dict[str, Value]:
    return {
        "origin": "reference",
        "label": row.label.value,
        "check": row.check,
        "unit": row.unit,
        "stated": row.stated,
        "recomputed": row.recomputed,
        "low": row.low,
        "high": row.high,
        "difference_pct": row.difference_pct,
        "verdict": "agrees" if row.agrees else "differs",
        "note": row.note,
    }


def _check(row: Mapping[str, Value]) -> str:
    mark = DAGGER if row["label"] == ReferenceLabel.SECONDARY else ""
    return f"{row['check']}{mark}"


def _recomputed(row: Mapping[str, Value]) -> str:
    if row["low"] is None:
        return _stated(row["recomputed"])
    low, high = _stated(row["low"]), _stated(row["high"])
    number_low, _, unit_low = low.partition(" ")
    return f"{number_low} to {high}" if high.endswith(f" {unit_low}") else f"{low} to {high}"


def _stated(value: Value) -> str:
    """Six digits: the audit turns on the last one stated."""
    if not isinstance(value, float):
        return number(value)
    if abs(value) >= 1e6:
        return in_words(value, digits=5)
    return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.1f}".removesuffix(".0")


def _steps(row: Mapping[str, Value]) -> str:
    if row["steps"] is None:
        return ""
    return f"{row['steps']}/{row['steps_planned']}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _percent(value: Value) -> str:
    return number(value, 2)


_RUN_COLUMNS = (
    field("run_id", "run"),
    Column(heading="steps", cell=_steps),
    field("warmup_steps", "warm-up", number),
    field("settled", "settled"),
    field("tokens_per_second", "tokens/s", significant),
    field("data_wait_pct", "wait %", _percent),
    field("tries", "tries", number),
    field("torn_lines", "torn", number),
    field("teardown_aborts", "aborts", number),
    field("status", "status"),
)
_AUDIT_COLUMNS = (
    Column(heading="figure", cell=_check, is_number=False),
    field("stated", "stated", _stated),
    Column(heading="recomputed", cell=_recomputed),
    field("unit", "unit"),
    Column(heading="diff. %", cell=lambda row: number(row["difference_pct"], 2)),
    field("verdict", "verdict"),
)
