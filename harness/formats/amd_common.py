"""What the readers of AMD's tools share: names of metrics, the second die, and no 0 W.

An MI250 is two devices over one sensor: the second die reads ``N/A``, its watts are in its
partner's. That is ``shared``: neither missing nor 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from harness.formats.cells import NAN, CellError, Quantity, read
from harness.formats.layout import Role
from harness.formats.ticks import GpuTable, Ledger
from harness.samples import PowerKind

SHARED = "shared"
NO_READING = "no power reading in the file"
ZERO_W = "power readings of 0 W, taken as missing"
OTHER_KIND = "power of another kind than the first reading's, left out"
UNREADABLE = "unreadable readings, left out"

_SECONDARY = re.compile(r"secondary die", re.IGNORECASE)
# rocm_smi.py and amdsmi_commands.py; both write MiB where they say MB.
POWER_NAMES: Mapping[str, PowerKind] = {
    "current_socket_power": PowerKind.INSTANT,
    "current socket graphics package power (w)": PowerKind.INSTANT,
    "average_socket_power": PowerKind.AVERAGE,
    "average graphics package power (w)": PowerKind.AVERAGE,
    "socket_power": PowerKind.UNKNOWN,
    "power_usage": PowerKind.UNKNOWN,
}
"""In order of preference; the last two are whichever of the others the GPU offers."""

_TEMPERATURES = (
    "hotspot_temperature|hotspot|junction|temperature (sensor junction) (c)"
    "|edge_temperature|edge|temperature (sensor edge) (c)"
)
_READINGS: Mapping[Role, tuple[Quantity, str, str]] = {
    Role.LIMIT: (
        Quantity.POWER,
        "w",
        "max_power|socket_power_limit|power_cap|power_limit|max graphics package power (w)",
    ),
    Role.UTILIZATION: (Quantity.PERCENT, "%", "gfx_activity|gfx_util|gfx|gfx%|gpu use (%)"),
    Role.CLOCK: (Quantity.CLOCK_MHZ, "mhz", "gfx_clk|gfx_clock|gfx_0_clk"),
    Role.TEMPERATURE: (Quantity.TEMPERATURE_C, "c", _TEMPERATURES),
    Role.MEMORY: (Quantity.MEMORY, "mib", "used_vram|vram_used"),
}
_MEMORY_BYTES = "vram total used memory (b)"
NAMES: Mapping[str, tuple[Role, int, Quantity, str]] = {
    **{
        name: (role, rank, quantity, unit)
        for role, (quantity, unit, names) in _READINGS.items()
        for rank, name in enumerate(names.split("|"))
    },
    _MEMORY_BYTES: (Role.MEMORY, 0, Quantity.MEMORY, "bytes"),
}
"""A metric's name in lower case -> role, rank among those of one role, quantity and unit."""


def is_secondary(text: str) -> bool:
    """Whether the cell says that another device's sensor covers this one."""
    return bool(_SECONDARY.search(text))


def reading(text: str, name: str, ledger: Ledger) -> float:
    """One reading that is not power; NaN where missing, or counted where it is none."""
    _, _, quantity, unit = NAMES[name]
    if text[-2:].upper() == "MB":
        text = text[:-2] + "MiB"
    try:
        return read(text, quantity, unit)
    except CellError:
        ledger.count(UNREADABLE)
        return NAN


class Power:
    """Watts of one file: one kind of reading, and which GPUs never have any."""

    def __init__(self, table: GpuTable, ledger: Ledger) -> None:
        self._table = table
        self._ledger = ledger
        self._name: str | None = None
        self._seen: dict[int, str | None] = {}

    def read(self, gpu: int, cells: Sequence[tuple[str, str]]) -> float:
        """The watts of one row.

        Args:
            gpu: Position of the GPU.
            cells: Name in lower case and text of every power cell, in order of preference.
        """
        self._seen.setdefault(gpu, NO_READING)
        values = [(name, self._number(gpu, text)) for name, text in cells]
        values = [(name, value) for name, value in values if not math.isnan(value)]
        if not values:
            return NAN
        if self._name is None:
            self._name = values[0][0]
            self._ledger.columns[Role.POWER.value] = self._name
            self._ledger.power_kind = POWER_NAMES[self._name]
        for name, value in values:
            if name == self._name:
                self._seen[gpu] = None
                return value
        self._ledger.count(OTHER_KIND)
        self.explain(gpu, OTHER_KIND)
        return NAN

    def explain(self, gpu: int, reason: str) -> None:
        """Say why a GPU has no reading, unless it has one."""
        if self._seen.setdefault(gpu, reason) == NO_READING:
            self._seen[gpu] = reason

    def finish(self, *, names_second_dies: bool) -> None:
        """Enter the GPUs that never had a reading into the account.

        Args:
            names_second_dies: The file says itself which they are; nothing is concluded.
        """
        absent = {gpu: reason for gpu, reason in self._seen.items() if reason is not None}
        if not names_second_dies and self._is_every_second(set(absent)):
            absent = dict.fromkeys(absent, SHARED)
            self._ledger.note(
                "every odd GPU reads N/A beside an even one with power: second dies, whose watts"
                " are in their partner's"
            )
        for gpu, reason in absent.items():
            self._ledger.absent[self._table.gpus[gpu].label] = reason

    def _number(self, gpu: int, text: str) -> float:
        if is_secondary(text):
            self.explain(gpu, SHARED)
            return NAN
        try:
            watts = read(text, Quantity.POWER, "w")
        except CellError:
            self._ledger.count(UNREADABLE)
            return NAN
        if watts == 0.0:
            self._ledger.count(ZERO_W)
            return NAN
        return watts

    def _is_every_second(self, absent: set[int]) -> bool:
        """Whether exactly the odd indices lack power, and the file has given no other reason."""
        if not absent or any(self._seen[gpu] != NO_READING for gpu in absent):
            return False
        return all(
            gpu.index is not None and (position in absent) == bool(gpu.index % 2)
            for position, gpu in enumerate(self._table.gpus)
        )
