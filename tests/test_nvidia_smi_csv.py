import gzip
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import FormatError
from harness.formats import fastcells
from harness.formats.recipe import RECIPE
from harness.formats.sniff import open_stream
from harness.samples import Account, GpuId, PowerKind, SampleBatch

HEADER = "timestamp, index, power.draw [W], utilization.gpu [%], memory.used [MiB]"
MIB = 1024.0**2


def clock(ms: int) -> str:
    seconds, ms = divmod(ms, 1000)
    return f"2025/07/26 {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}"


def watts(tick: int, gpu: int) -> float:
    return 100.0 + tick * 0.5 + gpu * 0.01


def log(ticks: int, gpus: int, *, index: bool = True, header: bool = True) -> str:
    lines = [HEADER if index else HEADER.replace(" index,", "")] if header else []
    for tick in range(ticks):
        for gpu in range(gpus):
            cells = [clock(tick * 100 + gpu // 4), *([str(gpu)] if index else [])]
            cells += [f"{watts(tick, gpu):.2f} W", f"{90 + gpu} %", f"{41000 + gpu} MiB"]
            lines.append(", ".join(cells))
    return "\n".join(lines) + "\n"


def read(
    path: Path, text: str | bytes, **options: object
) -> tuple[SampleBatch, Account, list[GpuId]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    stream = open_stream(path, **options)  # type: ignore[arg-type]
    batches = list(stream.batches())
    names = [field.name for field in fields(SampleBatch) if field.name != "label"]
    columns = {name: np.concatenate([getattr(b, name) for b in batches]) for name in names}
    labels = [b.label if b.label is not None else np.full(b.t_s.size, None) for b in batches]
    whole = SampleBatch(**columns, label=np.concatenate(labels))
    return whole, stream.account(), list(stream.gpus)


def test_a_plain_log_is_read_to_the_last_figure(tmp_path: Path) -> None:
    batch, account, gpus = read(tmp_path / "a.csv", log(50, 8))
    assert account.format == "nvidia-smi csv"
    assert "nvidia-smi --query-gpu" in account.why
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert batch.power_w.tolist() == [round(watts(t, g), 2) for t in range(50) for g in range(8)]
    assert batch.utilization_pct.tolist() == [90.0 + g for t in range(50) for g in range(8)]
    assert batch.memory_used_bytes.tolist() == [
        (41000 + g) * MIB for t in range(50) for g in range(8)
    ]
    assert account.rows_read == 400
    assert account.rows_dropped == {}
    assert account.period_s == pytest.approx(0.1)
    assert account.num_ticks == 50
    assert not account.is_relative
    assert "times carry no zone and are read as UTC" in account.notes
    assert account.columns["power"] == "power.draw [W]"


@pytest.mark.parametrize("header", [True, False])
def test_without_an_index_the_place_in_the_tick_names_the_gpu(tmp_path: Path, header: bool) -> None:
    text = log(50, 8, index=False, header=header)
    batch, account, gpus = read(tmp_path / "a.csv", text)
    assert len(gpus) == 8
    assert batch.gpu.tolist() == list(range(8)) * 50
    assert batch.power_w[8:16].tolist() == [round(watts(1, g), 2) for g in range(8)]
    assert account.columns["gpu"] == "position within a tick of 8 rows"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
        lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
        lambda text: gzip.compress(text.encode()),
        lambda text: text.replace(" W", "").replace(" %", "").replace(" MiB", "").encode(),
        lambda text: text.replace(", ", ",").encode(),
        lambda text: text.replace(", ", ";").replace(".5", ",5").replace(".0", ",0").encode(),
        lambda text: ("Sat Jul 26\nsampling every 0.1 s, all GPUs\n" + text).encode(),
    ],
)
@pytest.mark.parametrize("part", [65536, 300])
def test_shapes_of_one_log_give_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object, part: int
) -> None:
    monkeypatch.setattr("harness.formats.delimited.PART_BYTES", part)
    text = log(20, 4)
    plain, _, _ = read(tmp_path / "a.csv", text)
    other, _, _ = read(tmp_path / "b.csv", change(text))  # type: ignore[operator]
    assert other.t_s.tolist() == plain.t_s.tolist()
    assert other.power_w.tolist() == plain.power_w.tolist()
    assert other.memory_used_bytes.tolist() == plain.memory_used_bytes.tolist()


def test_a_restart_appended_is_a_repeated_header_and_a_gap(tmp_path: Path) -> None:
    second = log(20, 2).replace("00:00:0", "00:09:0")
    _, account, _ = read(tmp_path / "a.csv", log(20, 2) + second)
    assert account.rows_read == 80
    assert any("headers repeated" in note and note.endswith(": 1") for note in account.notes)
    assert len(account.gaps) == 1
    assert account.gaps[0].end_s - account.gaps[0].start_s > 500


