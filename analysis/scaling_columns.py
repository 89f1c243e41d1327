"""The printed columns of the strong-scaling table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.reference import ReferenceLabel
from analysis.table import DAGGER, Column, Value, field, interval, number, significant


def reference_columns() -> tuple[Column, ...]:
    """Columns of the report's points."""
    return (
        Column(heading="GPUs", cell=_gpus_with_dagger),
        field("tokens_per_second", "tokens/s", number),
        field("tokens_per_second_per_gpu", "per GPU", number),
        field("efficiency_pct", "eff. %", significant),
        field("epoch_hours", "h/epoch", significant),
        field("gpu_hours_per_epoch", "GPU-h/epoch", significant),
        field("label", "label"),
    )


def measured_columns(*, is_cpu: bool, rows: Sequence[Mapping[str, Value]]) -> tuple[Column, ...]:
    """Columns of a measured group; MFU and energy only where they are known."""
    unit = "rank" if is_cpu else "GPU"
    columns = [
        field("gpus", f"{unit}s", number),
        field("tokens_per_second", "tokens/s", number),
        Column(heading="95 % interval", cell=_rate_interval),
        field("tokens_per_second_per_gpu", f"per {unit}", number),
        field("efficiency_pct", "eff. %", _one_digit),
        Column(heading="95 % interval", cell=_efficiency_interval),
        field("gpu_hours_per_epoch", f"{unit}-h per epoch", significant),
        field("data_wait_pct", "wait %", _two_digits),
    ]
    if any(row["mfu"] is not None for row in rows):
        columns.append(field("mfu", "MFU", _three_digits))
    if any(row["joules_per_token"] is not None for row in rows):
        columns.append(field("joules_per_token", "J per token", significant))
    return (*columns, field("n", "n", number), field("status", "status"))


def _gpus_with_dagger(row: Mapping[str, Value]) -> str:
    mark = DAGGER if row["label"] == ReferenceLabel.SECONDARY else ""
    return f"{row['gpus']}{mark}"


def _rate_interval(row: Mapping[str, Value]) -> str:
    return interval(row["ci_low"], row["ci_high"], number)


def _efficiency_interval(row: Mapping[str, Value]) -> str:
    return interval(row["efficiency_ci_low"], row["efficiency_ci_high"], _one_digit)


def _one_digit(value: Value) -> str:
    return number(value, 1)


def _two_digits(value: Value) -> str:
    return number(value, 2)


def _three_digits(value: Value) -> str:
    return number(value, 3)
