"""One AMD GPU through AMD SMI: from an open handle to the row of a tick.

MI200 has ``average_socket_power``, MI300 ``current_socket_power``; the other of the two reads
``N/A``. A GPU keeps the kind of power it began with. The second die of an MI250 has no sensor: its
power is ``shared``, in its partner's reading, neither missing nor 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.power.amd_smi_fields import AmdReader, as_number
from harness.power.reading import null_sample
from harness.samples import GpuSample, PowerKind, PowerScope

MICRO = 1e-6
_MIB = 1024**2
_HIGHEST_PCT = 100.0
_HIGHEST_W = 10_000.0
SHARED = "shared, a second die: its partner's sensor covers both"

# In order of preference; newer bindings also fill socket_power with either of the others.
_POWER_KINDS = {
    "current_socket_power": PowerKind.INSTANT,
    "average_socket_power": PowerKind.AVERAGE,
    "socket_power": PowerKind.UNKNOWN,
}
_TWO_DIES = ("MI250",)

# Groups of bits of indep_throttle_status: amdgpu_smu.h, SMU_THROTTLER_*_BIT.
_THROTTLERS = {
    "sw_power_cap": range(8),
    "current_limit": range(16, 24),
    "hw_thermal_slowdown": range(32, 48),
}


@dataclass(slots=True, kw_only=True)
class AmdGpu:
    """What is held of one GPU between two ticks.

    ``handle`` is null while the GPU is lost, ``lost_reason`` then says why, and the next attempt
    to find it again is due at ``next_attach_s`` of the monotonic clock.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    handle: Any = None
    lost_reason: str = ""
    next_attach_s: float = 0.0
    power_key: str | None = None
    power_kind: PowerKind = PowerKind.UNKNOWN
    power_scope: PowerScope = PowerScope.GPU


def attach(lib: Any, gpu: AmdGpu, handle: Any) -> None:
    """Take ``handle`` for ``gpu`` and read what never changes.

    Raises:
        SessionLostError: AMD SMI as a whole is gone.
        GpuLostError: the GPU is gone.
    """
    reader = AmdReader(lib)
    uuid = reader.call("gpu_uuid", lambda: lib.amdsmi_get_gpu_device_uuid(handle))
    name = reader.call("name", lambda: lib.amdsmi_get_gpu_asic_info(handle)["market_name"])
    gpu.handle = handle
    gpu.uuid = uuid if isinstance(uuid, str) and uuid not in ("", "N/A") else gpu.uuid
    gpu.name = name if isinstance(name, str) else gpu.name


def read_gpu(lib: Any, gpu: AmdGpu, reader: AmdReader, *, host: str, t_unix_s: float) -> GpuSample:
    """Read every field of one tick; ``reader`` collects the reasons and the faults.

    Raises:
        SessionLostError: AMD SMI as a whole is gone.
        GpuLostError: this GPU is gone.
    """
    handle = gpu.handle
    energy = AmdReader(lib)
    raw_energy, energy_j = _read_energy_j(lib, handle, energy)
    power_w = _read_power_w(lib, gpu, reader, is_second_die=_is_second_die(gpu, raw_energy))
    limit_w = _read_limit_w(lib, handle, reader)
    reader.absorb(energy)
    utilization_pct = reader.number(
        "utilization",
        lambda: lib.amdsmi_get_gpu_activity(handle)["gfx_activity"],
        highest=_HIGHEST_PCT,
    )
    memory = reader.number("memory_used", _memory(lib, handle))
    clock = reader.number("sm_clock", _clock(lib, handle))
    temperature = reader.number("temperature", _temperature(lib, handle))
    mask = reader.number(
        "clock_event_reasons",
        lambda: lib.amdsmi_get_gpu_metrics_info(handle)["indep_throttle_status"],
    )
    reader.note("gpm", "none on AMD GPUs")
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
        memory_used_bytes=None if memory is None else int(memory),
        sm_clock_mhz=None if clock is None else int(clock),
        temperature_c=_celsius(temperature),
        clock_event_reasons=None if mask is None else throttle_names(int(mask)),
        gpm=None,
        reason=reader.reason,
    )


