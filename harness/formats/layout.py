"""What the columns of a delimited file hold: header names -> roles, units and GPUs.

One layout serves long files (a row is one GPU at one time) and wide ones (a row is all GPUs at one
time): ``devices`` has one entry for a long file and one per GPU for a wide one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.errors import FormatError
from harness.formats.cells import Quantity, unit_of
from harness.samples import PowerKind


class Role(StrEnum):
    """What triage takes from a column; the values are the names that ``--columns`` accepts."""

    TIME = "time"
    HOST = "host"
    INDEX = "gpu"
    UUID = "uuid"
    PCI = "pci"
    NAME = "name"
    LABEL = "label"
    POWER = "power"
    LIMIT = "limit"
    UTILIZATION = "utilization"
    MEMORY = "memory"
    CLOCK = "clock"
    TEMPERATURE = "temperature"
    THROTTLED = "throttled"


QUANTITIES: Mapping[Role, Quantity] = {
    Role.POWER: Quantity.POWER,
    Role.LIMIT: Quantity.POWER,
    Role.UTILIZATION: Quantity.PERCENT,
    Role.MEMORY: Quantity.MEMORY,
    Role.CLOCK: Quantity.CLOCK_MHZ,
    Role.TEMPERATURE: Quantity.TEMPERATURE_C,
}
IDENTITY = (Role.HOST, Role.INDEX, Role.UUID, Role.PCI, Role.NAME)

# Names in order of preference, without units and with every separator as one underscore.
_NAMES: Mapping[Role, str] = {
    Role.TIME: "timestamp time datetime date_time unix_time time_unix epoch ts t t_unix unix_ts"
    " unix_timestamp timestamp_utc timestamp_unix elapsed elapsed_time wall_time _timestamp",
    Role.HOST: "host hostname host_name node node_name nodename",
    Role.INDEX: "index gpu_index gpu_id gpu gpu_idx gpuid gpu_num device_index device_id device idx"
    " card card_id",
    Role.UUID: "uuid gpu_uuid",
    Role.PCI: "pci_bus_id pci_bus gpu_bus_id bus_id pci",
    Role.NAME: "name gpu_name product_name device_name gpu_model model_name modelname model",
    Role.LABEL: "phase label state stage",
    Role.POWER: "power_draw_average power_draw power power_usage gpu_power gpu_power_draw"
    " power_draw_instant average_power board_power socket_power average_socket_power"
    " current_socket_power dcgm_fi_dev_power_usage watts powr pwr power_watts",
    Role.LIMIT: "enforced_power_limit power_enforced_limit enforced_limit power_limit power_cap"
    " limit dcgm_fi_dev_enforced_power_limit dcgm_fi_dev_power_mgmt_limit",
    Role.UTILIZATION: "utilization_gpu gpu_util gpu_utilization utilization util util_gpu gpuutl"
    " gpu_util_rate dcgm_fi_dev_gpu_util gpu_usage gpu_load",
    Role.MEMORY: "memory_used mem_used used_memory gpu_memory_used gpu_mem_used fb_used vram_used"
    " memory_usage dcgm_fi_dev_fb_used",
    Role.CLOCK: "clocks_sm clocks_current_sm sm_clock clocks_gr clocks_current_graphics"
    " clocks_graphics dcgm_fi_dev_sm_clock pclk",
    Role.TEMPERATURE: "temperature_gpu temperature temp gpu_temp gpu_temperature gtemp"
    " dcgm_fi_dev_gpu_temp",
    Role.THROTTLED: "clocks_event_reasons_active clocks_throttle_reasons_active throttle_reasons"
    " clock_event_reasons clock_throttle_reasons dcgm_fi_dev_clock_throttle_reasons"
    " dcgm_fi_dev_clocks_event_reasons",
}
_RANKS = {
    name: (role, rank) for role, names in _NAMES.items() for rank, name in enumerate(names.split())
}
_THROTTLE_FLAGS = re.compile(
    r"clocks_(?:event|throttle)_reasons_"
    r"(?:hw_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown|sw_thermal_slowdown)"
)
_NODE_POWER = re.compile(
    r"(?:sys|system|node|server|chassis|total|psu|wall|ac|dc|host|bmc|dcmi|ipmi)_.*(?:power|watts?)"
)
_UNIT_TAIL = re.compile(
    r"_(?:w|watts?|mw|kw|c|celsius|mib|mb|gib|gb|kib|bytes|pct|percent|ratio|mhz|s|sec|seconds|ms|us|ns)$"
)
_DEVICE = re.compile(r"(?:^|_)(?:gpu|device|dev|card|gcd)_?(\d{1,4})(?=_|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column in use: where it stands, what the file calls it, and the unit of its header."""

    at: int
    name: str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The columns of one GPU; ``index`` is set where the header names the GPU (wide files)."""

    index: int | None = None
    columns: Mapping[Role, Column] = field(default_factory=dict[Role, Column])
    flags: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a file.

    Attributes:
        width: Cells of a row.
        header: The header's cells, to know it again; empty for a file without one.
        shared: Columns of the row (time, identity, label).
        devices: Columns of readings, one entry for a long file.
        node_power: A node's meter, where there is one; never used as a GPU's.
    """

    width: int
    header: tuple[str, ...]
    shared: Mapping[Role, Column]
    devices: tuple[Device, ...]
    node_power: str | None = None

    @property
    def has_power(self) -> bool:
        """Whether any GPU has watts."""
        return any(Role.POWER in device.columns for device in self.devices)

    @property
    def is_wide(self) -> bool:
        """Whether the header names the GPUs."""
        return self.devices[0].index is not None

    def names(self) -> dict[str, str]:
        """Our column -> the file's, for the account."""
        named = {role.value: column.name for role, column in self.shared.items()}
        for role in QUANTITIES:
            found = [d.columns[role].name for d in self.devices if role in d.columns]
            if found:
                named[role.value] = ", ".join(found)
        flags = [column.name for device in self.devices for column in device.flags]
        if flags:
            named[Role.THROTTLED.value] = ", ".join(flags)
        return named

    @property
    def power_kind(self) -> PowerKind:
        """Which reading the power column holds, if its name says so."""
        names = [d.columns[Role.POWER].name for d in self.devices if Role.POWER in d.columns]
        if all("average" in base_name(name) for name in names):
            return PowerKind.AVERAGE
        if all("instant" in base_name(name) for name in names):
            return PowerKind.INSTANT
        return PowerKind.UNKNOWN


