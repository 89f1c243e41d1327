"""The NVML bindings (package nvidia-ml-py, module ``pynvml``), and a host's GPUs as it names them.

Nothing here needs privileges or sets anything, and a machine without a driver is no error.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from harness.power.bounded import call_within
from harness.power.fields import (
    FieldReader,
    GpuLostError,
    SessionLostError,
    caught_errors,
    error_text,
    read_field_value,
)
from harness.power.nvml_gpu import MILLI, as_text
from harness.record.schema import GpuInfo

DESCRIBE_TIMEOUT_S = 60.0
"""Without persistence mode the driver wakes every GPU first, seconds for each."""

_SMOOTHING_FIELD = "NVML_FI_PWR_SMOOTHING_ENABLED"

Description = tuple[str | None, tuple[GpuInfo, ...], str | None]


def load_nvml() -> Any:
    """Import the bindings.

    Raises:
        ImportError: they are not installed.
    """
    return importlib.import_module("pynvml")


def start_session(load: Callable[[], Any]) -> tuple[Any, str | None]:
    """Load the bindings and start NVML; give them, and the reason why not or null."""
    try:
        nvml = load()
    except ImportError:
        return None, "no NVML bindings: install the package nvidia-ml-py"
    try:
        nvml.nvmlInit()
    except caught_errors(nvml) as error:
        return nvml, f"no NVIDIA driver: {error_text(error)}"
    return nvml, None


def describe_gpus(
    load: Callable[[], Any] = load_nvml, *, timeout_s: float = DESCRIBE_TIMEOUT_S
) -> Description:
    """Describe the GPUs of this host for a manifest.

    Args:
        load: Gives the NVML bindings.
        timeout_s: A sick driver is given up after this many seconds.

    Returns:
        The driver version, the GPUs in the order of NVML, and the reason why there are none; null
        where unknown. A missing driver is a reason, never an error.
    """
    answer = call_within(timeout_s, lambda: _describe(load))
    if answer is None:
        return None, (), f"fault: NVML did not answer within {timeout_s:g} s"
    return answer


def _describe(load: Callable[[], Any]) -> Description:
    nvml, reason = start_session(load)
    if reason is not None:
        return None, (), reason
    caught, reader = caught_errors(nvml), FieldReader(nvml)
    driver: str | None = None
    try:
        driver = reader.call("driver", lambda: as_text(nvml.nvmlSystemGetDriverVersion()))
        count = int(nvml.nvmlDeviceGetCount())
        gpus = tuple(_describe_gpu(nvml, index) for index in range(count))
    except (SessionLostError, *caught) as error:
        return driver, (), f"fault: NVML failed: {error_text(error)}"
    finally:
        with contextlib.suppress(*caught):
            nvml.nvmlShutdown()
    return driver, gpus, reader.reason if gpus else "the NVIDIA driver lists no GPU"


def _describe_gpu(nvml: Any, index: int) -> GpuInfo:
    reader = FieldReader(nvml)
    try:
        handle = reader.call("handle", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        if handle is not None:
            return _info(nvml, index, handle, reader)
        reason = reader.reason
    except GpuLostError as error:
        reason = f"fault: {error}"
    return GpuInfo(
        index=index,
        name=None,
        uuid=None,
        pci_bus_id=None,
        enforced_limit_w=None,
        default_limit_w=None,
        max_sm_clock_mhz=None,
        memory_total_bytes=None,
        mig_enabled=None,
        ecc_enabled=None,
        power_smoothing=None,
        reason=reason,
    )


def _info(nvml: Any, index: int, handle: Any, reader: FieldReader) -> GpuInfo:
    def watts(field: str, function: str) -> float | None:
        milliwatts = reader.number(
            field, lambda: getattr(nvml, function)(handle), is_zero_missing=True
        )
        return None if milliwatts is None else milliwatts * MILLI

    def smoothing() -> bool:
        return read_field_value(nvml, handle, getattr(nvml, _SMOOTHING_FIELD))[0] == 1

    return GpuInfo(
        index=index,
        name=reader.call("name", lambda: as_text(nvml.nvmlDeviceGetName(handle))),
        uuid=reader.call("uuid", lambda: as_text(nvml.nvmlDeviceGetUUID(handle))),
        pci_bus_id=reader.call(
            "pci_bus_id", lambda: as_text(nvml.nvmlDeviceGetPciInfo(handle).busId)
        ),
        enforced_limit_w=watts("enforced_limit", "nvmlDeviceGetEnforcedPowerLimit"),
        default_limit_w=watts("default_limit", "nvmlDeviceGetPowerManagementDefaultLimit"),
        max_sm_clock_mhz=reader.number(
            "max_sm_clock", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        ),
        memory_total_bytes=reader.number(
            "memory_total", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total
        ),
        mig_enabled=reader.call("mig", lambda: nvml.nvmlDeviceGetMigMode(handle)[0] == 1),
        ecc_enabled=reader.call("ecc", lambda: nvml.nvmlDeviceGetEccMode(handle)[0] == 1),
        power_smoothing=reader.call("power_smoothing", smoothing),
        reason=reader.reason,
    )
