"""MFU of a run beside everything that it was made with, or why it has none. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from analysis.devices import is_cpu, used_gpus
from analysis.load import Run
from harness.config import ModelConfig
from harness.errors import ConfigError, MetricError
from harness.hardware import Peak, find_device, missing_peak_reason, peak_flops
from harness.metrics import MfuConvention, flops_per_token, mfu
from harness.parse import parse

_CONVENTION = MfuConvention.PALM


@dataclass(frozen=True, slots=True, kw_only=True)
class Mfu:
    """MFU beside everything that it was made with; ``value`` null where the peak is unknown.

    ``is_impossible`` says that it came out above 1: a wrong peak, count or clock.
    """

    value: float | None
    convention: str
    flops_per_token: float | None
    peak_flops_per_s: float | None
    peak_source: str
    reason: str
    is_impossible: bool = False


def run_mfu(run: Run, rate: float | None) -> Mfu:
    """MFU of ``rate`` tokens per second on the GPUs that the ranks used."""
    peak, reason = _peak(run)
    config: Mapping[str, Any] = run.manifest.config
    try:
        model = parse(ModelConfig, config.get("model", {}), "model")
        sequence_length = int(config.get("train", {}).get("sequence_length", 0))
        flops = flops_per_token(model, sequence_length, _CONVENTION, embeddings=False)
    except (ConfigError, MetricError) as error:
        return _no_mfu(None, peak, str(error))
    if peak is None or rate is None:
        return _no_mfu(flops, peak, reason or "no throughput")
    try:
        value = mfu(rate, flops, peak.flops_per_s, run.manifest.trial.world_size)
    except MetricError as error:
        return replace(_no_mfu(flops, peak, str(error)), is_impossible=True)
    return Mfu(
        value=value,
        convention=f"{_CONVENTION}, without embeddings",
        flops_per_token=flops,
        peak_flops_per_s=peak.flops_per_s,
        peak_source=peak.source,
        reason="",
    )


def _no_mfu(flops: float | None, peak: Peak | None, reason: str) -> Mfu:
    return Mfu(
        value=None,
        convention=f"{_CONVENTION}, without embeddings" if flops else "",
        flops_per_token=flops,
        peak_flops_per_s=peak.flops_per_s if peak else None,
        peak_source=peak.source if peak else "",
        reason=reason,
    )


def _peak(run: Run) -> tuple[Peak | None, str]:
    """Dense peak of the one kind of GPU that the ranks used, or why there is none."""
    if is_cpu(run):
        return None, "a CPU has no peak to divide by"
    if any(gpu.mig_enabled for host in run.manifest.hosts for gpu in host.gpus):
        return None, "a GPU was split by MIG: a rank may have had a slice, whose peak is not known"
    gpus = {(g.name, g.memory_total_bytes) for g in used_gpus(run)}
    names = sorted({name or "unnamed" for name, _ in gpus})
    if len(names) != 1:
        kinds = f": {', '.join(names)}" if names else ""
        return None, f"{len(names)} kinds of GPU{kinds}; expected one"
    memory = next(m for _, m in gpus)
    train: Mapping[str, Any] = run.manifest.config.get("train", {})
    precision = str(train.get("precision"))
    facts = find_device(names[0], memory)
    peak = peak_flops(facts, precision) if facts else None
    return peak, missing_peak_reason(names[0], precision, memory) or ""
