"""The picture: it is drawn for every kind of result, and says when it cannot be."""

import sys

import pytest

from harness.errors import MissingExtraError
from harness.triage.engine import triage_stream
from harness.triage.picture import COLOURS, draw
from harness.triage.states import State

PNG = b"\x89PNG\r\n\x1a\n"


def triage(*streams):
    return triage_stream(streams, table=None, limit_w=None, gpu_hour_price=None)


@pytest.mark.parametrize("name", ["a hang, killed", "a wedged pair", "saves of 15 s"])
def test_a_picture_is_written(made_traces, tmp_path, name):
    stream = made_traces.make_stream(made_traces.COURSES[name], pauses=[(20, 30)])
    draw(triage(stream), tmp_path / "triage.png")
    assert (tmp_path / "triage.png").read_bytes().startswith(PNG)


def test_the_same_result_gives_the_same_bytes(made_traces, tmp_path):
    result = triage(made_traces.make_stream(made_traces.COURSES["a straggler"]))
    for name in ("a.png", "b.png"):
        draw(result, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_hours_of_many_gpus_on_two_hosts_without_utilization_are_drawn(made_traces, tmp_path):
    m = made_traces
    phases = [(15_000, m.everybody(m.WORK, 20))]
    options = {"period_s": 2.0, "has_utilization": False, "pauses": [(5000, 6000)]}
    streams = [m.make_stream(phases, host=h, **options) for h in ("a", "b")]
    draw(triage(*streams), tmp_path / "triage.png")
    assert (tmp_path / "triage.png").stat().st_size > 10_000


def test_many_jobs_and_times_without_a_clock_are_drawn(made_traces, tmp_path):
    m = made_traces
    acts = [m.Act(share=s, pct=100, noise=0.01) for s in (0.98, 0.6, 0.42)]
    phases = [(120, [*acts, m.BARE, m.Act(share=0.19, pct=100)])]
    streams = [m.make_stream(phases, host=h, start_s=0.0, is_relative=True) for h in ("a", "b")]
    draw(triage(*streams), tmp_path / "triage.png")
    assert (tmp_path / "triage.png").read_bytes().startswith(PNG)


def test_every_state_has_a_colour_of_its_own():
    assert set(COLOURS) == set(State)
    assert len(set(COLOURS.values())) == len(State)


def test_without_matplotlib_the_extra_is_named(made_traces, tmp_path, monkeypatch):
    result = triage(made_traces.make_stream(made_traces.COURSES["a straggler"]))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="analysis"):
        draw(result, tmp_path / "triage.png")
    assert not (tmp_path / "triage.png").exists()
