"""The node process: its command lines, and what it records of how its children end."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from harness import node as module
from harness.node import Node, main, rank_environment, sampler_command, torchrun_command
from harness.parse import to_plain
from harness.processes import RUN_DIR_VARIABLE
from harness.record.read import read_events
from harness.record.run_dir import RunDir
from harness.record.schema import EventKind

FOREVER = "import signal; signal.pause()"


@pytest.fixture
def make_node(tmp_path, smoke_config, make_manifest, make_trial):
    """A node of a trial; settings by dotted key."""

    def make(node_rank=0, *, world_size=2, num_nodes=1, **settings):
        config = to_plain(smoke_config)
        for key, value in settings.items():
            group, _, leaf = key.rpartition("__")
            (config[group] if group else config)[leaf] = value
        trial = make_trial(world_size=world_size, num_nodes=num_nodes)
        manifest = make_manifest(config=config, trial=trial)
        return Node(run_dir=RunDir(tmp_path / "run"), node_rank=node_rank, manifest=manifest)

    return make


@pytest.fixture
def run_node(write_run, make_node, monkeypatch):
    """Run a node in this process on tiny children; gives its exit code and its events."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}

    def run(torchrun, *words, sampler=FOREVER, events=None, **settings):
        run_dir = write_run(manifest=make_node(**settings).manifest, events=events)

        def command(code):
            return lambda _node: [sys.executable, "-S", "-E", "-c", code]

        monkeypatch.setattr(module, "sampler_command", command(sampler))
        monkeypatch.setattr(module, "torchrun_command", command(torchrun))
        code = main(["--run-dir", str(run_dir.root), "--node-rank", "0", *words])
        recorded = read_events(run_dir.root).records
        assert recorded[-1].kind is EventKind.NODE_FINISHED or code is None
        return code, recorded, run_dir

    yield run
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def exits(events):
    """``{child: exitcode}`` of the children that ended."""
    return {
        e.detail["child"]: e.detail["exitcode"] for e in events if e.kind is EventKind.CHILD_EXIT
    }


def kinds(events):
    return [event.kind for event in events]


@pytest.mark.parametrize(
    ("node_rank", "world_size", "first", "local"),
    [(0, 2, 0, 2), (0, 8, 0, 8), (1, 12, 8, 4), (0, 12, 0, 8), (2, 17, 16, 1)],
)
def test_ranks_fill_the_nodes_one_after_the_other(make_node, node_rank, world_size, first, local):
    node = make_node(node_rank, world_size=world_size, num_nodes=-(-world_size // 8))
    assert (node.first_rank, node.num_local_ranks) == (first, local)


def test_torchrun_starts_this_node_s_ranks_once_behind_our_launcher(make_node):
    node = make_node()
    command = torchrun_command(node)
    own, _, torchrun = " ".join(command).partition(" -- ")
    root = str(node.run_dir.root)
    assert own == (
        f"{sys.executable} -m harness.train.torchrun --run-dir {root} --node-rank 0"
        f" --parent-pid {os.getpid()}"
    )
    assert torchrun == (
        "--standalone --nnodes 1 --nproc-per-node 2 --max-restarts 0"
        f" -m harness.train --run-dir {root}"
    )


def test_the_sampler_gets_its_source_its_period_and_a_recording_where_there_is_one(make_node):
    command = " ".join(sampler_command(make_node()))
    assert "-m harness.power --run-dir " in command
    assert " --node 0 --source auto --interval 0.5" in command
    assert "--replay" not in command
    replayed = make_node(power__source="replay", power__replay_path="/watts.csv")
    command = " ".join(sampler_command(replayed))
    assert " --source replay " in command
    assert " --replay /watts.csv" in command


def test_every_rank_gets_the_same_number_of_threads_whatever_the_world_size(make_node):
    environment = rank_environment(make_node(), {"OMP_NUM_THREADS": "64", "PATH": "/bin"})
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["PATH"] == "/bin"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_a_node_whose_ranks_end_well_stops_its_sampler_and_says_so(run_node):
    code, events, run_dir = run_node("print('here')")
    assert code == 0
    assert exits(events) == {"torchrun": 0, "sampler": -signal.SIGTERM}
    assert kinds(events)[:2] == [EventKind.CLOCK_ANCHOR, EventKind.NODE_STARTED]
    assert events[1].detail["ranks"] == 2
    assert events[-1].detail == {"torchrun_exitcode": 0}
    assert run_dir.log("torchrun000.log").read_text() == "here\n"


def test_children_carry_the_mark_of_the_run(run_node):
    _, _, run_dir = run_node(f"import os; print(os.environ[{RUN_DIR_VARIABLE!r}])")
    assert run_dir.log("torchrun000.log").read_text() == f"{run_dir.root.resolve()}\n"


def test_a_sampler_that_dies_is_recorded_and_the_trial_goes_on(run_node):
    code, events, _ = run_node("import time; time.sleep(0.2)", sampler="import sys; sys.exit(3)")
    assert code == 0
    assert exits(events) == {"sampler": 3, "torchrun": 0}


def test_a_trial_whose_time_is_up_is_stopped(run_node):
    code, events, _ = run_node(FOREVER, trial_timeout_s=0.1)
    assert code == 1
    (timeout,) = [e for e in events if e.kind is EventKind.TRIAL_TIMEOUT]
    assert timeout.detail == {"trial_timeout_s": 0.1}
    assert exits(events)["torchrun"] == -signal.SIGTERM


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_stops_the_trial_and_is_recorded(run_node, name):
    code, events, _ = run_node(
        f"import os, signal; os.kill(os.getppid(), signal.{name}); signal.pause()"
    )
    assert code == 1
    (stop,) = [e for e in events if e.kind is EventKind.STOP_REQUESTED]
    assert stop.detail == {"signal": name}
    assert exits(events)["torchrun"] == -signal.SIGTERM


def test_a_launcher_that_is_gone_stops_the_trial(run_node, monkeypatch):
    read_end, write_end = os.pipe()
    os.close(write_end)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: read_end))
    code, events, _ = run_node(FOREVER, "--stop-on-stdin-eof")
    os.close(read_end)
    assert code == 1
    assert EventKind.PARENT_GONE in kinds(events)


