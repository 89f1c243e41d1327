import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.formats.cells import (
    CellError,
    Clock,
    Quantity,
    TimeKind,
    is_fault,
    is_missing,
    read,
    read_index,
    read_throttled,
    unit_of,
)


@pytest.mark.parametrize(
    ("text", "quantity", "unit", "value"),
    [
        ("118.17 W", Quantity.POWER, "", 118.17),
        ("118.17", Quantity.POWER, "", 118.17),
        (" 22W ", Quantity.POWER, "w", 22.0),
        ("118170", Quantity.POWER, "mw", 118.17),
        ("118170 mW", Quantity.POWER, "w", 118.17),
        ("17,57", Quantity.POWER, "", 17.57),
        ("17,57 W", Quantity.POWER, "", 17.57),
        ("100 %", Quantity.PERCENT, "%", 100.0),
        ("0.25", Quantity.PERCENT, "ratio", 25.0),
        ("17148 MiB", Quantity.MEMORY, "", 17148 * 1024.0**2),
        ("17148", Quantity.MEMORY, "mib", 17148 * 1024.0**2),
        ("17148", Quantity.MEMORY, "", 17148 * 1024.0**2),
        ("5 MB", Quantity.MEMORY, "", 5e6),
        ("4096", Quantity.MEMORY, "bytes", 4096.0),
        ("1.41 GHz", Quantity.CLOCK_MHZ, "", 1410.0),
        ("61C", Quantity.TEMPERATURE_C, "", 61.0),
        ("-5", Quantity.TEMPERATURE_C, "", -5.0),
        ("1e2", Quantity.POWER, "", 100.0),
    ],
)
def test_units_in_the_cell_or_the_header_give_si(
    text: str, quantity: Quantity, unit: str, value: float
) -> None:
    assert read(text, quantity, unit) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    ["", "-", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", " nan ", "None"],
)
def test_missing_is_nan_and_no_fault(text: str) -> None:
    assert is_missing(text)
    assert not is_fault(text)
    assert math.isnan(read(text, Quantity.POWER))


@pytest.mark.parametrize("text", ["ERR!", "[GPU requires reset]", "GPU requires reset"])
def test_a_fault_is_nan_but_not_missing(text: str) -> None:
    assert is_fault(text)
    assert not is_missing(text)
    assert math.isnan(read(text, Quantity.POWER))


@pytest.mark.parametrize(
    "text",
    ["1_8", "11 8 W", "118.1.7", "118 %", "-3 W", "inf", "x", "1\ufffd8", "22W / N/A", "2e9", "W"],
)
def test_a_damaged_cell_is_never_another_value(text: str) -> None:
    with pytest.raises(CellError):
        read(text, Quantity.POWER)


@given(st.text(max_size=12))
def test_any_text_is_a_value_missing_or_an_error(text: str) -> None:
    try:
        value = read(text, Quantity.POWER)
    except CellError:
        return
    assert math.isnan(value) or 0.0 <= value <= 1e6


@given(st.decimals(min_value=0, max_value=1500, places=2))
def test_a_plain_number_is_what_float_reads(number: object) -> None:
    assert read(f"{number} W", Quantity.POWER, "w") == float(str(number))


def test_an_index_is_a_small_whole_number() -> None:
    assert read_index(" 7 ") == 7
    for text in ("-1", "1.0", "12345", "", "x"):
        with pytest.raises(CellError):
            read_index(text)


@pytest.mark.parametrize(
    ("text", "throttled"),
    [
        ("0x0000000000000001", 0),
        ("1", 0),
        ("4", 0),
        ("0", 0),
        ("8", 1),
        ("0x0000000000000040", 1),
        ("0x0000000000000024", 1),
        ("Active", 1),
        ("Not Active", 0),
        ("[N/A]", -1),
    ],
)
def test_idle_and_power_cap_are_no_throttling(text: str, throttled: int) -> None:
    assert read_throttled(text) == throttled


@pytest.mark.parametrize("text", ["0xzz", "hot", "-1"])
def test_what_is_no_mask_is_an_error(text: str) -> None:
    with pytest.raises(CellError):
        read_throttled(text)


@pytest.mark.parametrize(
    ("header", "quantity", "unit"),
    [
        ("power.draw [W]", Quantity.POWER, "w"),
        ("power_mw", Quantity.POWER, "mw"),
        ("Power (mW)", Quantity.POWER, "mw"),
        ("power.draw", Quantity.POWER, ""),
        ("memory.used (MB)", Quantity.MEMORY, "mb"),
        ("temperature_C", Quantity.TEMPERATURE_C, "c"),
    ],
)
def test_the_header_names_the_unit(header: str, quantity: Quantity, unit: str) -> None:
    assert unit_of(header, quantity) == unit


@pytest.mark.parametrize(
    ("text", "seconds", "kind"),
    [
        ("1970/01/02 00:00:01.500", 86401.5, TimeKind.CALENDAR),
        ("1970-01-02T00:00:01Z", 86401.0, TimeKind.CALENDAR),
        ("1970-01-02 02:00:01+02:00", 86401.0, TimeKind.CALENDAR),
        ("1970-01-01T22:00:01.25-0200", 86401.25, TimeKind.CALENDAR),
        ("19700102 00:00:01", 86401.0, TimeKind.CALENDAR),
        ("Fri Jan  2 00:00:01 1970", 86401.0, TimeKind.CALENDAR),
        ("1775016316.071", 1775016316.071, TimeKind.EPOCH_S),
        ("1775016316071", 1775016316.071, TimeKind.EPOCH_MS),
        ("1775016316071000", 1775016316.071, TimeKind.EPOCH_US),
        ("1775016316071000000", 1775016316.071, TimeKind.EPOCH_NS),
        ("12.5", 12.5, TimeKind.ELAPSED_S),
        ("00:01:01", 61.0, TimeKind.TIME_OF_DAY),
    ],
)
def test_times_of_every_kind(text: str, seconds: float, kind: TimeKind) -> None:
    clock = Clock()
    assert clock.read(text) == pytest.approx(seconds, abs=1e-6)
    assert clock.kind is kind


def test_a_time_without_a_zone_is_said_to_lack_it() -> None:
    clock = Clock()
    clock.read("2025-09-24T03:48:33.493Z")
    assert clock.has_zone
    clock.read("2025/09/24 03:48:34")
    assert not clock.has_zone


def test_midnight_passes_in_times_of_day() -> None:
    clock = Clock()
    assert clock.read("23:59:59") == 86399.0
    assert clock.read("00:00:01") == 86401.0
    assert clock.is_relative


def test_the_first_time_decides_the_kind() -> None:
    clock = Clock()
    clock.read("1775016316.071")
    with pytest.raises(CellError, match="another kind"):
        clock.read("1775016316071")


@pytest.mark.parametrize(
    "text",
    ["2025/13/26 23:55:20", "2025/07/26 24:55:20", "25/07/26 23:55:20", "", "soon", "-4", "5e8"],
)
def test_what_is_no_time_is_an_error(text: str) -> None:
    with pytest.raises(CellError):
        Clock().read(text)
