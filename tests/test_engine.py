"""The engine on anything: whatever the samples are, the result holds together."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.samples import PowerScope
from harness.triage.as_json import to_json
from harness.triage.bands import load_table
from harness.triage.engine import triage_stream
from harness.triage.report import sections
from harness.triage.states import STATE_ORDER

VALUES = {
    "power_w": st.sampled_from([np.nan, 0.0, 70.0, 120.0, 150.0, 190.0, 300.0, 550.0, 695.0, 9e9]),
    "utilization_pct": st.sampled_from([np.nan, 0.0, 5.0, 15.0, 50.0, 90.0, 100.0]),
    "memory_used_bytes": st.sampled_from([np.nan, 0.0, 2e7, 1e9, 4e10]),
    "limit_w": st.sampled_from([np.nan, 0.0, 250.0, 700.0]),
    "throttled": st.sampled_from([-1, 0, 1]),
}


@st.composite
def columns(draw, num_gpus=3):
    """Stretches of constant readings per GPU, with steps of any length between the ticks."""
    ticks = draw(st.integers(1, 120))
    steps = draw(st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.1, 40.0]), min_size=1, max_size=6))
    t_s = np.cumsum(np.resize(np.array(steps), ticks))
    made = {"t_s": np.repeat(t_s, num_gpus), "gpu": np.tile(np.arange(num_gpus), ticks)}
    for name, values in VALUES.items():
        grid = np.empty((ticks, num_gpus))
        for gpu in range(num_gpus):
            stretch = draw(st.lists(values, min_size=1, max_size=5))
            grid[:, gpu] = np.repeat(stretch, -(-ticks // len(stretch)))[:ticks]
        made[name] = grid.ravel()
    return made


@settings(max_examples=60)
@given(made=columns(), rows=st.integers(1, 400), table=st.sampled_from([None, "h100-sxm-traces"]))
def test_any_samples_give_a_result_that_holds_together(made_traces, made, rows, table):
    stream = made_traces.make_stream([(10, made_traces.everybody(made_traces.WORK, 3))])
    unknown = np.full(len(made["t_s"]), np.nan)
    stream.columns = {
        **{name: np.asarray(column, dtype=np.float64) for name, column in made.items()},
        "gpu": made["gpu"].astype(np.int32),
        "throttled": made["throttled"].astype(np.int8),
        "sm_clock_mhz": unknown,
        "temperature_c": unknown,
        "label": None,
    }
    stream.batch_rows = rows
    result = triage_stream(
        [stream],
        table=load_table(table) if table else None,
        limit_w=None,
        gpu_hour_price=1.0,
        accept_mismatch=True,
    )
    plain = json.loads(json.dumps(to_json(result), allow_nan=False))
    assert sections(result)
    for holder in plain["gpus"] + plain["jobs"]:
        if holder["shares"]:
            assert sum(holder["shares"].values()) == pytest.approx(1.0, abs=1e-4)
        assert set(holder["shares"]) <= set(STATE_ORDER)
        edges = [t for e in holder["episodes"] for t in (e["start_s"], e["end_s"])]
        assert edges == sorted(edges)
    named = [gpu for job in plain["jobs"] for gpu in job["gpus"]]
    assert len(named) == len(set(named))
    for job in plain["jobs"]:
        assert set(job["odd_gpus"]) <= set(job["gpus"])
        assert job["lost_gpu_hours"] >= 0.0


def test_a_node_meter_read_in_small_batches_has_the_same_energy(made_traces):
    m = made_traces
    flat = m.Act(share=1.0, pct=0, noise=0.0)
    joules = []
    for rows in (7, 1000):
        stream = m.make_stream([(101, [flat])], limit_w=1000.0, power_scope=PowerScope.NODE)
        stream.batch_rows = rows
        result = triage_stream([stream], table=None, limit_w=None, gpu_hour_price=None)
        joules.append(result.energy[0].joules)
    assert joules == [pytest.approx(1e5), pytest.approx(1e5)]


def test_a_gpu_without_any_reading_is_no_result_and_breaks_none(made_traces):
    m = made_traces
    stream = m.make_stream([(60, m.everybody(m.WORK, 3))])
    stream.columns["power_w"][stream.columns["gpu"] == 1] = np.nan
    result = triage_stream([stream], table=None, limit_w=None, gpu_hour_price=None)
    assert [gpu.label for gpu in result.gpus] == ["node0:0", "node0:2"]
    assert [job.gpus for job in result.jobs] == [("node0:0", "node0:2")]
    assert result.absent == {"node0:1": "no reading of power"}
