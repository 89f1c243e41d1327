"""One telemetry sample: what power backends and file readers produce and what triage reads.

Unknown is null with a reason, never 0. Units are SI base units and stand in the field names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PowerKind(StrEnum):
    """Which of a meter's readings a row holds; two kinds are never mixed in one table."""

    AVERAGE = "average"
    INSTANT = "instant"
    UNKNOWN = "unknown"


class PowerScope(StrEnum):
    """What the watts belong to; a limit is only comparable in the same scope."""

    GPU = "gpu"
    MODULE = "module"
    MEMORY = "memory"
    NODE = "node"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpm:
    """Activity of GPU units between two samples, fractions 0-1 (Hopper and newer)."""

    sm: float | None
    tensor: float | None
    dram: float | None
    nvlink_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One reading of one GPU; ``reason`` says why a null is null."""

    t_unix_s: float
    host: str
    gpu: int | None
    gpu_uuid: str | None
    power_w: float | None
    power_kind: PowerKind
    power_scope: PowerScope
    enforced_limit_w: float | None
    energy_j: float | None
    utilization_pct: float | None
    memory_used_bytes: int | None
    sm_clock_mhz: int | None
    temperature_c: float | None
    clock_event_reasons: tuple[str, ...] | None
    gpm: Gpm | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One reading of one host; byte counts are cumulative since boot."""

    t_unix_s: float
    host: str
    host_cpu_pct: float | None
    disk_read_bytes: int | None
    net_rx_bytes: int | None
    reason: str | None