def test_a_torchrun_that_ignores_its_stop_is_killed(run_node, monkeypatch):
    monkeypatch.setattr(module, "STOP_GRACE_S", 0.1)
    stubborn = (
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        " os.kill(os.getppid(), signal.SIGTERM); [signal.pause() for _ in range(9)]"
    )
    _, events, _ = run_node(stubborn)
    assert exits(events)["torchrun"] == -signal.SIGKILL


def test_a_rank_left_behind_by_torchrun_is_ended_and_recorded(run_node):
    left_behind = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-E', '-c',"
        f" {FOREVER!r}], start_new_session=True); print(p.pid)"
    )
    _, events, run_dir = run_node(left_behind)
    (rest,) = [e for e in events if e.detail.get("child") == "left behind"]
    assert rest.detail["pids"] == [int(run_dir.log("torchrun000.log").read_text())]


def rank_events(*told):
    return [
        {"t_unix_s": 1.0, "kind": kind, "rank": rank, "detail": {"exitcode": -6}}
        for kind, rank in told
    ]


def test_an_abort_after_every_rank_finished_is_a_teardown_abort(run_node):
    _, events, _ = run_node(
        "import sys; sys.exit(1)",
        events={"rank": rank_events(("rank_finished", 0), ("rank_finished", 1), ("rank_exit", 1))},
    )
    (abort,) = [e for e in events if e.kind is EventKind.TEARDOWN_ABORT]
    assert (abort.rank, abort.detail) == (1, {"exitcode": -6})


def test_an_abort_before_every_rank_finished_is_none(run_node):
    _, events, _ = run_node(
        "import sys; sys.exit(1)",
        events={"rank": rank_events(("rank_finished", 0), ("rank_exit", 1))},
    )
    assert EventKind.TEARDOWN_ABORT not in kinds(events)


def test_a_kernel_that_killed_for_memory_meanwhile_is_recorded(run_node, monkeypatch):
    counts = iter([3, 5])
    monkeypatch.setattr(module, "_host_oom_kills", lambda: next(counts))
    _, events, _ = run_node("import os; os.kill(os.getpid(), 9)")
    (kill,) = [e for e in events if e.kind is EventKind.HOST_OOM_KILL]
    assert kill.detail["oom_kills"] == 2


def test_somebody_else_s_process_killed_for_memory_does_not_explain_our_crash(
    run_node, monkeypatch
):
    """The counter is the host's; any stranger's kill renamed a crash to oom."""
    counts = iter([3, 5])
    monkeypatch.setattr(module, "_host_oom_kills", lambda: next(counts))
    _, events, _ = run_node("import sys; sys.exit(1)")
    assert EventKind.HOST_OOM_KILL not in kinds(events)


def test_a_time_limit_of_months_is_a_time_limit(run_node):
    """poll() takes no more than 24.8 days of milliseconds: every trial crashed."""
    _, events, _ = run_node("pass", trial_timeout_s=1e7)
    assert EventKind.NODE_FINISHED in kinds(events)


def test_the_kernel_s_count_of_kills_is_read_and_zero_where_there_is_none(monkeypatch):
    monkeypatch.setattr(
        "pathlib.Path.read_text", lambda _: "nr_free_pages 5\noom_kill 7\noom_kill_x 9\n"
    )
    assert module._host_oom_kills() == 7

    def missing(_):
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.read_text", missing)
    assert module._host_oom_kills() == 0
