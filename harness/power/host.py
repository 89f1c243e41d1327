"""The host's own meters: CPU share over the interval, bytes read and received since boot.

Containers see the host's counters, not their own. The loopback interface is left out; a bond or a
bridge counts beside its members, so compare ``net_rx_bytes`` only with the same host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from harness.samples import HostSample

_LOOPBACK = "lo"
_ODD = (AttributeError, NotImplementedError, OSError, RuntimeError, ValueError)


def read_disk_bytes() -> int | None:
    """Sum the bytes read from every disk since boot; null on a host that shows no disk."""
    counters = psutil.disk_io_counters(nowrap=False)
    return None if counters is None else counters.read_bytes


def read_net_bytes() -> int | None:
    """Sum the bytes received on every interface but loopback; null where there is none."""
    counters: Mapping[str, Any] = psutil.net_io_counters(pernic=True, nowrap=False)
    received = [c.bytes_recv for name, c in counters.items() if name != _LOOPBACK]
    return sum(received) if received else None


class HostMeter:
    """Holds the CPU times of the last tick, of which the next reading is the difference."""

    def __init__(
        self,
        host: str,
        *,
        cpu_times: Callable[[], Any] = psutil.cpu_times,
        disk_bytes: Callable[[], int | None] = read_disk_bytes,
        net_bytes: Callable[[], int | None] = read_net_bytes,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Store where the counters come from."""
        self._host = host
        self._cpu_times = cpu_times
        self._disk_bytes = disk_bytes
        self._net_bytes = net_bytes
        self._wall = wall
        self._before: tuple[float, float] | None = None

    def read(self, power_reason: str | None) -> HostSample:
        """Read the host once.

        Args:
            power_reason: Why there are no GPU rows at this tick, or null; becomes a part of
                ``reason``.
        """
        reasons = [] if power_reason is None else [f"power: {power_reason}"]
        cpu_pct = self._cpu_pct(reasons)
        disk = _call("disk_read_bytes", self._disk_bytes, reasons)
        net = _call("net_rx_bytes", self._net_bytes, reasons)
        return HostSample(
            t_unix_s=self._wall(),
            host=self._host,
            host_cpu_pct=cpu_pct,
            disk_read_bytes=disk,
            net_rx_bytes=net,
            reason="; ".join(reasons) or None,
        )

    def _cpu_pct(self, reasons: list[str]) -> float | None:
        before, self._before = self._before, None
        times = _call("host_cpu_pct", self._cpu_times, reasons)
        if times is None:
            return None
        busy_s, total_s = self._before = _busy_and_total_s(times)
        if before is None:
            reasons.append("host_cpu_pct: needs two readings")
            return None
        total_s -= before[1]
        if total_s <= 0:
            reasons.append("host_cpu_pct: the CPU counters did not move")
            return None
        return min(100.0, max(0.0, 100 * (busy_s - before[0]) / total_s))


def _busy_and_total_s(times: Any) -> tuple[float, float]:
    # The kernel counts guest time in user and nice too; waiting for a disk is idle.
    named: dict[str, float] = times._asdict()
    total_s = sum(named.values()) - named.get("guest", 0.0) - named.get("guest_nice", 0.0)
    return total_s - named.get("idle", 0.0) - named.get("iowait", 0.0), total_s


def _call(field: str, function: Callable[[], Any], reasons: list[str]) -> Any:
    try:
        value = function()
    except _ODD as error:
        reasons.append(f"{field}: {str(error) or type(error).__name__}")
        return None
    if value is None:
        reasons.append(f"{field}: none on this host")
    return value
