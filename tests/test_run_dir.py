"""Writers of records: one line a record, whole files by rename, errors that name file and fix."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import RecordError
from harness.record.read import read_events, read_jsonl
from harness.record.run_dir import (
    EventWriter,
    HeartbeatWriter,
    JsonlWriter,
    RunDir,
    naming,
    read_heartbeat,
    write_json,
    write_text,
)
from harness.record.schema import EventKind, Heartbeat, Phase, StepRecord

ROOT = Path(__file__).parents[1]


def failing(code):
    """A stand-in for a call of the operating system that fails with ``code``."""

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail


def test_every_record_lies_where_the_design_says():
    run_dir = RunDir(Path("results/smoke/run"))
    relative = [
        run_dir.manifest,
        run_dir.summary,
        run_dir.steps(3),
        run_dir.telemetry(2),
        run_dir.heartbeat(12),
        run_dir.events("node000"),
        run_dir.log("rank00000.out"),
    ]
    assert [path.relative_to(run_dir.root).as_posix() for path in relative] == [
        "manifest.json",
        "summary.json",
        "steps/rank00003.jsonl",
        "telemetry/node002.jsonl",
        "heartbeat/rank00012",
        "events/node000.jsonl",
        "logs/rank00000.out",
    ]


def test_creating_a_run_twice_is_fine_and_naming_it_creates_nothing(tmp_path):
    run_dir = RunDir(tmp_path / "a" / "b")
    assert not run_dir.root.exists()
    run_dir.create()
    run_dir.create()
    names = {"steps", "telemetry", "heartbeat", "events", "logs"}
    assert {path.name for path in run_dir.root.iterdir()} == names


def test_appended_records_are_one_line_each_and_there_at_once(tmp_path, make_step):
    path = tmp_path / "deep" / "steps.jsonl"
    with JsonlWriter(path) as writer:
        for step in (1, 2):
            writer.append(make_step(step))
            lines = path.read_bytes().splitlines(keepends=True)
            assert len(lines) == step
            assert lines[-1].endswith(b"}\n")
    assert read_jsonl(path, StepRecord).records == (make_step(1), make_step(2))


def test_a_writer_goes_on_behind_what_is_there_and_closes_twice(tmp_path, make_step):
    path = tmp_path / "steps.jsonl"
    for step in (1, 2):
        writer = JsonlWriter(path)
        writer.append(make_step(step))
        writer.close()
        writer.close()
    assert [r.step for r in read_jsonl(path, StepRecord).records] == [1, 2]


def test_short_writes_are_continued_until_the_line_is_whole(tmp_path, monkeypatch, make_step):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    path = tmp_path / "steps.jsonl"
    with JsonlWriter(path) as writer:
        writer.append(make_step(1))
    monkeypatch.undo()
    assert read_jsonl(path, StepRecord).records == (make_step(1),)


def test_a_value_that_is_not_finite_is_a_bug_and_leaves_no_half_line(tmp_path, make_step):
    path = tmp_path / "steps.jsonl"
    with JsonlWriter(path) as writer, pytest.raises(ValueError, match="JSON compliant"):
        writer.append(make_step(1, loss=float("nan")))
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, "the disk is full; free space or set results_dir=DIR"),
        (errno.EDQUOT, "the quota is used up; free space"),
        (errno.EACCES, "permission denied; set results_dir=DIR"),
        (errno.EROFS, "the file system is read-only; set results_dir=DIR"),
        (errno.ENOTDIR, "a file stands where a folder is needed"),
        (errno.EEXIST, "a file stands where a folder is needed"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_an_error_of_the_system_names_the_file_and_what_to_do(tmp_path, code, fix):
    with pytest.raises(RecordError) as caught, naming(tmp_path / "x"):
        failing(code)()
    assert str(caught.value).startswith(f"cannot write {tmp_path / 'x'}: {fix}")
    assert isinstance(caught.value.__cause__, OSError)


def test_an_error_without_a_number_keeps_its_text(tmp_path):
    with pytest.raises(RecordError, match=r"cannot write .*: odd"), naming(tmp_path):
        raise OSError("odd")


def test_appending_to_a_full_disk_names_the_file(tmp_path, monkeypatch, make_step):
    with JsonlWriter(tmp_path / "steps.jsonl") as writer:
        monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
        with pytest.raises(RecordError, match=r"steps\.jsonl: the disk is full"):
            writer.append(make_step(1))


@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_file_published_on_a_full_disk_is_the_old_one_and_nothing_beside_it(
    tmp_path, monkeypatch, call
):
    path = tmp_path / "summary.json"
    write_json(path, {"old": 1})
    owner, name = (os, "fsync") if call == "fsync" else (Path, "open")
    monkeypatch.setattr(owner, name, failing(errno.ENOSPC))
    with pytest.raises(RecordError, match=r"summary\.json: the disk is full"):
        write_json(path, {"new": 2})
    monkeypatch.undo()
    assert json.loads(path.read_bytes()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_published_file_replaces_the_old_one_whole_and_makes_its_folder(tmp_path):
    path = tmp_path / "a" / "note.txt"
    write_text(path, "first, and longer\n")
    write_text(path, "second\n")
    assert path.read_text() == "second\n"
    assert [p.name for p in path.parent.iterdir()] == ["note.txt"]


def test_a_file_where_a_folder_of_the_run_should_be_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RecordError, match="a file stands where a folder is needed"):
        RunDir(tmp_path / "run").create()
    with pytest.raises(RecordError, match="a file stands where a folder is needed"):
        JsonlWriter(tmp_path / "run" / "x.jsonl")
    with pytest.raises(RecordError, match="a file stands where a folder is needed"):
        HeartbeatWriter(tmp_path / "run" / "rank00000")
    with pytest.raises(RecordError, match="a file stands where a folder is needed"):
        write_text(tmp_path / "run" / "x", "")


def test_an_event_carries_its_time_kind_rank_and_detail(tmp_path):
    events = EventWriter(RunDir(tmp_path), "rank00001")
    events.write(EventKind.SAVE_END, 1, step=5, path="/x")
    events.write(EventKind.NODE_STARTED)
    events.close()
    events.close()
    first, second = read_events(tmp_path).records
    assert (first.kind, first.rank, first.detail) == (
        EventKind.SAVE_END,
        1,
        {"step": 5, "path": "/x"},
    )
    assert (second.kind, second.rank, second.detail) == (EventKind.NODE_STARTED, None, {})
    assert first.t_unix_s <= second.t_unix_s


@given(beats=st.lists(st.tuples(st.integers(0, 2**62), st.sampled_from(Phase)), min_size=1))
def test_the_last_beat_is_what_is_read_whatever_came_before(tmp_path_factory, beats):
    path = tmp_path_factory.mktemp("heartbeat") / "rank00000"
    writer = HeartbeatWriter(path)
    for step, phase in beats:
        writer.beat(step, phase)
    writer.close()
    writer.close()
    beat = read_heartbeat(path)
    assert beat is not None
    assert (beat.step, beat.phase) == beats[-1]
    assert path.stat().st_size == 32


def test_a_rank_that_has_not_beaten_yet_has_no_heartbeat(tmp_path):
    path = tmp_path / "heartbeat" / "rank00000"
    assert read_heartbeat(path) is None
    HeartbeatWriter(path).close()
    assert read_heartbeat(path) is None


def test_a_record_that_does_not_fit_leaves_no_half_line(tmp_path):
    """Half a line stayed, the next record joined it, and the whole run could not be read."""
    path = tmp_path / "events.jsonl"
    code = f"""
import resource, signal
from pathlib import Path
from harness.errors import RecordError
from harness.record.run_dir import JsonlWriter
from harness.record.schema import Heartbeat, Phase
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = JsonlWriter(Path({str(path)!r}))
beat = Heartbeat(step=1, phase=Phase.TRAIN, t_unix_s=1.0)
writer.append(beat)
size = Path({str(path)!r}).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
try:
    writer.append(beat)
except RecordError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append(beat)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "cannot write" in done.stdout
    lines = read_jsonl(path, Heartbeat)
    assert (len(lines.records), lines.torn) == (2, 0)
