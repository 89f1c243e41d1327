import math

import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

T0 = 1655909460.0
POWER, UTIL, MEMORY = "power_usage (W)", "gpu_utilization (%)", "memory_used (MiB)"
GPUS = ("cuda:0 (gpu:3)", "cuda:1 (gpu:1)")


def header(stats, gpus=GPUS, tag="metrics-daemon", metrics=(POWER, UTIL, MEMORY)):
    names = [f"{tag}/host/cpu_percent (%)/mean"]
    names += [
        f"{tag}/{gpu}/{metric}/{stat}" for gpu in gpus for metric in metrics for stat in stats
    ]
    names += [f"{tag}/pid:7/{gpus[0]}/gpu_memory (MiB)/mean"]
    return [*names, f"{tag}/duration (s)", f"{tag}/timestamp"]


def table(names, rows):
    return "\n".join(",".join(map(str, row)) for row in (names, *rows)) + "\n"


def read(tmp_path, text, **options):
    path = tmp_path / "results.csv"
    path.write_text(text)
    stream = open_stream(path, **options)
    (batch,) = stream.batches()
    return stream, batch, stream.account()


def one_gpu(rows, tag="resources"):
    """A file of one GPU with means only; ``rows`` is (time, duration, mean watts, mean util)."""
    names = [f"{tag}/gpu:0/{POWER}/mean", f"{tag}/gpu:0/{UTIL}/mean", f"{tag}/duration (s)"]
    return table([*names, f"{tag}/timestamp"], [(p, u, d, t) for t, d, p, u in rows])


def test_the_newest_sample_is_read_where_it_is_given(tmp_path):
    stats = ("mean", "min", "max", "last")
    rows = []
    for i in range(3):
        cells = [5.0]
        for gpu in (0, 1):
            for base in (300.0 + 10 * gpu, 90.0 + gpu, 1024.0):
                cells += [base - 1, base - 2, base + 2, base + i]
        rows.append([*cells, 12.0, 5.0 * (i + 1), T0 + 5.0 * i])
    stream, batch, account = read(tmp_path, table(header(stats), rows))
    assert [gpu.index for gpu in stream.gpus] == [3, 1]
    assert batch.power_w.tolist() == [300.0, 310.0, 301.0, 311.0, 302.0, 312.0]
    assert batch.utilization_pct[:2].tolist() == [90.0, 91.0]
    assert batch.memory_used_bytes[0] == 1024.0 * 1024**2
    assert (account.period_s, account.power_kind) == (5.0, "unknown")
    assert account.format == "nvitop csv"


def test_running_means_are_taken_apart_into_averages_between_rows(tmp_path):
    """nvitop's mean covers all the time since its start, so a hang at the end hardly moves it."""
    watts = [700.0, 700.0, 100.0, 100.0]
    rows, energy = [], 0.0
    for i, power in enumerate(watts, start=1):
        energy += power * 5.0
        rows.append((T0 + 5.0 * i, 5.0 * i, energy / (5.0 * i), 50.0))
    _, batch, account = read(tmp_path, one_gpu(rows))
    assert batch.power_w == pytest.approx([700.0, 100.0, 100.0])
    assert batch.utilization_pct == pytest.approx([50.0, 50.0, 50.0])
    assert account.power_kind == "average"
    assert account.rows_dropped == {"row whose means cover a time that is not known": 1}
    assert any("worked out" in note for note in account.notes)


def test_means_that_are_reset_at_every_row_are_taken_as_they_are(tmp_path):
    rows = [(T0 + 5.0 * i, 5.0 + 0.001 * i, 300.0 + i, 50.0) for i in range(4)]
    _, batch, _ = read(tmp_path, one_gpu(rows))
    assert batch.power_w.tolist() == [301.0, 302.0, 303.0]


def test_a_mean_over_an_unknown_time_is_dropped(tmp_path):
    rows = [(T0, 5.0, 300.0, 50.0), (T0 + 5.0, 10.0, 300.0, 50.0), (T0 + 10.0, 60.0, 300.0, 50.0)]
    _, batch, account = read(tmp_path, one_gpu(rows))
    assert batch.power_w.tolist() == [300.0]
    assert account.rows_dropped == {"row whose means cover a time that is not known": 2}


