"""One campaign at a time in a folder; what resuming may not change; which trials stand."""

import dataclasses
import os
import subprocess
import sys

import pytest

from harness.campaign import (
    check_campaign,
    ended,
    num_tries,
    open_campaign,
    results_lock,
    set_aside,
)
from harness.errors import ConfigError, RecordError
from harness.record.read import read_campaign
from harness.record.run_dir import RunDir, write_json
from harness.record.schema import SCHEMA_VERSION, Campaign, Status

HOLD = """
import fcntl, os, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.truncate(0)
file.write(sys.argv[2].format(pid=os.getpid()))
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """A real process that holds the lock of ``tmp_path``; ``text`` is what it leaves in it."""
    processes = []

    def start(text="{pid}\n"):
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", HOLD, str(tmp_path / ".lock"), text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def make_campaign(make_trial, make_code):
    campaign = Campaign(
        schema_version=SCHEMA_VERSION,
        t_unix_s=1000.0,
        experiment="smoke",
        question="Does it?",
        response="tokens_per_second",
        factors={"gpus": (1, 2)},
        trials=(make_trial(), make_trial(run_id="smoke-g1-aaaaaaaa-r0", index=1)),
        code=make_code(),
        devices={"here device": "cpu: a CPU", "here driver": "none"},
    )
    return lambda **changes: dataclasses.replace(campaign, **changes)


def test_a_second_campaign_is_refused_naming_the_first_s_pid(tmp_path, hold):
    first = hold()
    with pytest.raises(RecordError) as caught, results_lock(tmp_path):
        pytest.fail("the lock was given twice")
    assert str(caught.value).startswith(
        f"{tmp_path}: a campaign is running here already (pid {first.pid});"
    )
    assert "results_dir=DIR" in str(caught.value)
    assert (tmp_path / ".lock").read_text() == f"{first.pid}\n"


def test_a_lock_held_by_nobody_known_is_still_a_lock(tmp_path, hold):
    hold(text="")
    with pytest.raises(RecordError, match=r"\(pid unknown\)"), results_lock(tmp_path):
        pytest.fail("the lock was given twice")


def test_the_lock_of_a_killed_campaign_is_free_and_a_longer_pid_is_overwritten(tmp_path, hold):
    first = hold(text="{pid}000000000\n")
    first.kill()
    first.wait()
    with results_lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_the_lock_is_given_back_and_its_folder_made(tmp_path):
    folder = tmp_path / "a" / "results"
    for _ in range(2):
        with results_lock(folder):
            assert folder.is_dir()


def test_a_results_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "results").write_text("")
    with pytest.raises(RecordError, match="a file stands where a folder is needed"):
        results_lock(tmp_path / "results").__enter__()
    with pytest.raises(RecordError, match="a file stands where a folder is needed"):
        results_lock(tmp_path / "results" / "below").__enter__()


def test_a_results_folder_without_permission_is_named(tmp_path, monkeypatch):
    def deny(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", deny)
    with pytest.raises(RecordError, match="permission denied; set results_dir=DIR"):
        results_lock(tmp_path).__enter__()


def test_setting_aside_takes_the_first_free_number_and_keeps_every_old_one(tmp_path):
    folder = tmp_path / "smoke"
    assert set_aside(folder, "old") is None
    for k in (1, 2, 3):
        folder.mkdir()
        (folder / "mark").write_text(str(k))
        assert set_aside(folder, "old") == tmp_path / f"smoke.old{k}"
        assert not folder.exists()
    assert [(tmp_path / f"smoke.old{k}" / "mark").read_text() for k in (1, 2, 3)] == list("123")


def test_tries_are_the_folders_set_aside(tmp_path):
    run_root = tmp_path / "smoke-g2-x-r0"
    for k in range(2):
        assert num_tries(run_root) == k
        run_root.mkdir()
        set_aside(run_root, "try")
    (tmp_path / "smoke-g2-x-r01.try1").mkdir()
    assert num_tries(run_root) == 2


def test_a_campaign_is_written_once_and_goes_on_when_nothing_has_changed(tmp_path, make_campaign):
    campaign = make_campaign()
    assert open_campaign(tmp_path, campaign, accept_drift=False) == ()
    later = make_campaign(t_unix_s=2000.0)
    assert open_campaign(tmp_path, later, accept_drift=False) == ()
    assert read_campaign(tmp_path / "campaign.json") == campaign


def test_checking_a_campaign_that_is_not_there_writes_nothing(tmp_path, make_campaign):
    assert check_campaign(tmp_path, make_campaign(), accept_drift=False) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_the_plan_may_go_on(tmp_path, make_campaign, make_trial):
    open_campaign(tmp_path, make_campaign(), accept_drift=False)
    part = make_campaign(trials=(make_trial(index=7),))
    assert open_campaign(tmp_path, part, accept_drift=False) == ()


@pytest.mark.parametrize("accept_drift", [False, True])
def test_another_plan_is_refused_whatever_drift_is_accepted(
    tmp_path, make_campaign, make_trial, accept_drift
):
    open_campaign(tmp_path, make_campaign(), accept_drift=False)
    other = make_campaign(trials=(make_trial(), make_trial(run_id="smoke-g2-ffffffff-r0")))
    with pytest.raises(ConfigError) as caught:
        open_campaign(tmp_path, other, accept_drift=accept_drift)
    assert "another plan (1 of 2 trials are not in it, first smoke-g2-ffffffff-r0)" in str(
        caught.value
    )
    assert "fresh=true" in str(caught.value)


def test_a_commit_that_changes_no_code_of_ours_is_no_drift(tmp_path, make_campaign, make_code):
    open_campaign(tmp_path, make_campaign(), accept_drift=False)
    later = make_campaign(code=make_code(commit="e" * 40, diff_hash="e" * 64))
    assert open_campaign(tmp_path, later, accept_drift=False) == ()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lock_hash": None}, "lock_hash was 111111111111, is none"),
        ({"source_hash": "6" * 64}, "source_hash was 555555555555, is 666666666666"),
    ],
)
def test_drifted_code_is_refused_and_when_accepted_named(
    tmp_path, make_campaign, make_code, change, named
):
    open_campaign(tmp_path, make_campaign(), accept_drift=False)
    now = make_campaign(code=make_code(**change))
    with pytest.raises(ConfigError) as caught:
        open_campaign(tmp_path, now, accept_drift=False)
    assert named in str(caught.value)
    assert "accept_drift=true" in str(caught.value)
    assert open_campaign(tmp_path, now, accept_drift=True) == (named,)
    assert read_campaign(tmp_path / "campaign.json") == make_campaign()


def test_drifted_machines_are_refused_and_when_accepted_named(tmp_path, make_campaign):
    open_campaign(tmp_path, make_campaign(), accept_drift=False)
    now = make_campaign(devices={"here device": "H100", "there device": "H100"})
    with pytest.raises(ConfigError, match="here device was cpu: a CPU, is H100"):
        open_campaign(tmp_path, now, accept_drift=False)
    assert open_campaign(tmp_path, now, accept_drift=True) == (
        "here device was cpu: a CPU, is H100",
        "here driver was none, is not there",
        "there device was not there, is H100",
    )


def test_without_git_on_one_side_only_source_and_lock_decide(tmp_path, make_campaign, make_code):
    open_campaign(tmp_path, make_campaign(), accept_drift=False)
    now = make_campaign(code=make_code(commit=None, diff_hash=None, dirty=None, reason="no git"))
    assert open_campaign(tmp_path, now, accept_drift=False) == ()


def test_a_campaign_of_another_schema_version_is_refused_with_the_repair(tmp_path, make_campaign):
    write_json(tmp_path / "campaign.json", make_campaign(schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(RecordError, match=r"schema version .*fresh=true"):
        open_campaign(tmp_path, make_campaign(), accept_drift=True)


@pytest.mark.parametrize("status", list(Status))
def test_interrupted_and_preempted_run_again_and_every_other_end_stands(
    tmp_path, make_summary, make_manifest, status
):
    summary = make_summary(status=status)
    write_json(RunDir(tmp_path).manifest, make_manifest())
    write_json(RunDir(tmp_path).summary, summary)
    again = status in {Status.INTERRUPTED, Status.PREEMPTED}
    assert ended(tmp_path, retry_failed=False) == (None if again else summary)
    finished = status is Status.FINISHED
    assert ended(tmp_path, retry_failed=True) == (summary if finished else None)


def test_a_trial_that_ended_as_declared_is_no_failure_to_retry(
    tmp_path, make_summary, make_manifest
):
    summary = make_summary(status=Status.HANG, expected_status=Status.HANG)
    write_json(RunDir(tmp_path).manifest, make_manifest())
    write_json(RunDir(tmp_path).summary, summary)
    assert ended(tmp_path, retry_failed=True) == summary


def test_a_run_that_analysis_could_not_open_does_not_stand(tmp_path, make_summary, make_manifest):
    """A manifest of another version, or an empty one, stood as finished and was in no table."""
    write_json(RunDir(tmp_path).summary, make_summary())
    write_json(RunDir(tmp_path).manifest, make_manifest(schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(RecordError, match=r"manifest.json: schema version .*fresh=true"):
        ended(tmp_path, retry_failed=False)
    RunDir(tmp_path).manifest.write_text("")
    with pytest.raises(RecordError, match=r"manifest.json: not JSON"):
        ended(tmp_path, retry_failed=False)
    RunDir(tmp_path).manifest.unlink()
    RunDir(tmp_path).manifest.mkdir()
    with pytest.raises(RecordError, match=r"manifest.json: cannot be read"):
        ended(tmp_path, retry_failed=False)


def test_a_trial_without_a_summary_has_not_ended(tmp_path):
    assert ended(tmp_path / "never", retry_failed=False) is None


def test_a_summary_of_another_schema_version_is_refused_with_the_repair(tmp_path, make_summary):
    write_json(RunDir(tmp_path).summary, make_summary(schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(RecordError, match=r"schema version .*fresh=true"):
        ended(tmp_path, retry_failed=False)
