"""What a run computed on, as its records tell it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.load import Run
from harness.record.schema import EventKind, GpuInfo


def is_cpu(run: Run) -> bool:
    """Whether the ranks computed on a CPU."""
    on: Mapping[str, Any] = run.manifest.config.get("on", {})
    return on.get("device") == "cpu"


def device_name(run: Run) -> str:
    """The device as the comparability key names it, else as the host describes itself."""
    named = run.manifest.comparability.get("device_model")
    if named:
        return str(named)
    hosts = run.manifest.hosts
    gpus = sorted({g.name for h in hosts for g in h.gpus if g.name})
    if gpus:
        return " + ".join(gpus)
    return f"cpu: {hosts[0].cpu_model}" if hosts and hosts[0].cpu_model else "unknown"


def rank_gpu_uuids(run: Run) -> frozenset[str]:
    """The GPUs that the ranks said they run on; empty unless every rank named one of its own."""
    ready = [e for e in run.events if e.kind is EventKind.RANK_READY]
    own = {str(e.detail["gpu_uuid"]) for e in ready if e.detail.get("gpu_uuid")}
    return frozenset(own if len(own) == run.manifest.trial.world_size else ())


def used_gpus(run: Run) -> tuple[GpuInfo, ...]:
    """The GPUs that the ranks ran on, or all that they could see where they did not say."""
    gpus = tuple(gpu for host in run.manifest.hosts for gpu in host.gpus)
    own = rank_gpu_uuids(run)
    used = tuple(gpu for gpu in gpus if gpu.uuid in own)
    return used if used and len(used) == len(own) else gpus