def base_name(header: str) -> str:
    """A header cell without unit, case and punctuation: ``power.draw [W]`` -> ``power_draw``."""
    lowered = re.sub(r"[\[(][^\])]*[\])]\s*$", "", header.strip().strip('"').lower())
    base = re.sub(r"[^a-z0-9_]+", "_", lowered).rstrip("_")
    stripped = _UNIT_TAIL.sub("", base)
    return base if base in _RANKS or not stripped else stripped


def layout_of(header: Sequence[str], samples: Sequence[Sequence[str]] = ()) -> Layout | None:
    """The layout that a header row declares, or None where the row is no header.

    Args:
        header: Its cells.
        samples: Some rows below it, to choose between columns of one role: the one that holds
            readings, and, for an identity, the one that varies.
    """
    candidates: dict[Role, list[tuple[int, Column]]] = {}
    wide: dict[int, dict[Role, Column]] = {}
    flags: list[Column] = []
    node_power: str | None = None
    for at, name in enumerate(header):
        base = base_name(name)
        if base in _RANKS:
            role, rank = _RANKS[base]
            candidates.setdefault(role, []).append((rank, _column(at, name, role)))
        elif _THROTTLE_FLAGS.fullmatch(base):
            flags.append(Column(at=at, name=name.strip()))
        elif _NODE_POWER.fullmatch(base):
            node_power = name.strip()
        elif (found := _wide(base, at, name)) is not None:
            index, role, column = found
            wide.setdefault(index, {}).setdefault(role, column)
    chosen = {role: _choose(role, found, samples) for role, found in candidates.items()}
    if len(chosen) + len(wide) + bool(node_power) < 2:
        return None
    if Role.THROTTLED in chosen:
        flags = [chosen.pop(Role.THROTTLED)]
    return _assemble(header, chosen, wide, tuple(flags), node_power)


