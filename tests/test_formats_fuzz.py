"""Every reader against damage: never a traceback, never a silent wrong number."""

import gzip
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import FormatError
from harness.formats.sniff import open_stream

TICKS, GPUS = 24, 3
# Damage that cannot make one number of another: no digit, sign, point, blank, delimiter or end.
MARKS = b"#x?\xff\xc3~"


def watts(tick: int, gpu: int) -> float:
    return round(100.0 + 7.13 * tick + 1.37 * gpu, 2)


def util(tick: int, gpu: int) -> int:
    return (tick * 3 + gpu) % 101


def smi(*, index: bool, units: bool) -> str:
    power, percent = (" W", " %") if units else ("", "")
    lines = [f"timestamp, {'index, ' if index else ''}power.draw [W], utilization.gpu [%]"]
    lines += [
        f"2025/07/26 00:00:{t:02d}.{g:03d}, {f'{g}, ' if index else ''}"
        f"{watts(t, g):.2f}{power}, {util(t, g)}{percent}"
        for t in range(TICKS)
        for g in range(GPUS)
    ]
    return "\n".join(lines) + "\n"


def dmon() -> str:
    head = "#Date Time gpu pwr sm\n#YYYYMMDD HH:MM:SS Idx W %\n"
    rows = [
        f" 20250726 00:00:{t:02d} {g} {watts(t, g)} {util(t, g)}\n"
        for t in range(TICKS)
        for g in range(GPUS)
    ]
    return head + "".join(rows)


def table() -> str:
    parts: list[str] = []
    for t in range(TICKS):
        parts.append(
            f"Sat Jul 26 00:00:{t:02d} 2025\n| NVIDIA-SMI 530.41.03  Driver Version: 5  |\n"
        )
        for g in range(GPUS):
            parts.append(f"|   {g}  NVIDIA Made Up     Off| 0000000{g}:01:00.0 Off |   N/A |\n")
            parts.append(
                f"| N/A   61C    P0   {watts(t, g)}W / 900W |   1386MiB /  6144MiB |"
                f"  {util(t, g)}%   Default |\n"
            )
    return "".join(parts)


def wide() -> str:
    lines = ["timestamp," + ",".join(f"gpu{g}_power_w,gpu{g}_util" for g in range(GPUS))]
    for t in range(TICKS):
        cells = ",".join(f"{watts(t, g)},{util(t, g)}" for g in range(GPUS))
        lines.append(f"{1753488000 + t}.000,{cells}")
    return "\n".join(lines) + "\n"


def dcgm() -> str:
    lines = ["timestamp,phase,gpu,power_w,gpu_util_pct,sm_active,throttle_reasons"]
    lines += [
        f"{1753488000 + t}.{g:03d},warm,{g},{watts(t, g)},{util(t, g)},0.5,1"
        for t in range(TICKS)
        for g in range(GPUS)
    ]
    return "\n".join(lines) + "\n"