def lost_sample(gpu: AmdGpu, *, host: str, t_unix_s: float, reason: str) -> GpuSample:
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


def throttle_names(mask: int) -> tuple[str, ...]:
    """Name the groups of set bits as NVML's reasons; a bit of no group is ``bit_<n>``."""
    bits = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    named = [name for name, group in _THROTTLERS.items() if any(bit in group for bit in bits)]
    known = {bit for group in _THROTTLERS.values() for bit in group}
    return (*named, *(f"bit_{bit}" for bit in bits if bit not in known))


def _read_power_w(lib: Any, gpu: AmdGpu, reader: AmdReader, *, is_second_die: bool) -> float | None:
    info = reader.call("power", lambda: dict(lib.amdsmi_get_power_info(gpu.handle)))
    if info is None:
        return None
    keys = tuple(_POWER_KINDS) if gpu.power_key is None else (gpu.power_key,)
    for key in keys:
        watts = as_number(info.get(key))
        # No powered GPU draws 0 W; a die without a sensor says so in some versions.
        if watts is not None and 0.0 < watts <= _HIGHEST_W:
            gpu.power_key, gpu.power_kind = key, _POWER_KINDS[key]
            return watts
    if gpu.power_key is None and is_second_die:
        reader.note("power", SHARED)
    else:
        reader.note("power", ", ".join(f"{key} reads {info.get(key, 'nothing')}" for key in keys))
    return None


def _is_second_die(gpu: AmdGpu, raw_energy: float | None) -> bool:
    """Whether a GPU without power has its partner's sensor.

    A counter of exactly 0 is how rocm-smi itself tells a second die (checkIfSecondaryDie).
    """
    return raw_energy == 0.0 or any(word in (gpu.name or "") for word in _TWO_DIES)


def _read_limit_w(lib: Any, handle: Any, reader: AmdReader) -> float | None:
    cap = reader.number(
        "enforced_limit",
        lambda: lib.amdsmi_get_power_cap_info(handle)["power_cap"],
        is_zero_missing=True,
    )
    if cap is None:
        return None
    # Documented in microwatts; early versions gave watts, and no cap is 10 kW or 0.01 W.
    return cap if cap <= _HIGHEST_W else cap * MICRO


def _read_energy_j(lib: Any, handle: Any, reader: AmdReader) -> tuple[float | None, float | None]:
    """The counter as read, and in joules."""
    info = reader.call("energy", lambda: dict(lib.amdsmi_get_energy_count(handle)))
    if info is None:
        return None, None
    raw = as_number(info.get("energy_accumulator", info.get("power")))
    counter = reader.number("energy", lambda: raw, is_zero_missing=True)
    if counter is None:
        return raw, None
    unit = reader.number("energy", lambda: info.get("counter_resolution"), is_zero_missing=True)
    return raw, None if unit is None else counter * unit * MICRO


def _celsius(reading: float | None) -> float | None:
    # Older bindings give thousandths of a degree; no GPU reaches 1000 degrees.
    return reading if reading is None or reading < 1000.0 else reading / 1000.0


def _memory(lib: Any, handle: Any) -> Callable[[], Any]:
    def read() -> Any:
        if hasattr(lib, "amdsmi_get_gpu_memory_usage"):
            return lib.amdsmi_get_gpu_memory_usage(handle, lib.AmdSmiMemoryType.VRAM)
        used = as_number(lib.amdsmi_get_gpu_vram_usage(handle)["vram_used"])
        return None if used is None else used * _MIB

    return read


def _clock(lib: Any, handle: Any) -> Callable[[], Any]:
    def read() -> Any:
        info = lib.amdsmi_get_clock_info(handle, lib.AmdSmiClkType.GFX)
        return info.get("clk", info.get("cur_clk"))

    return read


def _temperature(lib: Any, handle: Any) -> Callable[[], Any]:
    def read() -> Any:
        sensors = lib.AmdSmiTemperatureType
        sensor = sensors.HOTSPOT if hasattr(sensors, "HOTSPOT") else sensors.JUNCTION
        return lib.amdsmi_get_temp_metric(handle, sensor, lib.AmdSmiTemperatureMetric.CURRENT)

    return read
