"""What is about to run, and where: the manifest of a trial, its comparability key, the campaign.

Also what must be true before anything starts: the packages, the devices and the data are there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from harness import plan as planning
from harness.config import Device, PowerSource, RunConfig, Task
from harness.data.build import StoreInfo
from harness.errors import ConfigError, LaunchError, MissingExtraError
from harness.parse import to_plain
from harness.power.phase_replay import (
    is_by_phase,
    packaged_recordings,
    read_phase_recording,
)
from harness.power.replay import read_recording
from harness.power.sampler import NVML_MIN_INTERVAL_S
from harness.provenance import collect_environment, collect_packages
from harness.record.schema import (
    SCHEMA_VERSION,
    Campaign,
    CodeState,
    DataState,
    GpuInfo,
    HostInfo,
    Label,
    Manifest,
    Trial,
)

_FAST_OR_SLOW = ("NCCL_", "GLOO_", "CUDA_", "TORCH_NCCL_", "PYTORCH_", "FI_", "UCX_")
"""Environment variables that can change speed; addresses and ports among them are left out."""
_NOT_SPEED = ("CUDA_VISIBLE_DEVICES", "NCCL_COMM_ID", "NCCL_DEBUG", "NCCL_DEBUG_FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a campaign runs with on this machine.

    ``store`` is null when every trial stands, or reads no data.
    """

    config: RunConfig
    argv: tuple[str, ...]
    experiment_dir: Path
    cache_dir: Path
    host: HostInfo
    code: CodeState
    store: StoreInfo | None
    drift: tuple[str, ...]


