"""The report: sections, text at 100 columns, Markdown, JSON keys, advice and trust."""

import dataclasses
import io
import json

import numpy as np
import pytest

from harness.samples import GpuId, PowerScope
from harness.triage.advice import next_steps
from harness.triage.as_json import to_json
from harness.triage.as_text import print_sections, to_markdown
from harness.triage.bands import TableLabel, load_table
from harness.triage.engine import triage_stream
from harness.triage.report import duration_text, gpu_range, sections
from harness.triage.result import Confidence, exit_code, refusal
from harness.triage.states import Verdict


def triage(*streams, **options):
    settings = {"table": None, "limit_w": None, "gpu_hour_price": None, **options}
    return triage_stream(streams, **settings)


@pytest.fixture
def hang(made_traces):
    stream = made_traces.make_stream(made_traces.COURSES["a hang, killed"], pauses=[(100, 110)])
    return triage(stream, gpu_hour_price=2.0)


def text_of(result, width=100):
    out = io.StringIO()
    print_sections(sections(result), out, width=width)
    return out.getvalue()


def test_the_report_says_what_who_what_next_and_how_far_to_trust(hang):
    text = text_of(hang)
    for part in (
        "DEADLOCK",
        "odd: node0:5",
        "py-spy",
        "at the given price",
        "deadlock: ",
        "confidence: medium",
        "1 pause of the sampler",
        "util. says",
    ):
        assert part in text


def test_the_report_fits_100_columns(hang, made_traces):
    snapshot = triage(made_traces.make_stream([(1, made_traces.everybody(made_traces.WORK, 8))]))
    for result in (hang, snapshot, refusal("x " * 200)):
        assert max(len(line.rstrip()) for line in text_of(result).splitlines()) <= 100


def test_text_goes_to_a_pipe_at_100_columns(hang):
    out = io.StringIO()
    print_sections(sections(hang), out)
    assert max(len(line.rstrip()) for line in out.getvalue().splitlines()) <= 100


def test_markdown_holds_the_same_sections_and_tables(hang):
    text = to_markdown(sections(hang), picture="triage.png")
    assert "![Watts, states and utilization per GPU](triage.png)" in text
    assert "## Verdict" in text
    assert "| GPU | limit |" in text
    assert "| ---: |" in text or " ---: |" in text


def test_markdown_escapes_what_would_be_markup():
    result = refusal("a|b *c* <d>")
    assert "a\\|b \\*c\\* &lt;d>" in to_markdown(sections(result))


def test_json_has_the_stable_keys(hang):
    plain = json.loads(json.dumps(to_json(hang), allow_nan=False))
    assert {"account", "table", "confidence", "gpus", "jobs", "refused"} <= set(plain)
    assert {"rows_read", "rows_dropped", "gaps", "period_s", "format"} <= set(plain["account"])
    assert {"id", "shares", "episodes"} <= set(plain["gpus"][0])
    job = plain["jobs"][0]
    assert {"gpus", "verdict", "odd_gpus", "lost_gpu_hours", "episodes"} <= set(job)
    assert (
        set(job["episodes"][0])
        == {"state", "start_s", "end_s"}
        == set(plain["gpus"][0]["episodes"][0])
    )
    assert plain["gpus"][5]["id"] == "node0:5"
    assert plain["refused"] is None
    assert plain["confidence"] == "medium"
    assert job["lost_money"] == pytest.approx(2.0 * job["lost_gpu_hours"], abs=0.01)


def test_json_of_a_refusal_keeps_its_keys():
    plain = to_json(refusal("no power column"))
    assert plain["refused"] == "no power column"
    assert (plain["gpus"], plain["jobs"]) == ([], [])
    assert plain["account"]["rows_read"] == 0
    assert plain["account"]["format"] is None


def test_json_of_a_snapshot_holds_the_reading(made_traces):
    m = made_traces
    result = triage(m.make_stream([(1, [m.BARE])], absent={"node0:1": "shared"}))
    plain = to_json(result)
    assert plain["gpus"][0]["snapshot"]["state"] == "idle_bare"
    assert plain["absent"] == {"node0:1": "shared"}
    text = text_of(result)
    assert "looks like" in text
    assert "shared" in text


