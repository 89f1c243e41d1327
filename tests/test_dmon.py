from pathlib import Path

import numpy as np
import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

HEAD = (
    "# gpu    pwr  gtemp     sm    mem   pclk     fb  tviol\n"
    "# Idx      W      C      %      %    MHz     MB   bool\n"
)


def row(gpu: int, watts: object, sm: object = 50, tviol: object = 0) -> str:
    return f"    {gpu}   {watts}     61     {sm}      3   1980    900   {tviol}\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "dmon.log"
    path.write_text(text)
    return path


def test_a_tick_ends_when_a_gpu_comes_again(tmp_path: Path) -> None:
    text = HEAD + "".join(row(gpu, 100 + gpu) for _ in range(30) for gpu in range(2))
    stream = open_stream(write(tmp_path, text), period_s=1.0)
    (batch,) = stream.batches()
    account = stream.account()
    assert batch.t_s[:4].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert set(batch.power_w[batch.gpu == 1]) == {101.0}
    assert batch.memory_used_bytes[0] == 900 * 1024.0**2
    assert account.format == "nvidia-smi dmon"
    assert account.is_relative
    assert account.period_s == 1.0
    assert account.num_ticks == 30


def test_headers_every_so_often_are_no_rows(tmp_path: Path) -> None:
    text = HEAD + row(0, 10) * 25 + HEAD + row(0, 11) * 25
    stream = open_stream(write(tmp_path, text), period_s=1.0)
    (batch,) = stream.batches()
    assert batch.t_s.size == 50
    assert "headers repeated: 1" in stream.account().notes
    assert stream.account().rows_dropped == {}


def test_unsupported_is_unknown_and_bad_rows_are_counted(tmp_path: Path) -> None:
    text = "hello\n" + HEAD + row(0, "-", "-") + row(0, 50) + "    0     1\n" + row(0, "x")
    text += row(0, "ERR!") + row(0, 12, tviol=1) + row(0, 99).rstrip("\n")
    stream = open_stream(write(tmp_path, text), period_s=1.0)
    (batch,) = stream.batches()
    np.testing.assert_array_equal(batch.power_w, [np.nan, 50.0, np.nan, 12.0])
    assert np.isnan(batch.utilization_pct[0])
    assert batch.throttled.tolist() == [0, 0, 0, 1]
    account = stream.account()
    assert account.rows_dropped == {
        "line before the header": 1,
        "wrong number of cells": 1,
        "a cell that is no reading": 1,
        "row cut short (no line end, or NUL bytes inside)": 1,
    }
    assert any("fault" in note for note in account.notes)


@pytest.mark.parametrize(
    ("head", "stamp", "is_relative"),
    [
        ("#Date       Time        gpu    pwr     sm\n", "20250726 00:00:{:02d}", False),
        ("#Time        gpu    pwr     sm\n", "00:00:{:02d}", True),
        ("#Date, Time, gpu, pwr, sm\n", "20250726, 00:00:{:02d},", False),
    ],
)
def test_times_are_read_where_they_are_printed(
    tmp_path: Path, head: str, stamp: str, is_relative: bool
) -> None:
    rows = "".join(
        f" {stamp.format(i)}   0   50   7\n".replace(",   0   50", ", 0, 50,") for i in range(9)
    )
    stream = open_stream(write(tmp_path, head + rows))
    (batch,) = stream.batches()
    assert np.diff(batch.t_s).tolist() == [1.0] * 8
    assert stream.account().is_relative is is_relative


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + row(0, 5), "no timestamps.*--period"),
        ("# gpu sm mem\n# Idx % %\n 0 5 5\n", "no power column"),
    ],
)
def test_without_times_or_power_it_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        open_stream(write(tmp_path, text))


def test_no_utilization_is_said(tmp_path: Path) -> None:
    text = "# gpu pwr gtemp\n# Idx W C\n" + " 0 5 30\n" * 3
    stream = open_stream(write(tmp_path, text), period_s=1.0)
    list(stream.batches())
    assert "the file has no utilization" in stream.account().notes