def check_extras() -> None:
    """Refuse before anything starts when the ranks could not import what they need.

    Raises:
        MissingExtraError: names the package and the extra.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "train")


def check_devices(config: RunConfig, plan: planning.Plan, host: HostInfo) -> None:
    """Refuse a plan that this machine has no devices for.

    Raises:
        LaunchError: says what there is and what would do it.
    """
    wanted = max(trial.world_size for trial in plan.trials)
    there = len(host.gpus)
    if config.on.device is Device.CUDA and wanted > there:
        found = f"{there} GPUs" if there else f"no GPU ({host.driver or 'no NVIDIA driver'})"
        raise LaunchError(
            f"gpus={wanted}: this machine has {found}, and launcher=local starts ranks on this"
            f" machine only; run it where {wanted} GPUs are (several nodes need a launcher that"
            " starts the node command on each: slurm or external, not in this version), ask for"
            " fewer with gpus=N, see the plan with plan=true, or run it on CPU ranks with"
            " on=laptop gpus=2"
        )
    if config.task is Task.CALIBRATE and any(gpu.mig_enabled for gpu in host.gpus):
        raise LaunchError(
            "MIG is on: an instance has no watts of its own, so there is no table to be made;"
            " turn MIG off, or pick GPUs without it with CUDA_VISIBLE_DEVICES"
        )
    num_nodes = max(trial.num_nodes for trial in plan.trials)
    if num_nodes > 1:
        raise LaunchError(
            f"gpus={wanted}: that is {num_nodes} nodes of launcher.gpus_per_node="
            f"{config.launcher.gpus_per_node}, and launcher=local starts one;"
            f" set launcher.gpus_per_node={wanted} if this machine takes them all"
        )


def check_power(config: RunConfig) -> None:
    """Refuse telemetry settings under which a trial would run without its telemetry.

    Raises:
        ConfigError: the interval is shorter than NVML bears.
        RecordError: the recording of a replay cannot be read; names it.
    """
    power = config.power
    if power.source is PowerSource.REPLAY and power.replay_path is not None:
        if is_by_phase(power.replay_path):
            _check_phase_recording(config, power.replay_path)
        elif config.task is Task.CALIBRATE:
            raise ConfigError(
                f"power.replay_path={power.replay_path}: a calibration needs a recording by phase"
                f" (YAML, or one of {', '.join(packaged_recordings())}); the telemetry of an"
                " earlier run does not follow the phases of this one"
            )
        else:
            read_recording(Path(power.replay_path))
    if power.source is PowerSource.NVML and power.interval_s < NVML_MIN_INTERVAL_S:
        raise ConfigError(
            f"power.interval_s={power.interval_s:g}: NVML's sensors answer at most 20 times a"
            f" second; use {NVML_MIN_INTERVAL_S} or more"
        )


def _check_phase_recording(config: RunConfig, name_or_path: str) -> None:
    recording = read_phase_recording(name_or_path)
    if config.task is not Task.CALIBRATE:
        raise ConfigError(
            f"power.replay_path={name_or_path}: a recording by calibration phase, and task="
            f"{config.task} has no phases; replay a telemetry/node000.jsonl of an earlier run"
        )
    missing = [p for p in config.calibration.phases if p not in recording.segments]
    if missing:
        raise ConfigError(
            f"power.replay_path={name_or_path}: it has no segment for {', '.join(missing)};"
            f" it has {', '.join(recording.segments)}; set calibration.phases to some of these"
        )


def check_folders(config: RunConfig) -> None:
    """Refuse folders that every rank would look for in vain.

    Raises:
        ConfigError: names the setting and what is missing.
    """
    weights, resume = config.model.weights, config.train.resume_from
    if weights is not None:
        folder = Path(weights)
        if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
            raise ConfigError(
                f"model.weights={weights}: expected a local Hugging Face folder with config.json"
                " and *.safetensors files"
            )
    if resume is not None and not Path(resume).is_dir():
        raise ConfigError(
            f"train.resume_from={resume}: no such folder; give a checkpoint or a folder of them"
        )


def check_data(config: RunConfig, plan: planning.Plan, num_blocks: int) -> None:
    """Refuse a store that leaves nothing to train on, and arms that would need another store.

    Raises:
        ConfigError: names the setting.
    """
    held_out = config.data.eval_num_blocks
    if held_out >= num_blocks:
        raise ConfigError(
            f"data.eval_num_blocks={held_out}: the block store has {num_blocks} blocks;"
            f" use at most {num_blocks - 1}"
        )
    for trial in plan.trials:
        own = planning.trial_config(config, trial.levels)
        same_length = own.train.sequence_length == config.train.sequence_length
        if own.corpus != config.corpus or not same_length:
            raise ConfigError(
                f"{trial.run_id}: corpus and train.sequence_length cannot be factors;"
                " run one campaign for each"
            )


def visible_gpus(gpus: Sequence[GpuInfo], environment: Mapping[str, str]) -> tuple[GpuInfo, ...]:
    """The GPUs that ranks of this machine may use, in the order in which they get them.

    CUDA_VISIBLE_DEVICES names indices (in PCI order, which the node process sets for its ranks) or
    uuids; what it names and is not there ends the list, as in CUDA.
    """
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(gpus)
    found: list[GpuInfo] = []
    for word in (part.strip() for part in wanted.split(",")):
        match = [g for g in gpus if word == str(g.index) or (g.uuid or "").startswith(word or "?")]
        if len(match) != 1 or match[0] in found:
            break
        found += match
    return tuple(found)


def campaign_record(
    config: RunConfig, plan: planning.Plan, host: HostInfo, code: CodeState
) -> Campaign:
    """The record that a campaign begins with."""
    return Campaign(
        schema_version=SCHEMA_VERSION,
        t_unix_s=time.time(),
        experiment=config.experiment.name,
        question=config.experiment.question,
        response=config.experiment.response,
        factors=config.experiment.factors,
        trials=plan.trials,
        code=code,
        devices={
            f"{host.host} device": device_model(config, host),
            f"{host.host} driver": host.driver or "none",
        },
    )


def trial_manifest(site: Site, trial: Trial) -> Manifest:
    """The manifest of one trial, written before it is launched."""
    config = _resolve(site, trial)
    data = None if site.store is None else _data_state(site.store)
    packages = collect_packages()
    environment = collect_environment(dict(os.environ))
    replayed = config.power.source is PowerSource.REPLAY
    return Manifest(
        schema_version=SCHEMA_VERSION,
        t_unix_s=time.time(),
        trial=trial,
        config=cast("dict[str, Any]", to_plain(config)),
        comparability={
            **planning.speed_settings(config),
            **_trial_key(trial, site.code, data),
            **_machine_key(config, site.host, environment, packages),
        },
        label=Label.REPLAY if replayed else Label.REAL,
        argv=site.argv,
        code=site.code,
        packages=packages,
        environment=environment,
        hosts=(site.host,),
        data=data,
    )


def device_model(config: RunConfig, host: HostInfo) -> str:
    """What the ranks compute on, as one text; several GPU models are all named."""
    if config.on.device is Device.CPU:
        return f"cpu: {host.cpu_model}"
    return ", ".join(sorted({gpu.name or "unknown GPU" for gpu in host.gpus}))


def _resolve(site: Site, trial: Trial) -> RunConfig:
    """The settings of one trial with nothing left open: steps, folders."""
    config = planning.trial_config(site.config, trial.levels)
    if config.task is Task.CALIBRATE:
        num_steps = config.calibration.num_windows  # one beat, and one bar, per window
    else:
        num_blocks = cast("StoreInfo", site.store).num_blocks
        num_steps = config.train.num_steps or planning.steps_per_epoch(config, num_blocks)
    folder = config.train.checkpoint_dir or str(site.cache_dir / "checkpoints")
    # Of its own, whatever was saved there before: run ids repeat in other results folders, and in
    # a campaign that was set aside.
    place = hashlib.sha256(str(site.experiment_dir).encode()).hexdigest()[:6]
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    checkpoint_dir = str(Path(folder).absolute() / f"{trial.run_id}.{place}.{stamp}")
    train = replace(config.train, num_steps=num_steps, checkpoint_dir=checkpoint_dir)
    return replace(config, train=train, cache_dir=str(site.cache_dir))


def _data_state(store: StoreInfo) -> DataState:
    return DataState(
        store_path=str(store.path),
        store_hash=store.store_hash,
        corpus_hash=store.corpus_hash,
        tokenizer_hash=store.tokenizer_hash,
        num_blocks=store.num_blocks,
        num_tokens=store.num_tokens,
    )


def _trial_key(trial: Trial, code: CodeState, data: DataState | None) -> dict[str, Any]:
    return {
        "world_size": trial.world_size,
        "num_nodes": trial.num_nodes,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "corpus_hash": None if data is None else data.corpus_hash,
        "tokenizer_hash": None if data is None else data.tokenizer_hash,
        "source_hash": code.source_hash,
    }


def _machine_key(
    config: RunConfig,
    host: HostInfo,
    environment: Mapping[str, str],
    packages: Mapping[str, str],
) -> dict[str, Any]:
    names = ("torch", "transformers", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
    key: dict[str, Any] = {
        "device_model": device_model(config, host),
        **{f"packages.{name}": packages[name] for name in names if name in packages},
        **{
            f"environment.{name}": value
            for name, value in environment.items()
            if name.startswith(_FAST_OR_SLOW) and name not in _NOT_SPEED
        },
    }
    if config.on.device is Device.CPU:
        return {**key, "affinity_cpus": host.affinity_cpus, "governor": host.governor}
    limits = sorted({gpu.enforced_limit_w for gpu in host.gpus if gpu.enforced_limit_w is not None})
    return {
        **key,
        "enforced_limit_w": ", ".join(f"{limit:g}" for limit in limits) or None,
        "driver": host.driver,
    }
