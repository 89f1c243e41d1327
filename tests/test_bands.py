"""Tables: the schema, the shipped ones, and which telemetry they fit."""

import dataclasses

import pytest
import yaml

from harness.errors import ConfigError
from harness.samples import PowerKind, PowerScope
from harness.triage.bands import (
    Overlap,
    list_tables,
    load_table,
    mismatches,
    parse_table,
    table_to_yaml,
)
from harness.triage.engine import triage_stream
from harness.triage.states import State, Verdict


@pytest.fixture
def h100():
    return load_table("h100-sxm-traces")


@pytest.fixture
def plain(h100):
    return yaml.safe_load(table_to_yaml(h100))


def test_the_shipped_tables_are_listed_and_follow_the_schema():
    assert list_tables() == ("b300-report", "h100-sxm-traces")
    for name in list_tables():
        assert load_table(name).name == name


def test_a_table_written_is_the_table_read(h100):
    assert parse_table(table_to_yaml(h100), where="x") == h100


def test_a_users_own_table_is_read_by_its_path(tmp_path, h100):
    path = tmp_path / "mine.yaml"
    path.write_text(table_to_yaml(dataclasses.replace(h100, name="mine")), encoding="utf-8")
    assert load_table(str(path)).name == "mine"


def test_a_table_that_is_not_there_names_the_shipped_ones():
    with pytest.raises(ConfigError, match=r"b300-report, h100-sxm-traces"):
        load_table("h200")


def test_a_table_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_table(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit_w": "700 W"}, r"limit_w='700 W': expected a finite number"),
        ({"limit_w": 0.0}, r"limit_w=0.0: expected watts above 0"),
        ({"limt_w": 700.0}, r"limt_w: unknown key; did you mean limit_w\?"),
        ({"bands": []}, r"expected at least one band"),
        ({"power_kind": "median"}, r"power_kind='median': expected one of average"),
    ],
)
def test_a_wrong_key_or_value_is_named(plain, change, message):
    with pytest.raises(ConfigError, match=message):
        parse_table(yaml.safe_dump({**plain, **change}), where="mine")


def test_a_band_out_of_order_is_named_with_its_position(plain):
    plain["bands"][1]["low_w"] = 900.0
    with pytest.raises(ConfigError, match=r"bands\[1\] \(idle_context\).*rising order"):
        parse_table(yaml.safe_dump(plain), where="mine")


def test_an_unknown_state_is_named_with_its_position(plain):
    plain["bands"][0]["state"] = "sleeping"
    with pytest.raises(ConfigError, match=r"bands\[0\].state='sleeping'"):
        parse_table(yaml.safe_dump(plain), where="mine")


def test_states_that_overlap_have_no_threshold(plain):
    plain["overlaps"].append({"below": "communication", "above": "compute", "error_rate": 0.2})
    with pytest.raises(ConfigError, match="also stand in overlaps"):
        parse_table(yaml.safe_dump(plain), where="mine")


def test_a_threshold_lies_between_two_different_states(plain):
    plain["thresholds"][0]["above"] = "idle_bare"
    with pytest.raises(ConfigError, match="between two different states"):
        parse_table(yaml.safe_dump(plain), where="mine")


