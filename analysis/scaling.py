"""The strong-scaling table: the report's points, and ours beside them in groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.devices import is_cpu
from analysis.efficiency import EfficiencyMethod
from analysis.groups import Group, throughput
from analysis.load import Results
from analysis.reported import MODEL, Reported
from analysis.scaling_columns import measured_columns, reference_columns
from analysis.scaling_rows import FIELDS, blank, group_rows, reference_rows
from analysis.table import (
    DAGGER,
    Column,
    Section,
    Table,
    Value,
    in_words,
    interval,
    number,
)
from harness.record.schema import Label

NOT_MEASURED = "not_measured"
_SECONDARY = (
    f"{DAGGER} secondary: from a third party's summary of the report; not checked against it."
)
_RANGES = (
    "Ranges are 95 % intervals over runs (n runs each); one run has none. Efficiency is against the"
    " smallest world size of the same group; groups are never compared with one another. Its"
    " interval is paired by block where at least 2 blocks hold one clean run of both sizes and they"
    " hold every clean run of the smaller cell, else Welch's (efficiency_method in the CSV). It is"
    " a ratio of geometric means, so it may differ a little from dividing the printed rates."
)


def scaling_table(results: Results, groups: Sequence[Group], reported: Reported) -> Table:
    """Lay measured groups beside the report's points."""
    sections = [_reference_section(groups, reported)]
    sections += [_group_section(group) for group in groups]
    notes = [_SECONDARY, _RANGES]
    if groups:
        notes.append(
            f"An epoch is the whole corpus of the run (epoch_tokens in the CSV); the report's is"
            f" about {in_words(reported.epoch_tokens)} tokens{DAGGER}."
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
            blank(
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
        notes=(
            *(f"at {row['gpus']}: {row['note']}" for row in rows if row["note"]),
            *_interval_notes(rows),
        ),
    )


def _interval_notes(rows: Sequence[Mapping[str, Value]]) -> tuple[str, ...]:
    """How each efficiency of a group came by its interval."""
    how = {
        EfficiencyMethod.PAIRED.value: "paired by block ({} blocks)",
        EfficiencyMethod.WELCH.value: "Welch's, runs not paired ({} runs in the smaller cell)",
    }
    texts = [
        f"at {row['gpus']} {how[str(row['efficiency_method'])].format(row['efficiency_n'])}"
        for row in rows
        if row["efficiency_method"] in how
    ]
    return (f"Efficiency intervals: {'; '.join(texts)}.",) if texts else ()


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


def pending_notes(results: Results) -> tuple[str, ...]:
    """Trials that were planned and have no record, by machine, and how to go on with them."""
    places = [(p.trial.experiment, p.machine) for p in results.pending]
    return tuple(
        f"Planned and without a record: {places.count((experiment, machine))} trials of"
        f" {experiment} on {machine}. Give the command of that campaign again to run them."
        for experiment, machine in dict.fromkeys(places)
    )
