"""What a power source gives at one tick, and the row of nulls that stands for a silent GPU."""

from __future__ import annotations

from dataclasses import dataclass

from harness.samples import GpuSample, PowerKind, PowerScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Rows of one tick.

    ``faults`` names what went wrong, in texts that repeat while the fault lasts; a field that a GPU
    simply does not have is no fault. ``reason`` says why there are no rows of a GPU at all, and is
    null when there are.
    """

    samples: tuple[GpuSample, ...]
    faults: tuple[str, ...]
    reason: str | None


def null_sample(
    *,
    t_unix_s: float,
    host: str,
    gpu: int | None,
    gpu_uuid: str | None,
    power_kind: PowerKind,
    power_scope: PowerScope,
    reason: str,
) -> GpuSample:
    """Give the row of a GPU that is there and says nothing; every measurement is null."""
    return GpuSample(
        t_unix_s=t_unix_s,
        host=host,
        gpu=gpu,
        gpu_uuid=gpu_uuid,
        power_w=None,
        power_kind=power_kind,
        power_scope=power_scope,
        enforced_limit_w=None,
        energy_j=None,
        utilization_pct=None,
        memory_used_bytes=None,
        sm_clock_mhz=None,
        temperature_c=None,
        clock_event_reasons=None,
        gpm=None,
        reason=reason,
    )


def silenced(sample: GpuSample, *, t_unix_s: float, reason: str) -> GpuSample:
    """Give the row of nulls of the GPU that ``sample`` is of."""
    return null_sample(
        t_unix_s=t_unix_s,
        host=sample.host,
        gpu=sample.gpu,
        gpu_uuid=sample.gpu_uuid,
        power_kind=sample.power_kind,
        power_scope=sample.power_scope,
        reason=reason,
    )
