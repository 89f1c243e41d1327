"""One cell of a telemetry file: number, unit, missing marker, fault, or time.

Missing is NaN. A fault (``ERR!``) is NaN too, but told apart by ``is_fault``. Anything else that
is not exactly a number with a known unit raises ``CellError``: nothing is guessed from a damaged
cell. Times without a zone are read as UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum

NAN = math.nan

THROTTLE_BITS = 0x8 | 0x20 | 0x40 | 0x80
"""NVML clocks-event reasons that are throttling: HW slowdown (0x8), software thermal (0x20),
hardware thermal (0x40), hardware power brake (0x80). Idle (0x1), an application clock (0x2), the
software power cap (0x4), sync boost (0x10) and a display clock (0x100) are not."""


class CellError(ValueError):
    """The cell is neither a value of this quantity nor a missing marker."""


class Quantity(Enum):
    """What a column holds."""

    POWER = "power"
    MEMORY = "memory"
    PERCENT = "percent"
    CLOCK_MHZ = "clock"
    TEMPERATURE_C = "temperature"


_MIB = 1024.0**2
UNITS: Mapping[Quantity, Mapping[str, float]] = {
    Quantity.POWER: {"": 1.0, "w": 1.0, "watt": 1.0, "watts": 1.0, "mw": 1e-3, "kw": 1e3},
    Quantity.MEMORY: {
        "": _MIB,
        "b": 1.0,
        "bytes": 1.0,
        "kib": 1024.0,
        "kb": 1e3,
        "mib": _MIB,
        "mb": 1e6,
        "gib": 1024.0**3,
        "gb": 1e9,
    },
    Quantity.PERCENT: {"": 1.0, "%": 1.0, "pct": 1.0, "percent": 1.0, "ratio": 100.0},
    Quantity.CLOCK_MHZ: {"": 1.0, "mhz": 1.0, "ghz": 1e3, "khz": 1e-3, "hz": 1e-6},
    Quantity.TEMPERATURE_C: {"": 1.0, "c": 1.0, "\u00b0c": 1.0},
}
"""Unit in lower case -> factor to ours; ``""`` is what a number without any unit is taken for."""


MISSING = frozenset(
    {
        "",
        "-",
        "--",
        "n/a",
        "[n/a]",
        "na",
        "nan",
        "none",
        "null",
        "unknown",
        "[not supported]",
        "not supported",
        "[unknown error]",
        "unknown error",
        "[insufficient permissions]",
        "[not found]",
        "[requested functionality has been deprecated]",
    }
)
FAULTS = frozenset({"err!", "[gpu requires reset]", "gpu requires reset", "[gpu is lost]"})

_NUMBER = re.compile(r"([+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s.,+-].*)?")


def is_missing(text: str) -> bool:
    """Whether the cell says that there is no value; a fault is not missing."""
    return text.strip().lower() in MISSING


def is_fault(text: str) -> bool:
    """Whether the cell reports a broken GPU or sensor."""
    return text.strip().lower() in FAULTS


def read(text: str, quantity: Quantity, header_unit: str = "") -> float:
    """The value in SI units; NaN where missing or a fault.

    Args:
        text: The cell, with or without a unit; a decimal comma is accepted.
        quantity: What the column holds.
        header_unit: Unit named in the header, for cells that carry none.

    Raises:
        CellError: not a number, a unit of another quantity, or out of this quantity's range.
    """
    text = text.strip()
    try:
        # Python reads 1_8 as 18; in a file it is damage.
        value, unit = float(text if "_" not in text else "_"), header_unit
    except ValueError:
        match = _NUMBER.fullmatch(text)
        if match is None:
            lowered = text.lower()
            if lowered in MISSING or lowered in FAULTS:
                return NAN
            raise CellError(f"{text!r} is no number") from None
        value = float(match[1].replace(",", "."))
        unit = (match[2] or header_unit).strip().lower()
    if math.isnan(value):
        return NAN
    try:
        value *= UNITS[quantity][unit]
    except KeyError:
        raise CellError(f"{text!r}: {unit!r} is no unit of {quantity.value}") from None
    if not _in_range(value, quantity):
        raise CellError(f"{text!r} is no {quantity.value}")
    return value


def read_index(text: str) -> int:
    """A GPU index, 0 to 4095.

    Raises:
        CellError: anything else.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) <= 4:
        return int(text)
    raise CellError(f"{text!r} is no GPU index")