def test_what_cannot_come_out_of_means_is_missing_and_counted(tmp_path):
    rows = [(T0, 5.0, 300.0, 50.0), (T0 + 5.0, 10.0, 100.0, 90.0), (T0 + 10.0, 15.0, 300.0, 50.0)]
    _, batch, account = read(tmp_path, one_gpu(rows))
    assert math.isnan(batch.power_w[0])
    assert "readings worked out from means that cannot be, left out: 3" in account.notes


def test_a_file_with_one_row_of_means_is_refused(tmp_path):
    with pytest.raises(FormatError, match="no usable row"):
        read(tmp_path, one_gpu([(T0, 500.0, 300.0, 50.0)]))


def test_means_without_a_duration_are_refused(tmp_path):
    text = table([f"t/gpu:0/{POWER}/mean", "t/timestamp"], [(300.0, T0)])
    with pytest.raises(FormatError, match="nobody knows over what time"):
        read(tmp_path, text)


def test_a_column_of_calendar_times_serves_too(tmp_path):
    names = ["time", f"t/gpu:0/{POWER}/last"]
    rows = [(f"2022-06-22 14:51:0{i}.998188", 300.0 + i) for i in range(3)]
    _, batch, account = read(tmp_path, table(names, rows))
    assert batch.power_w.tolist() == [300.0, 301.0, 302.0]
    assert account.period_s == 1.0
    assert "times carry no zone and are read as UTC" in account.notes


def test_the_duration_serves_as_time_where_there_is_no_other(tmp_path):
    names = [f"t/gpu:0/{POWER}/last", "t/duration (s)"]
    _, batch, account = read(tmp_path, table(names, [(300.0, 5.0), (301.0, 10.0)]))
    assert batch.t_s.tolist() == [5.0, 10.0]
    assert account.is_relative


def test_no_time_at_all_needs_a_period(tmp_path):
    text = table([f"t/gpu:0/{POWER}/last", "x"], [(300.0, 1), (301.0, 2)])
    with pytest.raises(FormatError, match="--period"):
        read(tmp_path, text)
    _, batch, _ = read(tmp_path, text, period_s=2.0)
    assert batch.t_s.tolist() == [0.0, 2.0]


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    names = [f"t/gpu:0/{POWER}/last", "t/duration (s)", "t/timestamp"]
    good = table(names, [(300.0, 5.0, T0), (301.0, 10.0, T0 + 5)])
    bad = "302,15\n" + f"3O3,20,{T0 + 15}\n" + f"304,-1,{T0 + 20}\n" + f"304,x,{T0 + 20}\n"
    text = "prose\n" + good + bad + ",".join(names) + f"\n,25,{T0 + 25}\n305,30,{T0 + 30}"
    _, batch, account = read(tmp_path, text)
    assert batch.power_w[:2].tolist() == [300.0, 301.0]
    assert math.isnan(batch.power_w[2])
    assert batch.power_w.size == 3
    assert account.rows_dropped == {
        "line before the header": 1,
        "wrong number of cells": 1,
        "a cell that is no reading": 3,
        "row cut short (no line end, or NUL bytes inside)": 1,
    }
    assert "headers repeated (restarts): 1" in account.notes


def test_a_header_without_power_is_refused(tmp_path):
    text = table([f"t/gpu:0/{UTIL}/mean", "t/timestamp"], [(50.0, T0)])
    with pytest.raises(FormatError, match="no column"):
        read(tmp_path, text)


def test_a_quote_over_a_digit_never_leaves_a_smaller_number(tmp_path):
    """A quote that was never closed was taken off, so 305.5 with one over its 3 read as 5.5."""
    names = ["t/timestamp", f"t/gpu:0/{POWER}/last"]
    text = table(names, [(T0, 300.0), (T0 + 5, '"05.5')])
    _, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [300.0]
    assert account.rows_dropped == {"wrong number of cells": 1}
