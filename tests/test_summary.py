"""How a trial ended, read off its events: what explains what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.record.read import read_summary
from harness.record.run_dir import write_json
from harness.record.schema import SCHEMA_VERSION, Event, EventKind, Status
from harness.record.summary import judge, summarise

FIN = ("rank_finished", 0), ("rank_finished", 1)
NODE_END = ("node_finished", None, {"torchrun_exitcode": 1})


def story(*told):
    """Events one second apart: ``("kind", rank, {detail})``, the last two optional."""
    return [
        Event(
            t_unix_s=1000.0 + i,
            kind=EventKind(kind),
            rank=rest[0] if rest else None,
            detail=rest[1] if len(rest) > 1 else {},
        )
        for i, (kind, *rest) in enumerate(told)
    ]


def exited(rank, code, signal=None):
    return "rank_exit", rank, {"exitcode": code, "signal": signal, "pid": 7, "local_rank": rank}


def node_gone(code):
    return "child_exit", None, {"child": "node000", "exitcode": code}


@pytest.mark.parametrize(
    ("told", "status", "detail"),
    [
        pytest.param([*FIN, NODE_END], "finished", "every rank finished", id="all finished"),
        pytest.param(
            [*FIN, exited(1, -6, "SIGABRT"), ("teardown_abort", 1, {"exitcode": -6}), NODE_END],
            "finished",
            "every rank finished",
            id="abort at teardown after finishing",
        ),
        pytest.param(
            [*FIN, ("stop_requested", None, {"signal": "SIGTERM"}), NODE_END],
            "finished",
            "every rank finished",
            id="stopped after the end",
        ),
        pytest.param(
            [("stop_requested", None, {"signal": "SIGTERM"}), exited(0, -15, "SIGTERM"), NODE_END],
            "interrupted",
            "stop requested (signal SIGTERM)",
            id="stopped, then the ranks died of it",
        ),
        pytest.param(
            [
                ("rank_error", 1, {"message": "boom", "traceback": "long"}),
                ("stop_requested", None, {"signal": "SIGINT"}),
                exited(1, 1),
                NODE_END,
            ],
            "crash",
            "rank 1: rank error (message boom)",
            id="failed, then stopped",
        ),
        pytest.param(
            [("parent_gone", None, {"pipe": "closed"}), exited(0, -15, "SIGTERM"), NODE_END],
            "interrupted",
            "parent gone (pipe closed)",
            id="parent gone",
        ),
        pytest.param(
            [("rank_error", 0, {"message": "peer left"}), exited(1, -9, "SIGKILL"), exited(0, 1)],
            "crash",
            "rank 1: rank exit (exitcode -9, signal SIGKILL); rank 0: rank error"
            " (message peer left)",
            id="kill -9 of a rank, whose peer reports an error",
        ),
        pytest.param(
            [("rank_error", 0, {"message": "mine"}), exited(0, 1), exited(1, -15, "SIGTERM")],
            "crash",
            "rank 0: rank error (message mine)",
            id="one rank failed and the launcher stopped the other",
        ),
        pytest.param(
            [exited(1, -9, "SIGKILL"), NODE_END],
            "crash",
            "rank 1: rank exit (exitcode -9, signal SIGKILL)",
            id="kill -9 of a rank alone",
        ),
        pytest.param(
            [
                ("rank_error", 1, {"message": "peer"}),
                ("rank_oom", 0, {"message": "out of memory"}),
                exited(0, 1),
                NODE_END,
            ],
            "oom",
            "rank 0: rank oom (message out of memory)",
            id="out of device memory, peer reports an error first",
        ),
        pytest.param(
            [exited(0, -9, "SIGKILL"), ("host_oom_kill", None, {"oom_kills": 1}), NODE_END],
            "oom",
            "host oom kill (oom_kills 1)",
            id="out of host memory",
        ),
        pytest.param(
            [("non_finite_loss", 0, {"step": 3}), ("rank_error", 1, {"message": "x"}), NODE_END],
            "invalid",
            "rank 0: non finite loss (step 3)",
            id="loss not finite",
        ),
        pytest.param(
            [
                ("trial_timeout", None, {"trial_timeout_s": 8.0}),
                exited(0, -15, "SIGTERM"),
                NODE_END,
            ],
            "timeout",
            "trial timeout (trial_timeout_s 8.0)",
            id="time is up",
        ),
        pytest.param(
            [("hang_confirmed", 1, {}), ("trial_timeout", None, {}), NODE_END],
            "hang",
            "rank 1: hang confirmed",
            id="hang confirmed before the time was up",
        ),
        pytest.param(
            [("node_started",), node_gone(-9)],
            "interrupted",
            "the node process was killed by signal 9",
            id="kill -9 of the node process",
        ),
        pytest.param(
            [("node_started",), node_gone(1)],
            "crash",
            "the node process failed (exit code 1): logs/node000.log",
            id="node process failed",
        ),
        pytest.param(
            [("child_exit", None, {"child": "sampler", "exitcode": -9})],
            "interrupted",
            "no process was left to say how it ended",
            id="whole tree killed",
        ),
        pytest.param(
            [
                ("rank_error", 1, {"message": "train.resume_from=x: no", "is_refusal": True}),
                exited(0, -15, "SIGTERM"),
                NODE_END,
            ],
            "refused",
            "train.resume_from=x: no",
            id="a setting that only a rank can find wrong",
        ),
        pytest.param([], "interrupted", "no process was left to say how it ended", id="nothing"),
        pytest.param(
            [("rank_finished", 0), ("rank_finished", 0), NODE_END],
            "crash",
            "only 1 of 2 ranks finished",
            id="a rank missing without a word",
        ),
        pytest.param(
            [("hang_suspected", 0), ("hang_cleared", 0), *FIN, NODE_END],
            "finished",
            "every rank finished",
            id="a suspicion that cleared",
        ),
    ],
)
def test_the_status_is_what_explains_the_end(told, status, detail):
    assert judge(story(*told), world_size=2) == (status, detail)


def test_a_killed_rank_is_named_before_the_peers_that_failed_of_it():
    """kill -9 of rank 1 was told as "rank 0: connection closed by peer" and no more."""
    status, detail = judge(
        story(("rank_error", 0, {"message": "closed by peer"}), exited(1, -9, "SIGKILL")), 2
    )
    assert status is Status.CRASH
    assert detail.startswith("rank 1: rank exit (exitcode -9, signal SIGKILL)")


@given(
    kinds=st.lists(st.sampled_from(EventKind), max_size=8),
    world_size=st.integers(1, 4),
)
def test_any_events_have_a_status_and_a_reason(kinds, world_size):
    events = story(*[(kind.value, i % 4, {"exitcode": 1}) for i, kind in enumerate(kinds)])
    status, detail = judge(events, world_size)
    assert isinstance(status, Status)
    assert detail
    finished = {e.rank for e in events if e.kind is EventKind.RANK_FINISHED}
    assert (status is Status.FINISHED) == (len(finished) >= world_size)


def test_a_summary_counts_what_the_records_hold(write_run, make_step):
    run_dir = write_run(
        steps={
            0: [make_step(s, peak_memory_bytes=100 * s) for s in (1, 2, 3)],
            1: [make_step(s) for s in (1, 2)],
        },
        events={
            "rank00000": story(
                ("compile", 0, {"compile_time_s": 4}), ("compile", 1, {"compile_time_s": 5.5}), *FIN
            ),
            "node000": story(("teardown_abort", 1), NODE_END),
        },
    )
    with run_dir.steps(1).open("a") as file:
        file.write('{"step": 3')
    summary = summarise(run_dir.root, tries=2, drift=["commit was a, is b"])
    assert summary.schema_version == SCHEMA_VERSION
    assert (summary.run_id, summary.status) == ("smoke-g2-0123abcd-r0", Status.FINISHED)
    assert (summary.last_step, summary.num_steps_planned) == (2, 12)
    assert (summary.num_ranks_finished, summary.teardown_aborts) == (2, 1)
    assert (summary.compile_time_s, summary.peak_memory_bytes) == (5.5, 300)
    assert (summary.torn_lines, summary.tries) == (1, 2)
    assert summary.drift == ("commit was a, is b",)
    assert (summary.t_start_unix_s, summary.t_end_unix_s) == (1000.0, 1003.0)
    write_json(run_dir.summary, summary)
    assert read_summary(run_dir.summary) == summary


def test_what_was_never_recorded_is_null(write_run, make_step):
    run_dir = write_run(steps={0: [make_step(1)]})
    summary = summarise(run_dir.root, tries=1, drift=())
    assert summary.status is Status.INTERRUPTED
    assert summary.last_step is None
    assert summary.compile_time_s is None
    assert summary.peak_memory_bytes is None
    assert summary.t_end_unix_s == summary.t_start_unix_s


def test_a_compile_time_that_could_not_be_told_is_null(write_run, make_step):
    """A compiled run of one step records null; float(None) then left it without a summary."""
    unknown = ("compile", 0, {"compile_time_s": None, "reason": "one step only"})
    run_dir = write_run(steps={0: [make_step(1)]}, events={"rank00000": story(unknown, *FIN)})
    summary = summarise(run_dir.root, tries=1, drift=())
    assert summary.status is Status.FINISHED
    assert summary.compile_time_s is None
