"""The strong-scaling table: the report's points, and ours beside them in groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.derive import is_cpu
from analysis.groups import Cell, Group, efficiency, throughput
from analysis.load import Results
from analysis.reference import ScalingReference, label_of
from analysis.reported import MODEL, Reported
from analysis.scaling_columns import measured_columns, reference_columns
from analysis.table import (
    DAGGER,
    Column,
    Section,
    Table,
    Value,
    interval,
    number,
)
from harness.record.schema import Label

FACTOR = "gpus"
NOT_MEASURED = "not_measured"
_SECONDARY = (
    f"{DAGGER} secondary: from a third party's summary of the report; not checked against it."
)
_RANGES = (
    "Ranges are 95 % intervals over runs (n runs each); one run has none. Efficiency is against the"
    " smallest world size of the same group; groups are never compared with one another."
)
FIELDS = (
    "origin", "label", "experiment", "machine", "group", "device", "gpus", "nodes", "n", "status",
    "tokens_per_second", "ci_low", "ci_high", "tokens_per_second_per_gpu", "step_time_s",
    "efficiency_pct", "efficiency_ci_low", "efficiency_ci_high", "baseline_gpus",
    "epoch_tokens", "epoch_hours", "gpu_hours_per_epoch", "data_wait_pct", "mfu", "mfu_convention",
    "flops_per_token", "peak_flops_per_s", "peak_source", "joules_per_token", "energy_method",
    "peak_memory_bytes", "last_step", "note", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Means:
    """Means over the clean runs of a cell; null where nothing is known."""

    step_time_s: float | None
    data_wait_share: float | None
    gpu_hours_per_epoch: float | None
    mfu: float | None
    joules_per_token: float | None


def scaling_table(results: Results, groups: Sequence[Group], reported: Reported) -> Table:
    """Lay measured groups beside the report's points."""
    sections = [_reference_section(groups, reported)]
    sections += [_group_section(group) for group in groups]
    notes = [_SECONDARY, _RANGES]
    if groups:
        notes.append(
            f"An epoch is the whole corpus of the run (epoch_tokens in the CSV); the report's is"
            f" about {reported.epoch_tokens:.3g} tokens{DAGGER}."
        )
        notes += pending_notes(results)
    else:
        notes.append(
            "No measured runs in this results folder: reference only. Measure with"
            " `python -m harness experiment=scaling gpus=2 on=laptop`"
        )
    return Table(
        name="scaling",
        title="Strong scaling at a fixed global batch",
        fields=FIELDS,
        sections=tuple(sections),
        notes=tuple(notes),
    )


def fill_command(world_sizes: Sequence[int]) -> str:
    """The command that measures these points of the report."""
    points = ",".join(str(size) for size in world_sizes)
    return f"python -m harness experiment=scaling gpus={max(world_sizes)} 'points=[{points}]'"


def matches_reference(group: Group) -> bool:
    """Whether a group ran the report's model on GPUs, so that it may share a picture with it."""
    config: Mapping[str, Any] = group.first.run.manifest.config
    model = config.get("model", {}).get("name")
    return model == MODEL and not is_cpu(group.first.run)


def group_rows(group: Group) -> tuple[dict[str, Value], ...]:
    """One row per world size; a cell whose trials all failed is a row without rates."""
    return tuple(_cell_row(group, cell) for cell in group.cells)


def reference_rows(reported: Reported) -> tuple[dict[str, Value], ...]:
    """The report's points."""
    return tuple(_reference_row(point, reported) for point in reported.points)


def _reference_section(groups: Sequence[Group], reported: Reported) -> Section:
    ours = {point.gpus: _measured_here(groups, point.gpus) for point in reported.points}
    missing = [gpus for gpus, text in ours.items() if not text]
    here = Column(
        heading="measured here (tokens/s)",
        cell=lambda row: ours[int(row["gpus"] or 0)] or "not measured",
        is_number=False,
    )
    notes: tuple[str, ...] = ()
    if missing:
        sizes = ", ".join(str(gpus) for gpus in missing)
        notes = (f"Not measured here: {sizes} GPUs. Fill with: `{fill_command(missing)}`",)
    return Section(
        title=reported.title,
        rows=reference_rows(reported),
        shown=(*reference_columns(), here),
        notes=notes,
        csv_only=tuple(
            _blank(
                origin="measured",
                label=Label.REAL.value,  # what the command in the note would bring
                experiment="scaling",
                gpus=gpus,
                n=0,
                status=NOT_MEASURED,
                note=fill_command([gpus]),
            )
            for gpus in missing
        ),
    )


def _measured_here(groups: Sequence[Group], world_size: int) -> str:
    """Throughput of every group that ran the report's model on that many GPUs."""
    texts: list[str] = []
    for group in groups:
        for cell in group.cells:
            rate = throughput(cell)
            if rate is None or cell.world_size != world_size or not matches_reference(group):
                continue
            spread = interval(rate.low, rate.high, number)
            of_what = f"95 % {spread}, n = {rate.n}" if spread else f"n = {rate.n}"
            texts.append(
                f"{number(rate.estimate)} ({of_what}; {group.label}; {group.first.device},"
                f" {group.machine})"
            )
    return "; ".join(texts)


def _group_section(group: Group) -> Section:
    rows = group_rows(group)
    return Section(
        title=group_title(group),
        rows=rows,
        shown=measured_columns(is_cpu=is_cpu(group.first.run), rows=rows),
        notes=tuple(f"at {row['gpus']}: {row['note']}" for row in rows if row["note"]),
    )


