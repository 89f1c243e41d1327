"""The table of board power by state: the report, what was measured here, recorded H100 jobs. Pure.

A replay has rows of its own, under a title that says that nothing was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.calibrations import Calibration, band_interval
from analysis.reference import PowerTriageReference, label_of
from analysis.table import DAGGER, Column, Section, Table, Value, field, interval, number
from harness.record.schema import Label
from harness.triage.bands import Band, TableLabel
from harness.triage.bands import Table as PowerTable

COMMAND = "python -m harness experiment=calibration gpus=8"
NOT_MEASURED = "not_measured"
FIELDS = (
    "origin", "label", "experiment", "machine", "device", "limit_w", "state", "variant", "n",
    "status", "power_w", "ci_low", "ci_high", "low_w", "high_w", "limit_pct", "utilization_pct",
    "windows", "samples", "not_told_apart_from", "note", "source",
)  # fmt: skip
_NOTES = (
    f"{DAGGER} secondary: from a third party's summary of the report; not checked against it.",
    (
        "low and high are percentiles 5 and 95 of one-second windows; the 95 % interval is over"
        " runs (n runs each) of their median watts; one run has none."
    ),
    (
        "inferred: nobody labelled those recordings; a state was inferred from utilization, memory"
        " and the other GPUs, never from watts."
    ),
)


def power_table(
    calibrations: Sequence[Calibration],
    reported: Sequence[PowerTriageReference],
    report_table: PowerTable,
    traces: PowerTable,
) -> Table:
    """Lay the three sources one below the other; what was not measured says how to.

    ``report_table`` gives device and limit of the report's figures, which stand in ``reported``.
    """
    sections = [_report_section(calibrations, reported, report_table)]
    sections += [_calibration_section(c) for c in calibrations]
    sections.append(_traces_section(traces))
    return Table(
        name="power",
        title="Board power by state",
        fields=FIELDS,
        sections=tuple(sections),
        notes=_NOTES,
    )


def is_measured(calibrations: Sequence[Calibration]) -> bool:
    """Whether a calibration ran on GPUs and gave a table; a replay is none."""
    return any(c.label is Label.REAL and c.calibrated is not None for c in calibrations)


def section_title(calibration: Calibration) -> str:
    """Where it was measured and on what, or that it was not."""
    where = f"{calibration.experiment} on {calibration.machine}"
    if calibration.calibrated is None:
        return f"Without a table ({calibration.label}): {where}"
    table = calibration.calibrated.table
    of_what = f"{table.device}, limit {table.limit_w:g} W"
    if calibration.label is Label.REPLAY:
        return f"Replay, nothing measured: {where}; {of_what}"
    return f"Measured (real): {where}; {of_what}"


def _report_section(
    calibrations: Sequence[Calibration],
    reported: Sequence[PowerTriageReference],
    report_table: PowerTable,
) -> Section:
    rows = tuple(_report_row(row, report_table) for row in reported)
    missing = not is_measured(calibrations)
    notes = (f"Not measured here: no calibration on GPUs. Fill with: `{COMMAND}`",)
    blank = _blank(
        origin="measured",
        label=Label.REAL.value,  # what the command in the note would bring
        experiment="calibration",
        n=0,
        status=NOT_MEASURED,
        note=COMMAND,
    )
    return Section(
        title=f"The report: {report_table.device}, limit {report_table.limit_w:,.0f} W",
        rows=rows,
        shown=(
            Column(heading="state", cell=_state_with_dagger, is_number=False),
            field("power_w", "W", number),
            Column(heading="% of limit", cell=_limit_share),
            field("utilization_pct", "util %", number),
            field("label", "label"),
            field("note", "note"),
        ),
        notes=notes if missing else (),
        csv_only=(blank,) if missing else (),
    )


def _report_row(row: PowerTriageReference, table: PowerTable) -> dict[str, Value]:
    is_number = row.gpu_utilization.isdecimal()
    shape = "" if is_number or not row.gpu_utilization else f"utilization {row.gpu_utilization}; "
    return _blank(
        origin="reference",
        label=label_of(row.source).value,
        experiment="calibration",
        device=table.device,
        limit_w=table.limit_w,
        state=row.state,
        power_w=row.board_power_w,
        limit_pct=_share(row.board_power_w, table.limit_w),
        utilization_pct=float(row.gpu_utilization) if is_number else None,
        note=f"{shape}{row.confidence}",
        source=row.source,
    )


def _calibration_section(calibration: Calibration) -> Section:
    calibrated = calibration.calibrated
    base = _blank(
        origin="measured",
        label=calibration.label.value,
        experiment=calibration.experiment,
        machine=calibration.machine,
        n=calibration.num_finished,
        status=calibration.status,
    )
    if calibrated is None:
        rows: tuple[dict[str, Value], ...] = ({**base, "note": calibration.problem},)
    else:
        rows = tuple(
            {**base, **_band_row(calibrated.table, band), **_over_runs(calibration, band)}
            for band in calibrated.table.bands
        )
    return Section(
        title=section_title(calibration),
        rows=rows,
        shown=(*_band_columns(rows), field("n", "n", number), field("label", "label")),
        notes=calibration.notes,
    )


def _traces_section(traces: PowerTable) -> Section:
    base = _blank(origin="reference", experiment="calibration")
    rows = tuple({**base, **_band_row(traces, band)} for band in traces.bands)
    return Section(
        title=f"Recorded jobs of others: {traces.device}, limit {traces.limit_w:g} W",
        rows=rows,
        shown=(*_band_columns(rows), field("label", "label")),
        notes=traces.provenance.notes,
    )


def _band_row(table: PowerTable, band: Band) -> dict[str, Value]:
    return {
        "label": band.label.value,
        "device": table.device,
        "limit_w": table.limit_w,
        "state": band.state.value,
        "variant": band.variant,
        "power_w": band.median_w,
        "low_w": band.low_w,
        "high_w": band.high_w,
        "limit_pct": _share(band.median_w, table.limit_w),
        "utilization_pct": band.utilization_pct,
        "windows": band.windows,
        "samples": band.samples,
        "not_told_apart_from": _overlapping(table, band),
        "note": band.note,
        "source": band.source,
    }


def _over_runs(calibration: Calibration, band: Band) -> dict[str, Value]:
    assert calibration.calibrated is not None
    over = band_interval(calibration.calibrated, band)
    return {"n": over.n, "ci_low": over.low, "ci_high": over.high}


def _overlapping(table: PowerTable, band: Band) -> str:
    """The states that watts do not tell from this band's."""
    pairs = [(o.below, o.above) for o in table.overlaps if band.state in (o.below, o.above)]
    return ", ".join(above if below is band.state else below for below, above in pairs)


