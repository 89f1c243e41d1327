"""One GPU through NVML: from an open handle to the row of a tick.

A GPU keeps the kind of power it began with: a tick at which that kind fails is null, it never
becomes a row of the other kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.power.fields import FieldReader, read_field_value
from harness.power.gpm import GpmMeter
from harness.power.reading import null_sample
from harness.samples import Gpm, GpuSample, PowerKind, PowerScope

MILLI = 1e-3
_HIGHEST_PCT = 100
_GA100 = (8, 0)  # compute capability
_SUPERCHIPS = ("GH200", "GB200", "GB300")

# Bits of nvmlClocksEventReasons in nvml.h.
_CLOCK_EVENT_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)


class PowerWay(StrEnum):
    """Which call of NVML gives the watts of a GPU."""

    FIELD_AVERAGE = "field 185"
    FIELD_INSTANT = "field 186"
    USAGE = "nvmlDeviceGetPowerUsage"


# Field values of nvml.h, POWER_AVERAGE (over 1 s) and POWER_INSTANT.
_FIELDS = {PowerWay.FIELD_AVERAGE: 185, PowerWay.FIELD_INSTANT: 186}
_KINDS = {PowerWay.FIELD_AVERAGE: PowerKind.AVERAGE, PowerWay.FIELD_INSTANT: PowerKind.INSTANT}


@dataclass(slots=True, kw_only=True)
class Gpu:
    """What is held of one GPU between two ticks.

    ``handle`` is null while the GPU is lost, ``lost_reason`` then says why, and the next attempt
    to find it again is due at ``next_attach_s`` of the monotonic clock. ``usage_kind`` and
    ``usage_scope`` are those of nvmlDeviceGetPowerUsage on this architecture.
    """

    index: int
    uuid: str | None = None
    handle: Any = None
    lost_reason: str = ""
    next_attach_s: float = 0.0
    is_mig: bool = False
    usage_kind: PowerKind = PowerKind.UNKNOWN
    usage_scope: PowerScope = PowerScope.UNKNOWN
    power_way: PowerWay | None = None
    power_kind: PowerKind = PowerKind.UNKNOWN
    power_scope: PowerScope = PowerScope.UNKNOWN
    gpm: GpmMeter | None = None


def attach(nvml: Any, gpu: Gpu) -> None:
    """Open ``gpu`` by its uuid, or by its index while no uuid is known; read what never changes.

    Raises:
        SessionLostError: NVML as a whole is gone.
        GpuLostError: the GPU is gone.
        NVMLError: the GPU cannot be opened for another reason.
    """
    if gpu.uuid is None:
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    else:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    reader = FieldReader(nvml)
    uuid = reader.call("gpu_uuid", lambda: as_text(nvml.nvmlDeviceGetUUID(handle)))
    mig = reader.call("mig", lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    name = reader.call("name", lambda: as_text(nvml.nvmlDeviceGetName(handle)))
    capability = reader.call(
        "compute_capability", lambda: tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    )
    gpu.handle = handle
    gpu.uuid = uuid or gpu.uuid
    gpu.is_mig = mig == 1
    gpu.usage_kind = _usage_kind(capability)
    gpu.usage_scope = _usage_scope(name)
    gpu.gpm = GpmMeter(nvml, handle)


def read_gpu(nvml: Any, gpu: Gpu, reader: FieldReader, *, host: str, t_unix_s: float) -> GpuSample:
    """Read every field of one tick; ``reader`` collects the reasons and the faults.

    Raises:
        SessionLostError: NVML as a whole is gone.
        GpuLostError: this GPU is gone.
    """
    handle = gpu.handle
    power_w = _read_power_w(nvml, gpu, reader)
    limit_w = _read_limit_w(nvml, gpu, reader)
    energy_j = _read_energy_j(nvml, gpu, reader)
    utilization_pct = _read_utilization_pct(nvml, gpu, reader)
    # The driver's own reserve is part of it: only the first version of this call is everywhere.
    memory = reader.number("memory_used", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
    clock = reader.number(
        "sm_clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    )
    temperature = reader.number("temperature", _temperature(nvml, handle, reader))
    mask = reader.number("clock_event_reasons", _clock_event_mask(nvml, handle, reader))
    gpm = _read_gpm(gpu, reader)
    if gpu.uuid is None:
        reader.note("gpu_uuid", "unknown")
    return GpuSample(
        t_unix_s=t_unix_s,
        host=host,
        gpu=gpu.index,
        gpu_uuid=gpu.uuid,
        power_w=power_w,
        power_kind=gpu.power_kind,
        power_scope=gpu.power_scope,
        enforced_limit_w=limit_w,
        energy_j=energy_j,
        utilization_pct=utilization_pct,
        memory_used_bytes=memory,
        sm_clock_mhz=clock,
        temperature_c=None if temperature is None else float(temperature),
        clock_event_reasons=None if mask is None else clock_event_names(mask),
        gpm=gpm,
        reason=reader.reason,
    )


def lost_sample(gpu: Gpu, *, host: str, t_unix_s: float, reason: str) -> GpuSample:
    """Give the row of nulls of a GPU that cannot be read now."""
    return null_sample(
        t_unix_s=t_unix_s,
        host=host,
        gpu=gpu.index,
        gpu_uuid=gpu.uuid,
        power_kind=gpu.power_kind,
        power_scope=gpu.power_scope,
        reason=reason,
    )


def clock_event_names(mask: int) -> tuple[str, ...]:
    """Name the set bits of a clock-event mask; a bit newer than this code is ``bit_<n>``."""
    return tuple(
        _CLOCK_EVENT_REASONS[bit] if bit < len(_CLOCK_EVENT_REASONS) else f"bit_{bit}"
        for bit in range(mask.bit_length())
        if mask >> bit & 1
    )


def as_text(value: str | bytes) -> str:
    """Give text whatever the bindings return; older ones return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _usage_kind(capability: tuple[int, ...] | None) -> PowerKind:
    # nvml.h: GA100 and older are instantaneous, Ampere other than GA100 and newer a 1-s average.
    if capability is None:
        return PowerKind.UNKNOWN
    return PowerKind.INSTANT if capability <= _GA100 else PowerKind.AVERAGE


