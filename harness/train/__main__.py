"""A rank: ``python -m harness.train --run-dir DIR``, started by ``harness.train.torchrun``.

Exit codes: 0 finished, 3 invalid (non-finite loss), 2 wrong usage, 1 anything else.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from harness.config import Task
from harness.errors import LaunchError
from harness.processes import die_with_parent
from harness.record.run_dir import RunDir, naming
from harness.record.schema import EventKind, Phase
from harness.train.parent import expected_parent
from harness.train.records import RankRecords

_EXIT_ERROR = 1
_EXIT_USAGE = 2


def main(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become the rank that the launcher's environment names, do its task, and end."""
    parser = argparse.ArgumentParser(prog="python -m harness.train", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--task", type=Task, choices=list(Task), default=Task.TRAIN)
    options = parser.parse_args(argv)
    run_dir = RunDir(options.run_dir)
    try:
        rank, local_rank = rank_of(environ)
    except LaunchError as error:
        print(error, file=sys.stderr)
        sys.exit(_EXIT_USAGE)
    redirect_output(run_dir, rank)
    if not die_with_parent(expected_parent(environ), signal.SIGKILL):
        print("the launcher is gone already", file=sys.stderr)
        sys.exit(_EXIT_ERROR)
    records = RankRecords(run_dir, rank)
    records.event(
        EventKind.RANK_STARTED, pid=os.getpid(), host=socket.gethostname(), local_rank=local_rank
    )
    records.phase(0, Phase.START)
    _leave(_work(options.task, run_dir, records))


def rank_of(environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank and local rank that torchrun has set.

    Raises:
        LaunchError: they are not set; says what sets them.
    """
    try:
        return int(environ["RANK"]), int(environ["LOCAL_RANK"])
    except KeyError as error:
        raise LaunchError(
            f"{error.args[0]} is not set: this is one rank of a trial and starts under torchrun;"
            " run a whole experiment with python -m harness experiment=smoke"
        ) from error


def redirect_output(run_dir: RunDir, rank: int) -> None:
    """Send file descriptors 1 and 2, and so whatever native libraries print, to this rank's logs.

    Raises:
        RecordError: the logs cannot be written.
    """
    for fd, suffix in ((1, "out"), (2, "err")):
        path = run_dir.log(f"rank{rank:05d}.{suffix}")
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(log, fd)
            os.close(log)


def _work(task: Task, run_dir: RunDir, records: RankRecords) -> int:
    try:
        if task is Task.CALIBRATE:
            from harness.train import calibrate_worker as worker
        else:
            from harness.train import worker

        return worker.main(run_dir, records)
    except Exception as error:  # noqa: BLE001 - the process boundary: recorded, then the exit code
        records.error(error)
        traceback.print_exc()
        return _EXIT_ERROR


def _leave(code: int) -> NoReturn:
    # Past the interpreter's teardown: after an error a peer may be dead and the destructor of the
    # process group would wait for it or abort, and the exit code would tell of that instead.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
