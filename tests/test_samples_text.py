"""Real files of other people, in the folder that WATTLINE_SAMPLES names; skipped without one."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from harness.errors import FormatError
from harness.formats.sniff import open_stream

SAMPLES = os.environ.get("WATTLINE_SAMPLES")
pytestmark = pytest.mark.skipif(SAMPLES is None, reason="WATTLINE_SAMPLES names no folder")


def find(number):
    found = sorted(Path(SAMPLES or "").glob(f"{number}_*"))
    if not found:
        pytest.skip(f"no file {number}_* in {SAMPLES}")
    return found[0]


def read(number):
    stream = open_stream(find(number))
    batches = list(stream.batches())
    power_w = np.concatenate([batch.power_w for batch in batches])
    return stream, batches[0], power_w, stream.account()


def test_10_is_a_node_meter_and_refused():
    with pytest.raises(FormatError, match="only a node's meter"):
        open_stream(find("10"))


def test_12_is_a_node_meter_over_time():
    stream, _, power_w, account = read("12")
    assert account.format == "mlperf mllog"
    assert account.power_scope == "node"
    assert len(stream.gpus) == 1
    assert (power_w.min() > 2000, power_w.max() < 8000) == (True, True)
    assert account.rows_dropped == {}
    assert account.period_s == pytest.approx(2.0, abs=0.1)
    assert max(gap.end_s - gap.start_s for gap in account.gaps) == pytest.approx(19.95, abs=0.01)


def test_24_has_averages_30_s_apart():
    _, batch, power_w, account = read("24")
    assert (account.format, account.period_s) == ("wandb jsonl", 30.0)
    assert account.power_kind == "average"
    assert not account.is_aggregated
    assert np.allclose(batch.limit_w, 70.0, atol=0.2)
    assert (power_w.min() > 27, power_w.max() < 32) == (True, True)


def test_26_is_one_tick_of_8_gpus():
    stream, batch, power_w, account = read("26")
    assert (account.format, account.num_ticks, account.period_s) == ("prometheus text", 1, None)
    assert [gpu.index for gpu in stream.gpus] == list(range(8))
    assert power_w[0] == 113.611
    assert batch.utilization_pct.tolist() == [0.0] * 8


def test_27_is_aggregated_over_steps_and_its_last_entry_was_never_read():
    _, _, power_w, account = read("27")
    assert (account.format, account.is_aggregated) == ("trainer json", True)
    averages = [entry["power_avg"] for entry in json.loads(find("27").read_text())]
    assert power_w.tolist() == [average for average in averages if average]
    assert sum(account.rows_dropped.values()) == 1


def test_28_has_16_gpus_on_2_hosts():
    stream, _, _, account = read("28")
    assert (account.format, account.num_ticks) == ("prometheus api json", 1)
    assert len(stream.gpus) == 16
    assert len({gpu.host for gpu in stream.gpus}) == 2
    for host in {gpu.host for gpu in stream.gpus}:
        assert {gpu.index for gpu in stream.gpus if gpu.host == host} == set(range(8))


def test_30_has_shared_dies():
    _, _, power_w, account = read("30")
    assert (account.format, account.num_ticks) == ("rocm-smi text", 1)
    assert power_w[::2].tolist() == [237.0, 230.0, 220.0, 235.0]
    assert np.isnan(power_w[1::2]).all()
    assert account.absent == {f":{index}": "shared" for index in (1, 3, 5, 7)}
