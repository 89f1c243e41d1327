"""One rank of a calibration: windows of known phases, one after the other, as events on disk.

Nothing is measured here: the sampler, a process of its own, reads the meters meanwhile, and the
events say afterwards which phase each reading belongs to. Bare idle comes before this process has
touched CUDA; from then on a context exists until it ends.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.config import CalibrationPhase, Device, RunConfig
from harness.parse import parse
from harness.record.read import read_manifest
from harness.record.run_dir import RunDir
from harness.record.schema import EventKind, Phase
from harness.train.gpu_load import open_gpu_load
from harness.train.memory import peak_memory_bytes
from harness.train.phase_plan import PlannedWindow, plan_windows, role_of
from harness.train.phases import Load, LoadKind, Saver, SleptLoad, perform, sleep_until
from harness.train.records import RankRecords
from harness.train.topology import Topology, gpu_uuid, init_topology, nccl_version

EXIT_FINISHED = 0


def main(run_dir: RunDir, records: RankRecords) -> int:
    """Run every window that ``manifest.json`` declares.

    Returns:
        0 when the last window is over.

    Raises:
        HarnessError: the manifest, a folder or the device cannot be used.
    """
    start_s = time.perf_counter()
    records.phase(0, Phase.BUILD)
    manifest = read_manifest(run_dir.manifest)
    config = parse(RunConfig, manifest.config, "config")
    torch.set_num_threads(config.train.cpu_threads_per_rank)
    windows = plan_windows(
        config.calibration,
        world_size=manifest.trial.world_size,
        seed=f"{config.experiment.design.seed}-{manifest.trial.repeat}",
    )
    bare = [w for w in windows if w.phase is CalibrationPhase.BARE_IDLE]
    for window in bare:
        _idle_bare(config, window, records)
    topology = init_topology(config)
    torch.manual_seed(config.train.seed + topology.rank)
    load = open_load(config, topology)
    records.event(
        EventKind.RANK_READY,
        build_s=time.perf_counter() - start_s - len(bare) * _length_s(config),
        num_windows=len(windows),
        gpu_uuid=gpu_uuid(topology.device),
        nccl=nccl_version(topology.device),
    )
    for window in windows[len(bare) :]:
        _run_window(config, topology, load, window, records)
    _finish(topology, len(windows), records)
    return EXIT_FINISHED


def open_load(config: RunConfig, topology: Topology) -> Load:
    """What the device of this rank can be made to do."""
    if config.on.device is Device.CPU:
        return SleptLoad()
    return open_gpu_load(config.calibration, topology)


def _idle_bare(config: RunConfig, window: PlannedWindow, records: RankRecords) -> None:
    """Sleep, without a CUDA context; ranks have no process group yet and need none."""
    assert not torch.cuda.is_initialized(), "bare idle needs a process that has not touched CUDA"
    is_cpu = config.on.device is Device.CPU
    detail = _detail(config, window, "all", LoadKind.SLEPT if is_cpu else LoadKind.REAL)
    records.phase(window.index, Phase.CALIBRATE)
    until_s = time.monotonic() + _length_s(config)
    records.event(EventKind.PHASE_BEGIN, **detail)
    sleep_until(until_s)
    records.event(EventKind.PHASE_END, **detail)


def _run_window(
    config: RunConfig, topology: Topology, load: Load, window: PlannedWindow, records: RankRecords
) -> None:
    role = role_of(window, rank=topology.rank, world_size=topology.world_size)
    detail = _detail(config, window, role.value, load.kind(window.phase))
    saver = Saver(
        _save_folder(config),
        config.calibration.save_bytes,
        once=config.on.device is Device.CPU,
    )
    dist.barrier()
    records.phase(window.index, Phase.CALIBRATE)
    until_s = time.monotonic() + _length_s(config)
    records.event(EventKind.PHASE_BEGIN, **detail)
    perform(load, window.phase, role, until_s, saver=saver, world_size=topology.world_size)
    records.event(EventKind.PHASE_END, **detail)


def _detail(config: RunConfig, window: PlannedWindow, role: str, kind: LoadKind) -> dict[str, Any]:
    return {
        "phase": window.phase.value,
        "window": window.index,
        "round": window.round,
        "role": role,
        "load": kind.value,
        "settle_s": config.calibration.settle_s,
        "window_s": config.calibration.window_s,
    }


def _length_s(config: RunConfig) -> float:
    return config.calibration.settle_s + config.calibration.window_s


def _save_folder(config: RunConfig) -> Path:
    assert config.train.checkpoint_dir is not None, "the manifest resolves the folder"
    return Path(config.train.checkpoint_dir)


def _finish(topology: Topology, last_window: int, records: RankRecords) -> None:
    # As at the end of training: see worker._finish for the order and the ignored signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    records.phase(last_window, Phase.FINISH)
    records.event(
        EventKind.RANK_FINISHED,
        last_step=last_window,
        peak_memory_bytes=peak_memory_bytes(topology.device),
        compile_time_s=None,
    )
    dist.barrier()
    dist.destroy_process_group()
