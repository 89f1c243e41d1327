"""``python -m harness.power``: the sampler of one node, a process of its own.

Stops at SIGTERM or SIGINT, and when the process that started it ends. Exit code 0 when it was
stopped, 2 when it could not start or could not write.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.config import PowerSource
from harness.errors import HarnessError
from harness.power.host import HostMeter
from harness.power.sampler import open_source, sample
from harness.processes import die_with_parent
from harness.record.run_dir import EventWriter, JsonlWriter, RunDir
from harness.record.schema import EventKind

_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_PARENT_GONE = "parent gone"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sampler; give the exit code."""
    arguments = _arguments(argv)
    parent = arguments.parent_pid or os.getppid()
    if not die_with_parent(parent, signal.SIGTERM):
        print(f"harness.power: the process {parent} that started it is gone", file=sys.stderr)
        return 2
    try:
        _sample(arguments, parent)
    except HarnessError as error:
        print(f"harness.power: {error}", file=sys.stderr)
        return 2
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.power", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--node", type=int, required=True, metavar="N", help="rank of this node")
    parser.add_argument("--source", type=PowerSource, choices=list(PowerSource), required=True)
    parser.add_argument("--interval", type=float, required=True, metavar="S", help="seconds")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="with --source replay")
    parser.add_argument(
        "--parent-pid", type=int, metavar="PID", help="stop unless this is the parent"
    )
    arguments = parser.parse_args(argv)
    if not 0 < arguments.interval < float("inf"):
        parser.error(f"--interval {arguments.interval}: expected a number of seconds above 0")
    if arguments.node < 0:
        parser.error(f"--node {arguments.node}: expected 0 or more")
    if arguments.replay is not None and arguments.source is not PowerSource.REPLAY:
        print(
            f"harness.power: --replay {arguments.replay} is ignored with --source"
            f" {arguments.source}",
            file=sys.stderr,
        )
        arguments.replay = None
    return arguments


def _sample(arguments: argparse.Namespace, parent: int) -> None:
    run_dir, host = RunDir(arguments.run_dir), socket.gethostname()
    opened = open_source(
        arguments.source,
        host=host,
        interval_s=arguments.interval,
        replay_path=arguments.replay,
        run_dir=run_dir,
    )
    # From here on a stop is taken between ticks, so that no line is cut.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    with (
        contextlib.closing(opened.source),
        contextlib.closing(EventWriter(run_dir, f"sampler{arguments.node:03d}")) as events,
        JsonlWriter(run_dir.telemetry(arguments.node)) as telemetry,
    ):
        events.write(
            EventKind.SAMPLER_STARTED,
            node=arguments.node,
            host=host,
            pid=os.getpid(),
            source=opened.source.source,
            wanted=arguments.source,
            interval_s=arguments.interval,
            replay=None if arguments.replay is None else str(arguments.replay),
            recording=opened.recording,
            reason=opened.reason,
        )
        counts = sample(
            opened.source,
            HostMeter(host),
            telemetry,
            events,
            interval_s=arguments.interval,
            wait=lambda seconds: _wait(seconds, parent),
        )
        events.write(EventKind.SAMPLER_STOPPED, **dataclasses.asdict(counts))


def _wait(seconds: float, parent: int) -> str | None:
    received = signal.sigtimedwait(_STOP_SIGNALS, seconds)
    if os.getppid() != parent:
        return _PARENT_GONE
    return None if received is None else signal.Signals(received.si_signo).name


if __name__ == "__main__":
    sys.exit(main())
