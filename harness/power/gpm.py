"""GPU performance monitoring (GPM): what the units of a GPU did between two ticks.

Hopper and newer. Further evidence where it is there, never required.
"""

from __future__ import annotations

import math
from typing import Any

from harness.power.fields import FieldReader
from harness.samples import Gpm

# Metric ids of nvml.h.
_SM_UTIL_PCT = 2
_ANY_TENSOR_UTIL_PCT = 5
_DRAM_BW_UTIL_PCT = 10
_NVLINK_TOTAL_RX_MIB_PER_S = 60
_NVLINK_TOTAL_TX_MIB_PER_S = 61
_METRICS = (
    _SM_UTIL_PCT,
    _ANY_TENSOR_UTIL_PCT,
    _DRAM_BW_UTIL_PCT,
    _NVLINK_TOTAL_RX_MIB_PER_S,
    _NVLINK_TOTAL_TX_MIB_PER_S,
)
_BYTES_PER_MIB = 2**20


class GpmMeter:
    """Holds the last GPM sample of one GPU; each reading is the difference to it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        """Store the GPU; nothing is asked of it yet."""
        self._nvml = nvml
        self._handle = handle
        self._is_supported: bool | None = None
        self._buffers: list[Any] = []
        self._has_previous = False

    def read(self, reader: FieldReader) -> Gpm | None:
        """Give the activity since the last reading; null with a reason where there is none."""
        if self._is_supported is None:
            self._is_supported = reader.call("gpm", self._query_support)
        if not self._is_supported:
            if self._is_supported is False:
                reader.note("gpm", "not supported")
            return None
        had_previous, self._has_previous = self._has_previous, False
        values = reader.call("gpm", lambda: self._sample(had_previous))
        if values is None:
            return None
        self._has_previous = True
        if not had_previous:
            reader.note("gpm", "needs two samples")
            return None
        gpm = _gpm(values)
        if None in (gpm.sm, gpm.tensor, gpm.dram, gpm.nvlink_bytes_per_s):
            reader.note("gpm", "some metrics are not available")
        return gpm

    def close(self) -> None:
        """Free the samples.

        Raises:
            NVMLError: the session is gone already; the samples went with it.
        """
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            self._nvml.nvmlGpmSampleFree(buffer)

    def _query_support(self) -> bool:
        return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)

    def _sample(self, has_previous: bool) -> dict[int, float]:
        nvml = self._nvml
        while len(self._buffers) < 2:
            self._buffers.append(nvml.nvmlGpmSampleAlloc())
        self._buffers.reverse()
        nvml.nvmlGpmSampleGet(self._handle, self._buffers[1])
        if not has_previous:
            return {}
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_METRICS)
        request.sample1, request.sample2 = self._buffers
        for i, metric_id in enumerate(_METRICS):
            request.metrics[i].metricId = metric_id
        nvml.nvmlGpmMetricsGet(request)
        metrics = request.metrics[: len(_METRICS)]
        return {m.metricId: m.value for m in metrics if m.nvmlReturn == 0}


def _gpm(values: dict[int, float]) -> Gpm:
    received = _positive(values.get(_NVLINK_TOTAL_RX_MIB_PER_S))
    sent = _positive(values.get(_NVLINK_TOTAL_TX_MIB_PER_S))
    both = None if received is None or sent is None else (received + sent) * _BYTES_PER_MIB
    return Gpm(
        sm=_fraction(values.get(_SM_UTIL_PCT)),
        tensor=_fraction(values.get(_ANY_TENSOR_UTIL_PCT)),
        dram=_fraction(values.get(_DRAM_BW_UTIL_PCT)),
        nvlink_bytes_per_s=both,
    )


def _positive(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _fraction(value_pct: float | None) -> float | None:
    value_pct = _positive(value_pct)
    return None if value_pct is None or value_pct > 100 else value_pct / 100
