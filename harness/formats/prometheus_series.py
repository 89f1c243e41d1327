"""Prometheus series of GPU exporters: which metric is what, whose it is, and rows out of them.

Knows dcgm-exporter (``DCGM_FI_DEV_*``, NVIDIA's field names) and nvidia_gpu_exporter
(``nvidia_smi_*``, named after the columns of ``nvidia-smi --query-gpu``). Labels of pods and
containers are no part of a GPU's identity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import FormatError
from harness.formats.cells import NAN, CellError, Quantity, read, read_throttled
from harness.formats.layout import Role
from harness.formats.recipe import refusal
from harness.formats.ticks import GpuTable, Ledger, Rows
from harness.samples import GpuId, PowerKind, SampleBatch

UNREADABLE = "unreadable readings, left out"
SECOND_READING = "a second reading of one GPU at one time"
NO_GPU = "series that names no GPU"
MIG_INSTANCE = "series of a MIG instance, which has no power of its own"

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|NaN|[+-]?Inf")
# What DCGM stores in a field without a value: dcgm_structs.h, DCGM_INT32_BLANK, DCGM_FP64_BLANK
# and DCGM_INT64_BLANK, each followed by its kinds of absence.
_BLANK_INT32 = range(0x7FFFFFF0, 0x80000000)
_BLANK_FP64 = 140737488355328.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one metric holds; among several of one role the lowest ``rank`` is used."""

    role: Role
    unit: str = ""
    rank: int = 0
    kind: PowerKind = PowerKind.UNKNOWN
    is_flag: bool = False


METRICS: Mapping[str, Metric] = {
    "DCGM_FI_DEV_POWER_USAGE": Metric(role=Role.POWER, unit="w"),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": Metric(
        role=Role.POWER, unit="w", rank=1, kind=PowerKind.INSTANT
    ),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": Metric(role=Role.LIMIT, unit="w"),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": Metric(role=Role.LIMIT, unit="w", rank=1),
    "DCGM_FI_DEV_GPU_UTIL": Metric(role=Role.UTILIZATION, unit="%"),
    "DCGM_FI_DEV_FB_USED": Metric(role=Role.MEMORY, unit="mib"),
    "DCGM_FI_DEV_SM_CLOCK": Metric(role=Role.CLOCK, unit="mhz"),
    "DCGM_FI_DEV_GPU_TEMP": Metric(role=Role.TEMPERATURE, unit="c"),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": Metric(role=Role.THROTTLED),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": Metric(role=Role.THROTTLED),
    "nvidia_smi_power_draw_average_watts": Metric(
        role=Role.POWER, unit="w", kind=PowerKind.AVERAGE
    ),
    "nvidia_smi_power_draw_watts": Metric(role=Role.POWER, unit="w", rank=1),
    "nvidia_smi_power_draw_instant_watts": Metric(
        role=Role.POWER, unit="w", rank=2, kind=PowerKind.INSTANT
    ),
    "nvidia_smi_enforced_power_limit_watts": Metric(role=Role.LIMIT, unit="w"),
    "nvidia_smi_power_limit_watts": Metric(role=Role.LIMIT, unit="w", rank=1),
    "nvidia_smi_utilization_gpu_ratio": Metric(role=Role.UTILIZATION, unit="ratio"),
    "nvidia_smi_memory_used_bytes": Metric(role=Role.MEMORY, unit="bytes"),
    "nvidia_smi_clocks_current_sm_clock_hz": Metric(role=Role.CLOCK, unit="hz"),
    "nvidia_smi_temperature_gpu": Metric(role=Role.TEMPERATURE, unit="c"),
    **{
        f"nvidia_smi_clocks_{word}_reasons_{reason}": Metric(role=Role.THROTTLED, is_flag=True)
        for word in ("event", "throttle")
        for reason in (
            "hw_slowdown",
            "hw_thermal_slowdown",
            "hw_power_brake_slowdown",
            "sw_thermal_slowdown",
        )
    },
}
INFO_METRIC = "nvidia_smi_gpu_info"
"""Constant 1; its labels hold the index and the name of a uuid."""

