"""Whole campaigns as real processes: finishing, killed anywhere, resumed, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from harness.processes import marked, stop_marked
from harness.record.read import read_events, read_manifest, read_summary
from harness.record.run_dir import RunDir, read_heartbeat
from harness.record.schema import EventKind, Status

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
LONG = ("train.num_steps=100000", "points=[2]")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def results(tmp_path):
    yield tmp_path / "results"
    stop_marked(tmp_path / "results", grace_s=0.0)


def command(results, cache_dir, *overrides):
    return [
        sys.executable,
        "-m",
        "harness",
        "experiment=smoke",
        "size=ci",
        f"results_dir={results}",
        f"cache_dir={cache_dir}",
        *overrides,
    ]


def run(results, cache_dir, *overrides):
    return subprocess.run(
        command(results, cache_dir, *overrides),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@contextmanager
def started(results, cache_dir, *overrides):
    process = subprocess.Popen(
        command(results, cache_dir, *overrides),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        stop_marked(results, grace_s=0.0)


def wait_for(condition, what, limit_s=90.0):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {limit_s} s for {what}")


def training_run(results):
    """The run whose rank 0 is past its first step, once there is one."""

    def look():
        for path in results.glob("smoke/*/heartbeat/rank00000"):
            beat = read_heartbeat(path)
            if beat is not None and beat.step >= 2:
                return path.parents[1]
        return None

    return wait_for(look, "the second step")


def test_the_smoke_campaign_finishes_and_leaves_a_whole_record(results, cache_dir):
    done = run(results, cache_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    campaign = json.loads((results / "smoke" / "campaign.json").read_text())
    assert sorted(trial["world_size"] for trial in campaign["trials"]) == [1, 2]
    for trial in campaign["trials"]:
        run_dir = RunDir(results / "smoke" / trial["run_id"])
        summary = read_summary(run_dir.summary)
        assert (summary.status, summary.last_step) == (Status.FINISHED, 4)
        assert summary.num_ranks_finished == trial["world_size"]
        assert read_manifest(run_dir.manifest).comparability["world_size"] == trial["world_size"]
        telemetry = run_dir.telemetry(0).read_text().splitlines()
        assert telemetry
        assert run_dir.log("rank00000.err").exists()
    assert marked(results) == []

    again = run(results, cache_dir)
    assert again.returncode == 0
    assert again.stdout.count("stands from before: finished") == 2
    assert not list(results.glob("smoke/*.try*"))


def test_sigterm_is_recorded_as_interrupted_and_the_same_command_completes(results, cache_dir):
    with started(results, cache_dir, "train.num_steps=25", "points=[2]") as process:
        run_root = training_run(results)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
        output = process.stdout.read()
    assert "interrupted" in output
    summary = read_summary(RunDir(run_root).summary)
    assert summary.status is Status.INTERRUPTED
    assert "SIGTERM" in summary.detail
    assert marked(results) == []

    again = run(results, cache_dir, "train.num_steps=25", "points=[2]")
    assert again.returncode == 0, again.stdout + again.stderr
    summary = read_summary(RunDir(run_root).summary)
    assert (summary.status, summary.last_step, summary.tries) == (Status.FINISHED, 25, 2)
    assert run_root.with_name(run_root.name + ".try1").is_dir()


def test_ctrl_c_in_a_terminal_session_leaves_nothing_running(results, cache_dir):
    with started(results, cache_dir, *LONG) as process:
        run_root = training_run(results)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    assert read_summary(RunDir(run_root).summary).status is Status.INTERRUPTED
    assert marked(results) == []


def test_kill_9_of_the_parent_stops_the_whole_tree_and_the_record_says_so(results, cache_dir):
    with started(results, cache_dir, *LONG) as process:
        run_root = training_run(results)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: marked(results) == [], "every process to leave")
    kinds = [event.kind for event in read_events(run_root).records]
    assert EventKind.PARENT_GONE in kinds
    assert not RunDir(run_root).summary.exists()

    again = run(results, cache_dir, *LONG, "trial_timeout_s=1")
    assert run_root.with_name(run_root.name + ".try1").is_dir()
    assert again.returncode == 1


def test_kill_9_of_the_node_process_stops_its_children_and_is_no_failed_trial(results, cache_dir):
    with started(results, cache_dir, *LONG) as process:
        run_root = training_run(results)
        (node,) = [p for p in psutil.Process(process.pid).children() if p.is_running()]
        node.kill()
        assert process.wait(60) == 1
    summary = read_summary(RunDir(run_root).summary)
    assert summary.status is Status.INTERRUPTED
    assert "signal 9" in summary.detail
    assert marked(results) == []


def test_kill_9_of_a_rank_is_a_crash_that_names_the_rank_and_the_next_trial_runs(
    results, cache_dir
):
    with started(results, cache_dir, *LONG, "experiment.design.repeats=2") as process:
        run_root = training_run(results)
        events = wait_for(
            lambda: [
                e
                for e in read_events(run_root).records
                if e.kind is EventKind.RANK_STARTED and e.rank == 1
            ],
            "rank 1's pid",
        )
        os.kill(events[0].detail["pid"], signal.SIGKILL)
        wait_for(RunDir(run_root).summary.exists, "the summary")
        summary = read_summary(RunDir(run_root).summary)
        assert summary.status is Status.CRASH
        exits = {
            e.rank: e.detail["exitcode"]
            for e in read_events(run_root).records
            if e.kind is EventKind.RANK_EXIT
        }
        assert exits[1] == -signal.SIGKILL
        assert marked(run_root) == []
        wait_for(lambda: len(list(results.glob("smoke/*/manifest.json"))) == 2, "the next trial")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1


def test_a_trial_over_its_time_limit_is_a_timeout(results, cache_dir):
    done = run(results, cache_dir, *LONG, "trial_timeout_s=8")
    assert done.returncode == 1
    (summary_file,) = results.glob("smoke/*/summary.json")
    summary = read_summary(summary_file)
    assert summary.status is Status.TIMEOUT
    assert marked(results) == []


def test_a_second_campaign_on_the_same_results_is_refused_naming_the_first(results, cache_dir):
    with started(results, cache_dir, *LONG) as process:
        wait_for((results / "smoke" / "campaign.json").exists, "the campaign to begin")
        second = run(results, cache_dir)
        assert second.returncode == 2
        assert f"pid {process.pid}" in second.stderr
        assert len(second.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_results_disk_is_one_line_and_leaves_no_half_written_file(tmp_path, cache_dir):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], check=True)
    try:
        (disk / "filler").write_bytes(b"x" * 12288)
        done = run(disk / "results", cache_dir)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "disk is full" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not list(disk.glob("results/**/*.partial"))
        assert not list(disk.glob("results/**/manifest.json"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "no such"),
        ({}, "is empty"),
        ({"a.txt": b"\xff\xfe\xfa"}, "UTF-8"),
        ({"a.jsonl": b'{"body": "x"}\n'}, "a.jsonl:1"),
    ],
    ids=["missing", "empty", "not UTF-8", "no text field"],
)
def test_a_bad_corpus_is_one_line_and_the_campaign_has_not_begun(
    results, cache_dir, tmp_path, files, message
):
    """campaign.json was written first, so that the mended command was refused as another plan."""
    folder = tmp_path / "corpus"
    if files is not None:
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
    done = run(results, cache_dir, "corpus=folder", f"corpus.path={folder}")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (results / "smoke").exists()


def test_a_damaged_store_is_refused_with_the_shard_named(results, tmp_path):
    cache_dir = tmp_path / "cache"
    assert run(results, cache_dir, "points=[1]", "train.num_steps=1").returncode == 0
    (blocks,) = cache_dir.glob("stores/*/blocks.i32")
    with blocks.open("r+b") as file:
        file.write(b"\x01\x02")
    done = run(results, cache_dir, "points=[1]", "train.num_steps=1", "fresh=true")
    assert done.returncode == 2
    assert "checksum" in done.stderr
    assert "blocks.i32" in done.stderr
    assert not list(results.glob("smoke.old*"))
