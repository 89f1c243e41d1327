"""Telemetry samples and their account: what power and formats produce, and what triage reads.

One sample is a dataclass where it is recorded; a stream is batches of numpy columns, since a
day of sixteen GPUs at 10 Hz is 13.8 million. Unknown is null (NaN in a column) with a reason, not
0. Units are SI base units and stand in the field names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FAULT_NOTE = "readings that are a fault (ERR!, GPU requires reset)"
"""How the note of an account begins that counts faults: another thing than a missing reading."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuId:
    """One GPU of a stream; an index repeats across hosts, so the host belongs to the identity.

    ``host`` is empty where a file names none; ``name`` is the device name, where it is known.
    """

    host: str
    index: int | None
    uuid: str | None
    name: str | None

    @property
    def label(self) -> str:
        """``host:index``, or ``host:uuid`` where there is no index."""
        own = str(self.index) if self.index is not None else (self.uuid or "?")
        return f"{self.host}:{own}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """Samples as columns of one length n, in order of time per GPU; NaN is unknown.

    Attributes:
        t_s: float64, unix seconds, or seconds from the first tick where ``Account.is_relative``.
        gpu: int32, position in ``SampleStream.gpus``.
        power_w: float64, board power.
        limit_w: float64, enforced limit of the same scope.
        utilization_pct: float64, share of the period with a kernel running.
        memory_used_bytes: float64.
        sm_clock_mhz: float64.
        temperature_c: float64.
        throttled: int8; 1 hardware slowdown, thermal or power brake; 0 none of them; -1 unknown.
        label: object (str or None), a phase label of the file's; scored against, never an input.
    """

    t_s: NDArray[np.float64]
    gpu: NDArray[np.int32]
    power_w: NDArray[np.float64]
    limit_w: NDArray[np.float64]
    utilization_pct: NDArray[np.float64]
    memory_used_bytes: NDArray[np.float64]
    sm_clock_mhz: NDArray[np.float64]
    temperature_c: NDArray[np.float64]
    throttled: NDArray[np.int8]
    label: NDArray[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A pause of the sampler, reported and never bridged; times as in ``SampleBatch.t_s``."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a reader did with a file: nothing is lost without a line here.

    Attributes:
        path: The file.
        format: Name of the format, and ``why`` it was taken for that.
        columns: Our column -> the file's name or position for it.
        rows_read: Samples delivered (one GPU at one time each).
        rows_dropped: Reason -> count.
        gaps: Pauses of more than three periods, in order.
        period_s: Median period of one GPU; null for a single tick.
        num_ticks: Different sample times of the GPU that has most.
        is_relative: Times count from the first tick, because the file has none of its own.
        is_aggregated: Rows are averages over a trainer's step or a long period, not readings.
        power_kind: Which reading a row holds.
        power_scope: What the watts belong to.
        absent: GPU label -> why it has no power of its own (``shared``, say).
        notes: What else a reader should know, one sentence each.
    """

    path: str
    format: str
    why: str
    columns: Mapping[str, str]
    rows_read: int
    rows_dropped: Mapping[str, int]
    gaps: tuple[Gap, ...]
    period_s: float | None
    num_ticks: int
    is_relative: bool
    is_aggregated: bool
    power_kind: PowerKind
    power_scope: PowerScope
    absent: Mapping[str, str]
    notes: tuple[str, ...]


class SampleStream(Protocol):
    """One file, or one live source, as batches; read once, in constant memory."""

    @property
    def gpus(self) -> Sequence[GpuId]:
        """The GPUs seen so far; grows while batches are read, positions never change."""
        ...

    def batches(self) -> Iterator[SampleBatch]:
        """The samples in order."""
        ...

    def account(self) -> Account:
        """What was read and what was not; complete once ``batches`` is exhausted."""
        ...
