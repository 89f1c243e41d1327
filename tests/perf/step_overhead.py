"""One rank of the step-overhead benchmark; test_step_overhead.py starts two and reads the result.

In one process group the loop alternates blocks of steps with and without records and heartbeats.
Pairs "ab" hold one block of each, pairs "aa" two bare ones; both kinds are mixed and the order
within each pair is random, the same on every rank. A block's time is the wall time of the whole
block, from one barrier to the next, because records are written between the steps and not in them.
"""

import argparse
import json
import os
import random
import signal
import statistics
import time
from pathlib import Path

import psutil
import torch.distributed as dist

from harness.config import RunConfig
from harness.data.blocks import BlockStore
from harness.parse import parse
from harness.processes import die_with_parent
from harness.record.read import read_manifest
from harness.record.run_dir import JsonlWriter, RunDir
from harness.train.loop import Clock, Hooks, Job, train
from harness.train.records import RankRecords
from harness.train.topology import init_topology
from harness.train.worker import _build_job, _prepare_process


def make_schedule(num_pairs: int, seed: int) -> list[tuple[str, tuple[str, str]]]:
    """Give ``num_pairs`` pairs of each kind, mixed: the kind, and which block of it runs first.

    The two blocks of a pair are named by their place in the ratio, numerator and denominator.
    """
    rng = random.Random(seed)
    kinds = ["ab", "aa"] * num_pairs
    rng.shuffle(kinds)
    orders = (("numerator", "denominator"), ("denominator", "numerator"))
    return [(kind, rng.choice(orders)) for kind in kinds]


def run_block(job: Job, steps: range, hooks: Hooks) -> dict[str, float]:
    """Run one block; gives wall and CPU seconds of the block and the median step."""
    dist.barrier()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    outcome = train(job, steps, hooks, Clock())
    dist.barrier()  # the slower rank's last record belongs to the block, too
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    assert outcome.is_valid
    step_s = statistics.median(outcome.durations_s)
    return {"wall_s": wall_s, "cpu_s": cpu_s, "step_s": step_s}


def run_pairs(job: Job, hooks: Hooks, options: argparse.Namespace) -> list[dict[str, object]]:
    """Warm up, then run every pair of the schedule."""
    block = options.block_steps
    run_block(job, range(1, 2 * block + 1), Hooks())
    first = 2 * block + 1
    pairs: list[dict[str, object]] = []
    for kind, places in make_schedule(options.pairs, options.seed):
        pair: dict[str, object] = {"kind": kind, "first": places[0]}
        for place in places:
            is_recorded = kind == "ab" and place == "numerator"
            steps = range(first, first + block)
            pair[place] = run_block(job, steps, hooks if is_recorded else Hooks())
            first += block
        pairs.append(pair)
    return pairs


def main() -> None:
    """Build what a rank of a trial builds, run the pairs, write rank 0's times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--pairs", type=int, required=True, help="pairs of each kind")
    parser.add_argument("--block-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    assert die_with_parent(os.getppid(), signal.SIGKILL)
    run_dir = RunDir(options.run_dir)
    manifest = read_manifest(run_dir.manifest)
    assert manifest.data is not None
    config = parse(RunConfig, manifest.config, "config")
    _prepare_process(config.train)
    topology = init_topology(config)
    store = BlockStore.open(Path(manifest.data.store_path), vocab_size=config.model.vocab_size)
    job = _build_job(config, manifest, topology, store)
    records = RankRecords(run_dir, topology.rank)
    with JsonlWriter(run_dir.steps(topology.rank)) as steps:
        hooks = Hooks(on_step=steps.append, on_phase=records.phase, on_event=records.event)
        pairs = run_pairs(job, hooks, options)
    records.close()
    if topology.rank == 0:
        agent = psutil.Process().parent()
        assert agent is not None
        times = agent.cpu_times()
        result = {"pairs": pairs, "agent_cpu_s": times.user + times.system}
        (run_dir.root / "overhead.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    store.close()


if __name__ == "__main__":
    main()