def read_throttled(text: str) -> int:
    """1 throttled, 0 not, -1 unknown, from NVML's bit mask (hex or decimal) or words.

    Raises:
        CellError: neither a mask nor a word that drivers print.
    """
    text = text.strip().lower()
    if text in MISSING or text in FAULTS:
        return -1
    if text in ("active", "not active"):
        return int(text == "active")
    try:
        mask = int(text, 16 if text.startswith("0x") else 10)
    except ValueError:
        raise CellError(f"{text!r} is no mask of clock event reasons") from None
    if mask < 0:
        raise CellError(f"{text!r} is no mask of clock event reasons")
    return int(bool(mask & THROTTLE_BITS))


def unit_of(header: str, quantity: Quantity) -> str:
    """The unit that a column's name carries, lower case, or ``""``.

    ``power.draw [W]``, ``power_mw``, ``memory.used (MB)`` and ``temperature_C`` all do.
    """
    lowered = header.strip().lower()
    bracket = re.search(r"[\[(]([^\])]+)[\])]\s*$", lowered)
    candidate = bracket[1].strip() if bracket else re.split(r"[._\s]", lowered)[-1]
    return candidate if candidate in UNITS[quantity] else ""


def _in_range(value: float, quantity: Quantity) -> bool:
    if math.isinf(value):
        return False
    if quantity is Quantity.TEMPERATURE_C:
        return -100.0 <= value <= 300.0
    if quantity is Quantity.POWER:
        return 0.0 <= value <= MAX_POWER_W
    if quantity is Quantity.PERCENT:
        # Utilization summed over engines goes past 100 on some AMD tools.
        return 0.0 <= value <= 1000.0
    return value >= 0.0


MAX_POWER_W = 2e4
"""No device and no node draws more; the milliwatts of a busy GPU, read as watts, do."""


class TimeKind(Enum):
    """How a file writes its times; the first good cell decides for the whole file."""

    CALENDAR = "calendar"
    EPOCH_S = "epoch s"
    EPOCH_MS = "epoch ms"
    EPOCH_US = "epoch us"
    EPOCH_NS = "epoch ns"
    ELAPSED_S = "seconds since a start"
    TIME_OF_DAY = "time of day"


_EPOCH_FACTOR = {
    TimeKind.EPOCH_S: 1.0,
    TimeKind.EPOCH_MS: 1e-3,
    TimeKind.EPOCH_US: 1e-6,
    TimeKind.EPOCH_NS: 1e-9,
    TimeKind.ELAPSED_S: 1.0,
}
# 2001 to 2065; what is written in another unit is off by 1000 and falls into the next row.
_EPOCH_RANGE: Mapping[TimeKind, tuple[float, float]] = {
    TimeKind.ELAPSED_S: (0.0, 1e8),
    TimeKind.EPOCH_S: (1e9, 3e9),
    TimeKind.EPOCH_MS: (1e12, 3e12),
    TimeKind.EPOCH_US: (1e15, 3e15),
    TimeKind.EPOCH_NS: (1e18, 3e18),
}
_CALENDAR = re.compile(
    r"(\d{4})[/-](\d{2})[/-](\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?"
    r"\s*(Z|UTC|[+-]\d{2}:?\d{2})?"
)
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})[ T](\d{2}):(\d{2}):(\d{2})()()")
_TIME_OF_DAY = re.compile(r"(\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?")
_BANNER = "%a %b %d %H:%M:%S %Y"


