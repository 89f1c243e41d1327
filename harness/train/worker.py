"""One rank from manifest to end: settings, process group, model, data, loop, farewell."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness.config import RunConfig, TrainConfig
from harness.data.blocks import BlockStore
from harness.data.loader import BlockLoader
from harness.errors import ConfigError, RecordError
from harness.parse import parse
from harness.record.read import read_manifest
from harness.record.run_dir import JsonlWriter, RunDir
from harness.record.schema import EventKind, Manifest, Phase
from harness.train import checkpoint
from harness.train.loop import Clock, Hooks, Job, Outcome, train
from harness.train.memory import peak_memory_bytes
from harness.train.optimizer import build_optimizer
from harness.train.parallel import prepare_model
from harness.train.records import RankRecords
from harness.train.topology import Topology, gpu_uuid, init_topology, nccl_version

EXIT_FINISHED = 0
EXIT_INVALID = 3


def main(run_dir: RunDir, records: RankRecords) -> int:
    """Train as ``manifest.json`` says.

    Returns:
        0 when the last step was taken, 3 when loss or gradient became non-finite.

    Raises:
        HarnessError: the manifest, the data or a setting cannot be used.
    """
    start_s = time.perf_counter()
    records.phase(0, Phase.BUILD)
    manifest = read_manifest(run_dir.manifest)
    if manifest.data is None:
        raise RecordError(f"{run_dir.manifest}: data is null; a real step needs a block store")
    config = parse(RunConfig, manifest.config, "config")
    _prepare_process(config.train)
    topology = init_topology(config)
    store = BlockStore.open(Path(manifest.data.store_path), vocab_size=config.model.vocab_size)
    job = _build_job(config, manifest, topology, store)
    first_step = 1
    if config.train.resume_from is not None:
        first_step = 1 + _resume(job, Path(config.train.resume_from), records)
    records.event(
        EventKind.RANK_READY,
        build_s=time.perf_counter() - start_s,
        first_step=first_step,
        num_steps=job.num_steps,
        steps_per_epoch=job.loader.steps_per_epoch,
        num_parameters=sum(p.numel() for p in job.module.parameters()),
        gpu_uuid=gpu_uuid(topology.device),
        nccl=nccl_version(topology.device),
    )
    with JsonlWriter(run_dir.steps(topology.rank)) as steps:
        hooks = Hooks(on_step=steps.append, on_phase=records.phase, on_event=records.event)
        outcome = train(job, range(first_step, job.num_steps + 1), hooks, Clock())
    code = _finish(job, outcome, records)
    store.close()
    return code


def _prepare_process(train: TrainConfig) -> None:
    torch.set_num_threads(train.cpu_threads_per_rank)
    random.seed(train.seed)
    np.random.seed(train.seed)  # noqa: NPY002 - for whoever still draws from the global generator
    torch.manual_seed(train.seed)
    if train.deterministic:
        # cuBLAS reads it when its handle is made, and refuses deterministic mode without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def _build_job(config: RunConfig, manifest: Manifest, topology: Topology, store: BlockStore) -> Job:
    assert manifest.data is not None
    module = prepare_model(config, topology)
    loader = BlockLoader(
        store,
        global_batch_size=config.train.global_batch_size,
        micro_batch_size=config.train.micro_batch_size,
        gradient_accumulation_steps=manifest.trial.gradient_accumulation_steps,
        rank=topology.rank,
        world_size=topology.world_size,
        shuffle_seed=config.data.shuffle_seed,
        eval_num_blocks=config.data.eval_num_blocks,
        mask_documents=config.data.mask_documents,
    )
    return Job(
        module=module,
        optimizer=build_optimizer(module, config.train),
        loader=loader,
        topology=topology,
        train=config.train,
        gradient_accumulation_steps=manifest.trial.gradient_accumulation_steps,
        num_steps=config.train.num_steps or loader.steps_per_epoch,
        checkpoint_extra={
            "store_hash": manifest.data.store_hash,
            "train.global_batch_size": config.train.global_batch_size,
            "data.shuffle_seed": config.data.shuffle_seed,
            "data.eval_num_blocks": config.data.eval_num_blocks,
            "data.mask_documents": config.data.mask_documents,
        },
    )


def _resume(job: Job, source: Path, records: RankRecords) -> int:
    """Load the checkpoint ``source``, or the latest in it; give the step it was saved after."""
    if not source.is_dir():
        raise ConfigError(
            f"train.resume_from={source}: no such folder; give a checkpoint or a folder of them"
        )
    path = checkpoint.latest(source) or source
    found = checkpoint.load(path, module=job.module, optimizer=job.optimizer)
    check_resumable(path, found, job.checkpoint_extra, job.num_steps)
    step = int(found["step"])
    records.event(EventKind.RESUMED, step=step, path=str(path))
    return step


def check_resumable(
    path: Path, found: dict[str, Any], expected: dict[str, Any], num_steps: int
) -> None:
    """Refuse a checkpoint under which the rest of the run would not be the same run.

    Raises:
        ConfigError: another data order, world size or batch; or nothing is left to train.
    """
    for key, value in expected.items():
        if found.get(key) != value:
            raise ConfigError(
                f"train.resume_from={path}: saved with {key}={found.get(key)}, this run has"
                f" {value}; set it to the saved value or start anew with train.resume_from=null"
            )
    if found["step"] >= num_steps:
        raise ConfigError(
            f"train.resume_from={path}: saved after step {found['step']} of"
            f" train.num_steps={num_steps}; there is nothing left to train, raise train.num_steps"
        )


def _finish(job: Job, outcome: Outcome, records: RankRecords) -> int:
    # Elastic stops the others as soon as the first rank ends with a failure. All of them are on
    # their way out with the same code, and a SIGTERM would replace it by -15.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    records.phase(outcome.last_step, Phase.FINISH)
    compile_time_s = None
    if job.train.compile:
        compile_time_s = record_compile(outcome.durations_s, records)
    if outcome.is_valid:
        records.event(
            EventKind.RANK_FINISHED,
            last_step=outcome.last_step,
            peak_memory_bytes=peak_memory_bytes(job.topology.device),
            compile_time_s=compile_time_s,
        )
    # Without the barrier, gloo was seen to abort where a peer had torn its group down already.
    dist.barrier()
    dist.destroy_process_group()
    return EXIT_FINISHED if outcome.is_valid else EXIT_INVALID


def record_compile(durations_s: Sequence[float], records: RankRecords) -> float | None:
    """Write the ``compile`` event and give its seconds; null, with the reason, after one step."""
    compile_time_s = compile_time(durations_s)
    records.event(
        EventKind.COMPILE,
        compile_time_s=compile_time_s,
        first_step_s=durations_s[0],
        reason=None if compile_time_s is not None else "one step only, nothing to compare with",
    )
    return compile_time_s


def compile_time(durations_s: Sequence[float]) -> float | None:
    """Seconds of the first step beyond the median of the later ones; null without later ones.

    On a GPU that also holds what any first step does: communicators, the allocator's first blocks.
    """
    if len(durations_s) < 2:
        return None
    return durations_s[0] - statistics.median(durations_s[1:])
