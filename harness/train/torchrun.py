"""torchrun on one node, and a record of how its ranks ended.

``python -m harness.train.torchrun --run-dir DIR --node-rank N -- ARGS``, where ARGS are those of
``torch.distributed.run``, the rank's own command included. Elastic starts, watches and stops the
ranks; this adds one ``rank_exit`` event per failed rank: exit codes are a record, not a log.
The caller sets ``--max-restarts 0``: a restarted rank would be another measurement.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed import run as distributed_run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from harness.processes import die_with_parent
from harness.record.run_dir import EventWriter, RunDir
from harness.record.schema import EventKind
from harness.train.parent import TORCHRUN_PID_VARIABLE

EXIT_RANK_FAILED = 1
_SIGNAL_BASE = 128  # a shell's code for "ended by signal n" is 128 + n


def main(argv: Sequence[str]) -> int:
    """Run the ranks of one node to their end.

    Returns:
        0 when every rank ended with 0, 1 when one did not, 128 + n when signal n stopped us.
    """
    options = _parse(argv)
    parent_pid = options.parent_pid
    if parent_pid is not None and not die_with_parent(parent_pid, signal.SIGKILL):
        return EXIT_RANK_FAILED
    os.environ[TORCHRUN_PID_VARIABLE] = str(os.getpid())
    try:
        distributed_run.run(distributed_run.parse_args(options.torchrun_args))
    except ChildFailedError as error:
        record_exits(RunDir(options.run_dir), options.node_rank, error.failures)
        return EXIT_RANK_FAILED
    except SignalException as error:
        return _SIGNAL_BASE + error.sigval
    return 0


def record_exits(run_dir: RunDir, node_rank: int, failures: Mapping[int, ProcessFailure]) -> None:
    """Write one ``rank_exit`` event per failed rank to ``events/torchrun000.jsonl``.

    They do not tell cause from consequence: the launcher stops the remaining ranks with SIGTERM
    (-15) once one has failed, and a rank whose peer was killed fails by itself (1) within the same
    tenth of a second, the launcher's polling period.
    """
    events = EventWriter(run_dir, f"torchrun{node_rank:03d}")
    for rank, failure in failures.items():
        events.write(
            EventKind.RANK_EXIT,
            rank,
            exitcode=failure.exitcode,
            signal=failure.signal_name() if failure.exitcode < 0 else None,
            pid=failure.pid,
            local_rank=failure.local_rank,
            t_exit_unix_s=float(failure.timestamp),
        )
    events.close()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.train.torchrun", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--node-rank", type=int, required=True, help="index of this node")
    parser.add_argument("--parent-pid", type=int, help="process to die with, as our parent")
    parser.add_argument("torchrun_args", nargs="+", help="arguments of torch.distributed.run")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
