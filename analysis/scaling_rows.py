"""Rows of the strong-scaling table: one per world size of a group or point of the report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.derive import Measures
from analysis.devices import is_cpu
from analysis.efficiency import efficiency
from analysis.groups import Cell, Group, throughput
from analysis.reference import ScalingReference, label_of
from analysis.reported import Reported
from analysis.table import Value
from harness.metrics import gpu_hours_per_epoch
from harness.stats import MIN_SETTLED_LENGTH

FACTOR = "gpus"
FIELDS = (
    "origin", "label", "experiment", "machine", "group", "device", "gpus", "nodes", "n", "status",
    "tokens_per_second", "ci_low", "ci_high", "tokens_per_second_per_gpu", "step_time_s",
    "efficiency_pct", "efficiency_ci_low", "efficiency_ci_high", "efficiency_method",
    "efficiency_n", "baseline_gpus",
    "epoch_tokens", "epoch_hours", "gpu_hours_per_epoch", "data_wait_pct", "mfu", "mfu_convention",
    "flops_per_token", "peak_flops_per_s", "peak_source", "joules_per_token", "energy_method",
    "peak_memory_bytes", "last_step", "note", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Means:
    """Means over the clean runs of a cell; null where nothing is known."""

    tokens_per_step: float | None
    data_wait_share: float | None
    mfu: float | None
    joules_per_token: float | None


def group_rows(group: Group) -> tuple[dict[str, Value], ...]:
    """One row per world size; a cell whose trials all failed is a row without rates."""
    return tuple(_cell_row(group, cell) for cell in group.cells)


def reference_rows(reported: Reported) -> tuple[dict[str, Value], ...]:
    """The report's points."""
    return tuple(_reference_row(point, reported) for point in reported.points)


def blank(**known: Value) -> dict[str, Value]:
    """A row with these fields; the others are unknown."""
    row: dict[str, Value] = dict.fromkeys(FIELDS)
    assert set(known) <= set(FIELDS)
    return row | known


def _cell_row(group: Group, cell: Cell) -> dict[str, Value]:
    rate = throughput(cell)
    base = group.baseline
    means = _means(cell)
    first = (cell.clean or cell.runs)[0]
    peaks = [m.peak_memory_bytes for m in cell.runs if m.peak_memory_bytes is not None]
    last = [m.run.summary.last_step for m in cell.runs if m.run.summary.last_step is not None]
    row = blank(
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
    # From the mean rate, not means of their own: tokens/s x step time = global tokens on every row.
    hours = _gpu_hours(first.epoch_tokens, cell.world_size, rate.estimate)
    tokens = means.tokens_per_step
    row |= {
        "tokens_per_second": rate.estimate,
        "ci_low": rate.low,
        "ci_high": rate.high,
        "tokens_per_second_per_gpu": rate.estimate / cell.world_size,
        "step_time_s": None if tokens is None else tokens / rate.estimate,
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
    if base is not None:
        row |= _efficiency_fields(cell, base)
    return row


def _efficiency_fields(cell: Cell, base: Cell) -> dict[str, Value]:
    share = efficiency(cell, base, (FACTOR,))
    if share is None:
        return {}
    return {
        "efficiency_pct": _pct(share.estimate),
        "efficiency_ci_low": _pct(share.low),
        "efficiency_ci_high": _pct(share.high),
        "efficiency_method": share.method.value,
        "efficiency_n": share.n,
        "baseline_gpus": base.world_size,
    }


def _tokens_per_step(m: Measures) -> float | None:
    if m.tokens_per_second is None or m.step_time_s is None:
        return None
    return m.tokens_per_second * m.step_time_s


def _gpu_hours(epoch_tokens: int | None, world_size: int, rate: float) -> float | None:
    return None if epoch_tokens is None else gpu_hours_per_epoch(world_size, epoch_tokens, rate)


def _means(cell: Cell) -> _Means:
    runs = cell.clean
    return _Means(
        tokens_per_step=_mean([_tokens_per_step(m) for m in runs]),
        data_wait_share=_mean([m.data_wait_share for m in runs]),
        mfu=_mean([m.mfu.value for m in runs]),
        joules_per_token=_mean([m.joules_per_token for m in runs]),
    )


def _reference_row(point: ScalingReference, reported: Reported) -> dict[str, Value]:
    return blank(
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
    texts = [f"{text} ({count} runs)" if count > 1 else text for text, count in reasons.items()]
    texts += _unsettled(cell)
    unknown = {m.mfu.reason for m in cell.clean if m.mfu.reason and not is_cpu(m.run)}
    return "; ".join([*texts, *(f"no MFU: {reason}" for reason in sorted(unknown))])


def _unsettled(cell: Cell) -> list[str]:
    """Runs in the mean that never showed a steady state: their rate may still hold warm-up."""
    unsettled = [m for m in cell.clean if not m.is_settled]
    short = sum(m.num_steps < MIN_SETTLED_LENGTH for m in unsettled)
    reasons = {
        f"fewer than {MIN_SETTLED_LENGTH} steps": short,
        "step times still changing half way": len(unsettled) - short,
    }
    total = len(cell.clean)
    return [
        f"{count} of {total} {'runs' if total > 1 else 'run'} never settled: {reason}"
        for reason, count in reasons.items()
        if count
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _pct(value: float | None) -> float | None:
    return None if value is None else 100.0 * value
