import math

import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

BANNER = "=" * 28 + " ROCm System Management Interface " + "=" * 28 + "\n"
SECTION = "=" * 35 + " Power Consumption " + "=" * 36 + "\n"
AVERAGE = "Average Graphics Package Power (W)"
CURRENT = "Current Socket Graphics Package Power (W)"
SECOND = "N/A (Secondary die)"
FOOT = (
    "\n\t\tPrimary die (usually one above or below the secondary) shows total (primary +"
    " secondary) socket power information\n" + "=" * 52 + "\n"
)


def shot(watts, name=AVERAGE, more=""):
    lines = "".join(f"GPU[{i}]\t\t: {name}: {w}\n" for i, w in enumerate(watts))
    return BANNER + SECTION + lines + more + FOOT


def read(tmp_path, text, **options):
    path = tmp_path / "rocm.txt"
    path.write_text(text)
    stream = open_stream(path, **options)
    (batch,) = stream.batches()
    return stream, batch, stream.account()


def test_second_dies_are_shared_and_neither_missing_nor_0(tmp_path):
    stream, batch, account = read(tmp_path, shot([237.0, SECOND, 230.0, SECOND]))
    assert [gpu.index for gpu in stream.gpus] == [0, 1, 2, 3]
    assert batch.power_w[[0, 2]].tolist() == [237.0, 230.0]
    assert math.isnan(batch.power_w[1])
    assert account.absent == {":1": "shared", ":3": "shared"}
    assert (account.num_ticks, account.period_s, account.is_relative) == (1, None, True)
    assert (account.power_kind, account.format) == ("average", "rocm-smi text")
    assert account.rows_dropped == {}


def test_mi300_has_a_current_power_and_other_metrics(tmp_path):
    more = (
        "GPU[0]\t\t: GPU use (%): 97\n"
        "GPU[0]\t\t: Temperature (Sensor junction) (C): 71.0\n"
        "GPU[0]\t\t: Temperature (Sensor edge) (C): N/A\n"
        "GPU[0]\t\t: VRAM Total Used Memory (B): 297771008\n"
        "GPU[0]\t\t: Max Graphics Package Power (W): 750.0\n"
        "GPU[0]\t\t: sclk clock level: 1: (2100Mhz)\n"
        "GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X OAM\n"
        "GPU[0]\t\t: Supported fclk frequencies on GPU0\n"
    )
    stream, batch, account = read(tmp_path, shot([152.0], CURRENT, more))
    assert stream.gpus[0].name == "AMD Instinct MI300X OAM"
    assert (batch.power_w[0], batch.limit_w[0]) == (152.0, 750.0)
    assert (batch.utilization_pct[0], batch.temperature_c[0]) == (97.0, 71.0)
    assert (batch.memory_used_bytes[0], batch.sm_clock_mhz[0]) == (297771008.0, 2100.0)
    assert account.power_kind == "instant"


def test_a_gpu_that_cannot_be_read_keeps_the_reason(tmp_path):
    error = "Unable to get Average Graphics Package Power Consumption"
    _, batch, account = read(tmp_path, shot([237.0], more=f"ERROR: GPU[1]\t: {error}\n"))
    assert batch.power_w.size == 2
    assert account.absent == {":1": error}


def test_0_w_is_missing(tmp_path):
    _, batch, account = read(tmp_path, shot([237.0, 0.0]))
    assert math.isnan(batch.power_w[1])
    assert account.absent == {":1": "no power reading in the file"}


def test_several_shots_need_a_period(tmp_path):
    text = shot([237.0, 230.0]) + shot([238.0, 231.0])
    with pytest.raises(FormatError, match="--period"):
        read(tmp_path, text)
    _, batch, account = read(tmp_path, text, period_s=10.0)
    assert batch.t_s.tolist() == [0.0, 0.0, 10.0, 10.0]
    assert batch.power_w.tolist() == [237.0, 230.0, 238.0, 231.0]
    assert account.is_relative


def test_shots_without_a_banner_are_told_apart_by_what_repeats(tmp_path):
    lines = "".join(f"GPU[{i}] : {AVERAGE}: {w + i}.0\n" for w in (100, 200) for i in (0, 1))
    _, batch, _ = read(tmp_path, lines, period_s=1.0)
    assert batch.power_w.tolist() == [100.0, 101.0, 200.0, 201.0]


@pytest.mark.parametrize(
    ("dates", "step_s"),
    [
        (("Tue Dec  2 01:13:32 UTC 2025", "Tue Dec  2 01:13:42 UTC 2025"), 10.0),
        (("2025-12-02T01:13:32+01:00", "2025-12-02T01:13:34+01:00"), 2.0),
        (("1764637912", "1764637917"), 5.0),
    ],
)
def test_a_date_before_a_shot_is_its_time(tmp_path, dates, step_s):
    text = f"{dates[0]}\n{shot([237.0])}{dates[1]}\n{shot([238.0])}"
    _, batch, account = read(tmp_path, text)
    assert batch.t_s[1] - batch.t_s[0] == step_s
    assert not account.is_relative
    assert account.period_s == step_s
    assert any("zone" in note for note in account.notes) == dates[0].startswith("Tue")


def test_a_shot_without_the_time_that_others_have_is_dropped(tmp_path):
    text = f"1764637912\n{shot([237.0])}{shot([238.0])}2025-99-99 01:02:03\n"
    _, batch, account = read(tmp_path, text)
    assert batch.power_w.tolist() == [237.0]
    assert account.rows_dropped == {"shot without the time that others have": 1}


def test_a_last_line_that_is_cut_is_no_reading(tmp_path):
    lines = f"GPU[0] : {AVERAGE}: 237.0\nGPU[1] : {AVERAGE}: 23"
    _, batch, account = read(tmp_path, BANNER + lines)
    assert batch.power_w.tolist() == [237.0]
    assert account.rows_dropped == {"row cut short (no line end, or NUL bytes inside)": 1}


def test_an_unreadable_value_is_missing_and_counted(tmp_path):
    _, batch, account = read(tmp_path, shot([237.0, "23O.0"], more="GPU[0] : GPU use (%): x\n"))
    assert math.isnan(batch.power_w[1])
    assert "unreadable readings, left out: 2" in account.notes


def test_output_without_power_is_refused(tmp_path):
    with pytest.raises(FormatError, match="--showpower"):
        read(tmp_path, BANNER + "GPU[0] : GPU use (%): 97\n")