def group_title(group: Group) -> str:
    """Experiment, machine, device, what was trained how, and what sets the group apart."""
    config: Mapping[str, Any] = group.first.run.manifest.config
    train: Mapping[str, Any] = config.get("train", {})
    what = (
        f"{config.get('model', {}).get('name')}, {train.get('strategy')}, {train.get('precision')},"
        f" global batch {train.get('global_batch_size')} x {train.get('sequence_length')} tokens"
    )
    apart = f"; apart by {group.name}" if group.name else ""
    return (
        f"Measured ({group.label}): {group.experiment} on {group.machine}"
        f" ({group.first.device}); {what}{apart}"
    )


def _cell_row(group: Group, cell: Cell) -> dict[str, Value]:
    rate = throughput(cell)
    base = group.baseline
    share = efficiency(cell, base, (FACTOR,)) if base else None
    means = _means(cell)
    first = (cell.clean or cell.runs)[0]
    peaks = [m.peak_memory_bytes for m in cell.runs if m.peak_memory_bytes is not None]
    last = [m.run.summary.last_step for m in cell.runs if m.run.summary.last_step is not None]
    row = _blank(
        origin="measured",
        label=group.label,
        experiment=group.experiment,
        machine=group.machine,
        group=group.name,
        device=first.device,
        gpus=cell.world_size,
        nodes=first.run.manifest.trial.num_nodes,
        n=len(cell.rates),
        status=cell.status,
        peak_memory_bytes=max(peaks, default=None),
        last_step=max(last, default=None),
        note=_note(cell),
        epoch_tokens=first.epoch_tokens,
    )
    if rate is None:
        return row
    hours = means.gpu_hours_per_epoch
    row |= {
        "tokens_per_second": rate.estimate,
        "ci_low": rate.low,
        "ci_high": rate.high,
        "tokens_per_second_per_gpu": rate.estimate / cell.world_size,
        "step_time_s": means.step_time_s,
        "epoch_hours": None if hours is None else hours / cell.world_size,
        "gpu_hours_per_epoch": hours,
        "data_wait_pct": _pct(means.data_wait_share),
        "mfu": means.mfu,
        "mfu_convention": first.mfu.convention,
        "flops_per_token": first.mfu.flops_per_token,
        "peak_flops_per_s": first.mfu.peak_flops_per_s,
        "peak_source": first.mfu.peak_source,
        "joules_per_token": means.joules_per_token,
        "energy_method": first.energy_method,
    }
    if share is not None and base is not None:
        row |= {
            "efficiency_pct": _pct(share.estimate),
            "efficiency_ci_low": _pct(share.low),
            "efficiency_ci_high": _pct(share.high),
            "baseline_gpus": base.world_size,
        }
    return row


def _means(cell: Cell) -> _Means:
    runs = cell.clean
    return _Means(
        step_time_s=_mean([m.step_time_s for m in runs]),
        data_wait_share=_mean([m.data_wait_share for m in runs]),
        gpu_hours_per_epoch=_mean([m.gpu_hours_per_epoch for m in runs]),
        mfu=_mean([m.mfu.value for m in runs]),
        joules_per_token=_mean([m.joules_per_token for m in runs]),
    )


def _reference_row(point: ScalingReference, reported: Reported) -> dict[str, Value]:
    return _blank(
        origin="reference",
        label=label_of(point.source).value,
        experiment="scaling",
        device=reported.setup["accelerator"].value,
        gpus=point.gpus,
        nodes=point.nodes,
        tokens_per_second=point.tokens_per_second,
        tokens_per_second_per_gpu=point.tokens_per_second_per_gpu,
        efficiency_pct=point.strong_scaling_efficiency_pct,
        baseline_gpus=reported.points[0].gpus,
        epoch_tokens=reported.epoch_tokens,
        epoch_hours=point.epoch_hours,
        gpu_hours_per_epoch=point.gpu_hours_per_epoch,
        source=point.source,
    )


def _note(cell: Cell) -> str:
    """Why runs are missing from the mean, each reason once, and what else to know."""
    reasons: dict[str, int] = {}
    for m in cell.runs:
        for note in m.notes:
            text = f"{m.status}: {note}" if not m.is_clean else note
            reasons[text] = reasons.get(text, 0) + 1
    unknown = {m.mfu.reason for m in cell.clean if m.mfu.reason and not is_cpu(m.run)}
    texts = [f"{text} ({count} runs)" if count > 1 else text for text, count in reasons.items()]
    return "; ".join([*texts, *(f"no MFU: {reason}" for reason in sorted(unknown))])


def pending_notes(results: Results) -> tuple[str, ...]:
    """Trials that were planned and have no record, by machine, and how to go on with them."""
    places = [(p.trial.experiment, p.machine) for p in results.pending]
    return tuple(
        f"Planned and without a record: {places.count((experiment, machine))} trials of"
        f" {experiment} on {machine}. Give the command of that campaign again to run them."
        for experiment, machine in dict.fromkeys(places)
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _pct(value: float | None) -> float | None:
    return None if value is None else 100.0 * value


def _blank(**known: Value) -> dict[str, Value]:
    row: dict[str, Value] = dict.fromkeys(FIELDS)
    assert set(known) <= set(FIELDS)
    return row | known
