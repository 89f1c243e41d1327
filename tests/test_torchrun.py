"""The launcher's record of how ranks ended."""

import signal
import subprocess
import sys

import pytest
from torch.distributed import run as distributed_run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from harness.record.read import read_events
from harness.record.run_dir import RunDir
from harness.record.schema import EventKind
from harness.train import torchrun
from harness.train.parent import TORCHRUN_PID_VARIABLE


def failure(local_rank: int, exitcode: int) -> ProcessFailure:
    return ProcessFailure(
        local_rank=local_rank, pid=100 + local_rank, exitcode=exitcode, error_file=""
    )


def run(tmp_path, monkeypatch, effect) -> int:
    monkeypatch.setenv(TORCHRUN_PID_VARIABLE, "0")  # restored afterwards; main overwrites it
    monkeypatch.setattr(distributed_run, "run", effect)
    command = ["--run-dir", str(tmp_path), "--node-rank", "1", "--"]
    return torchrun.main([*command, "--nnodes=1", "--nproc-per-node=2", "script.py"])


def test_ranks_that_end_well_leave_no_event(tmp_path, monkeypatch):
    seen = []
    assert run(tmp_path, monkeypatch, seen.append) == 0
    assert (seen[0].nnodes, seen[0].nproc_per_node, seen[0].training_script) == (
        "1",
        "2",
        "script.py",
    )
    assert not read_events(tmp_path).records


def test_each_failed_rank_has_one_event(tmp_path, monkeypatch):
    def fail(_):
        raise ChildFailedError("rank", {3: failure(1, -9), 2: failure(0, -15), 4: failure(2, 3)})

    assert run(tmp_path, monkeypatch, fail) == 1
    events = read_events(tmp_path).records
    assert {e.kind for e in events} == {EventKind.RANK_EXIT}
    told = {(e.rank, e.detail["exitcode"], e.detail["signal"]) for e in events}
    assert told == {(3, -9, "SIGKILL"), (2, -15, "SIGTERM"), (4, 3, None)}
    assert RunDir(tmp_path).events("torchrun001").exists()


def test_a_signal_becomes_the_exit_code_that_shells_give_it(tmp_path, monkeypatch):
    def stop(_):
        raise SignalException("stopped", signal.SIGTERM)

    assert run(tmp_path, monkeypatch, stop) == 128 + 15


def test_another_error_of_the_launcher_keeps_its_traceback(tmp_path, monkeypatch):
    def fail(_):
        raise ConnectionError("no rendezvous")

    with pytest.raises(ConnectionError, match="no rendezvous"):
        run(tmp_path, monkeypatch, fail)


def test_a_launcher_whose_parent_is_gone_starts_nothing(tmp_path):
    command = [sys.executable, "-m", "harness.train.torchrun", "--run-dir", str(tmp_path)]
    command += ["--node-rank", "0", "--parent-pid", "1", "--", "--nproc-per-node=1", "missing.py"]
    ended = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "missing.py" not in ended.stderr