def own() -> str:
    names = "gpu_uuid enforced_limit_w energy_j memory_used_bytes sm_clock_mhz temperature_c"
    empty = dict.fromkeys([*names.split(), "clock_event_reasons", "gpm", "reason"])
    rows = [
        empty
        | {
            "t_unix_s": 1753488000.0 + t,
            "host": "n",
            "gpu": g,
            "power_w": watts(t, g),
            "power_kind": "average",
            "power_scope": "gpu",
            "utilization_pct": float(util(t, g)),
        }
        for t in range(TICKS)
        for g in range(GPUS)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


FORMATS: dict[str, Callable[[], str]] = {
    "smi": lambda: smi(index=True, units=True),
    "smi without index": lambda: smi(index=False, units=True),
    "smi without units": lambda: smi(index=True, units=False),
    "dmon": dmon,
    "table": table,
    "wide": wide,
    "dcgm": dcgm,
    "own": own,
}
each_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """A damaged block falls into parts so small that both paths read each file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.formats.delimited.PART_BYTES", 150)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def deliver(folder: Path, raw: bytes) -> int:
    """Read ``raw``; every sample must be one that was written. Gives how many came."""
    path = folder / "log"
    path.write_bytes(raw)
    count = 0
    try:
        stream = open_stream(path)
        for batch in stream.batches():
            rows = zip(
                batch.t_s.tolist(),
                batch.gpu.tolist(),
                batch.power_w.tolist(),
                batch.utilization_pct.tolist(),
                strict=True,
            )
            for t_s, gpu, power_w, utilization_pct in rows:
                # Times of day alone (a damaged header of dmon) are declared relative.
                start_s = 0.0 if stream.account().is_relative else 1753488000.0
                tick = math.floor(t_s - start_s + 1e-4)
                index = stream.gpus[gpu].index
                assert index is not None
                assert math.isnan(power_w) or power_w == watts(tick, index)
                assert math.isnan(utilization_pct) or utilization_pct == util(tick, index)
                count += 1
        assert stream.account().rows_read == count
    except FormatError:
        return 0
    return count


@each_format
def test_the_undamaged_file_is_read_whole(folder: Path, name: str) -> None:
    assert deliver(folder, FORMATS[name]().encode()) == TICKS * GPUS


@each_format
@settings(max_examples=40)
@given(data=st.data())
def test_truncated_anywhere(folder: Path, name: str, data: st.DataObject) -> None:
    raw = FORMATS[name]().encode()
    first_tick = len(raw) // TICKS + 400
    cut = data.draw(st.integers(0, len(raw)))
    if name == "smi without index" and cut < first_tick:
        return  # fewer GPUs than a tick has rows cannot be told from a smaller machine
    deliver(folder, raw[:cut])


@each_format
@settings(max_examples=40)
@given(data=st.data())
def test_the_front_is_missing(folder: Path, name: str, data: st.DataObject) -> None:
    raw = FORMATS[name]().encode()
    start = data.draw(st.integers(0, len(raw) // 2))
    deliver(folder, raw[raw.find(b"\n", start) + 1 :])


@each_format
@settings(max_examples=40)
@given(data=st.data())
def test_garbled_bytes(folder: Path, name: str, data: st.DataObject) -> None:
    raw = bytearray(FORMATS[name]().encode())
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=12)):
        if raw[at] != 10:
            raw[at] = data.draw(st.sampled_from(list(MARKS)))
    deliver(folder, bytes(raw))


@each_format
@settings(max_examples=40)
@given(data=st.data())
def test_a_run_of_nuls(folder: Path, name: str, data: st.DataObject) -> None:
    raw = FORMATS[name]().encode()
    at = data.draw(st.integers(0, len(raw)))
    lost = data.draw(st.integers(0, 300))
    deliver(folder, raw[:at] + bytes(data.draw(st.integers(1, 5000))) + raw[at + lost :])


@each_format
@settings(max_examples=30)
@given(data=st.data())
def test_rows_in_another_order_and_doubled(folder: Path, name: str, data: st.DataObject) -> None:
    lines = FORMATS[name]().splitlines(keepends=True)
    # Where a row's place is its identity, only whole ticks are moved: two rows that have changed
    # places within one cannot be told from two that have not.
    if name in ("table", "smi without index"):
        head = [] if name == "table" else [lines.pop(0)]
        size = 2 + 2 * GPUS if name == "table" else GPUS
        lines = head + ["".join(lines[i : i + size]) for i in range(0, len(lines), size)]
    for _ in range(data.draw(st.integers(0, 6))):
        i = data.draw(st.integers(0, len(lines) - 1))
        j = data.draw(st.integers(0, len(lines) - 1))
        lines.insert(j, lines.pop(i) if data.draw(st.booleans()) else lines[i])
    deliver(folder, "".join(lines).encode())


@each_format
@settings(max_examples=30)
@given(data=st.data())
def test_mixed_encodings(folder: Path, name: str, data: st.DataObject) -> None:
    lines = FORMATS[name]().splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines)))
    encodings = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]
    first, second = (data.draw(st.sampled_from(encodings)) for _ in range(2))
    raw = "".join(lines[:at]).encode(first) + "".join(lines[at:]).encode(second)
    deliver(folder, gzip.compress(raw) if data.draw(st.booleans()) else raw)


@each_format
@settings(max_examples=60)
@given(data=st.data())
def test_any_bytes_never_give_a_traceback(folder: Path, name: str, data: st.DataObject) -> None:
    raw = FORMATS[name]().encode()
    at = data.draw(st.integers(0, len(raw)))
    junk = data.draw(st.binary(max_size=60))
    path = folder / "log"
    path.write_bytes(raw[:at] + junk + raw[at + data.draw(st.integers(0, 60)) :])
    try:
        stream = open_stream(path, period_s=data.draw(st.sampled_from([None, 1.0])))
        count = sum(batch.t_s.size for batch in stream.batches())
    except FormatError:
        return
    assert stream.account().rows_read == count


@settings(max_examples=40)
@given(order=st.permutations(range(4)))
def test_columns_in_any_order(folder: Path, order: list[int]) -> None:
    rows = [line.split(", ") for line in smi(index=True, units=True).splitlines()]
    text = "\n".join(", ".join(row[i] for i in order) for row in rows) + "\n"
    assert deliver(folder, text.encode()) == TICKS * GPUS
