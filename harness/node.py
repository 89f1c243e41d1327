"""The process on each node of a trial: it owns the telemetry sampler and torchrun, and stops both.

``python -m harness.node --run-dir DIR --node-rank N``; every launcher starts this same command. The
sampler starts before torchrun in a session of its own, so telemetry outlives a killed rank. Nothing
here spins: it sleeps in poll() until a child ends, a signal arrives, the parent's pipe closes or
the trial's time is up. Whatever happens, no process of the run is left, and an event says why.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import Task
from harness.processes import RUN_DIR_VARIABLE, stop_marked
from harness.record.read import read_events, read_manifest
from harness.record.run_dir import EventWriter, RunDir
from harness.record.schema import EventKind, Manifest

STOP_GRACE_S = 10.0
"""Seconds that children get to leave after SIGTERM."""
_LONGEST_POLL_S = 3600.0  # poll() takes at most 2^31 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one node process works with; ``num_local_ranks`` are the ranks that it starts."""

    run_dir: RunDir
    node_rank: int
    manifest: Manifest

    @property
    def num_local_ranks(self) -> int:
        """Ranks on this node: a full node, or what is left for the last one."""
        per_node = int(self.manifest.config["launcher"]["gpus_per_node"])
        return min(per_node, self.manifest.trial.world_size - self.node_rank * per_node)

    @property
    def first_rank(self) -> int:
        """The global rank of this node's first rank."""
        return self.node_rank * int(self.manifest.config["launcher"]["gpus_per_node"])


def main(argv: Sequence[str]) -> int:
    """Run one node of one trial to its end; the records say how it ended.

    Returns:
        0 when torchrun exited 0, else 1.
    """
    options = _parse(argv)
    run_dir = RunDir(options.run_dir)
    node = Node(
        run_dir=run_dir, node_rank=options.node_rank, manifest=read_manifest(run_dir.manifest)
    )
    events = EventWriter(run_dir, f"node{node.node_rank:03d}")
    wakeup = _catch_signals()
    events.write(
        EventKind.CLOCK_ANCHOR, unix_s=time.time(), monotonic_s=time.monotonic(), host=_host()
    )
    events.write(EventKind.NODE_STARTED, pid=os.getpid(), host=_host(), ranks=node.num_local_ranks)
    oom_kills = _host_oom_kills()
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        children["sampler"] = _start(node, "sampler", sampler_command(node), os.environ)
        children["torchrun"] = _start(
            node, "torchrun", torchrun_command(node), rank_environment(node, os.environ)
        )
        for name, child in children.items():
            events.write(EventKind.CHILD_STARTED, child=name, pid=child.pid)
        _wait(node, children, events, wakeup, watch_stdin=options.stop_on_stdin_eof)
    finally:
        _stop_all(node, children, events)
    _explain(node, events, children["torchrun"].returncode, _host_oom_kills() - oom_kills)
    events.write(EventKind.NODE_FINISHED, torchrun_exitcode=children["torchrun"].returncode)
    events.close()
    return 0 if children["torchrun"].returncode == 0 else 1


def sampler_command(node: Node) -> list[str]:
    """The command line of this node's telemetry sampler."""
    power = node.manifest.config["power"]
    command = [sys.executable, "-m", "harness.power", "--run-dir", str(node.run_dir.root)]
    command += ["--node", str(node.node_rank), "--source", str(power["source"])]
    command += ["--interval", str(power["interval_s"])]
    command += ["--parent-pid", str(os.getpid())]
    if power["replay_path"] is not None:
        command += ["--replay", str(power["replay_path"])]
    return command


def torchrun_command(node: Node) -> list[str]:
    """The command line of torchrun and, behind ``-m``, of a rank."""
    run_dir = str(node.run_dir.root)
    command = [sys.executable, "-m", "harness.train.torchrun", "--run-dir", run_dir]
    command += ["--node-rank", str(node.node_rank), "--parent-pid", str(os.getpid()), "--"]
    command += ["--standalone", "--nnodes", "1"]
    command += ["--nproc-per-node", str(node.num_local_ranks), "--max-restarts", "0"]
    command += ["-m", "harness.train", "--run-dir", run_dir]
    is_calibration = node.manifest.config["task"] == Task.CALIBRATE
    return [*command, "--task", Task.CALIBRATE.value] if is_calibration else command


