"""Throughput, MFU, GPU-hours, scaling efficiency and energy: closed forms over plain numbers.

Pure. What is unknown (the peak of an unlisted GPU, watts on a machine without a meter) is the
caller's None and never reaches these functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from harness.config import ModelConfig
from harness.errors import MetricError, RecordError

SECONDS_PER_HOUR = 3600.0


class MfuConvention(StrEnum):
    """How attention is counted in :func:`flops_per_token`.

    ``palm`` counts the full T x T score matrix (arXiv:2204.02311, appendix B); ``causal`` counts
    the lower half, which is what a causal kernel computes.
    """

    PALM = "palm"
    CAUSAL = "causal"


class CoveredEnergy(NamedTuple):
    """Energy, joules, and the seconds that it was really observed over."""

    energy_j: float
    covered_s: float


def num_parameters(model: ModelConfig, *, embeddings: bool) -> int:
    """Parameters of a Qwen3 dense model: its N.

    With ``embeddings`` every stored parameter counts, a matrix that is shared between input
    embedding and output projection once. Without, the input embedding is left out, because a
    lookup multiplies nothing; the output projection always stays. A model with tied embeddings
    therefore has the same N both ways: its one matrix is the output projection.
    """
    hidden, head = model.hidden_size, model.head_dim
    query = model.num_attention_heads * head
    key_value = model.num_key_value_heads * head
    attention = 2 * hidden * query + 2 * hidden * key_value + 2 * head  # + q_norm and k_norm
    mlp = 3 * hidden * model.intermediate_size
    layers = model.num_layers * (attention + mlp + 2 * hidden)
    matrix = model.vocab_size * hidden
    with_projection = layers + hidden + matrix  # the final norm and the output projection
    if embeddings and not model.tie_word_embeddings:
        return with_projection + matrix
    return with_projection


def flops_per_token(
    model: ModelConfig, sequence_length: int, convention: MfuConvention, *, embeddings: bool
) -> float:
    """Training FLOPs per token: 6 N + 12 L H Q T, or 6 N + 6 L H Q T for ``causal``.

    L layers, H attention heads, Q head size, T sequence length (PaLM, arXiv:2204.02311). Work that
    is done twice because of activation checkpointing is not counted, as MFU has it.

    Args:
        model: The architecture.
        sequence_length: T, tokens.
        convention: How attention is counted.
        embeddings: Whether N includes the input embedding, see :func:`num_parameters`.

    Raises:
        MetricError: the sequence length is not positive.
    """
    _require_positive(sequence_length=sequence_length)
    attention = 12 * model.num_layers * model.num_attention_heads * model.head_dim * sequence_length
    if convention is MfuConvention.CAUSAL:
        attention //= 2
    return float(6 * num_parameters(model, embeddings=embeddings) + attention)


def mfu(
    tokens_per_second: float, flops_per_token: float, peak_flops_per_s: float, world_size: int
) -> float:
    """Model FLOPs utilization, a fraction between 0 and 1.

    Args:
        tokens_per_second: Of the whole job, all ranks together.
        flops_per_token: From :func:`flops_per_token`.
        peak_flops_per_s: Dense peak of one device at the precision in use, FLOP/s.
        world_size: Number of devices.

    Raises:
        MetricError: an input is not positive, or the result exceeds 1.
    """
    _require_positive(
        tokens_per_second=tokens_per_second,
        flops_per_token=flops_per_token,
        peak_flops_per_s=peak_flops_per_s,
        world_size=world_size,
    )
    value = tokens_per_second * flops_per_token / (peak_flops_per_s * world_size)
    if value > 1.0:
        raise MetricError(
            f"MFU {value:.3f} exceeds 1: {tokens_per_second:.6g} tokens/s x {flops_per_token:.6g}"
            f" FLOP/token over {world_size} x {peak_flops_per_s:.6g} FLOP/s; check the peak (dense,"
            " of this device, at this precision), the token count and the world size"
        )
    return value


def tokens_per_second(tokens: int, duration_s: float) -> float:
    """Throughput of the job: tokens of all ranks over the seconds that they took together.

    Raises:
        MetricError: no tokens, or a duration that is not positive.
    """
    _require_positive(tokens=tokens, duration_s=duration_s)
    return tokens / duration_s


def throughput_identity_error(
    tokens_per_second: float, step_duration_s: float, tokens_per_step: int
) -> float:
    """Relative error of tokens/s x seconds per step = tokens per step; 0 when they agree.

    Raises:
        MetricError: an input is not positive.
    """
    _require_positive(
        tokens_per_second=tokens_per_second,
        step_duration_s=step_duration_s,
        tokens_per_step=tokens_per_step,
    )
    return abs(tokens_per_second * step_duration_s / tokens_per_step - 1.0)


def gpu_hours_per_epoch(world_size: int, epoch_tokens: int, tokens_per_second: float) -> float:
    """GPU-hours of one epoch: world size x epoch tokens / (tokens/s) / 3600.

    Raises:
        MetricError: an input is not positive.
    """
    _require_positive(
        world_size=world_size, epoch_tokens=epoch_tokens, tokens_per_second=tokens_per_second
    )
    return world_size * epoch_tokens / tokens_per_second / SECONDS_PER_HOUR


def scaling_efficiency(
    tokens_per_second_n: float, n: int, tokens_per_second_n0: float, n0: int
) -> float:
    """Strong-scaling efficiency of n devices against n0, a fraction: 1 is ideal.

    Raises:
        MetricError: an input is not positive.
    """
    _require_positive(
        tokens_per_second_n=tokens_per_second_n,
        n=n,
        tokens_per_second_n0=tokens_per_second_n0,
        n0=n0,
    )
    return tokens_per_second_n / (n / n0 * tokens_per_second_n0)


def joules_per_token(energy_j: float, tokens: int) -> float:
    """Energy per token, joules; a sum over GPUs needs the tokens of the whole job.

    Raises:
        MetricError: an input is not positive.
    """
    _require_positive(energy_j=energy_j, tokens=tokens)
    return energy_j / tokens


def energy_j(t_s: Sequence[float], power_w: Sequence[float]) -> float:
    """Integrate board power by the trapezoidal rule.

    Args:
        t_s: Sample times, seconds, strictly increasing, length n >= 2.
        power_w: Board power, watts, length n.

    Raises:
        RecordError: fewer than two samples, lengths differ, times do not increase, or a power is
            negative or not finite.
    """
    _check_series(t_s, power_w, "power")
    return math.fsum(
        (t1 - t0) * (p0 + p1) / 2.0
        for t0, t1, p0, p1 in zip(t_s, t_s[1:], power_w, power_w[1:], strict=False)
    )


def energy_over_gaps(
    t_s: Sequence[float], power_w: Sequence[float | None], *, max_gap_s: float
) -> CoveredEnergy:
    """Integrate power where it was observed, and say over how many seconds that is.

    Readings that are None are passed over; two readings further apart than ``max_gap_s`` are not
    joined. Energy of the uncovered time is not estimated.

    Args:
        t_s: Sample times, seconds, strictly increasing, length n >= 2.
        power_w: Board power, watts, or None where there was no reading, length n.
        max_gap_s: The longest time between two readings that a trapezoid may span.

    Raises:
        RecordError: as :func:`energy_j`.
        MetricError: ``max_gap_s`` is not positive.
    """
    _require_positive(max_gap_s=max_gap_s)
    _check_series(t_s, power_w, "power")
    known = [(t, p) for t, p in zip(t_s, power_w, strict=True) if p is not None]
    joined = [
        (t1 - t0, (p0 + p1) / 2.0)
        for (t0, p0), (t1, p1) in itertools.pairwise(known)
        if t1 - t0 <= max_gap_s
    ]
    return CoveredEnergy(math.fsum(d * p for d, p in joined), math.fsum(d for d, _ in joined))


def energy_from_counter(t_s: Sequence[float], energy_j: Sequence[float | None]) -> CoveredEnergy:
    """Energy from a cumulative counter, and the seconds that it covers.

    A counter needs no regular sampling, so a missing reading loses nothing. Where it falls (a
    driver reload sets it to zero) the interval is left out of both figures.

    Args:
        t_s: Sample times, seconds, strictly increasing, length n >= 2.
        energy_j: Counter, joules, or None where there was no reading, length n.

    Raises:
        RecordError: fewer than two samples, lengths differ, times do not increase, or a reading is
            negative or not finite.
    """
    _check_series(t_s, energy_j, "energy")
    known = [(t, e) for t, e in zip(t_s, energy_j, strict=True) if e is not None]
    rising = [(t1 - t0, e1 - e0) for (t0, e0), (t1, e1) in itertools.pairwise(known) if e1 >= e0]
    return CoveredEnergy(math.fsum(e for _, e in rising), math.fsum(t for t, _ in rising))


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise MetricError(f"{name}={value}: expected a finite number above 0")


def _check_series(t_s: Sequence[float], values: Sequence[float | None], what: str) -> None:
    if len(t_s) != len(values):
        raise RecordError(
            f"{what} series: {len(t_s)} times and {len(values)} values; expected equal"
        )
    if len(t_s) < 2:
        raise RecordError(f"{what} series: {len(t_s)} samples; an integral needs at least 2")
    for i, (t0, t1) in enumerate(itertools.pairwise(t_s), start=1):
        if not t1 > t0:
            raise RecordError(
                f"{what} series: time {i} is {t1} after {t0}; expected increasing times"
            )
    for i, value in enumerate(values):
        if value is not None and not (value >= 0 and math.isfinite(value)):
            raise RecordError(
                f"{what} series: value {i} is {value}; expected finite and at least 0"
            )
