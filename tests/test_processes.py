"""Finding and ending the processes of one run, and dying with one's parent. Real processes."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from harness import processes
from harness.processes import RUN_DIR_VARIABLE, die_with_parent, marked, stop, stop_marked

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
WAIT = "print('ready', flush=True); signal.pause()"
PATIENT = "import signal; " + WAIT


@pytest.fixture
def start():
    """Start a Python that runs ``code`` and says a first line; it is gone after the test."""
    children = []

    def run(code, run_root=None):
        mark = {} if run_root is None else {RUN_DIR_VARIABLE: str(run_root)}
        child = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", code],
            stdout=subprocess.PIPE,
            env={**os.environ, **mark},
            text=True,
        )
        children.append(child)
        child.first_line = child.stdout.readline().strip()
        return child

    yield run
    for child in children:
        child.kill()
        child.communicate()


def pids(found):
    return {process.pid for process in found}


def test_only_processes_that_carry_the_mark_of_this_run_or_below_are_found(start, tmp_path):
    own = start(PATIENT, tmp_path / "results" / "run")
    start(PATIENT, tmp_path / "results" / "run2")
    start(PATIENT)
    assert pids(marked(tmp_path / "results" / "run")) == {own.pid}
    assert len(marked(tmp_path / "results")) == 2
    assert marked(tmp_path / "result") == []


def test_this_process_is_never_found(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    assert marked(tmp_path) == []


def test_a_process_that_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    class Unreadable:
        pid = -5

        def environ(self):
            raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "process_iter", lambda: [Unreadable()])
    assert marked(tmp_path) == []


def test_stop_ends_what_listens_with_sigterm_and_kills_nothing(start):
    child = start(PATIENT)
    assert stop([psutil.Process(child.pid)], grace_s=10.0) == []
    assert not psutil.pid_exists(child.pid)


def test_stop_kills_what_ignores_sigterm_once_its_time_is_over(start):
    child = start(STUBBORN + WAIT)
    assert stop([psutil.Process(child.pid)], grace_s=0.05) == [child.pid]
    assert not psutil.pid_exists(child.pid)


def test_stopping_what_has_left_already_is_fine(start):
    child = start("print('ready')")
    process = psutil.Process(child.pid)
    child.wait()
    assert stop([process], grace_s=0.0) == []


def test_stop_marked_ends_every_process_of_the_run_and_no_other(start, tmp_path):
    stubborn = start(STUBBORN + WAIT, tmp_path / "run")
    listening = start(PATIENT, tmp_path / "run")
    other = start(PATIENT, tmp_path / "other")
    assert set(stop_marked(tmp_path / "run", grace_s=0.1)) == {stubborn.pid, listening.pid}
    assert marked(tmp_path / "run") == []
    assert other.poll() is None
    assert stop_marked(tmp_path / "run", grace_s=0.1) == []


def test_stop_marked_gives_up_when_its_time_is_over(tmp_path, monkeypatch):
    """A process that cannot be killed (state D) must not hold a campaign for ever."""

    class Undying:
        pid = 1

        def send_signal(self, _):
            raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(processes, "marked", lambda _: [Undying()])
    monkeypatch.setattr(psutil, "wait_procs", lambda procs, **_: (procs, []))
    times = iter([0.0, 1.0, 2.0, 6.5, 7.5])
    assert stop_marked(tmp_path, grace_s=1.0, clock=lambda: next(times)) == [1, 1]


GRANDCHILD = """
import os, sys
sys.path.insert(0, {root!r})
import signal
from harness.processes import die_with_parent
assert die_with_parent(os.getppid(), signal.SIGKILL)
print(os.getpid(), flush=True)
signal.pause()
"""
PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
signal.pause()
"""


def test_a_child_that_asked_for_it_dies_when_its_parent_is_killed():
    root = os.fspath(processes.__file__).rsplit("/harness/", 1)[0]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, GRANDCHILD.format(root=root)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        grandchild = psutil.Process(int(parent.stdout.readline()))
        assert grandchild.is_running()
        parent.kill()
        assert psutil.wait_procs([grandchild], timeout=10.0)[1] == []
    finally:
        parent.kill()
        parent.communicate()


def test_a_parent_that_has_ended_already_is_noticed(monkeypatch):
    told = []

    class Libc:
        def prctl(self, *arguments):
            told.append(arguments)
            return 0

    monkeypatch.setattr(processes.ctypes, "CDLL", lambda *_, **__: Libc())
    assert die_with_parent(os.getppid(), signal.SIGTERM)
    assert not die_with_parent(os.getppid() + 1, signal.SIGTERM)
    assert told == [(1, signal.SIGTERM, 0, 0, 0)] * 2


def test_a_kernel_that_refuses_is_an_error_of_the_system(monkeypatch):
    class Libc:
        def prctl(self, *_):
            return -1

    monkeypatch.setattr(processes.ctypes, "CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr(processes.ctypes, "get_errno", lambda: 22)
    with pytest.raises(OSError, match="prctl"):
        die_with_parent(os.getppid(), signal.SIGTERM)
