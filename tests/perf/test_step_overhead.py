"""What records and heartbeats cost the step loop, as a ratio within one process group."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.record.read import read_jsonl, read_steps
from harness.record.run_dir import read_heartbeat
from harness.record.schema import Event, EventKind, Phase
from harness.stats import paired_ratio_interval

pytestmark = pytest.mark.perf

PROJECT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("step_overhead.py")
# Fewer pairs than 60 only try the benchmark out; its figure wants 60 or more.
NUM_PAIRS = int(os.environ.get("WATTLINE_BENCH_PAIRS", "60"))
BLOCK_STEPS = 20
SEED = 2608
BAR = 1.02  # recorded over bare
AA_BAR = 0.01  # the A/A interval must lie within 1 -+ this
LIMIT_S = 900
# One step of these takes 30 to 60 ms on two cores; real ones take seconds, so the share is smaller.
STEP = (
    "model.hidden_size=64",
    "model.intermediate_size=192",
    "train.sequence_length=128",
    f"train.num_steps={(4 * NUM_PAIRS + 2) * BLOCK_STEPS}",
    "train.collective_timeout_s=300",
)


@pytest.fixture
def run_dir(train_run, tmp_path):
    store = train_run.make_store(tmp_path / "store", STEP)
    return train_run.make_run(tmp_path / "run", store, world_size=2, overrides=STEP)


@contextlib.contextmanager
def sampling(run_dir, recording):
    """The sampler replaying 8 GPUs at 10 Hz; gives a dictionary that holds its figures after."""
    command = [sys.executable, "-m", "harness.power", "--run-dir", str(run_dir.root)]
    command += ["--node", "0", "--source", "replay", "--interval", "0.1"]
    figures = {}
    sampler = subprocess.Popen([*command, "--replay", str(recording)], cwd=PROJECT)
    try:
        deadline = time.monotonic() + 60
        while not run_dir.telemetry(0).exists():
            assert sampler.poll() is None
            assert time.monotonic() < deadline, "the sampler did not start"
            time.sleep(0.1)
        yield figures
        times = psutil.Process(sampler.pid).cpu_times()
        figures["whole_cpu_s"] = times.user + times.system
    finally:
        sampler.send_signal(signal.SIGTERM)
        assert sampler.wait(30) == 0
    events = read_jsonl(run_dir.events("sampler000"), Event).records
    figures |= next(e.detail for e in events if e.kind is EventKind.SAMPLER_STOPPED)


def run_ranks(run_dir):
    """Two ranks under the harness's own torchrun; gives what rank 0 wrote."""
    command = [sys.executable, "-m", "harness.train.torchrun", "--run-dir", str(run_dir.root)]
    command += ["--node-rank", "0", "--", "--standalone", "--nnodes=1", "--nproc-per-node=2"]
    command += ["--max-restarts=0", str(SCRIPT), "--run-dir", str(run_dir.root)]
    command += ["--pairs", str(NUM_PAIRS), "--block-steps", str(BLOCK_STEPS), "--seed", str(SEED)]
    # A script's own folder heads its path, not the project; an install may be missing.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
    subprocess.run(command, cwd=PROJECT, env=environment, check=True, timeout=LIMIT_S - 60)
    return json.loads((run_dir.root / "overhead.json").read_text())


def interval(pairs, kind, what):
    chosen = [p for p in pairs if p["kind"] == kind]
    return paired_ratio_interval(
        [p["numerator"][what] for p in chosen], [p["denominator"][what] for p in chosen]
    )


def verdict(ratio, same):
    if same.low < 1 - AA_BAR or same.high > 1 + AA_BAR:
        return "inconclusive (the A/A interval is wider than +-1 %)"
    if ratio.high <= BAR:
        return "at most 2 %"
    return "above 2 %" if ratio.low > BAR else "inconclusive (the interval holds 2 %)"


def show(pairs):
    """Wall time gives the verdict; CPU time, which a busy machine disturbs less, stands beside."""
    for name, what in (("wall time of a block", "wall_s"), ("CPU time of rank 0", "cpu_s")):
        ratio, same = interval(pairs, "ab", what), interval(pairs, "aa", what)
        print(
            f"{name}: recorded / bare {ratio.estimate:.4f}, 95 % interval {ratio.low:.4f} to"
            f" {ratio.high:.4f}, n {ratio.n}; A/A {same.estimate:.4f}, {same.low:.4f} to"
            f" {same.high:.4f}"
        )
    wall = [interval(pairs, kind, "wall_s") for kind in ("ab", "aa")]
    print(f"verdict against the bar of 2 %: {verdict(*wall)}")


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("with_sampler", [False, True], ids=["alone", "sampler"])
def test_records_and_heartbeats_cost_the_step_loop(with_sampler, run_dir, make_recording, say_load):
    print()
    say_load()
    start_s = time.monotonic()
    sampler = {}
    with contextlib.ExitStack() as stack:
        if with_sampler:
            sampler = stack.enter_context(sampling(run_dir, make_recording(LIMIT_S)))
        result = run_ranks(run_dir)
    duration_s = time.monotonic() - start_s
    pairs = result["pairs"]
    bare = [p["denominator"]["step_s"] for p in pairs]
    print(
        f"{NUM_PAIRS} pairs of each kind, blocks of {BLOCK_STEPS} steps, median bare step"
        f" {statistics.median(bare) * 1e3:.1f} ms; sampler {'on' if with_sampler else 'off'};"
        f" {duration_s:.0f} s in all"
    )
    show(pairs)
    print(f"extra process torchrun: {result['agent_cpu_s']:.2f} CPU s, its imports included")
    if with_sampler:
        print(
            f"extra process sampler: {sampler['cpu_s']:.2f} CPU s for {sampler['num_ticks']} ticks"
            f" of 8 GPUs ({sampler['cpu_s'] / sampler['num_ticks'] * 1e3:.2f} ms each),"
            f" {sampler['num_missed_ticks']} missed; {sampler['whole_cpu_s']:.2f} CPU s with"
            " imports and reading the recording"
        )
    say_load()
    check_recorded(run_dir, pairs)
    assert (sampler.get("num_gpu_rows", 0) > duration_s * 8) is with_sampler
    assert run_dir.telemetry(0).exists() is with_sampler


def check_recorded(run_dir, pairs):
    """Every recorded step left a record on both ranks, and no bare one did."""
    assert sum(p["kind"] == "ab" for p in pairs) == sum(p["kind"] == "aa" for p in pairs)
    assert sum(p["kind"] == "ab" for p in pairs) == NUM_PAIRS
    for rank in range(2):
        records = read_steps(run_dir.steps(rank)).records
        assert len(records) == len({r.step for r in records}) == NUM_PAIRS * BLOCK_STEPS
        beat = read_heartbeat(run_dir.heartbeat(rank))
        assert beat is not None
        assert (beat.step, beat.phase) == (records[-1].step, Phase.TRAIN)
