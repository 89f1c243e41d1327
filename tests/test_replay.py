import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RecordError
from harness.parse import to_plain
from harness.power.replay import ENDED, Recording, ReplaySource, read_recording
from harness.samples import Gpm, GpuSample, HostSample, PowerKind, PowerScope

HOST_ROW = HostSample(
    t_unix_s=1.0, host="h", host_cpu_pct=None, disk_read_bytes=1, net_rx_bytes=1, reason="r"
)


def row(t_unix_s, gpu=0, power_w=500.0):
    return GpuSample(
        t_unix_s=t_unix_s,
        host="recorded",
        gpu=gpu,
        gpu_uuid=f"GPU-{gpu}",
        power_w=power_w,
        power_kind=PowerKind.INSTANT,
        power_scope=PowerScope.GPU,
        enforced_limit_w=700.0,
        energy_j=1.0,
        utilization_pct=100.0,
        memory_used_bytes=1,
        sm_clock_mhz=1980,
        temperature_c=50.0,
        clock_event_reasons=("sw_power_cap",),
        gpm=Gpm(sm=0.9, tensor=0.5, dram=None, nvlink_bytes_per_s=1e9),
        reason="gpm: some metrics are not available",
    )


def write(path, *records):
    path.write_text("".join(json.dumps(to_plain(r)) + "\n" for r in records))
    return path


class Clock:
    def __init__(self):
        self.now_s = 50.0

    def source(self, recording):
        return ReplaySource(recording, wall=lambda: 2e9 + self.now_s, monotonic=lambda: self.now_s)


def recording(*rows, period_s=1.0):
    return Recording(rows=rows, period_s=period_s, torn=0)


def test_rows_come_when_their_own_offset_has_passed():
    clock = Clock()
    source = clock.source(recording(row(1000.0), row(1001.0), row(1002.5)))
    assert [r.t_unix_s for r in source.read().samples] == [2e9 + 50.0]
    clock.now_s += 0.5
    assert source.read().samples == ()
    clock.now_s += 2.5
    assert [r.t_unix_s - 2e9 for r in source.read().samples] == [51.0, 52.5]


def test_only_the_time_of_a_row_is_rewritten():
    recorded = row(1000.0)
    replayed = Clock().source(recording(recorded)).read().samples[0]
    assert replace(replayed, t_unix_s=1000.0) == recorded


def test_after_the_end_every_gpu_is_a_row_of_nulls():
    clock = Clock()
    source = clock.source(recording(row(1000.0, 0), row(1000.0, 1), row(1001.0, 0)))
    source.read()
    clock.now_s += 1.5
    assert len(source.read().samples) == 1
    clock.now_s += 1.0
    for _ in range(2):
        reading = source.read()
        assert [(r.gpu, r.gpu_uuid) for r in reading.samples] == [(0, "GPU-0"), (1, "GPU-1")]
        assert {(r.power_w, r.energy_j, r.gpm, r.reason) for r in reading.samples} == {
            (None, None, None, ENDED)
        }
        assert reading.samples[0].t_unix_s == 2e9 + clock.now_s
        assert reading.faults == (ENDED,)


def test_a_late_reading_still_gets_the_last_rows_before_the_end():
    clock = Clock()
    source = clock.source(recording(row(1000.0), row(1001.0)))
    source.read()
    clock.now_s += 100.0
    assert [r.power_w for r in source.read().samples] == [500.0]
    assert source.read().samples[0].reason == ENDED


@given(
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=20),
    ticks=st.lists(st.floats(0.01, 3), min_size=1, max_size=30),
)
def test_every_row_comes_exactly_once_in_order_and_never_early(gaps, ticks):
    clock = Clock()
    rows, t = [], 1000.0
    for number, gap in enumerate(gaps):
        t += gap
        rows.append(row(t, power_w=float(number + 1)))
    source = clock.source(recording(*rows))
    got = []
    for tick in [*ticks, 200.0]:
        samples = source.read().samples
        assert all(r.t_unix_s <= 2e9 + clock.now_s + 1e-6 for r in samples)
        got += [r.power_w for r in samples if r.reason != ENDED]
        clock.now_s += tick
    got += [r.power_w for r in source.read().samples if r.reason != ENDED]
    assert got == [float(number + 1) for number in range(len(gaps))]


def test_a_recording_is_read_without_its_host_rows_and_in_order_of_time(tmp_path):
    path = write(tmp_path / "t.jsonl", row(1001.0), HOST_ROW, row(1000.0), row(1003.0))
    read = read_recording(path)
    assert [r.t_unix_s for r in read.rows] == [1000.0, 1001.0, 1003.0]
    assert (read.period_s, read.torn) == (1.5, 0)
    assert read.rows[0].gpm == Gpm(sm=0.9, tensor=0.5, dram=None, nvlink_bytes_per_s=1e9)


def test_the_period_is_that_of_a_gpu_not_of_the_file(tmp_path):
    rows = [row(1000.0 + tick, gpu) for tick in range(3) for gpu in range(8)]
    assert read_recording(write(tmp_path / "t.jsonl", *rows)).period_s == 1.0


def test_gpus_without_a_uuid_are_told_apart_by_their_index(tmp_path):
    rows = [replace(row(1000.0, gpu), gpu_uuid=None) for gpu in range(2)]
    clock = Clock()
    source = clock.source(read_recording(write(tmp_path / "t.jsonl", *rows)))
    source.read()
    clock.now_s += 1.0
    assert [r.gpu for r in source.read().samples] == [0, 1]


def test_a_torn_last_line_is_counted(tmp_path):
    path = write(tmp_path / "t.jsonl", row(1000.0))
    with path.open("a") as file:
        file.write('{"t_unix_s": 100')
    assert (len(read_recording(path).rows), read_recording(path).torn) == (1, 1)


def test_a_missing_recording_is_named_with_the_fix(tmp_path):
    with pytest.raises(RecordError, match=r"gone\.jsonl: cannot read .*power\.replay_path names"):
        read_recording(tmp_path / "gone.jsonl")


def test_a_folder_is_no_recording(tmp_path):
    with pytest.raises(RecordError, match="cannot read the recording"):
        read_recording(tmp_path)


@pytest.mark.parametrize("records", [(), (HOST_ROW,)])
def test_a_recording_without_gpus_is_refused(tmp_path, records):
    path = write(tmp_path / "t.jsonl", *records)
    with pytest.raises(RecordError, match=f"no row of a GPU in {len(records)} lines"):
        read_recording(path)


@pytest.mark.parametrize(
    "line",
    [
        "timestamp, index, power.draw [W]",
        '{"step": 1}',
        "[1, 2]",
        "17",
        "null",
        '"host_cpu_pct"',
        '{"host_cpu_pct": "a lot"}',
        "",
        "\ufeff{}",
    ],
)
def test_a_line_that_is_not_ours_is_named_by_file_and_line(tmp_path, line):
    path = write(tmp_path / "t.jsonl", row(1000.0))
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RecordError, match=r"t\.jsonl:2: not a telemetry row of ours"):
        read_recording(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused_before_the_replay(tmp_path, number):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(to_plain(row(1000.0))).replace("500.0", number) + "\n")
    with pytest.raises(RecordError, match=r"t\.jsonl:1: not a telemetry row"):
        read_recording(path)


def test_a_recording_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(RecordError, match=r"t\.jsonl:1: not a telemetry row"):
        read_recording(path)


def test_closing_a_replay_leaves_nothing_to_do():
    source = Clock().source(recording(row(1000.0)))
    source.close()
    assert len(source.read().samples) == 1
