"""What one record costs whoever writes it."""

import json
import math
import os

import pytest

from harness.record.run_dir import HeartbeatWriter, JsonlWriter, read_heartbeat
from harness.record.schema import Phase, StepRecord
from harness.samples import Gpm, GpuSample, PowerKind, PowerScope

pytestmark = pytest.mark.perf

STEP = StepRecord(
    step=12345,
    t_end_unix_s=1786000000.1234567,
    duration_s=1.2345678901234567,
    data_wait_s=0.0012345678901234,
    tokens=16384,
    padded_tokens=0,
    num_micro_batches=8,
    loss=2.3456789012345678,
    grad_norm=0.5678901234567891,
    peak_memory_bytes=123_456_789_012,
    alloc_retries=0,
    data_bytes_read=65536,
)
SAMPLE = GpuSample(
    t_unix_s=1786000000.1234567,
    host="node-17.cluster.example",
    gpu=3,
    gpu_uuid="GPU-01234567-89ab-cdef-0123-456789abcdef",
    power_w=651.234,
    power_kind=PowerKind.AVERAGE,
    power_scope=PowerScope.GPU,
    enforced_limit_w=700.0,
    energy_j=123456789.123,
    utilization_pct=100.0,
    memory_used_bytes=123_456_789_012,
    sm_clock_mhz=1980,
    temperature_c=60.0,
    clock_event_reasons=("sw_power_cap",),
    gpm=Gpm(sm=0.91, tensor=0.52, dram=0.33, nvlink_bytes_per_s=1.5e11),
    reason=None,
)


def say(benchmark, what, bar_s=math.inf):
    if benchmark.stats is None:  # --benchmark-disable
        return
    stats = benchmark.stats.stats
    bar = f"; bar {bar_s * 1e6:.0f} us" if math.isfinite(bar_s) else ""
    print(
        f"\n{what}: median {stats.median * 1e6:.1f} us, quartiles {stats.q1 * 1e6:.1f} to"
        f" {stats.q3 * 1e6:.1f} us{bar}"
    )


@pytest.mark.parametrize("record", [STEP, SAMPLE], ids=["step", "telemetry"])
def test_appending_a_record_puts_one_line_on_disk(record, benchmark, tmp_path):
    path = tmp_path / "records.jsonl"
    with JsonlWriter(path) as writer:
        benchmark(writer.append, record)
    lines = path.read_bytes().splitlines()
    assert len(lines) >= 1
    assert len(json.loads(lines[-1])) == len(type(record).__dataclass_fields__)
    say(benchmark, f"append of a {type(record).__name__}", 50e-6 if record is STEP else math.inf)


def test_a_beat_overwrites_the_heartbeat(benchmark, tmp_path):
    path = tmp_path / "rank00000"
    writer = HeartbeatWriter(path)
    benchmark(writer.beat, 12345, Phase.TRAIN)
    writer.close()
    beat = read_heartbeat(path)
    assert beat is not None
    assert beat.step == 12345
    say(benchmark, "heartbeat")


def test_the_bare_write_is_the_floor_of_an_append(benchmark, tmp_path):
    """The system call alone, of a line as long as a StepRecord's."""
    line = b"x" * 260 + b"\n"
    descriptor = os.open(tmp_path / "floor", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    benchmark(os.write, descriptor, line)
    os.close(descriptor)
    assert (tmp_path / "floor").stat().st_size % len(line) == 0
    say(benchmark, "write of 261 bytes alone")