@pytest.mark.parametrize("text", ["- a\n- b\n", "{", "just words"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(ConfigError, match="mine: "):
        parse_table(text, where="mine")


def test_a_table_made_at_another_limit_does_not_fit(h100):
    fits = {"power_kinds": [PowerKind.AVERAGE], "power_scopes": [PowerScope.GPU]}
    assert mismatches(h100, limits_w=[700.0, 705.0], **fits) == ()
    assert "500 W" in mismatches(h100, limits_w=[500.0], **fits)[0]


def test_kinds_of_power_are_not_mixed(h100):
    average = dataclasses.replace(h100, power_kind=PowerKind.AVERAGE)
    both = [PowerKind.AVERAGE, PowerKind.INSTANT]
    rest = {"limits_w": [700.0], "power_scopes": [PowerScope.UNKNOWN]}
    assert "mix kinds" in mismatches(h100, power_kinds=both, **rest)[0]
    assert "instant" in mismatches(average, power_kinds=[PowerKind.INSTANT], **rest)[0]
    assert mismatches(average, power_kinds=[PowerKind.UNKNOWN], **rest) == ()


def test_scopes_of_power_are_not_mixed(h100):
    found = mismatches(
        h100, limits_w=[], power_kinds=[PowerKind.UNKNOWN], power_scopes=[PowerScope.MODULE]
    )
    assert "scope module" in found[0]


def test_the_engine_refuses_a_table_that_does_not_fit_unless_told(made_traces, h100):
    m = made_traces
    phases = m.COURSES["all ranks wait at 15 %"]
    settings = {"table": h100, "limit_w": None, "gpu_hour_price": None}
    refused = triage_stream([m.make_stream(phases, limit_w=500.0)], **settings)
    assert "calibrated at 700 W" in refused.refused
    told = triage_stream([m.make_stream(phases)], accept_mismatch=True, **settings)
    assert told.jobs[0].verdict is Verdict.DEADLOCK
    assert told.table == "h100-sxm-traces"


def test_with_a_table_context_and_wait_are_told_apart_without_utilization(made_traces, h100):
    m = made_traces
    wait, context = m.Act(share=150 / 700, pct=0), m.Act(share=121 / 700, pct=0)
    stream = m.make_stream([(300, [wait, wait, context, context])], has_utilization=False)
    result = triage_stream([stream], table=h100, limit_w=None, gpu_hour_price=None)
    assert State.DEADLOCK in result.gpus[0].shares
    assert result.gpus[2].shares == {State.IDLE_CONTEXT: pytest.approx(1.0)}


def test_the_reports_table_tells_a_transfer_from_a_spin(made_traces):
    m = made_traces
    acts = [m.Act(share=w / 1100, pct=100, noise=0.01) for w in (940, 575, 190)]
    phases = [(120, [act] * 4) for act in acts[:2]] + [(300, [acts[2]] * 4)]
    table = load_table("b300-report")
    stream = m.make_stream(phases, limit_w=1100.0)
    result = triage_stream([stream], table=table, limit_w=None, gpu_hour_price=None)
    shares = result.gpus[0].shares
    assert shares[State.COMPUTE] == pytest.approx(120 / 540, abs=0.02)
    assert shares[State.COMMUNICATION] == pytest.approx(120 / 540, abs=0.02)
    assert shares[State.DEADLOCK] == pytest.approx(300 / 540, abs=0.02)


def test_overlap_and_cut_are_found_by_their_states(h100):
    assert h100.cut_w(State.COMMUNICATION, State.COMPUTE) == 229.6
    assert h100.cut_w(State.COMPUTE, State.COMMUNICATION) is None
    assert not h100.is_separable(State.COMMUNICATION, State.CHECKPOINT)
    assert h100.median_w(State.COMPUTE) == 551.4
    assert h100.median_w(State.DATA_STARVATION) is None


def test_an_overlap_of_context_and_wait_leaves_low_watts_unknown(made_traces, h100):
    """Watts that a table says it cannot separate were separated anyway."""
    m = made_traces
    kept = tuple(t for t in h100.thresholds if t.above is not State.COMMUNICATION)
    overlap = Overlap(below=State.IDLE_CONTEXT, above=State.COMMUNICATION, error_rate=0.3)
    table = dataclasses.replace(h100, thresholds=kept, overlaps=(overlap,))
    wait = m.Act(share=150 / 700, pct=0)
    stream = m.make_stream([(300, [wait] * 4)], has_utilization=False)
    result = triage_stream([stream], table=table, limit_w=None, gpu_hour_price=None)
    assert result.jobs[0].verdict is Verdict.UNKNOWN
