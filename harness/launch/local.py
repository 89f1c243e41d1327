"""The local launcher: the one node process of a trial, as a child of this process."""

from __future__ import annotations

import os
import subprocess
import sys

from harness.processes import RUN_DIR_VARIABLE
from harness.record.run_dir import RunDir


def start_node(run_dir: RunDir) -> subprocess.Popen[bytes]:
    """Start node 0 in a session of its own; a terminal's Ctrl-C reaches it only through us.

    Its standard input is a pipe that closes when this process ends, however it ends, which tells
    the node to stop.
    """
    log = run_dir.log("node000.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "harness.node", "--run-dir", str(run_dir.root)]
    with log.open("ab") as file:
        return subprocess.Popen(
            [*command, "--node-rank", "0", "--stop-on-stdin-eof"],
            env={**os.environ, RUN_DIR_VARIABLE: str(run_dir.root.resolve())},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