def test_two_writers_under_one_index_are_kept_apart(tmp_path: Path) -> None:
    rows = ["timestamp, name, index, power.draw [W]"] * 2
    for tick in range(20):
        rows.append(f"{clock(tick * 1000)}, Tesla V100-SXM2-32GB, 0, 50.00 W")
        rows.append(f"{clock(tick * 1000 + 3)}, Tesla V100-PCIE-32GB, 0, 30.00 W")
    batch, account, gpus = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert [gpu.name for gpu in gpus] == ["Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB"]
    assert set(batch.power_w[batch.gpu == 0]) == {50.0}
    assert set(batch.power_w[batch.gpu == 1]) == {30.0}
    assert account.rows_dropped == {"a known GPU under another name": 2}
    assert any("two devices under one index" in note for note in account.notes)


def test_a_damaged_name_makes_no_new_gpu(tmp_path: Path) -> None:
    rows = ["timestamp, name, index, power.draw [W]"]
    rows += [f"{clock(tick * 1000)}, NVIDIA H100, 0, 50.00 W" for tick in range(20)]
    rows[7] = rows[7].replace("H100", "H1#0")
    _, account, gpus = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert len(gpus) == 1
    assert account.rows_dropped == {"a known GPU under another name": 1}


def test_missing_is_unknown_and_a_fault_is_noted(tmp_path: Path) -> None:
    rows = ["timestamp, index, power.draw [W], enforced.power.limit [W], utilization.gpu [%]"]
    cells = [
        "50.00 W, [N/A], 10 %",
        "[N/A], [N/A], [Not Supported]",
        "ERR!, [N/A], [Unknown Error]",
    ]
    rows += [f"{clock(i * 1000)}, 0, {cell}" for i, cell in enumerate(cells)]
    batch, account, _ = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert batch.power_w[0] == 50.0
    assert np.isnan(batch.power_w[1:]).all()
    assert np.isnan(batch.limit_w).all()
    assert account.rows_dropped == {}
    assert "readings that are a fault (ERR!, GPU requires reset): 1" in account.notes


@pytest.mark.parametrize(
    ("names", "kind", "value"),
    [
        ("power.draw [W], power.draw.average [W], power.draw.instant [W]", PowerKind.AVERAGE, 2.0),
        ("power.draw [W], power.draw.instant [W], pstate", PowerKind.UNKNOWN, 1.0),
        ("power.draw.instant [W], pstate, fan.speed [%]", PowerKind.INSTANT, 1.0),
    ],
)
def test_which_power_is_read_is_said(
    tmp_path: Path, names: str, kind: PowerKind, value: float
) -> None:
    rows = [f"timestamp, index, {names}"]
    rows += [f"{clock(i * 1000)}, 0, 1.00 W, 2.00 W, 3.00 W" for i in range(5)]
    batch, account, _ = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert account.power_kind is kind
    assert set(batch.power_w) == {value}


def test_an_average_that_the_card_does_not_have_is_not_chosen(tmp_path: Path) -> None:
    rows = ["timestamp, index, power.draw.average [W], power.draw [W]"]
    rows += [f"{clock(i * 1000)}, 0, [N/A], 2.00 W" for i in range(5)]
    batch, account, _ = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert set(batch.power_w) == {2.0}
    assert account.power_kind is PowerKind.UNKNOWN


def test_milliwatts_and_throttling(tmp_path: Path) -> None:
    rows = ["timestamp, index, power.draw [mW], clocks_event_reasons.active, clocks.sm [MHz]"]
    masks = ["0x0000000000000001", "0x0000000000000008", "[N/A]"]
    rows += [f"{clock(i * 1000)}, 0, 50000, {mask}, 1980 MHz" for i, mask in enumerate(masks)]
    batch, _, _ = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert set(batch.power_w) == {50.0}
    assert batch.throttled.tolist() == [0, 1, -1]
    assert set(batch.sm_clock_mhz) == {1980.0}


def test_single_flags_of_throttling_are_joined(tmp_path: Path) -> None:
    names = "clocks_throttle_reasons.hw_slowdown, clocks_throttle_reasons.sw_thermal_slowdown"
    rows = [f"timestamp, index, power.draw [W], {names}"]
    flags = ["Not Active, Not Active", "Not Active, Active"]
    rows += [f"{clock(i * 1000)}, 0, 50.00 W, {flag}" for i, flag in enumerate(flags)]
    batch, _, _ = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert batch.throttled.tolist() == [0, 1]


def test_a_bogus_constant_index_gives_way_to_the_place(tmp_path: Path) -> None:
    rows = ["timestamp, index, power.draw [W]"]
    rows += [f"{clock(t * 100)}, 0, {50 + g}.00 W" for t in range(40) for g in range(4)]
    batch, account, gpus = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert len(gpus) == 4
    assert set(batch.power_w[batch.gpu == 2]) == {52.0}
    assert any("the same in every row" in note for note in account.notes)


def test_the_uuid_keeps_its_index(tmp_path: Path) -> None:
    rows = ["timestamp, uuid, index, power.draw [W]"]
    rows += [f"{clock(t * 100)}, GPU-0{g}abcdef, {g}, 9.00 W" for t in range(9) for g in range(2)]
    _, _, gpus = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert [(gpu.index, gpu.uuid) for gpu in gpus] == [(0, "GPU-00abcdef"), (1, "GPU-01abcdef")]


