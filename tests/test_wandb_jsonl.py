import gzip
import json
import math

import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream


def old(t, watts, **more):
    return {
        "system.gpu.0.gpu": 4.1,
        "system.gpu.0.memoryAllocated": 1.9,
        "system.gpu.0.temp": 50.0,
        "system.gpu.0.powerWatts": watts,
        "system.cpu": 65.0,
        "_wandb": True,
        "_timestamp": t,
        "_runtime": t - 1582070900,
        **more,
    }


def read(tmp_path, records, **options):
    path = tmp_path / "wandb-events.jsonl"
    if isinstance(records, list):
        records = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(records)
    stream = open_stream(path, **options)
    (batch,) = stream.batches()
    return stream, batch, stream.account()


def test_flat_keys_of_an_old_client_are_averages_30_s_apart(tmp_path):
    records = [old(1582070941 + 30 * i, 28.0 + i) for i in range(4)]
    stream, batch, account = read(tmp_path, records)
    assert batch.power_w.tolist() == [28.0, 29.0, 30.0, 31.0]
    assert batch.utilization_pct.tolist() == [4.1] * 4
    assert stream.gpus[0].label == ":0"
    assert (account.period_s, account.power_kind, account.is_aggregated) == (30.0, "average", False)
    assert math.isnan(batch.limit_w[0])
    assert any("averages" in note for note in account.notes)


def test_the_limit_is_worked_out_from_the_percentage(tmp_path):
    percent = {"system.gpu.0.powerPercent": 40.0}
    _, batch, account = read(tmp_path, [old(1582070941, 28.0, **percent)])
    assert batch.limit_w.tolist() == [70.0]
    assert account.columns["limit"] == "powerWatts / powerPercent"


def test_a_percentage_near_zero_gives_no_limit(tmp_path):
    percent = {"system.gpu.0.powerPercent": 0.3}
    _, batch, _ = read(tmp_path, [old(1582070941, 0.2, **percent)])
    assert math.isnan(batch.limit_w[0])


def test_newer_keys_and_two_gpus_and_processes(tmp_path):
    record = {
        "_timestamp": 1727467878.07,
        "_gpu.0.name": "Tesla T4",
        "gpu.0.powerWatts": 12.5,
        "gpu.0.enforcedPowerLimitWatts": 70.0,
        "gpu.0.gpu": 7,
        "gpu.0.memoryAllocatedBytes": 270598144,
        "gpu.0.smClock": 300,
        "gpu.0.temp": 59,
        "gpu.1.powerWatts": 13.5,
        "gpu.process.0.powerWatts": 99.0,
        "gpu.process.0.gpu": 99,
    }
    stream, batch, account = read(tmp_path, [record])
    assert batch.power_w.tolist() == [12.5, 13.5]
    assert (batch.limit_w[0], batch.memory_used_bytes[0]) == (70.0, 270598144.0)
    assert (batch.sm_clock_mhz[0], batch.temperature_c[0]) == (300.0, 59.0)
    assert stream.gpus[0].name == "Tesla T4"
    assert account.power_kind == "unknown"


def test_nested_objects_are_the_same(tmp_path):
    record = {"_timestamp": 1727467878, "system": {"gpu": {"0": {"powerWatts": 100, "gpu": 50}}}}
    _, batch, _ = read(tmp_path, [record])
    assert (batch.power_w[0], batch.utilization_pct[0]) == (100.0, 50.0)


def test_labels_of_nodes_are_hosts(tmp_path):
    record = {"_timestamp": 1727467878, "gpu.0.powerWatts/l:a": 1.0, "gpu.0.powerWatts/l:b": 2.0}
    stream, batch, _ = read(tmp_path, [record])
    assert [gpu.host for gpu in stream.gpus] == ["a", "b"]
    assert batch.power_w.tolist() == [1.0, 2.0]


def test_the_runtime_serves_where_there_is_no_timestamp(tmp_path):
    records = [{"_runtime": 30 * i, "gpu.0.powerWatts": 5.0} for i in (1, 2)]
    _, batch, account = read(tmp_path, records)
    assert batch.t_s.tolist() == [30.0, 60.0]
    assert account.is_relative


def test_no_time_at_all_needs_a_period(tmp_path):
    records = [{"gpu.0.powerWatts": 5.0}, {"gpu.0.powerWatts": 6.0}]
    with pytest.raises(FormatError, match="--period"):
        read(tmp_path, records)
    _, batch, account = read(tmp_path, records, period_s=15.0)
    assert batch.t_s.tolist() == [0.0, 15.0]
    assert account.is_relative


def test_a_last_line_that_is_cut_is_dropped_and_counted(tmp_path):
    whole = "".join(json.dumps(old(1582070941 + 30 * i, 28.0)) + "\n" for i in range(3))
    _, batch, account = read(tmp_path, gzip.compress(whole[:-20].encode()))
    assert batch.power_w.size == 2
    assert account.rows_dropped == {"row cut short (no line end, or NUL bytes inside)": 1}


def test_a_line_that_is_no_object_is_dropped_and_counted(tmp_path):
    text = json.dumps(old(1582070941, 28.0)) + "\nTraceback\n[1]\n"
    _, _, account = read(tmp_path, text.encode())
    assert account.rows_dropped == {"line is no JSON object": 2}


@pytest.mark.parametrize("value", [True, [1], "many", -5, 1e12])
def test_a_value_that_is_no_power_is_missing_and_counted(tmp_path, value):
    _, batch, account = read(tmp_path, [old(1582070941, 28.0), old(1582070971, value)])
    assert math.isnan(batch.power_w[1])
    assert "unreadable readings, left out: 1" in account.notes


@pytest.mark.parametrize("value", [None, "NaN", "N/A"])
def test_a_missing_value_is_missing_and_no_damage(tmp_path, value):
    _, batch, account = read(tmp_path, [old(1582070941, 28.0), old(1582070971, value)])
    assert math.isnan(batch.power_w[1])
    assert not any("unreadable" in note for note in account.notes)


def test_a_row_without_a_readable_time_is_dropped(tmp_path):
    _, _, account = read(tmp_path, [old(1582070941, 28.0), old(1582070971, 28.0, _timestamp="?")])
    assert account.rows_dropped == {"line without a readable time": 1}


def test_metrics_without_power_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"no key gpu\.N\.powerWatts"):
        read(tmp_path, [{"_timestamp": 1582070941, "system.gpu.0.gpu": 5, "system.cpu": 1}])
