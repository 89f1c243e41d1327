import math

import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

METRIC = "gpu,gfx_activity,umc_activity,current_socket_power,average_socket_power,hotspot,used_vram"
TORN = "row cut short (no line end, or NUL bytes inside)"


def read(tmp_path, text, **options):
    path = tmp_path / "amd.csv"
    path.write_text(text)
    stream = open_stream(path, **options)
    (batch,) = stream.batches()
    return stream, batch, stream.account()


def nans(values):
    return [math.isnan(value) for value in values]


def test_mi300_has_a_current_power_and_one_shot_is_one_tick(tmp_path):
    text = f"{METRIC}\n0,97,40,698,N/A,71,183000\n1,0,0,132,N/A,41,283\n"
    stream, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [698.0, 132.0]
    assert batch.utilization_pct.tolist() == [97.0, 0.0]
    assert batch.temperature_c.tolist() == [71.0, 41.0]
    assert batch.memory_used_bytes[1] == 283.0 * 1024**2
    assert [gpu.label for gpu in stream.gpus] == [":0", ":1"]
    assert (account.num_ticks, account.period_s, account.is_relative) == (1, None, True)
    assert (account.power_kind, account.columns["power"]) == ("instant", "current_socket_power")
    assert account.format == "amd-smi csv"


def test_mi200_has_an_average_power(tmp_path):
    text = f"{METRIC}\n0,97,40,N/A,305,71,100\n2,0,0,N/A,92,41,100\n"
    _, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [305.0, 92.0]
    assert (account.power_kind, account.columns["power"]) == ("average", "average_socket_power")
    assert account.absent == {}


def test_two_kinds_are_never_mixed(tmp_path):
    text = f"{METRIC}\n0,97,40,698,N/A,71,100\n1,97,40,N/A,300,71,100\n"
    _, batch, account = read(tmp_path, text)
    assert batch.power_w[0] == 698.0
    assert math.isnan(batch.power_w[1])
    assert "power of another kind than the first reading's, left out: 1" in account.notes
    assert account.absent == {":1": "power of another kind than the first reading's, left out"}


def test_second_dies_are_shared_and_neither_missing_nor_0(tmp_path):
    rows = [f"{i},90,10,N/A,{'N/A' if i % 2 else 230 + i},60,100" for i in range(4)]
    _, batch, account = read(tmp_path, "\n".join([METRIC, *rows]) + "\n")
    assert nans(batch.power_w) == [False, True, False, True]
    assert account.absent == {":1": "shared", ":3": "shared"}
    assert any("second dies" in note for note in account.notes)


def test_a_gpu_without_power_beside_one_with_it_is_not_called_shared(tmp_path):
    rows = [f"{i},90,10,{'N/A' if i == 2 else 230 + i},N/A,60,100" for i in range(4)]
    _, _, account = read(tmp_path, "\n".join([METRIC, *rows]) + "\n")
    assert account.absent == {":2": "no power reading in the file"}


def test_0_w_is_missing(tmp_path):
    _, batch, account = read(tmp_path, f"{METRIC}\n0,9,4,698,N/A,71,1\n1,9,4,0,N/A,71,1\n")
    assert nans(batch.power_w) == [False, True]
    assert "power readings of 0 W, taken as missing: 1" in account.notes


def test_monitor_with_a_watch_has_times_partitions_and_the_cap(tmp_path):
    text = (
        "timestamp,gpu,xcp,power_usage,max_power,hotspot_temperature,gfx_clk,gfx\n"
        "1755000000,0,0,250,750,60,2100,99\n"
        "1755000000,0,1,N/A,N/A,60,2100,99\n"
        "1755000002,0,0,251,750,60,2100,99\n"
        "1755000002,0,1,N/A,N/A,60,2100,99\n"
    )
    stream, batch, account = read(tmp_path, text)
    assert len(stream.gpus) == 1
    assert batch.power_w.tolist() == [250.0, 251.0]
    assert batch.limit_w.tolist() == [750.0, 750.0]
    assert batch.sm_clock_mhz.tolist() == [2100.0, 2100.0]
    assert account.period_s == 2.0
    assert sum(account.rows_dropped.values()) == 2