def layout_by_names(header: Sequence[str], columns: Mapping[str, str], width: int) -> Layout:
    """The layout that the user gives: our name -> a header cell, or a position from 0.

    ``power=gpu0_w,power=...`` is not possible; a wide file maps ``power.0``, ``power.1`` and so on.

    Raises:
        FormatError: a name is not ours, or a column is not in the file.
    """
    shared: dict[Role, Column] = {}
    devices: dict[int | None, dict[Role, Column]] = {}
    for ours, theirs in columns.items():
        word, _, number = ours.partition(".")
        if word not in list(Role) or (number and not number.isdecimal()):
            known = ", ".join(Role)
            raise FormatError(
                f"--columns {ours}={theirs}: unknown name; one of {known}, power.0 ..."
            )
        role = Role(word)
        at = _find(theirs, header, width)
        name = header[at] if header else theirs
        column = _column(at, name, role)
        if role in QUANTITIES or role is Role.THROTTLED:
            devices.setdefault(int(number) if number else None, {})[role] = column
        else:
            shared[role] = column
    if None in devices and len(devices) > 1:
        raise FormatError("--columns: power and power.0 exclude each other")
    return Layout(
        width=width,
        header=tuple(cell.strip() for cell in header),
        shared=shared,
        devices=tuple(_device(i, c) for i, c in devices.items()) or (Device(),),
    )


def _device(index: int | None, columns: dict[Role, Column]) -> Device:
    throttled = columns.pop(Role.THROTTLED, None)
    return Device(index=index, columns=columns, flags=(throttled,) if throttled else ())


def _find(theirs: str, header: Sequence[str], width: int) -> int:
    wanted = theirs.strip().lower()
    for at, name in enumerate(header):
        if wanted in (name.strip().lower(), base_name(name)):
            return at
    if theirs.isdecimal() and int(theirs) < width:
        return int(theirs)
    accepted = ", ".join(name.strip() for name in header) or f"positions 0 to {width - 1}"
    raise FormatError(f"--columns: no column {theirs!r}; the file has {accepted}")


def _column(at: int, name: str, role: Role) -> Column:
    quantity = QUANTITIES.get(role)
    unit = unit_of(name, quantity) if quantity is not None else ""
    return Column(at=at, name=name.strip(), unit=unit)


def _wide(base: str, at: int, name: str) -> tuple[int, Role, Column] | None:
    match = _DEVICE.search(base)
    if match is None:
        return None
    rest = (base[: match.start()] + base[match.end() :]).strip("_")
    rest = rest if rest in _RANKS else _UNIT_TAIL.sub("", "_" + rest).strip("_")
    role = _RANKS[rest][0] if rest in _RANKS else Role.POWER if not rest else None
    if role is None or role not in QUANTITIES:
        return None
    return int(match[1]), role, _column(at, name, role)


def _choose(
    role: Role, found: Sequence[tuple[int, Column]], samples: Sequence[Sequence[str]]
) -> Column:
    """Among columns of one role: one with values, for identities the most varied, then by rank."""

    def merit(entry: tuple[int, Column]) -> tuple[int, int]:
        rank, column = entry
        values = {row[column.at].strip() for row in samples if column.at < len(row)}
        if role in QUANTITIES:
            return (int(any(char.isdigit() for value in values for char in value)), -rank)
        return (len(values) if role in IDENTITY else 0, -rank)

    return max(found, key=merit)[1]


def _assemble(
    header: Sequence[str],
    chosen: dict[Role, Column],
    wide: dict[int, dict[Role, Column]],
    flags: tuple[Column, ...],
    node_power: str | None,
) -> Layout:
    shared = {role: column for role, column in chosen.items() if role not in QUANTITIES}
    long = {role: column for role, column in chosen.items() if role in QUANTITIES}
    is_wide = Role.POWER not in long and any(Role.POWER in columns for columns in wide.values())
    if is_wide:
        devices = tuple(
            Device(index=index, columns={**long, **columns})
            for index, columns in sorted(wide.items())
            if Role.POWER in columns
        )
        shared = {r: c for r, c in shared.items() if r in (Role.TIME, Role.HOST, Role.LABEL)}
    else:
        devices = (Device(columns=long, flags=flags),)
    return Layout(
        width=len(header),
        header=tuple(cell.strip() for cell in header),
        shared=shared,
        devices=devices,
        node_power=node_power,
    )