def _usage_scope(name: str | None) -> PowerScope:
    if name is None or any(chip in name for chip in _SUPERCHIPS):
        return PowerScope.UNKNOWN
    return PowerScope.GPU


def _read_power_w(nvml: Any, gpu: Gpu, reader: FieldReader) -> float | None:
    if gpu.is_mig:
        reader.note("power", "of the whole GPU only while MIG is enabled, none per instance")
        return None
    if gpu.power_way is not None:
        milliwatts = _read_power_mw(nvml, gpu, reader, gpu.power_way)
        return None if milliwatts is None else milliwatts * MILLI
    return _choose_power_w(nvml, gpu, reader)


def _choose_power_w(nvml: Any, gpu: Gpu, reader: FieldReader) -> float | None:
    # A fault decides nothing: it may pass, and the kind is chosen once.
    probe = FieldReader(nvml)
    for way in PowerWay:
        milliwatts = _read_power_mw(nvml, gpu, probe, way)
        if milliwatts is not None:
            gpu.power_way = way
            return milliwatts * MILLI
        if probe.faults:
            break
    reader.absorb(probe)
    return None


def _read_power_mw(nvml: Any, gpu: Gpu, reader: FieldReader, way: PowerWay) -> int | None:
    kind, scope = _KINDS.get(way, gpu.usage_kind), gpu.usage_scope

    def read() -> float:
        nonlocal scope
        if way is PowerWay.USAGE:
            return nvml.nvmlDeviceGetPowerUsage(gpu.handle)
        milliwatts, scope = read_field_value(nvml, gpu.handle, _FIELDS[way])
        return milliwatts

    # No powered GPU draws 0 W; polled too fast, some drivers say so all the same.
    milliwatts = reader.number(f"power ({way})", read, is_zero_missing=True)
    if milliwatts is not None:
        gpu.power_kind, gpu.power_scope = kind, scope
    return milliwatts


def _read_limit_w(nvml: Any, gpu: Gpu, reader: FieldReader) -> float | None:
    if gpu.power_way is not None and gpu.power_scope is not PowerScope.GPU:
        reader.note("enforced_limit", f"of the GPU, power is of scope {gpu.power_scope}")
        return None
    milliwatts = reader.number(
        "enforced_limit",
        lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle),
        is_zero_missing=True,
    )
    return None if milliwatts is None else milliwatts * MILLI


def _read_energy_j(nvml: Any, gpu: Gpu, reader: FieldReader) -> float | None:
    if gpu.is_mig:
        reader.note("energy", "of the whole GPU only while MIG is enabled, none per instance")
        return None
    millijoules = reader.number(
        "energy",
        lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle),
        is_zero_missing=True,
    )
    return None if millijoules is None else millijoules * MILLI


def _read_utilization_pct(nvml: Any, gpu: Gpu, reader: FieldReader) -> float | None:
    if gpu.is_mig:
        reader.note("utilization", "none while MIG is enabled")
        return None
    utilization_pct = reader.number(
        "utilization",
        lambda: nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu,
        highest=_HIGHEST_PCT,
    )
    return None if utilization_pct is None else float(utilization_pct)


def _read_gpm(gpu: Gpu, reader: FieldReader) -> Gpm | None:
    if gpu.is_mig:
        reader.note("gpm", "of the whole GPU only while MIG is enabled, none per instance")
        return None
    assert gpu.gpm is not None, "a GPU that is read has been attached"
    return gpu.gpm.read(reader)


def _temperature(nvml: Any, handle: Any, reader: FieldReader) -> Callable[[], int]:
    return reader.first_offered(
        lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
    )


def _clock_event_mask(nvml: Any, handle: Any, reader: FieldReader) -> Callable[[], int]:
    return reader.first_offered(
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )
