"""The CPU that the processes around the ranks take while a trial runs in steady state."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from harness.processes import stop_marked
from harness.record.run_dir import RunDir, read_heartbeat
from harness.record.schema import Phase

pytestmark = pytest.mark.perf

PROJECT = Path(__file__).parents[2]
WINDOW_S = 40.0
FIRST_STEP = 10
BAR_PCT = 2.0  # of one core, all parents together
MODULES = {
    "harness.node": "node process",
    "harness.train.torchrun": "torchrun",
    "harness.power": "sampler",
}
RANK = "harness.train"


def role(process):
    """The module that ``process`` runs, behind the first ``-m``."""
    words = process.cmdline()
    return words[words.index("-m") + 1] if "-m" in words else None


def cpu_s(process):
    times = process.cpu_times()
    return times.user + times.system


def heartbeat(results):
    for path in results.glob("smoke/smoke-g2-*/heartbeat/rank00000"):
        return read_heartbeat(path)
    return None


@contextlib.contextmanager
def campaign(results, cache):
    """A campaign on a terminal of its own, whose progress bar is the dearest kind of output."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "harness", "experiment=smoke", "points=[2]"]
    command += ["train.num_steps=100000", f"results_dir={results}", f"cache_dir={cache}"]
    door = subprocess.Popen(
        command, cwd=PROJECT, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    reader = threading.Thread(target=drain, args=(master,), daemon=True)
    reader.start()
    try:
        yield door
    finally:
        door.send_signal(signal.SIGINT)
        try:
            door.wait(60)
        finally:
            door.kill()
            door.wait()
            stop_marked(results, grace_s=0.0)
            reader.join(10)
            os.close(master)


def drain(descriptor):
    # A terminal that nobody reads fills up and blocks its writer; at its end reading fails.
    with contextlib.suppress(OSError):
        while os.read(descriptor, 65536):
            pass


def wait_for_training(door, results):
    deadline = time.monotonic() + 180
    while True:
        beat = heartbeat(results)
        if beat is not None and beat.phase is Phase.TRAIN and beat.step >= FIRST_STEP:
            return beat
        assert door.poll() is None, "the campaign ended by itself"
        assert time.monotonic() < deadline, "the ranks did not begin to train"
        time.sleep(0.5)


@pytest.mark.timeout(400)
def test_parents_block_while_a_trial_runs(tmp_path, say_load):
    results = tmp_path / "results"
    with campaign(results, tmp_path / "cache") as door:
        first = wait_for_training(door, results)
        front = psutil.Process(door.pid)
        found = {role(p): p for p in front.children(recursive=True)}
        parents = {"front door": front} | {MODULES[m]: found[m] for m in MODULES}
        before = {name: cpu_s(process) for name, process in parents.items()}
        rank_before_s = cpu_s(found[RANK])
        start_s = time.monotonic()
        time.sleep(WINDOW_S)
        wall_s = time.monotonic() - start_s
        share = {n: 100 * (cpu_s(p) - before[n]) / wall_s for n, p in parents.items()}
        rank_pct = 100 * (cpu_s(found[RANK]) - rank_before_s) / wall_s
        last = heartbeat(results)
        assert last is not None
        (run_root,) = results.glob("smoke/smoke-g2-*")
        assert RunDir(run_root).telemetry(0).read_bytes().count(b"\n") >= wall_s / 2
    print()
    print(f"share of one core over {wall_s:.0f} s, {last.step - first.step} steps of 2 ranks:")
    for name, pct in share.items():
        print(f"  {name:<12} {pct:5.2f} %")
    print(f"  {'all parents':<12} {sum(share.values()):5.2f} %; bar {BAR_PCT:.0f} %")
    print(f"  {'one rank':<12} {rank_pct:5.2f} %")
    say_load()
    assert last.step > first.step
    assert rank_pct > sum(share.values())