def test_a_header_with_other_columns_takes_over(tmp_path: Path) -> None:
    other = "timestamp, index, utilization.gpu [%], power.draw [W]\n"
    other += "".join(f"{clock(60000 + t * 100)}, 0, 7 %, 77.00 W\n" for t in range(5))
    third = "timestamp, index, utilization.gpu [%]\n" + f"{clock(90000)}, 0, 7 %\n"
    batch, account, _ = read(tmp_path / "a.csv", log(5, 1) + other + third)
    assert batch.power_w[-5:].tolist() == [77.0] * 5
    assert account.rows_dropped == {"row of a table without power": 1}
    assert "headers with other columns: 2" in account.notes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("timestamp, utilization.gpu [%]\n2025/07/26 23:55:20.045, 3 %\n", "no power column"),
        ("index, power.draw [W]\n0, 50.00 W\n", "--period"),
        ("timestamp, index, power.draw [W]\n", "no usable row"),
        (
            "timestamp, index, power.draw [W]\n2025/07/26 23:55:20.045, 0, [N/A]\n",
            "no row has a power reading",
        ),
        ("power.draw [W], utilization.gpu [%]\n50.00 W, 3 %\n", "--period"),
        ("hello\nworld\n", "no known telemetry format"),
    ],
)
def test_what_cannot_be_triaged_is_refused_with_the_recipe(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(FormatError, match=why) as caught:
        read(tmp_path / "a.csv", text)
    assert RECIPE in str(caught.value)


def test_rows_without_time_or_index_are_refused_even_with_a_period(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="neither times nor GPU indices"):
        read(tmp_path / "a.csv", "power.draw [W], utilization.gpu [%]\n5.0 W, 3 %\n", period_s=1.0)


def test_a_period_stands_in_for_times(tmp_path: Path) -> None:
    text = "index, power.draw [W]\n" + "".join(f"{i % 2}, {i}.00 W\n" for i in range(8))
    batch, account, _ = read(tmp_path / "a.csv", text, period_s=2.0)
    assert batch.t_s.tolist() == [0.0, 0.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0]
    assert account.is_relative
    assert account.period_s == 2.0


def test_headerless_rows_tell_limit_and_total_by_size(tmp_path: Path) -> None:
    rows = [
        f"{clock(t * 1000)}, {g}, GPU-0{g}abcdef, NVIDIA H100, 700.00 W, {100 + t}.00 W,"
        f" 7 %, 81559 MiB, 900 MiB, P0"
        for t in range(5)
        for g in range(2)
    ]
    batch, _, gpus = read(tmp_path / "a.csv", "\n".join(rows) + "\n")
    assert batch.power_w[:2].tolist() == [100.0, 100.0]
    assert set(batch.limit_w) == {700.0}
    assert set(batch.memory_used_bytes) == {900 * MIB}
    assert [(gpu.index, gpu.name) for gpu in gpus] == [(0, "NVIDIA H100"), (1, "NVIDIA H100")]


MESS = (
    "2025/07/26 00:00:00.050, 0, [N/A], 5 %, 10 MiB",
    "2025/07/26 00:00:00.150, 0, 50 W, N/A, 10 MiB",
    "2025/07/26 00:00:00.150, 9, 50.5 W, 7 %, 10 MiB",
    "2025/07/26 00:00:00.250, 1, 1_0 W, 5 %, 10 MiB",
    "2025/07/26 00:00:00.250, 1, ERR!, 5 %, 10 MiB",
    "2025/07/26 00:00:00.350, 1, 60.125 W",
    "2025/07/27 00:00:00.350, 1, 60.125 W, 5 %, 10 GiB",
    "2025/07/26T00:00:00.350Z, 1, 60.125, 5, 10",
    ' 2025/07/26 00:00:00.350,1,"60,125 W", 5 %, 10 MiB',
    "2025/02/30 00:00:00.350, 1, 60.125 W, 5 %, 10 MiB",
    "2025/07/26 00:00:00, 1, .5 W, 5. %, 10 MiB",
    HEADER,
    "",
    "Unable to determine the device handle",
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from(MESS)), max_size=8), st.booleans())
def test_the_fast_path_equals_the_careful_one(
    tmp_path_factory: pytest.TempPathFactory, mess: list[tuple[int, str]], index: bool
) -> None:
    folder = tmp_path_factory.mktemp("paths")
    lines = log(15, 4, index=index).splitlines()
    for at, line in mess:
        lines.insert(at, line if index else line.replace(" 1,", "").replace(" 0,", ""))
    text = "\n".join(lines) + "\n"
    results = []
    for is_fast in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("harness.formats.delimited.PART_BYTES", 200)
            if not is_fast:
                patch.setattr(fastcells, "cut", lambda *_: None)
            try:
                results.append(read(folder / "a.csv", text))
            except FormatError as error:
                results.append(str(error))
    fast, careful = results
    if isinstance(fast, str) or isinstance(careful, str):
        assert fast == careful
        return
    for name in (field.name for field in fields(SampleBatch)):
        np.testing.assert_array_equal(
            getattr(fast[0], name), getattr(careful[0], name), err_msg=name
        )
    assert fast[1:] == careful[1:]