def test_json_of_several_files_counts_them_together(made_traces):
    m = made_traces
    phases = [(60, m.everybody(m.WORK, 2))]
    dropped = {"torn": 2}
    streams = [m.make_stream(phases, host=h, rows_dropped=dropped) for h in ("a", "b")]
    account = to_json(triage(*streams))["account"]
    assert account["rows_read"] == 240
    assert account["rows_dropped"] == {"torn": 4}
    assert [f["path"] for f in account["files"]] == ["a.csv", "b.csv"]


def test_labels_are_scored_in_report_and_json(made_traces):
    m = made_traces
    phases = m.COURSES["all ranks wait at 15 %"]
    result = triage(m.make_stream(phases, labels=["compute", "deadlock"]))
    assert "scored against the file's own labels" in text_of(result)
    plain = to_json(result)["evaluation"]
    assert plain["watts"]["accuracy"] == 1.0
    assert plain["utilization"]["confusion"]["deadlock"] == {"compute": 2400}


def test_a_node_meter_is_refused_with_its_energy(made_traces):
    m = made_traces
    flat = m.Act(share=1.0, pct=0, noise=0.0)
    stream = m.make_stream([(3601, [flat])], limit_w=1000.0, power_scope=PowerScope.NODE)
    result = triage(stream)
    text = text_of(result)
    assert "Refused" in text
    assert "1.00 kWh in 60 min 00 s, 1000 W on average" in text
    assert to_json(result)["energy"][0]["joules"] == pytest.approx(3.6e6)


def test_a_node_meter_with_one_reading_has_no_mean(made_traces):
    m = made_traces
    result = triage(m.make_stream([(1, [m.WORK])], power_scope=PowerScope.NODE))
    assert to_json(result)["energy"][0]["mean_w"] is None
    assert "kWh" not in text_of(result)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.04, "4.0 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (99.96, "100.0 s")],
)
def test_durations_are_for_people(seconds, text):
    assert duration_text(seconds) == text


def test_ranges_of_gpus_are_short():
    assert gpu_range(["a:0", "a:1", "a:2", "a:5", "b:0"]) == "a:0-2,5, b:0"
    assert gpu_range([":0", ":1"]) == "GPU 0-1"
    assert gpu_range(["a:GPU-x", "a:GPU-y"]) == "a:GPU-x,GPU-y"


def test_many_gpus_are_cut_and_said(made_traces):
    m = made_traces
    result = triage(m.make_stream([(30, m.everybody(m.WORK, 40))]))
    assert "the first 32 of 40 GPUs" in text_of(result)


def test_many_episodes_are_cut_and_said(made_traces):
    m = made_traces
    cycle = [(20, m.everybody(m.WORK, 4)), (20, m.everybody(m.WAIT, 4, gpu0=m.HOST))]
    result = triage(m.make_stream(cycle * 12))
    assert "8 shorter ones are in the JSON" in text_of(result)
    slow = next_steps(result.jobs[0])
    assert any("save less often" in step for step in slow)


def test_a_wait_still_open_at_the_end_is_pointed_at(made_traces):
    m = made_traces
    phases = [(300, m.everybody(m.WORK, 4)), (60, m.everybody(m.WAIT, 4))]
    steps = next_steps(triage(m.make_stream(phases)).jobs[0])
    assert "waited at the end, for 60 s so far" in steps[0]


def test_a_hang_without_an_odd_gpu_asks_for_the_other_hosts(made_traces):
    m = made_traces
    steps = next_steps(triage(m.make_stream(m.COURSES["all ranks wait at 15 %"])).jobs[0])
    assert "other hosts" in steps[0]


def test_every_verdict_has_a_next_step(made_traces):
    for phases in made_traces.COURSES.values():
        for job in triage(made_traces.make_stream(phases, limit_w=700.0)).jobs:
            assert next_steps(job)