def rank_environment(node: Node, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of torchrun and its ranks.

    OMP_NUM_THREADS is set for every world size: torchrun sets it to 1 only when it starts more than
    one rank, and a scaling run would compare all cores against one.
    """
    train = node.manifest.config["train"]
    return {
        **environment,
        "OMP_NUM_THREADS": str(train["cpu_threads_per_rank"]),
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _start(
    node: Node, name: str, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    log = node.run_dir.log(f"{name}{node.node_rank:03d}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            env={**environment, RUN_DIR_VARIABLE: str(node.run_dir.root.resolve())},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(
    node: Node,
    children: Mapping[str, subprocess.Popen[bytes]],
    events: EventWriter,
    wakeup: int,
    *,
    watch_stdin: bool,
) -> None:
    """Sleep until torchrun ends or something says that the trial must."""
    pidfds = {os.pidfd_open(child.pid): name for name, child in children.items()}
    poller = select.poll()
    for fd in (*pidfds, wakeup, *((sys.stdin.fileno(),) if watch_stdin else ())):
        poller.register(fd, select.POLLIN | select.POLLHUP)
    deadline = time.monotonic() + float(node.manifest.config["trial_timeout_s"])
    try:
        while True:
            left_s = deadline - time.monotonic()
            wait_s = min(max(0.0, left_s), _LONGEST_POLL_S)
            ready = [fd for fd, _ in poller.poll(wait_s * 1000)]
            if wakeup in ready:
                number = signal.Signals(os.read(wakeup, 1)[0])
                return events.write(EventKind.STOP_REQUESTED, signal=number.name)
            if watch_stdin and sys.stdin.fileno() in ready:
                return events.write(EventKind.PARENT_GONE, pipe="closed")
            for fd in (fd for fd in ready if fd in pidfds):
                name = pidfds[fd]
                poller.unregister(fd)
                code = children[name].wait()
                events.write(EventKind.CHILD_EXIT, child=name, exitcode=code)
                if name == "torchrun":
                    return None
            if not ready and left_s <= 0:
                limit_s = node.manifest.config["trial_timeout_s"]
                return events.write(EventKind.TRIAL_TIMEOUT, trial_timeout_s=limit_s)
    finally:
        for fd in pidfds:
            os.close(fd)


def _stop_all(
    node: Node, children: Mapping[str, subprocess.Popen[bytes]], events: EventWriter
) -> None:
    """End torchrun first, so that telemetry covers its end, then the sampler, then any rest."""
    for name in ("torchrun", "sampler"):
        child = children.get(name)
        if child is None or child.poll() is not None:
            continue
        child.terminate()
        try:
            child.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        events.write(EventKind.CHILD_EXIT, child=name, exitcode=child.returncode, stopped=True)
    own = node.run_dir.root
    left = stop_marked(own, grace_s=1.0) if node.manifest.trial.num_nodes == 1 else []
    if left:
        events.write(EventKind.CHILD_EXIT, child="left behind", pids=left, stopped=True)


def _explain(node: Node, events: EventWriter, torchrun_exitcode: int, oom_kills: int) -> None:
    """Name what exit codes alone do not say: a host out of memory, an abort after a good run."""
    if torchrun_exitcode == 0:
        return
    recorded = read_events(node.run_dir.root).records
    finished = {e.rank for e in recorded if e.kind is EventKind.RANK_FINISHED}
    exits: dict[int | None, Any] = {
        e.rank: e.detail.get("exitcode") for e in recorded if e.kind is EventKind.RANK_EXIT
    }
    local = range(node.first_rank, node.first_rank + node.num_local_ranks)
    # The host's counter counts everybody's: only a killed rank makes it ours.
    killed = [rank for rank in local if exits.get(rank) == -signal.SIGKILL]
    if oom_kills > 0 and (killed or torchrun_exitcode == -signal.SIGKILL):
        events.write(EventKind.HOST_OOM_KILL, oom_kills=oom_kills, source="/proc/vmstat")
    if all(rank in finished for rank in local):
        for rank in (rank for rank in local if rank in exits):
            events.write(EventKind.TEARDOWN_ABORT, rank, exitcode=exits[rank])


def _catch_signals() -> int:
    """Turn SIGTERM, SIGINT and SIGHUP into bytes on a pipe; gives its read end."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    return read_end


def _host_oom_kills() -> int:
    """How many processes this host's kernel has killed for memory since boot."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _host() -> str:
    return socket.gethostname()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.node", description=main.__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the run")
    parser.add_argument("--node-rank", type=int, required=True, help="0 .. number of nodes - 1")
    parser.add_argument(
        "--stop-on-stdin-eof", action="store_true", help="stop when standard input closes"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
