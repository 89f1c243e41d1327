"""The local launcher: the node command, its mark, its log, and the pipe that ties it to us."""

import os

import pytest

from harness.launch import local
from harness.processes import RUN_DIR_VARIABLE
from harness.record.run_dir import RunDir

STAND_IN = f"""#!/bin/sh
echo "$@"
echo "${RUN_DIR_VARIABLE}"
cat
echo over
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The node process of a run, played by a shell script that waits for its input to close."""
    script = tmp_path / "python"
    script.write_text(STAND_IN)
    script.chmod(0o755)
    monkeypatch.setattr(local.sys, "executable", str(script))
    run_dir = RunDir(tmp_path / "results" / "run")
    node = local.start_node(run_dir)
    yield run_dir, node
    node.kill()
    node.communicate()


def test_the_node_gets_its_run_and_leaves_when_its_pipe_closes(started):
    run_dir, node = started
    assert node.poll() is None
    assert os.getsid(node.pid) == node.pid
    node.stdin.close()
    assert node.wait(10) == 0
    command, mark, last = run_dir.log("node000.log").read_text().splitlines()
    assert command == (
        f"-m harness.node --run-dir {run_dir.root} --node-rank 0 --stop-on-stdin-eof"
    )
    assert mark == str(run_dir.root.resolve())
    assert last == "over"