class Clock:
    """Times of one file as unix seconds (or relative seconds, see ``is_relative``)."""

    def __init__(self) -> None:
        self.kind: TimeKind | None = None
        self.has_zone = True
        self._days: dict[str, float] = {}
        self._last_of_day = 0.0
        self._midnights = 0

    @property
    def is_relative(self) -> bool:
        """Whether its zero is not 1970."""
        return self.kind in (TimeKind.ELAPSED_S, TimeKind.TIME_OF_DAY)

    @property
    def factor(self) -> float | None:
        """Seconds in one unit of a time that is a plain number; None for all others."""
        return None if self.kind is None else _EPOCH_FACTOR.get(self.kind)

    @property
    def bounds(self) -> tuple[float, float]:
        """What a plain number must lie between to be a time of the file's kind."""
        if self.kind is None:
            return (0.0, 0.0)
        return _EPOCH_RANGE.get(self.kind, (0.0, 0.0))

    def day_start(self, text: str) -> float:
        """Midnight of the date that a calendar time starts with, unix seconds, zone left out.

        Raises:
            CellError: there is no such date.
        """
        return self._day(text[:4], text[5:7], text[8:10])

    def offset_s(self, zone: str) -> float:
        """Seconds that the zone printed behind a time is ahead of UTC."""
        return _offset_s(zone.strip())

    def read(self, text: str) -> float:
        """Seconds.

        Raises:
            CellError: not a time, or one of another kind than the file's first.
        """
        text = text.strip().strip('"')
        kind, value = self._parse(text)
        if self.kind is None:
            self.kind = kind
        if kind is not self.kind:
            raise CellError(f"{text!r} is a time of another kind than the first")
        if kind is TimeKind.TIME_OF_DAY:
            if value < self._last_of_day - 43200.0:
                self._midnights += 1
            self._last_of_day = value
            return value + 86400.0 * self._midnights
        return value

    def _parse(self, text: str) -> tuple[TimeKind, float]:
        match = _CALENDAR.fullmatch(text) or _COMPACT.fullmatch(text)
        if match:
            return TimeKind.CALENDAR, self._calendar(match)
        if match := _TIME_OF_DAY.fullmatch(text):
            return TimeKind.TIME_OF_DAY, _of_day(match[1], match[2], match[3], match[4])
        try:
            number = float(text.replace(",", "."))
        except ValueError:
            return TimeKind.CALENDAR, self._banner(text)
        for kind, (low, high) in _EPOCH_RANGE.items():
            if low <= number < high:
                return kind, number * _EPOCH_FACTOR[kind]
        raise CellError(f"{text!r} is no time")

    def _calendar(self, match: re.Match[str]) -> float:
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        start = self._day(year, month, day)
        if not zone:
            self.has_zone = False
        return start + _of_day(hour, minute, second, fraction) - _offset_s(zone)

    def _day(self, year: str, month: str, day: str) -> float:
        date = f"{year}-{month}-{day}"
        start = self._days.get(date)
        if start is None:
            try:
                start = datetime(int(year), int(month), int(day), tzinfo=UTC).timestamp()
            except ValueError:
                raise CellError(f"{date!r} is no date") from None
            self._days[date] = start
        return start

    def _banner(self, text: str) -> float:
        """``Wed Jan  5 15:09:50 2022``, as ``nvidia-smi`` and ``date`` print it."""
        try:
            # The zone, where one is printed, is dropped by the caller; UTC is assumed.
            moment = datetime.strptime(text, _BANNER).replace(tzinfo=UTC)
        except ValueError:
            raise CellError(f"{text!r} is no time") from None
        self.has_zone = False
        return moment.timestamp()


def _of_day(hour: str, minute: str, second: str, fraction: str | None) -> float:
    if int(hour) > 23 or int(minute) > 59 or int(second) > 60:
        raise CellError(f"{hour}:{minute}:{second} is no time of day")
    whole = int(hour) * 3600 + int(minute) * 60 + int(second)
    return whole + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def _offset_s(zone: str | None) -> float:
    if not zone or zone in ("Z", "UTC"):
        return 0.0
    sign = -1.0 if zone[0] == "-" else 1.0
    digits = zone[1:].replace(":", "")
    return sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