_QUANTITIES = {
    Role.POWER: Quantity.POWER,
    Role.LIMIT: Quantity.POWER,
    Role.UTILIZATION: Quantity.PERCENT,
    Role.MEMORY: Quantity.MEMORY,
    Role.CLOCK: Quantity.CLOCK_MHZ,
    Role.TEMPERATURE: Quantity.TEMPERATURE_C,
}
# An exporter's own label for the host first; ``instance`` is what Prometheus adds, with a port.
_HOST_LABELS = ("Hostname", "hostname", "host", "node", "nodename", "instance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose a series is: a GPU as its labels name it."""

    host: str
    index: int | None
    uuid: str | None


@dataclass(slots=True, kw_only=True)
class _Cell:
    value: float
    metric: str


Tick = dict[Owner, dict[Role, _Cell]]
"""The readings of one time."""


class Gatherer:
    """Takes readings one by one, whatever their order, and gives the rows of a tick."""

    def __init__(self, table: GpuTable, ledger: Ledger) -> None:
        self._table = table
        self._ledger = ledger
        self._infos: dict[str, tuple[int | None, str | None]] = {}
        self._names: dict[Owner, str] = {}
        self._power_metric: str | None = None
        self.unused: set[str] = set()

    def owner(self, metric: str, labels: Mapping[str, str]) -> Owner | None:
        """Whose the series is; None, counted or remembered, where it is no GPU's reading."""
        if metric == INFO_METRIC:
            name = _clean(labels.get("name", "")) or None
            self._infos[_clean(labels.get("uuid", ""))] = (_index(labels.get("index", "")), name)
            return None
        if metric not in METRICS:
            self.unused.add(metric)
            return None
        if labels.get("GPU_I_ID"):
            self._ledger.drop(MIG_INSTANCE)
            return None
        index = _index(labels.get("gpu", labels.get("index", "")))
        uuid = _clean(labels.get("UUID") or labels.get("uuid") or "") or None
        if index is None and uuid is None:
            self._ledger.drop(NO_GPU)
            return None
        host = next((labels[key] for key in _HOST_LABELS if labels.get(key)), "")
        owner = Owner(host=_clean(host), index=index, uuid=uuid)
        if name := labels.get("modelName") or labels.get("name"):
            self._names.setdefault(owner, _clean(name))
        return owner

    def put(self, tick: Tick, owner: Owner, metric: str, text: str) -> None:
        """Enter one reading; a value that is no number of its quantity is counted and left out."""
        spec = METRICS[metric]
        try:
            value = _value(text, metric, spec)
        except CellError:
            self._ledger.count(UNREADABLE)
            return
        cells = tick.setdefault(owner, {})
        before = cells.get(spec.role)
        if before is not None and spec.is_flag:
            before.value = max(before.value, value)
        elif before is None or self._is_better(spec, before):
            cells[spec.role] = _Cell(value=value, metric=metric)
        elif before.metric == metric and before.value != value:
            self._ledger.drop(SECOND_READING)

    def emit(self, t_s: float, tick: Tick, rows: Rows) -> None:
        """Turn the readings of one time into rows."""
        for owner, cells in tick.items():
            power = cells.get(Role.POWER)
            if power is not None:
                power = self._of_one_kind(power)
            for role, cell in cells.items():
                if role is not Role.POWER:
                    self._ledger.columns.setdefault(role.value, cell.metric)
            rows.add(
                t_s,
                self._table.position(self._gpu(owner)),
                power.value if power else NAN,
                limit_w=_get(cells, Role.LIMIT),
                utilization_pct=_get(cells, Role.UTILIZATION),
                memory_used_bytes=_get(cells, Role.MEMORY),
                sm_clock_mhz=_get(cells, Role.CLOCK),
                temperature_c=_get(cells, Role.TEMPERATURE),
                throttled=int(cells[Role.THROTTLED].value) if Role.THROTTLED in cells else -1,
            )

    def require_power(self, path: Path) -> None:
        """Refuse a file that was read to its end and had no watts.

        Raises:
            FormatError: it had none.
        """
        if self._power_metric is None:
            raise no_power(path, {*self._ledger.columns.values(), *self.unused})

    def _of_one_kind(self, power: _Cell) -> _Cell | None:
        if self._power_metric is None:
            self._power_metric = power.metric
            self._ledger.columns[Role.POWER.value] = power.metric
            self._ledger.power_kind = METRICS[power.metric].kind
        if power.metric == self._power_metric:
            return power
        self._ledger.count(f"power only as {power.metric}, another kind: left out")
        return None

    def _is_better(self, spec: Metric, before: _Cell) -> bool:
        return spec.rank < METRICS[before.metric].rank

    def _gpu(self, owner: Owner) -> GpuId:
        index, name = self._infos.get(owner.uuid or "", (None, None))
        return GpuId(
            host=owner.host,
            index=owner.index if owner.index is not None else index,
            uuid=owner.uuid,
            name=self._names.get(owner, name),
        )


def rows_by_time(
    ticks: Mapping[float, Tick], gatherer: Gatherer, ledger: Ledger
) -> Iterator[SampleBatch]:
    """Batches of readings that carry times of their own, in order of time.

    Raises:
        FormatError: there is no power among them.
    """
    rows = Rows()
    for t_s in sorted(ticks):
        gatherer.emit(t_s, ticks[t_s], rows)
        if rows.is_full:
            yield rows.take()
    gatherer.require_power(ledger.path)
    yield rows.take()


def no_power(path: Path, found: set[str]) -> FormatError:
    """The refusal of metrics without a GPU's watts, naming what is there."""
    names = sorted(found)
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return refusal(
        path,
        "no power metric (DCGM_FI_DEV_POWER_USAGE or nvidia_smi_power_draw_watts)"
        + (f" among {shown}" if shown else ""),
    )


def _value(text: str, metric: str, spec: Metric) -> float:
    if not _NUMBER.fullmatch(text):
        raise CellError(f"{text!r} is no number of Prometheus")
    number = float(text)
    if metric.startswith("DCGM_") and (number in _BLANK_INT32 or number >= _BLANK_FP64):
        return NAN
    if spec.is_flag:
        if number not in (0.0, 1.0):
            raise CellError(f"{text!r} is neither 0 nor 1")
        return number
    if spec.role is Role.THROTTLED:
        if not number.is_integer():
            raise CellError(f"{text!r} is no mask")
        return float(read_throttled(str(int(number))))
    return read(text, _QUANTITIES[spec.role], spec.unit)


def _index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else None


def _clean(label: str) -> str:
    """A label that can be printed; JSON can spell characters that do not exist."""
    return label.encode("utf-8", errors="replace").decode("utf-8")


def _get(cells: Mapping[Role, _Cell], role: Role) -> float:
    return cells[role].value if role in cells else NAN
