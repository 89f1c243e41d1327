"""Finding and ending the processes of one run, and dying with one's parent (Linux).

Every process of a run carries the run's folder in its environment. That mark, never a name, is what
a stop looks for, so nothing of anybody else is ever touched.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

RUN_DIR_VARIABLE = "WATTLINE_RUN_DIR"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent_pid: int, death_signal: signal.Signals) -> bool:
    """Have the kernel send ``death_signal`` to this process when its parent ends.

    Args:
        parent_pid: The process that must be our parent. It may have ended before the kernel was
            told, and then no signal ever comes, so it is compared afterwards.
        death_signal: The signal to receive.

    Returns:
        False when the parent is gone already and this process should end by itself.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    return os.getppid() == parent_pid


def marked(run_root: Path) -> list[psutil.Process]:
    """The living processes, this one excepted, whose environment names ``run_root`` or below."""
    found: list[psutil.Process] = []
    wanted = str(run_root.resolve())
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            value = process.environ().get(RUN_DIR_VARIABLE, "")
        except (psutil.Error, OSError):
            continue
        if value == wanted or value.startswith(wanted + os.sep):
            found.append(process)
    return found


def stop(processes: Sequence[psutil.Process], grace_s: float) -> list[int]:
    """End ``processes``: SIGTERM, ``grace_s`` to leave, then SIGKILL.

    Children of this process are reaped, and a ``Popen`` of theirs would take their exit code for 0:
    wait for it first where the code matters.

    Returns:
        The pids that had to be killed.
    """
    for process in processes:
        _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(list(processes), timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=5.0)
    return [process.pid for process in alive]


def stop_marked(
    run_root: Path, grace_s: float, clock: Callable[[], float] = time.monotonic
) -> list[int]:
    """End every process of ``run_root``, those started meanwhile included.

    Returns:
        The pids that were still there.
    """
    ended: list[int] = []
    deadline = clock() + grace_s + 5.0
    while left := marked(run_root):
        ended += [process.pid for process in left]
        stop(left, max(0.0, min(grace_s, deadline - clock())))
        if clock() > deadline:
            break
    return ended


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        return
