"""A rank's entry and farewell: what it is, where its output goes, what it says when it fails."""

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

import harness.train
import harness.train.__main__ as entry
from harness.errors import ConfigError, LaunchError
from harness.record.read import read_events
from harness.record.run_dir import RunDir, read_heartbeat
from harness.record.schema import EventKind, Phase
from harness.train.memory import alloc_retries, peak_memory_bytes
from harness.train.parent import TORCHRUN_PID_VARIABLE, expected_parent
from harness.train.records import RankRecords, is_out_of_memory

RANK_0 = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def run_rank(tmp_path, worker_source: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Start the real entry point with a stand-in for the worker."""
    program = textwrap.dedent("""
        import os, sys, types
        worker = types.ModuleType("harness.train.worker")
        exec(sys.argv[1], worker.__dict__)
        sys.modules["harness.train.worker"] = worker
        from harness.train.__main__ import main
        assert "torch" not in sys.modules
        main(["--run-dir", sys.argv[2]], os.environ)
    """)
    return subprocess.run(
        [sys.executable, "-c", program, textwrap.dedent(worker_source), str(tmp_path)],
        env=os.environ | RANK_0 | environ,
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def run_here(tmp_path, monkeypatch):
    """Run the entry point in this process around a stand-in for the worker; give its exit code."""

    def run(work) -> int:
        monkeypatch.setitem(sys.modules, "harness.train.worker", SimpleNamespace(main=work))
        monkeypatch.setattr(harness.train, "worker", sys.modules["harness.train.worker"], False)
        monkeypatch.setattr(entry, "die_with_parent", lambda *_: True)
        monkeypatch.setattr(entry.os, "_exit", sys.exit)
        saved = [os.dup(fd) for fd in (1, 2)]
        try:
            with pytest.raises(SystemExit) as ended:
                entry.main(["--run-dir", str(tmp_path)], RANK_0)
        finally:
            for fd, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, fd)
                os.close(copy)
        return ended.value.code

    return run


def test_the_exit_code_is_the_workers(run_here, tmp_path):
    assert run_here(lambda _run_dir, _records: 3) == 3
    assert RunDir(tmp_path).log("rank00000.err").exists()


def test_a_workers_error_becomes_exit_code_1(run_here, tmp_path):
    def fail(_run_dir, _records):
        raise MemoryError

    assert run_here(fail) == 1
    kinds = [event.kind for event in read_events(tmp_path).records]
    assert kinds == [EventKind.RANK_STARTED, EventKind.RANK_OOM]


def test_rank_and_local_rank_come_from_the_launchers_environment():
    assert entry.rank_of({"RANK": "9", "LOCAL_RANK": "1"}) == (9, 1)


def test_a_rank_started_by_hand_says_what_starts_it():
    with pytest.raises(LaunchError, match=r"LOCAL_RANK is not set.*torchrun"):
        entry.rank_of({"RANK": "9"})


def test_a_rank_started_by_hand_exits_with_2_and_leaves_nothing(tmp_path):
    environ = {k: v for k, v in os.environ.items() if k not in RANK_0}
    command = [sys.executable, "-m", "harness.train", "--run-dir", str(tmp_path / "run")]
    ended = subprocess.run(
        command, env=environ, check=False, timeout=60, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "RANK is not set" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_output_goes_to_the_ranks_own_logs_and_a_start_is_recorded(tmp_path):
    ended = run_rank(
        tmp_path,
        """
        def main(run_dir, records):
            import os
            os.write(1, b"told")
            os.write(2, b"warned")
            return 3
        """,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "")
    run_dir = RunDir(tmp_path)
    assert run_dir.log("rank00000.out").read_text() == "told"
    assert run_dir.log("rank00000.err").read_text() == "warned"
    (event,) = read_events(tmp_path).records
    assert (event.kind, event.rank, event.detail["local_rank"]) == (EventKind.RANK_STARTED, 0, 0)
    beat = read_heartbeat(run_dir.heartbeat(0))
    assert beat is not None
    assert (beat.step, beat.phase) == (0, Phase.START)


def test_an_error_is_recorded_once_and_ends_with_1(tmp_path):
    ended = run_rank(
        tmp_path,
        """
        def main(run_dir, records):
            raise ValueError("no such thing")
        """,
    )
    assert ended.returncode == 1
    _, event = read_events(tmp_path).records
    assert event.kind is EventKind.RANK_ERROR
    assert (event.detail["type"], event.detail["message"]) == ("ValueError", "no such thing")
    assert "in main" in event.detail["traceback"]
    assert "no such thing" in RunDir(tmp_path).log("rank00000.err").read_text()


def test_a_rank_whose_launcher_is_gone_does_not_train(tmp_path):
    """A launcher killed before the kernel was told to pass it on would leave a rank for ever."""
    ended = run_rank(
        tmp_path,
        """
        def main(run_dir, records):
            raise AssertionError
        """,
        **{TORCHRUN_PID_VARIABLE: "1"},
    )
    assert ended.returncode == 1
    assert not read_events(tmp_path).records


def test_the_parent_is_whom_the_launcher_says_or_whoever_it_is():
    assert expected_parent({}) == os.getppid()
    assert expected_parent({TORCHRUN_PID_VARIABLE: "77"}) == 77


@pytest.mark.parametrize(
    ("error", "is_oom"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_running_out_of_memory_is_told_apart(tmp_path, error, is_oom):
    assert is_out_of_memory(error) is is_oom
    records = RankRecords(RunDir(tmp_path), 2)
    records.error(error)
    records.close()
    (event,) = read_events(tmp_path).records
    assert event.kind is (EventKind.RANK_OOM if is_oom else EventKind.RANK_ERROR)
    assert event.rank == 2


def test_memory_on_cpu_is_resident_memory_and_has_no_retries():
    assert 10 * 2**20 < peak_memory_bytes(torch.device("cpu")) < 2**40
    assert alloc_retries(torch.device("cpu")) is None


def test_memory_on_cuda_comes_from_the_allocator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 7)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: {"num_alloc_retries": 2})
    assert peak_memory_bytes(torch.device("cuda")) == 7
    assert alloc_retries(torch.device("cuda")) == 2


def test_compile_time_is_what_the_first_step_took_beyond_the_others():
    from harness.train.worker import compile_time

    assert compile_time((31.0, 2.0, 1.0, 1.0)) == 30.0
    assert compile_time((31.0,)) is None


def test_a_checkpoint_of_the_same_run_is_accepted(tmp_path):
    from harness.train.worker import check_resumable

    assert (
        check_resumable(
            tmp_path, {"step": 3, "train.global_batch_size": 2}, {"train.global_batch_size": 2}, 5
        )
        is None
    )


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"step": 3, "train.global_batch_size": 4},
            r"saved with train.global_batch_size=4, this run has 2",
        ),
        ({"step": 3}, r"saved with train.global_batch_size=None, this run has 2"),
        ({"step": 5, "train.global_batch_size": 2}, r"nothing left to train"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, found, message):
    from harness.train.worker import check_resumable

    with pytest.raises(ConfigError, match=message):
        check_resumable(tmp_path, found, {"train.global_batch_size": 2}, 5)


def test_a_single_compiled_step_has_no_compile_time_and_says_why(tmp_path):
    from harness.train.worker import record_compile

    records = RankRecords(RunDir(tmp_path), 0)
    assert record_compile((31.0,), records) is None
    records.close()
    (event,) = read_events(tmp_path).records
    assert event.detail["compile_time_s"] is None
    assert "one step" in event.detail["reason"]
    assert event.detail["first_step_s"] == 31.0
