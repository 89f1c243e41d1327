import json
from pathlib import Path

import numpy as np

from harness.formats.sniff import open_stream
from harness.parse import to_plain
from harness.samples import GpuSample, HostSample, PowerKind, PowerScope


def sample(t_s: float, gpu: int, **changes: object) -> str:
    row = to_plain(
        GpuSample(
            t_unix_s=t_s,
            host="n1",
            gpu=gpu,
            gpu_uuid=f"GPU-{gpu}",
            power_w=100.0 + gpu,
            power_kind=PowerKind.AVERAGE,
            power_scope=PowerScope.GPU,
            enforced_limit_w=700.0,
            energy_j=1.0,
            utilization_pct=99.0,
            memory_used_bytes=1024,
            sm_clock_mhz=1980,
            temperature_c=50.0,
            clock_event_reasons=(),
            gpm=None,
            reason=None,
        )
    )
    return json.dumps(row | changes) + "\n"


HOST = json.dumps(
    to_plain(
        HostSample(
            t_unix_s=1.0,
            host="n1",
            host_cpu_pct=3.0,
            disk_read_bytes=1,
            net_rx_bytes=1,
            reason=None,
        )
    )
)


def test_our_own_record_is_a_stream(tmp_path: Path) -> None:
    lines = [sample(1e9 + t, g) for t in range(5) for g in range(2)]
    lines += [
        HOST + "\n",
        "{not json}\n",
        '{"t_unix_s": 1.0, "host": "x"}\n',
        sample(1e9 + 9, 0)[:-5],
    ]
    path = tmp_path / "node000.jsonl"
    path.write_text("".join(lines))
    stream = open_stream(path)
    (batch,) = stream.batches()
    account = stream.account()
    assert account.format == "wattline jsonl"
    assert [gpu.label for gpu in stream.gpus] == ["n1:0", "n1:1"]
    assert set(batch.power_w[batch.gpu == 1]) == {101.0}
    assert set(batch.limit_w) == {700.0}
    assert set(batch.throttled) == {0}
    assert account.power_kind is PowerKind.AVERAGE
    assert account.rows_dropped == {
        "line that is no telemetry row of ours": 2,
        "row cut short (no line end, or NUL bytes inside)": 1,
    }
    assert "rows of hosts, not of GPUs: 1" in account.notes


def test_nulls_throttling_and_another_kind_of_power(tmp_path: Path) -> None:
    rows = [
        sample(1e9, 0, power_w=None, clock_event_reasons=None, reason="power_w: lost"),
        sample(1e9 + 1, 0, clock_event_reasons=["hw_thermal_slowdown"]),
        sample(1e9 + 2, 0, power_kind="instant"),
        sample(1e9 + 3, 0, clock_event_reasons=["gpu_idle", "sw_power_cap"]),
    ]
    path = tmp_path / "node000.jsonl"
    path.write_text("".join(rows))
    stream = open_stream(path)
    (batch,) = stream.batches()
    np.testing.assert_array_equal(batch.power_w, [np.nan, 100.0, 100.0])
    assert batch.throttled.tolist() == [-1, 1, 0]
    assert stream.account().rows_dropped == {
        "row of another kind or scope of power than the first": 1
    }