def _band_columns(rows: Sequence[Mapping[str, Value]]) -> tuple[Column, ...]:
    """Columns of bands; the interval over runs only where there are several."""
    over_runs = Column(heading="95 %", cell=_interval_over_runs)
    has_interval = any(row["ci_low"] is not None for row in rows)
    return (
        Column(heading="state", cell=_state_and_variant, is_number=False),
        field("power_w", "median W", _watts),
        Column(heading="low to high", cell=_spread),
        *((over_runs,) if has_interval else ()),
        Column(heading="% of limit", cell=_limit_share),
        field("utilization_pct", "util %", number),
        field("windows", "windows", number),
        field("not_told_apart_from", "not told from"),
    )


def _state_with_dagger(row: Mapping[str, Value]) -> str:
    return f"{row['state']}{DAGGER if row['label'] == TableLabel.SECONDARY else ''}"


def _state_and_variant(row: Mapping[str, Value]) -> str:
    if row["state"] is None:
        return "none"
    return f"{row['state']} ({row['variant']})" if row["variant"] else str(row["state"])


def _spread(row: Mapping[str, Value]) -> str:
    return interval(row["low_w"], row["high_w"], _watts)


def _interval_over_runs(row: Mapping[str, Value]) -> str:
    return interval(row["ci_low"], row["ci_high"], _watts)


def _limit_share(row: Mapping[str, Value]) -> str:
    return number(row["limit_pct"])


def _watts(value: Value) -> str:
    return number(value, 0 if isinstance(value, float) and value >= 100 else 1)


def _share(power_w: float | None, limit_w: float) -> float | None:
    return None if power_w is None else 100.0 * power_w / limit_w


def _blank(**known: Value) -> dict[str, Value]:
    row: dict[str, Value] = dict.fromkeys(FIELDS)
    assert set(known) <= set(FIELDS)
    return row | known
