"""The reference's own arithmetic, done again: which of its figures follow from which others.

Pure. A stated figure agrees when the recomputed one rounds to it at the digits stated. Where the
figures only bound a value, the stated one agrees when it lies inside. Disagreements are shown with
what could explain them; none is smoothed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

import harness.config
from analysis.audit_row import AuditRow, compare
from analysis.reference import (
    ReferenceLabel,
    ScalingReference,
    label_of,
    load_activation_checkpointing,
    load_datapath,
    load_deadlock,
    load_scaling,
    load_setup,
)
from harness.config import ModelConfig
from harness.metrics import gpu_hours_per_epoch, num_parameters, scaling_efficiency
from harness.parse import parse

# 100 % is not one more figure to round to, it is the ideal; see _efficiency.
_IDEAL_PCT = 100.0
_IDEAL_RESOLUTION_PCT = 0.1


def audit_rows() -> tuple[AuditRow, ...]:
    """Every check of the reference's arithmetic, in a fixed order."""
    setup = {r.item: float(r.value) for r in load_setup() if _is_number(r.value)}
    deadlock = {r.quantity: r.value for r in load_deadlock() if r.value is not None}
    scaling = load_scaling()
    return (
        *_batch(setup),
        *_epoch(setup, deadlock),
        *(row for point in scaling for row in _scaling_point(point, scaling[0], setup, deadlock)),
        _parameters(setup),
        *_data_path(),
        _activation_checkpointing(),
        *_deadlock(deadlock, scaling[-1]),
        _memory(setup),
    )


def _batch(setup: Mapping[str, float]) -> tuple[AuditRow, ...]:
    sequences = setup["global_batch_size"]
    tokens = sequences * setup["sequence_length"]
    accumulation = sequences / (setup["micro_batch_size"] * setup["gpus"])
    return (
        compare(
            "tokens per step",
            "tokens",
            stated=setup["tokens_per_step"],
            recomputed=tokens,
            resolution=1.0,
            note="global batch x sequence length",
        ),
        compare(
            "gradient accumulation steps, 16 GPUs",
            "micro batches",
            stated=setup["gradient_accumulation_steps"],
            recomputed=accumulation,
            resolution=1.0,
            note="global batch / (micro batch x GPUs)",
        ),
    )


def _epoch(setup: Mapping[str, float], deadlock: Mapping[str, float]) -> tuple[AuditRow, ...]:
    tokens = _epoch_tokens(setup, deadlock)
    block_tokens = setup["gpus"] * setup["sequence_length"]
    return (
        compare(
            "epoch tokens",
            "tokens",
            stated=setup["epoch_tokens"],
            recomputed=tokens,
            resolution=1e7,
            note="steps per epoch x tokens per step",
        ),
        compare(
            "epoch tokens from blocks",
            "tokens",
            stated=setup["epoch_tokens"],
            recomputed=(
                deadlock["blocks_rank_min"] * block_tokens,
                deadlock["blocks_rank_max"] * block_tokens,
            ),
            resolution=1e7,
            note="16 ranks, each between the fewest and the most blocks",
        ),
        compare(
            "packed corpus",
            "GB",
            stated=setup["packed_corpus_gb"],
            recomputed=tokens * 4 / 1e9,
            resolution=1.0,
            note="epoch tokens x 4 bytes",
        ),
        compare(
            "steps per epoch",
            "steps",
            stated=deadlock["steps_per_epoch"],
            recomputed=deadlock["blocks_rank_min"] // setup["gradient_accumulation_steps"],
            resolution=1.0,
            note="whole steps of the shortest rank: fewest blocks / accumulation steps",
        ),
    )


def _epoch_tokens(setup: Mapping[str, float], deadlock: Mapping[str, float]) -> float:
    return deadlock["steps_per_epoch"] * setup["tokens_per_step"]


def _scaling_point(
    point: ScalingReference,
    base: ScalingReference,
    setup: Mapping[str, float],
    deadlock: Mapping[str, float],
) -> tuple[AuditRow, ...]:
    tokens = round(_epoch_tokens(setup, deadlock))
    gpus, rate, where = point.gpus, point.tokens_per_second, f"{point.gpus} GPUs"
    gpu_hours = gpu_hours_per_epoch(gpus, tokens, rate)
    # Throughput is printed to 100 tokens/s; what that leaves open bounds the GPU-hours.
    least, most = (gpu_hours_per_epoch(gpus, tokens, rate + d) for d in (50.0, -50.0))
    inputs = f"throughput to 100 tokens/s leaves {least:.1f} to {most:.1f} open"
    return (
        compare(
            f"throughput per GPU, {where}",
            "tokens/s",
            stated=point.tokens_per_second_per_gpu,
            recomputed=rate / gpus,
            resolution=1.0,
            note="throughput / GPUs",
        ),
        compare(
            f"epoch time, {where}",
            "h",
            stated=point.epoch_hours,
            recomputed=tokens / rate / 3600.0,
            resolution=0.1,
            note="epoch tokens / throughput",
        ),
        compare(
            f"GPU-hours per epoch, {where}",
            "GPU-h",
            stated=point.gpu_hours_per_epoch,
            recomputed=gpu_hours,
            resolution=0.1,
            note=f"GPUs x epoch tokens / throughput; {inputs}",
        ),
        _efficiency(point, base),
    )


