from pathlib import Path

import numpy as np
import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

BOX = """+-----------------------------------------------------------------------------+
| NVIDIA-SMI 530.41.03    Driver Version: 530.41.03    CUDA Version: 12.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
{gpus}+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|    0   N/A  N/A     16832      C   ...env/bin/python                 1370MiB |
+-----------------------------------------------------------------------------+
"""
GPU = """|   {index}  NVIDIA Made Up {name}   Off| 0000000{index}:01:00.0 Off |             N/A |
| N/A   61C    P0    {power} / {cap} |   1386MiB /  6144MiB |     {util}      Default |
|                               |                      |                  N/A |
"""


def gpu(
    index: int = 0, power: str = "22W", cap: str = " N/A", util: str = "7%", name: str = "L..."
) -> str:
    return GPU.format(index=index, power=power, cap=cap, util=util, name=name)


def table(second: int, *gpus: str) -> str:
    banner = f"Sat Jun 10 13:48:{second:02d} 2023       \n" if second >= 0 else ""
    return banner + BOX.format(gpus="".join(gpus))


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "smi.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_loop_of_tables_is_a_stream(tmp_path: Path) -> None:
    text = "".join(table(s, gpu(0), gpu(1, "150W", "300W", "100%")) for s in range(10))
    stream = open_stream(write(tmp_path, text))
    (batch,) = stream.batches()
    account = stream.account()
    assert account.format == "nvidia-smi table"
    assert [g.label for g in stream.gpus] == [":0", ":1"]
    assert set(batch.power_w[batch.gpu == 0]) == {22.0}
    assert np.isnan(batch.limit_w[batch.gpu == 0]).all()
    assert set(batch.limit_w[batch.gpu == 1]) == {300.0}
    assert set(batch.utilization_pct[batch.gpu == 1]) == {100.0}
    assert set(batch.temperature_c) == {61.0}
    assert account.period_s == 1.0
    assert account.rows_dropped == {}


def test_tables_of_one_second_are_spread_over_it(tmp_path: Path) -> None:
    text = "".join(table(s, gpu()) for s in range(5) for _ in range(4))
    stream = open_stream(write(tmp_path, text))
    (batch,) = stream.batches()
    assert np.diff(batch.t_s) == pytest.approx([0.25] * 19)
    account = stream.account()
    assert account.period_s == pytest.approx(0.25)
    assert "tables spread over the second that they share: 15" in account.notes


def test_a_table_cut_short_loses_only_its_cut_gpu(tmp_path: Path) -> None:
    text = table(0, gpu(0), gpu(1)) + table(1, gpu(0), gpu(1))
    cut = text[: text.rindex("|   1  NVIDIA") + 120]
    stream = open_stream(write(tmp_path, cut))
    (batch,) = stream.batches()
    assert batch.gpu.tolist() == [0, 1, 0]
    assert sum(stream.account().rows_dropped.values()) == 1


def test_faults_and_unknown_readings_are_no_numbers(tmp_path: Path) -> None:
    text = table(0, gpu(0, "ERR!", "300W", "ERR!")) + table(1, gpu(0, "N/A", "300W", "N/A"))
    text += table(2, gpu(0, "40W", "300W")) + table(3, gpu(0, "4#W", "300W"))
    stream = open_stream(write(tmp_path, text))
    (batch,) = stream.batches()
    np.testing.assert_array_equal(batch.power_w, [np.nan, np.nan, 40.0])
    assert stream.account().rows_dropped == {"GPU of a table without its readings": 1}
    assert any("fault" in note for note in stream.account().notes)


def test_tables_without_a_clock_need_a_period(tmp_path: Path) -> None:
    path = write(tmp_path, table(-1, gpu()) * 5)
    with pytest.raises(FormatError, match=r"tables without times.*--period"):
        open_stream(path)
    (batch,) = open_stream(path, period_s=2.0).batches()
    assert batch.t_s.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_second_writer_without_times_is_refused_unless_a_period_is_given(tmp_path: Path) -> None:
    csv = "index, name, memory.used [MiB], utilization.gpu [%]\n0, Other Card, 3 MiB, 0 %\n"
    path = write(tmp_path, (table(0, gpu()) + csv).encode() + bytes(4000))
    with pytest.raises(FormatError, match=r"two writers.*--period"):
        open_stream(path)
    stream = open_stream(path, period_s=1.0)
    (batch,) = stream.batches()
    assert batch.power_w.tolist() == [22.0]
    account = stream.account()
    assert account.is_relative
    assert account.rows_dropped == {"row of another writer": 2}
    assert any("two writers" in note for note in account.notes)


def test_two_devices_under_one_index_are_kept_apart(tmp_path: Path) -> None:
    text = table(0, gpu(0, name="A  ")) + table(1, gpu(0, "99W", name="B  "))
    stream = open_stream(write(tmp_path, text))
    (batch,) = stream.batches()
    assert batch.gpu.tolist() == [0, 1]
    assert any("two devices under index 0" in note for note in stream.account().notes)


def test_a_csv_with_power_below_a_table_is_read_as_csv(tmp_path: Path) -> None:
    csv = "timestamp, index, power.draw [W]\n" + "".join(
        f"2025/07/26 00:00:{i:02d}.000, 0, 50.00 W\n" for i in range(5)
    )
    stream = open_stream(write(tmp_path, table(0, gpu()) + csv))
    (batch,) = stream.batches()
    assert stream.account().format == "nvidia-smi csv"
    assert batch.power_w.tolist() == [50.0] * 5


def test_a_banner_with_a_zone_is_read(tmp_path: Path) -> None:
    text = table(0, gpu()).replace(" 2023", " UTC 2023") + table(1, gpu())
    (batch,) = open_stream(write(tmp_path, text)).batches()
    assert np.diff(batch.t_s).tolist() == [1.0]


def test_a_table_whose_time_is_damaged_is_not_given_the_last_one(tmp_path: Path) -> None:
    """A damaged banner put a table's readings into the second before."""
    text = table(0, gpu()) + table(1, gpu(0, "99W")).replace("Sat", "S#t") + table(2, gpu())
    stream = open_stream(write(tmp_path, text))
    (batch,) = stream.batches()
    assert batch.power_w.tolist() == [22.0, 22.0]
    dropped = {"GPU of a table whose time is missing or damaged": 1}
    assert stream.account().rows_dropped == dropped


def test_a_missing_second_line_is_not_taken_from_the_next_gpu(tmp_path: Path) -> None:
    """The readings of a GPU went to its neighbour when two lines had changed places."""
    lines = table(0, gpu(0), gpu(1, "99W")).splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if "NVIDIA Made Up" in line)
    del lines[first + 1 : first + 3]
    stream = open_stream(write(tmp_path, "".join(lines) + table(1, gpu(0))))
    (batch,) = stream.batches()
    assert batch.power_w.tolist() == [22.0]
    assert sum(stream.account().rows_dropped.values()) == 2


def test_a_time_is_not_lent_to_a_later_table(tmp_path: Path) -> None:
    """One table's box lost its line, the next its time: its watts came with the time before."""
    first = table(0, gpu(), gpu(1)).replace("| NVIDIA-SMI", "# NVIDIA-SMI")
    second = table(1, gpu(power="99W"), gpu(1, power="99W"))
    damaged = "#" + second[1:]
    stream = open_stream(write(tmp_path, table(5, gpu()) + first + damaged + table(7, gpu())))
    watts = np.concatenate([batch.power_w for batch in stream.batches()])
    assert 99.0 not in watts
    assert len(watts) == 2
