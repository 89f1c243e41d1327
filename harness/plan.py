"""From a declared experiment to its ordered trials. Pure: no machine, no file, no clock.

The plan exists whole before anything starts. Arms are the product of the factors' levels; each
block holds every arm once, in an order drawn from the design's seed. The batch arithmetic is
checked here, too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harness.config import Order, RunConfig, Task
from harness.errors import ConfigError
from harness.parse import parse, to_plain
from harness.record.schema import Status, Trial

WORLD_SIZE_FACTOR = "gpus"
"""The factor whose levels are world sizes; its levels may come from ``points``."""

_NOT_THE_TRIAL = (
    "experiment",
    "results_dir",
    "cache_dir",
    "plan",
    "fresh",
    "accept_drift",
    "retry_failed",
    "trial_timeout_s",
    "size",
    "points",
    "train.checkpoint_dir",
)
_NOT_SPEED = (
    "gpus",  # stands as world_size
    "on.name",
    "on.default_size",
    "corpus",  # stands as the hashes of corpus and tokenizer
    "train.num_steps",
    "train.learning_rate",
    "train.min_learning_rate_ratio",
    "train.warmup_steps",
    "train.weight_decay",
    "train.adam_beta1",
    "train.adam_beta2",
    "train.adam_eps",
    "train.max_grad_norm",
    "train.seed",
    "train.resume_from",
    "data.shuffle_seed",
    "power.replay_path",
    "model.weights",
    "model.initializer_range",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered trials, and the world sizes that were left out with the reason."""

    trials: tuple[Trial, ...]
    skipped_points: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch arithmetic of one world size, in sequences and tokens per optimizer step."""

    global_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_size: int
    tokens_per_step: int


def make_plan(config: RunConfig) -> Plan:
    """Order the trials of ``config``.

    Raises:
        ConfigError: a factor names an unknown setting, or the global batch does not divide.
    """
    arms, skipped = _arms(config)
    trials: list[Trial] = []
    for block, repeat, levels in _ordered(config, arms):
        trials.append(_trial(config, levels, index=len(trials), block=block, repeat=repeat))
    return Plan(trials=tuple(trials), skipped_points=skipped)


def batch(config: RunConfig, world_size: int) -> Batch:
    """Derive gradient accumulation from the fixed global batch.

    Raises:
        ConfigError: micro_batch_size x world_size does not divide global_batch_size.
    """
    train = config.train
    per_pass = train.micro_batch_size * world_size
    accumulation, rest = divmod(train.global_batch_size, per_pass)
    if rest or accumulation == 0:
        lower = train.global_batch_size // per_pass * per_pass
        near = f"{lower} or {lower + per_pass}" if lower else str(per_pass)
        raise ConfigError(
            f"train.global_batch_size={train.global_batch_size}: not a multiple of {per_pass}"
            f" (train.micro_batch_size {train.micro_batch_size} x data-parallel size {world_size});"
            f" use {near}"
        )
    return Batch(
        global_batch_size=train.global_batch_size,
        micro_batch_size=train.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        data_parallel_size=world_size,
        tokens_per_step=train.global_batch_size * train.sequence_length,
    )


def trial_config(config: RunConfig, levels: Mapping[str, Any]) -> RunConfig:
    """Put the levels of one arm into ``config``.

    Raises:
        ConfigError: a level names an unknown setting or has the wrong type.
    """
    plain = cast("dict[str, Any]", to_plain(config))
    for key, level in levels.items():
        if key not in flatten(plain):
            raise ConfigError(f"experiment.factors: {key} is not a setting")
        *parents, leaf = key.split(".")
        node = plain
        for parent in parents:
            node = cast("dict[str, Any]", node[parent])
        node[leaf] = level
    plain["points"] = None
    return parse(RunConfig, plain)


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested mappings into one of dotted keys; lists become JSON text."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= flatten(cast("Mapping[str, Any]", item), f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(item) if isinstance(item, list) else item
    return flat


def spec(config: RunConfig) -> dict[str, Any]:
    """The settings that define a trial, flat: its run id is a hash of them."""
    unused = ("calibration",) if config.task is Task.TRAIN else ()
    return _without(flatten(cast("dict[str, Any]", to_plain(config))), (*_NOT_THE_TRIAL, *unused))


def speed_settings(config: RunConfig) -> dict[str, Any]:
    """The settings of a trial that can change its speed, flat: its comparability key."""
    return _without(spec(config), _NOT_SPEED)


def cache_folder(config: RunConfig, environment: Mapping[str, str]) -> Path:
    """Where tokenizers, block stores and checkpoints lie."""
    if config.cache_dir is not None:
        return Path(config.cache_dir).absolute()
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "wattline"


def steps_per_epoch(config: RunConfig, num_blocks: int) -> int:
    """Optimizer steps of one epoch over ``num_blocks`` blocks; the last one may be short."""
    training = num_blocks - config.data.eval_num_blocks
    return max(1, math.ceil(training / config.train.global_batch_size))


def duration_s(config: RunConfig, plan: Plan, steps_per_epoch: int | None) -> float | None:
    """Planned seconds of all trials; null when nothing says how fast the ranks will be."""
    if config.task is Task.CALIBRATE:
        trial_s = config.experiment.expected_startup_s + config.calibration.duration_s
        return len(plan.trials) * trial_s
    rate = config.experiment.expected_tokens_per_second_per_gpu
    num_steps = config.train.num_steps or steps_per_epoch
    if rate is None or num_steps is None:
        return None
    tokens = num_steps * config.train.global_batch_size * config.train.sequence_length
    startup_s = config.experiment.expected_startup_s
    return sum(startup_s + tokens / (rate * trial.world_size) for trial in plan.trials)


def _without(flat: Mapping[str, Any], skipped: tuple[str, ...]) -> dict[str, Any]:
    return {
        key: value
        for key, value in flat.items()
        if not any(key == skip or key.startswith(skip + ".") for skip in skipped)
    }


def _arms(config: RunConfig) -> tuple[list[dict[str, Any]], dict[int, str]]:
    factors = dict(config.experiment.factors)
    skipped: dict[int, str] = {}
    if WORLD_SIZE_FACTOR in factors:
        points, skipped = _points(config, factors[WORLD_SIZE_FACTOR])
        factors[WORLD_SIZE_FACTOR] = points
    elif config.points is not None:
        raise ConfigError(
            f"points={list(config.points)}: experiment {config.experiment.name} does not vary the"
            " number of GPUs; use gpus=N"
        )
    for key, levels in factors.items():
        if not levels:
            why = "; ".join(skipped.values()) or "give at least one"
            raise ConfigError(f"experiment.factors.{key}: no levels; {why}")
    names = list(factors)
    return [
        dict(zip(names, combination, strict=True))
        for combination in itertools.product(*factors.values())
    ], skipped


def _points(config: RunConfig, declared: tuple[Any, ...]) -> tuple[tuple[int, ...], dict[int, str]]:
    if config.points is not None:
        _check_points("points", config.points)
        for point in config.points:
            batch(config, point)
        return config.points, {}
    batch(config, config.gpus)
    if declared:
        _check_points(f"experiment.factors.{WORLD_SIZE_FACTOR}", declared)
    wanted = declared or tuple(config.gpus // part for part in (4, 2, 1) if config.gpus % part == 0)
    points: list[int] = []
    skipped: dict[int, str] = {}
    for point in cast("tuple[int, ...]", wanted):
        try:
            batch(config, point)
        except ConfigError as error:
            skipped[point] = str(error)
        else:
            points.append(point)
    return tuple(points), skipped


def _check_points(key: str, points: tuple[Any, ...]) -> None:
    whole = all(type(point) is int and point > 0 for point in points)
    if not (points and whole and len(set(points)) == len(points)):
        raise ConfigError(
            f"{key}={list(points)}: expected different whole numbers above 0, for example"
            f" {key}=[4,8,16]"
        )


def _ordered(
    config: RunConfig, arms: list[dict[str, Any]]
) -> list[tuple[int, int, dict[str, Any]]]:
    design = config.experiment.design
    if design.order is Order.SEQUENTIAL:
        return [(0, r, arm) for arm in arms for r in range(design.repeats)]
    ordered: list[tuple[int, int, dict[str, Any]]] = []
    for block in range(design.repeats):
        shuffled = list(arms)
        random.Random(f"{design.seed}-{block}").shuffle(shuffled)
        ordered += [(block, block, arm) for arm in shuffled]
    return ordered


def _trial(
    config: RunConfig, levels: Mapping[str, Any], *, index: int, block: int, repeat: int
) -> Trial:
    resolved = trial_config(config, levels)
    world_size = resolved.gpus
    canonical = json.dumps(spec(resolved), sort_keys=True)
    spec_hash = hashlib.sha256(canonical.encode()).hexdigest()[:8]
    name = config.experiment.name
    per_node = config.launcher.gpus_per_node
    return Trial(
        run_id=f"{name}-g{world_size}-{spec_hash}-r{repeat}",
        experiment=name,
        arm=" ".join(f"{key}={value}" for key, value in levels.items()),
        index=index,
        block=block,
        repeat=repeat,
        world_size=world_size,
        num_nodes=-(-world_size // per_node),
        gradient_accumulation_steps=batch(resolved, world_size).gradient_accumulation_steps,
        levels=levels,
        spec_hash=spec_hash,
        expected_status=Status.FINISHED,
    )
