"""What people see: lines where there is no terminal, bars where there is one."""

import io

import pytest
from rich.console import Console

from harness.progress import View
from harness.record.run_dir import HeartbeatWriter, RunDir
from harness.record.schema import Heartbeat, Phase, Status


@pytest.fixture
def plain():
    """A view on a file, and what it has printed."""
    out = io.StringIO()
    return View(Console(file=out, width=60), num_trials=4), out


@pytest.fixture
def terminal():
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True, color_system=None)
    return View(console, num_trials=4), out


def test_a_trial_that_ended_is_one_line_however_narrow_the_output(plain, make_trial, make_summary):
    view, out = plain
    view.ended(make_trial(index=1), make_summary())
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().endswith("2/4 smoke-g2-0123abcd-r0 finished step 12/12 in 10.0 s\n")


def test_an_end_that_was_not_declared_says_why(plain, make_trial, make_summary):
    view, out = plain
    view.ended(make_trial(), make_summary(status=Status.OOM, detail="rank 0: oom", last_step=None))
    assert out.getvalue().endswith("oom step 0/12 in 10.0 s: rank 0: oom\n")


def test_brackets_in_a_message_are_printed_as_they_are(plain, make_trial, make_summary, tmp_path):
    """A detail such as "[/tmp/x]: expected [B, T]" ended in rich's MarkupError."""
    view, out = plain
    detail = "[/tmp/x]: expected [red]B[/] :ok:"
    view.ended(make_trial(), make_summary(status=Status.CRASH, detail=detail))
    view.drift([detail])
    view.set_aside(tmp_path / "[/a]")
    view.store(tmp_path / "[/b]", 1000, 256000, built=True)
    view.finish(tmp_path / "[/c]", 0, [])
    text = out.getvalue()
    assert text.count(detail) == 2
    assert f"drift accepted: {detail}\n" in text
    assert f"the old campaign is kept in {tmp_path / '[/a]'}\n" in text
    assert f"block store built: 1,000 blocks, 256,000 tokens in {tmp_path / '[/b]'}\n" in text
    assert f"records: {tmp_path / '[/c]'}\n" in text


def test_what_did_not_happen_is_not_said(plain):
    view, out = plain
    view.set_aside(None)
    view.drift(())
    with view.working("reading"):
        pass
    assert out.getvalue() == ""


def test_a_trial_that_stands_and_a_store_that_was_found_are_told(
    plain, make_trial, make_summary, tmp_path
):
    view, out = plain
    view.skipped(make_trial(), make_summary(status=Status.CRASH))
    view.store(tmp_path, 1, 2, built=False)
    assert "smoke-g2-0123abcd-r0 stands from before: crash; retry_failed=true" in out.getvalue()
    assert "block store found: 1 blocks" in out.getvalue()


def test_the_end_counts_statuses_and_says_how_to_go_on(plain, make_summary, tmp_path):
    view, out = plain
    view.finish(tmp_path, 4, [make_summary(), make_summary(), make_summary(status=Status.CRASH)])
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert [line for line in lines if len(line) == 2][:2] == [["finished", "2"], ["crash", "1"]]
    assert ["not", "run", "1"] in lines
    assert "run the same command again" in out.getvalue()


def test_an_interruption_says_how_to_go_on_and_a_whole_campaign_does_not(make_summary, tmp_path):
    def printed(*statuses):
        out = io.StringIO()
        summaries = [make_summary(status=status) for status in statuses]
        View(Console(file=out, width=60), 1).finish(tmp_path, len(summaries), summaries)
        return out.getvalue()

    assert "run the same command again" in printed(Status.INTERRUPTED)
    assert "run the same command again" not in printed(Status.FINISHED, Status.CRASH)


def test_without_a_terminal_a_running_trial_draws_nothing(
    plain, make_trial, make_manifest, tmp_path
):
    view, out = plain
    view.trial_starts(make_trial(), make_manifest())
    view.poll(RunDir(tmp_path))
    view.trial_over()
    assert out.getvalue() == ""


def test_a_bar_follows_rank_0_and_tells_rate_and_time_left(
    terminal, make_trial, make_manifest, tmp_path, monkeypatch
):
    view, out = terminal
    run_dir = RunDir(tmp_path)
    beats = iter(
        [
            None,
            Heartbeat(step=0, phase=Phase.BUILD, t_unix_s=99.0),
            Heartbeat(step=2, phase=Phase.TRAIN, t_unix_s=100.0),
            Heartbeat(step=4, phase=Phase.TRAIN, t_unix_s=101.0),
            Heartbeat(step=5, phase=Phase.TRAIN, t_unix_s=100.0),
        ]
    )
    monkeypatch.setattr("harness.progress.read_heartbeat", lambda _: next(beats))
    view.trial_starts(make_trial(), make_manifest())
    rates = []
    for _ in range(5):
        view.poll(run_dir)
        rates.append(view._progress.tasks[0].fields["rate"])
    assert view._progress.tasks[0].completed == 5
    assert view._progress.tasks[0].total == 12
    view.trial_over()
    view.trial_over()
    assert rates == ["", "build", "train", "4,096 tokens/s, 4 s left", "0 tokens/s, 0 s left"]
    assert "smoke-g2-0123abcd-r0" in out.getvalue()


def test_a_terminal_sees_what_is_being_worked_on(terminal):
    view, out = terminal
    with view.working("reading the corpus"):
        pass
    assert "reading the corpus" in out.getvalue()


def test_a_real_heartbeat_moves_the_bar(terminal, make_trial, make_manifest, tmp_path):
    view, _ = terminal
    run_dir = RunDir(tmp_path)
    writer = HeartbeatWriter(run_dir.heartbeat(0))
    writer.beat(3, Phase.TRAIN)
    writer.close()
    view.trial_starts(make_trial(), make_manifest())
    view.poll(run_dir)
    assert view._progress.tasks[0].completed == 3
    view.trial_over()


def test_the_bar_says_how_much_of_the_campaign_comes_after_this_trial(
    terminal, make_trial, make_summary, make_manifest, tmp_path
):
    view, out = terminal
    view.ended(make_trial(), make_summary(t_start_unix_s=0.0, t_end_unix_s=120.0))
    view.trial_starts(make_trial(index=1), make_manifest())
    run_dir = RunDir(tmp_path)
    writer = HeartbeatWriter(run_dir.heartbeat(0))
    for step in (1, 2):
        writer.beat(step, Phase.TRAIN)
        view.poll(run_dir)
    view.trial_over()
    writer.close()
    assert "then 2 trials of about 4 min" in out.getvalue()
