"""The fake meter: it plays what each rank's events say, and averages as a sensor does."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.config import CalibrationPhase, PowerSource
from harness.errors import RecordError
from harness.power.phase_replay import (
    NOT_STARTED,
    PhaseFollower,
    PhaseReplaySource,
    Playing,
    Segment,
    is_by_phase,
    packaged_recordings,
    read_phase_recording,
)
from harness.power.sampler import open_source
from harness.record.run_dir import EventWriter, RunDir
from harness.record.schema import EventKind

PACKAGED = "synthetic_phases"


@pytest.fixture(scope="module")
def packaged():
    return read_phase_recording(PACKAGED)


@pytest.fixture
def rank(tmp_path):
    """Rank 3 of this host, with the second GPU, and what follows it."""
    run_dir = RunDir(tmp_path)
    events = EventWriter(run_dir, "rank00003")
    yield events, PhaseFollower(run_dir, "here")
    events.close()


def begin(events, phase, window=1, role="all"):
    events.write(EventKind.PHASE_BEGIN, 3, phase=phase, window=window, role=role)


def test_the_packaged_recording_says_that_it_is_made_up(packaged):
    assert packaged_recordings() == (PACKAGED,)
    assert packaged.is_synthetic
    assert "no GPU was measured" in packaged.provenance
    assert "no hardware" in packaged.device
    assert set(packaged.segments) == {phase.value for phase in CalibrationPhase}


def test_the_packaged_recording_is_what_its_script_makes(packaged, tmp_path, monkeypatch):
    script = Path(__file__).parent / "data" / "make_phase_recording.py"
    spec = importlib.util.spec_from_file_location("make_phase_recording", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PATH", tmp_path / "made.yaml")
    module.main()
    assert read_phase_recording(str(tmp_path / "made.yaml")) == packaged


@pytest.mark.parametrize(
    ("name", "expected"),
    [(PACKAGED, True), ("mine.yaml", True), ("telemetry/node000.jsonl", False), ("other", False)],
)
def test_a_recording_by_phase_is_known_by_its_name(name, expected):
    assert is_by_phase(name) is expected


def test_a_gpu_is_there_once_its_rank_has_started_and_plays_bare_idle(rank):
    events, follower = rank
    assert follower.playing() == {}
    events.write(EventKind.RANK_STARTED, 3, host="here", local_rank=1)
    assert follower.playing() == {1: Playing(segment="bare_idle", window=0)}


def test_ranks_of_other_hosts_are_not_this_meters(rank):
    events, follower = rank
    events.write(EventKind.RANK_STARTED, 3, host="elsewhere", local_rank=1)
    begin(events, "compute_burn")
    assert follower.playing() == {}


def test_a_gpu_follows_its_rank_through_phases_and_what_is_between(rank):
    events, follower = rank
    events.write(EventKind.RANK_STARTED, 3, host="here", local_rank=0)
    seen = []

    def look():
        seen.append(follower.playing()[0].segment)

    begin(events, "bare_idle")
    look()
    events.write(EventKind.PHASE_END, 3, phase="bare_idle", window=1)
    look()
    events.write(EventKind.RANK_READY, 3)
    look()
    begin(events, "compute_burn", window=2)
    look()
    events.write(EventKind.PHASE_END, 3, phase="compute_burn", window=2)
    look()
    assert seen == ["bare_idle", "bare_idle", "context_idle", "compute_burn", "context_idle"]


@pytest.mark.parametrize(
    ("phase", "role", "segment"),
    [
        ("collective_wait", "waits", "collective_wait"),
        ("collective_wait", "late", "context_idle"),
        ("blocking_save", "waits", "blocking_save"),
        ("blocking_save", "writes", "context_idle"),
    ],
)
def test_the_odd_rank_leaves_its_gpu_idle(rank, phase, role, segment):
    events, follower = rank
    events.write(EventKind.RANK_STARTED, 3, host="here", local_rank=0)
    begin(events, phase, role=role)
    assert follower.playing()[0].segment == segment


def test_half_a_line_waits_for_its_other_half(rank, tmp_path):
    events, follower = rank
    events.write(EventKind.RANK_STARTED, 3, host="here", local_rank=0)
    detail = {"phase": "compute_burn", "window": 1, "role": "all"}
    line = json.dumps({"kind": "phase_begin", "rank": 3, "detail": detail}) + "\n"
    path = tmp_path / "events" / "rank00003.jsonl"
    with path.open("a") as file:
        file.write(line[:20])
        file.flush()
        assert follower.playing()[0].segment == "bare_idle"
        file.write(line[20:])
    assert follower.playing()[0].segment == "compute_burn"


def flat(watts, pct=100.0):
    return Segment(power_w=(watts,), utilization_pct=(pct,), memory_used_bytes=5)


class Played:
    """A source whose clock and phase a test sets."""

    def __init__(self, recording):
        self.now_s = 1000.0
        self.segment = "bare_idle"
        self.source = PhaseReplaySource(
            recording,
            lambda: {0: Playing(segment=self.segment, window=1)},
            host="h",
            wall=lambda: self.now_s,
        )

    def row(self, after_s=0.1):
        self.now_s += after_s
        (row,) = self.source.read().samples
        return row


@pytest.fixture
def played(packaged):
    segments = {"bare_idle": flat(100.0, 0.0), "context_idle": flat(150.0, 0.0)}
    segments["compute_burn"] = flat(900.0)
    return Played(replace(packaged, segments=segments))


def test_a_change_shows_over_the_sensors_second_and_not_at_once(played):
    for _ in range(20):
        assert played.row().power_w == 100.0
    played.segment = "compute_burn"
    watts = [played.row().power_w for _ in range(12)]
    assert watts == sorted(watts)
    assert 100 < watts[0] < 200
    assert watts[-1] == 900.0


def test_a_row_says_what_it_is(played, packaged):
    row = played.row()
    assert (row.host, row.gpu, row.gpu_uuid, row.memory_used_bytes) == ("h", 0, None, 5)
    assert row.enforced_limit_w == packaged.enforced_limit_w
    assert row.reason == f"replay of {PACKAGED}: {packaged.provenance}"
    assert row.t_unix_s == played.now_s


def test_without_ranks_there_are_no_rows_and_a_reason(packaged):
    source = PhaseReplaySource(packaged, dict, host="h")
    reading = source.read()
    assert (reading.samples, reading.reason) == ((), NOT_STARTED)
    source.close()


def test_the_sampler_opens_it_by_name_and_says_what_it_plays(tmp_path):
    opened = open_source(
        PowerSource.REPLAY,
        host="h",
        interval_s=0.1,
        replay_path=Path(PACKAGED),
        run_dir=RunDir(tmp_path),
    )
    assert isinstance(opened.source, PhaseReplaySource)
    assert opened.recording["is_synthetic"] is True
    assert "no GPU was measured" in opened.recording["provenance"]


def damaged(**changes):
    plain = {
        "segments": {},
        "name": "x",
        "is_synthetic": True,
        "provenance": "p",
        "device": "d",
        "enforced_limit_w": 1.0,
        "period_s": 0.1,
        "sensor_average_s": 1.0,
    }
    return yaml.safe_dump(plain | changes)


SEGMENT = {"power_w": [1.0], "utilization_pct": [0.0], "memory_used_bytes": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "no segment bare_idle, context_idle"),
        (
            {"segments": {"bare_idle": SEGMENT, "context_idle": SEGMENT | {"power_w": []}}},
            "segments.context_idle: 0 of power_w and 1 of utilization_pct",
        ),
        ({"segments": 3}, "not a recording by phase"),
        ({"colour": "red"}, "not a recording by phase"),
    ],
)
def test_a_damaged_recording_is_refused_by_name(tmp_path, changes, message):
    path = tmp_path / "r.yaml"
    path.write_text(damaged(**changes))
    with pytest.raises(RecordError, match=message) as caught:
        read_phase_recording(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["[1", "just words", ""])
def test_what_is_no_recording_is_refused(tmp_path, text):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecordError, match="not a recording by phase"):
        read_phase_recording(str(path))
    with pytest.raises(RecordError, match="packaged are synthetic_phases"):
        read_phase_recording(str(tmp_path / "missing.yaml"))