def _efficiency(point: ScalingReference, base: ScalingReference) -> AuditRow:
    stated = point.strong_scaling_efficiency_pct
    recomputed = 100.0 * scaling_efficiency(
        point.tokens_per_second, point.gpus, base.tokens_per_second, base.gpus
    )
    is_ideal_stated = stated == _IDEAL_PCT
    note = f"throughput / ({point.gpus}/{base.gpus} x throughput of {base.gpus} GPUs)"
    if is_ideal_stated and point is not base:
        note += "; 100 % says ideal, so it is held to 0.1 %: rounding to whole percent hides a loss"
    return compare(
        f"strong-scaling efficiency, {point.gpus} GPUs",
        "%",
        stated=stated,
        recomputed=recomputed,
        resolution=_IDEAL_RESOLUTION_PCT if is_ideal_stated else 1.0,
        note=note,
    )


def _parameters(setup: Mapping[str, float]) -> AuditRow:
    file = Path(harness.config.__file__).parents[1] / "experiments" / "model" / "qwen3_32b.yaml"
    model = parse(ModelConfig, yaml.safe_load(file.read_text(encoding="utf-8")), "model")
    return compare(
        "parameters",
        "parameters",
        stated=setup["parameters"],
        recomputed=float(num_parameters(model, embeddings=True)),
        resolution=1e7,
        note="closed form over the configuration of Qwen3-32B, embeddings included",
        label=ReferenceLabel.ABSTRACT,
    )


def _data_path() -> tuple[AuditRow, ...]:
    rows = load_datapath()
    local = next(r for r in rows if r.path == "local_pretokenised_cache")
    return tuple(
        compare(
            f"data path relative to local cache, {row.condition.replace('_', ' ')}",
            "ratio",
            stated=row.relative,
            recomputed=row.tokens_per_second_median / local.tokens_per_second_median,
            resolution=0.01,
            note="median throughput / that of the local pretokenised cache",
            label=label_of(row.source),
        )
        for row in rows
    )


def _activation_checkpointing() -> AuditRow:
    rows = {r.activation_checkpointing: r for r in load_activation_checkpointing()}
    stated = rows["on"].slowdown
    assert stated is not None
    return compare(
        "slowdown by activation checkpointing",
        "ratio",
        stated=stated,
        recomputed=rows["off"].tokens_per_second / rows["on"].tokens_per_second,
        resolution=0.1,
        note="throughput off / on",
    )


def _deadlock(deadlock: Mapping[str, float], point: ScalingReference) -> tuple[AuditRow, ...]:
    least, most, ranks = deadlock["blocks_rank_min"], deadlock["blocks_rank_max"], point.gpus
    spread = most - least
    # At least one rank has the most blocks and one the fewest; the other ranks are unknown.
    low, high = (100.0 * n * spread / (ranks * least + n * spread) for n in (1, ranks - 1))
    return (
        compare(
            "last step before the hang",
            "step",
            stated=deadlock["step_of_deadlock"],
            recomputed=deadlock["steps_per_epoch"],
            resolution=1.0,
            note="steps that the shortest rank can make; a log line every 10 steps would explain"
            " it, which is not stated",
        ),
        compare(
            "tokens dropped by equalising to the minimum",
            "%",
            stated=deadlock["tokens_dropped_by_min"],
            recomputed=(low, high),
            resolution=0.001,
            note="only the fewest and the most blocks of a rank are known: from one rank with the"
            " most to all but one",
        ),
        compare(
            "cost of one hang",
            "epochs",
            stated=deadlock["cost_of_one_hang_epochs"],
            recomputed=deadlock["cost_of_one_hang"] / point.gpu_hours_per_epoch,
            resolution=0.1,
            note="GPU-hours lost / GPU-hours per epoch on 16 GPUs",
        ),
    )


def _memory(setup: Mapping[str, float]) -> AuditRow:
    return compare(
        "memory in use per GPU",
        "%",
        stated=setup["memory_used_pct"],
        recomputed=100.0 * setup["memory_used_per_gpu_gb"] / setup["memory_per_gpu_gb"],
        resolution=1.0,
        note="memory in use / memory of the GPU",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
