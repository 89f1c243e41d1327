"""``plan=true``: what a command line would do, printed without doing it and without torch."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console

from harness import plan as planning
from harness.config import RunConfig, Task
from harness.data.build import estimate_blocks
from harness.errors import HarnessError
from harness.metrics import num_parameters

_RATE = "experiment.expected_tokens_per_second_per_gpu"
_WINDOWS = "calibration.windows_per_phase, window_s and settle_s"


def show_plan(console: Console, config: RunConfig, plan: planning.Plan) -> None:
    """Print the ordered trials, the planned duration, and the batch arithmetic or the phases."""

    def line(text: str = "") -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    experiment = config.experiment
    line(f"experiment  {experiment.name} (size {config.size}, on {config.on.name})")
    line(f"question    {experiment.question}")
    line(f"records     {config.results_dir}/{experiment.name}")
    if config.task is Task.CALIBRATE:
        epoch = None
        _show_calibration(line, config)
    else:
        blocks, epoch = _epoch(config)
        _show_training(line, config, plan, blocks, epoch)
    for point, reason in plan.skipped_points.items():
        line(f"{point:10d}   left out: {reason}")
    line()
    order, seed = experiment.design.order, experiment.design.seed
    line(f"{len(plan.trials)} trials in this order ({order}, seed {seed}):")
    for trial in plan.trials:
        line(f"{trial.index + 1:5d}  block {trial.block}  {trial.run_id}  {trial.arm}")
    line()
    basis = _WINDOWS if config.task is Task.CALIBRATE else _RATE
    line(f"planned duration  {_duration(planning.duration_s(config, plan, epoch), basis)}")


def _show_training(
    line: Callable[..., None],
    config: RunConfig,
    plan: planning.Plan,
    blocks: str,
    epoch: int | None,
) -> None:
    train = config.train
    line(
        f"model       {config.model.name},"
        f" {num_parameters(config.model, embeddings=True):,} parameters"
    )
    line(f"strategy    {train.strategy}, {train.precision}, device {config.on.device}")
    line()
    line(f"blocks      {blocks}")
    tokens = train.global_batch_size * train.sequence_length
    line(
        f"batch       {train.global_batch_size} sequences x {train.sequence_length} tokens"
        f" = {tokens:,} tokens per step"
    )
    line(f"steps       {_steps(config, epoch)}")
    line()
    line("world size = micro batch x gradient accumulation x data parallel = global batch")
    for size in sorted({trial.world_size for trial in plan.trials}):
        b = planning.batch(config, size)
        line(
            f"{size:10d}   {b.micro_batch_size:11d} x {b.gradient_accumulation_steps:21d}"
            f" x {b.data_parallel_size:13d} = {b.global_batch_size:12d}"
        )


def _show_calibration(line: Callable[..., None], config: RunConfig) -> None:
    calibration, power = config.calibration, config.power
    replayed = f" of {power.replay_path}: nothing is measured" if power.replay_path else ""
    line(f"device      {config.on.device}")
    line(f"power       {power.source}{replayed}, every {power.interval_s:g} s")
    line(f"phases      {', '.join(calibration.phases)}")
    line(
        f"windows     {calibration.windows_per_phase} a phase of {calibration.window_s:g} s, each"
        f" after {calibration.settle_s:g} s of settling; bare idle first, the rest in random blocks"
    )


def _epoch(config: RunConfig) -> tuple[str, int | None]:
    length = config.train.sequence_length
    try:
        found = estimate_blocks(
            config.corpus,
            sequence_length=length,
            cache_dir=planning.cache_folder(config, os.environ),
        )
    except HarnessError as error:
        return f"unknown: {error}", None
    if found is None:
        return "unknown until the corpus has been tokenised", None
    blocks, exact = found
    kind = "as stored" if exact else "estimated; exact once the store is built"
    return f"{blocks:,} of {length} tokens ({kind})", planning.steps_per_epoch(config, blocks)


def _steps(config: RunConfig, epoch: int | None) -> str:
    per_epoch = "unknown" if epoch is None else f"{epoch:,}"
    if config.train.num_steps is None:
        return f"one epoch: {per_epoch}"
    return f"{config.train.num_steps:,} per trial; steps per epoch: {per_epoch}"


def _duration(seconds: float | None, basis: str = _RATE) -> str:
    if seconds is None:
        return "unknown: no expected rate for this model and device"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    return f"about {text}, from {basis}"