def test_strict_makes_warnings_fail_and_the_first_of_1_2_0_counts(made_traces):
    m = made_traces
    slow = triage(m.make_stream(m.COURSES["a straggler"]))
    assert (exit_code(slow, strict=False), exit_code(slow, strict=True)) == (0, 1)
    healthy = triage(m.make_stream(m.COURSES["healthy training"])).jobs[0]
    unknown = dataclasses.replace(healthy, verdict=Verdict.UNKNOWN)
    dead = dataclasses.replace(healthy, verdict=Verdict.DEADLOCK)
    several = dataclasses.replace(slow, jobs=(healthy, unknown, dead))
    assert exit_code(several, strict=False) == 1
    assert exit_code(dataclasses.replace(slow, jobs=(healthy, unknown)), strict=False) == 2


def reasons_of(made_traces, table=None, **options):
    m = made_traces
    phases = options.pop("phases", [(120, m.everybody(m.WORK, 2))])
    result = triage(m.make_stream(phases, **options), table=table)
    return result.confidence, " / ".join(result.reasons)


@pytest.mark.parametrize(
    ("options", "confidence", "part"),
    [
        ({}, Confidence.MEDIUM, "from the file"),
        ({"has_limit": False}, Confidence.LOW, "no power limit"),
        (
            {"has_limit": False, "name": "NVIDIA H100 80GB HBM3"},
            Confidence.MEDIUM,
            "from the device name",
        ),
        ({"period_s": 5.0}, Confidence.MEDIUM, "every 5 s"),
        ({"period_s": 30.0}, Confidence.LOW, "every 30 s"),
        ({"has_utilization": False}, Confidence.LOW, "no utilization"),
        ({"pauses": [(10, 60)]}, Confidence.LOW, "paused for 42%"),
        ({"pauses": [(10, 25)]}, Confidence.MEDIUM, "paused for 13%"),
        ({"is_relative": True}, Confidence.MEDIUM, "no times in the file"),
        ({"notes": ("power smoothing is on",)}, Confidence.LOW, "power smoothing"),
    ],
)
def test_what_lowers_the_confidence_is_named(made_traces, options, confidence, part):
    found, reasons = reasons_of(made_traces, **options)
    assert found is confidence
    assert part in reasons


def test_a_calibrated_table_for_this_device_gives_high_confidence(made_traces):
    table = load_table("h100-sxm-traces")
    bands = tuple(b for b in table.bands if b.median_w is not None)
    made = dataclasses.replace(table, label=TableLabel.REAL, bands=bands, overlaps=())
    found, reasons = reasons_of(made_traces, table=made, name="NVIDIA H100 80GB HBM3")
    assert (found, reasons) == (Confidence.HIGH, "")
    found, reasons = reasons_of(made_traces, table=made, name="NVIDIA H200")
    assert found is Confidence.LOW
    assert "the GPUs are NVIDIA H200" in reasons


def test_a_hang_of_a_single_gpu_is_doubted(made_traces):
    m = made_traces
    found, reasons = reasons_of(made_traces, phases=[(100, [m.WORK]), (200, [m.WAIT])])
    assert found is Confidence.LOW
    assert "single GPU" in reasons


def test_much_unknown_time_is_doubted(made_traces):
    m = made_traces
    flat = m.Act(share=0.2, pct=100, noise=0.0)
    found, reasons = reasons_of(made_traces, phases=[(100, [flat] * 2)], has_limit=False)
    assert found is Confidence.LOW
    assert "of the time is unknown" in reasons


def test_a_gpu_is_known_by_its_uuid_where_it_has_no_index(made_traces):
    m = made_traces
    stream = m.make_stream([(60, [m.WORK])])
    stream.gpus[0] = GpuId(host="node0", index=None, uuid="GPU-1", name=None)
    assert to_json(triage(stream))["gpus"][0]["id"] == "node0:GPU-1"
    assert np.isfinite(triage(stream).gpus[0].observed_s)