def test_units_in_the_cells_are_read(tmp_path):
    text = f"{METRIC}\n0,97 %,40 %,698 W,N/A,71 C,2048 MB\n"
    _, batch, _ = read(tmp_path, text)
    assert (batch.power_w[0], batch.utilization_pct[0]) == (698.0, 97.0)
    assert batch.memory_used_bytes[0] == 2048.0 * 1024**2


def test_several_shots_without_times_need_a_period(tmp_path):
    shot = f"{METRIC}\n0,97,40,698,N/A,71,100\n1,0,0,132,N/A,41,100\n"
    with pytest.raises(FormatError, match="--period"):
        read(tmp_path, shot * 3)
    _, batch, account = read(tmp_path, shot * 3, period_s=2.0)
    assert batch.t_s.tolist() == [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]
    assert "headers repeated (restarts, or a header each time): 2" in account.notes


def test_gpus_side_by_side_behind_one_time(tmp_path):
    one = "gpu,socket_power,gfx_0_clk"
    text = f"Timestamp,{one},{one},\n"
    text += "".join(f"{1755000000 + i},0,{300 + i},2100,1,{400 + i},2000\n" for i in range(3))
    stream, batch, account = read(tmp_path, text)
    assert [gpu.index for gpu in stream.gpus] == [0, 1]
    assert batch.power_w.tolist() == [300.0, 400.0, 301.0, 401.0, 302.0, 402.0]
    assert account.period_s == 1.0


def test_csv_of_rocm_smi_says_itself_which_die_is_second(tmp_path):
    text = (
        "device,Average Graphics Package Power (W),GPU use (%),VRAM Total Used Memory (B)\n"
        "card0,237.0,99,1000\ncard1,N/A (Secondary die),99,1000\n"
    )
    stream, batch, account = read(tmp_path, text)
    assert [gpu.index for gpu in stream.gpus] == [0, 1]
    assert batch.power_w[0] == 237.0
    assert batch.memory_used_bytes[0] == 1000.0
    assert account.absent == {":1": "shared"}


def test_hosts_are_told_apart(tmp_path):
    text = "host,gpu,socket_power,gfx_activity\na,0,300,9\nb,0,301,9\n"
    stream, _, account = read(tmp_path, text)
    assert [gpu.label for gpu in stream.gpus] == ["a:0", "b:0"]
    assert account.num_ticks == 1


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    head = "timestamp,gpu,socket_power,gfx_activity"
    text = (
        f"some prose\n{head}\n1755000000,0,300,9\n1755000001,0,3OO,9\n1755000002,zero,300,9\n"
        "then,0,300,9\n1755000003,0,300\n1755000003,0,300,9,9\n1755000004,0,30"
    )
    _, batch, account = read(tmp_path, text)
    assert nans(batch.power_w) == [False, True]
    assert account.rows_dropped == {
        "line before the header": 1,
        "a cell that is no reading": 2,
        "wrong number of cells": 2,
        TORN: 1,
    }
    assert "unreadable readings, left out: 1" in account.notes


def test_calendar_times_without_a_zone_are_noted(tmp_path):
    text = "timestamp,gpu,socket_power,gfx_activity\n2025-08-12 12:00:00,0,300,x\n"
    _, batch, account = read(tmp_path, text)
    assert math.isnan(batch.utilization_pct[0])
    assert "times carry no zone and are read as UTC" in account.notes


def test_a_file_without_power_is_refused(tmp_path):
    with pytest.raises(FormatError, match="no power column"):
        read(tmp_path, "gpu,gfx_activity,umc_activity\n0,97,40\n")


def test_another_file_named_so_is_refused(tmp_path):
    with pytest.raises(FormatError, match="no header of amd-smi"):
        read(tmp_path, "a,b\n1,2\n", format="amd-smi csv")
