"""The training loop, read from top to bottom: train, one step, evaluate, save.

A step is timed between two device synchronisations and nothing in between writes a file or a log.
What an outsider sees of a step (records, heartbeats, events) goes through :class:`Hooks`, after the
timer has stopped; without hooks the same steps run bare. Building what the loop works on is
``worker``'s; the arithmetic of the loss weight is ``loss``'s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from harness.config import TrainConfig
from harness.record.schema import EventKind, Phase, StepRecord
from harness.train import checkpoint
from harness.train.batches import DeviceBatch, Loader, to_device
from harness.train.loss import loss_weight, token_loss_sum
from harness.train.memory import alloc_retries, peak_memory_bytes
from harness.train.model import compute_logits
from harness.train.optimizer import set_learning_rate
from harness.train.parallel import clip_grad_norm, compute_context, set_gradient_sync
from harness.train.schedule import learning_rate_at
from harness.train.topology import Topology


class EventSink(Protocol):
    """Takes an event as it happens."""

    def __call__(self, kind: EventKind, /, **detail: Any) -> None:
        """Record that ``kind`` happened now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Who is told what the loop does; null tells nobody and costs nothing."""

    on_step: Callable[[StepRecord], None] | None = None
    on_phase: Callable[[int, Phase], None] | None = None
    on_event: EventSink | None = None

    def phase(self, step: int, phase: Phase) -> None:
        """Say that ``step`` is under way in ``phase``."""
        if self.on_phase is not None:
            self.on_phase(step, phase)

    def event(self, kind: EventKind, **detail: Any) -> None:
        """Say that ``kind`` happened."""
        if self.on_event is not None:
            self.on_event(kind, **detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Seconds: ``monotonic`` for durations, ``unix`` for stamps."""

    monotonic: Callable[[], float] = time.perf_counter
    unix: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the loop works on. ``num_steps`` is the last step of the whole run.

    ``checkpoint_extra`` is saved beside the weights, to tell at resuming what they belong to.
    """

    module: nn.Module
    optimizer: Optimizer
    loader: Loader
    topology: Topology
    train: TrainConfig
    gradient_accumulation_steps: int
    num_steps: int
    checkpoint_extra: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step as measured; ``loss`` is the global mean and may be non-finite."""

    step: int
    t_end_unix_s: float
    duration_s: float
    data_wait_s: float
    tokens: int
    padded_tokens: int
    bytes_read: int
    loss: float
    grad_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are numbers; every rank sees the same two."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a stretch of steps ended. ``durations_s`` has one entry per step, in order."""

    is_valid: bool
    last_step: int
    durations_s: tuple[float, ...]


def train(job: Job, steps: range, hooks: Hooks, clock: Clock) -> Outcome:
    """Run ``steps`` in order; stop after a non-finite one, on every rank alike.

    Args:
        job: Module, optimizer, loader and settings.
        steps: Optimizer steps, 1-based, within ``job.num_steps``.
        hooks: Records, heartbeats and events; ``Hooks()`` runs bare.
        clock: Time.
    """
    durations_s: list[float] = []
    for step in steps:
        hooks.phase(step, Phase.TRAIN)
        result = run_step(job, step, clock)
        durations_s.append(result.duration_s)
        if hooks.on_step is not None:
            hooks.on_step(_step_record(job, result))
        if not result.is_finite:
            hooks.event(
                EventKind.NON_FINITE_LOSS,
                step=step,
                loss=str(result.loss),
                grad_norm=str(result.grad_norm),
            )
            return Outcome(is_valid=False, last_step=step, durations_s=tuple(durations_s))
        _after_step(job, step, hooks, clock)
    return Outcome(is_valid=True, last_step=steps.stop - 1, durations_s=tuple(durations_s))


def run_step(job: Job, step: int, clock: Clock) -> StepResult:
    """Take one optimizer step, timed from before the first fetch to after the optimizer.

    Two small all-reduces beside those of the strategy: the target tokens of the global batch,
    which hides behind the first forward, and the sum of losses. A non-finite step changes no
    weight.
    """
    device, world_size = job.topology.device, job.topology.world_size
    _synchronize(device)
    start_s = clock.monotonic()
    batches, data_wait_s = _fetch_step(job, step, clock)
    targets = torch.tensor(
        sum(b.source.target_tokens for b in batches), dtype=torch.float64, device=device
    )
    targets_known = dist.all_reduce(targets, async_op=True)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    for index, batch in enumerate(batches):
        is_reduced = job.train.reduce_every_micro_batch or index == len(batches) - 1
        set_gradient_sync(job.module, job.train.strategy, is_reduced)
        micro_loss_sum = _loss_sum(job, batch)
        if index == 0 and targets_known is not None:
            targets_known.wait()
        (micro_loss_sum * loss_weight(world_size, targets)).backward()
        loss_sum += micro_loss_sum.detach()
    dist.all_reduce(loss_sum)
    grad_norm = clip_grad_norm(job.module, job.train.max_grad_norm)
    loss = (loss_sum / targets).item()
    if math.isfinite(loss) and math.isfinite(grad_norm):
        set_learning_rate(job.optimizer, _learning_rate(job, step))
        job.optimizer.step()
    job.optimizer.zero_grad(set_to_none=True)
    _synchronize(device)
    return StepResult(
        step=step,
        duration_s=clock.monotonic() - start_s,
        t_end_unix_s=clock.unix(),
        data_wait_s=data_wait_s,
        tokens=sum(b.source.tokens for b in batches),
        padded_tokens=sum(b.source.padded_tokens for b in batches),
        bytes_read=sum(b.source.bytes_read for b in batches),
        loss=loss,
        grad_norm=grad_norm,
    )


def evaluate(job: Job) -> tuple[float, int]:
    """Token-weighted mean loss over all evaluation blocks, and how many target tokens they have."""
    sums = torch.zeros(2, dtype=torch.float64, device=job.topology.device)  # losses, targets
    job.module.eval()
    with torch.no_grad():
        for index in range(job.loader.num_eval_micro_batches):
            batch = to_device(job.loader.fetch_eval(index), job.topology.device)
            sums[0] += _loss_sum(job, batch)
            sums[1] += batch.source.target_tokens
    job.module.train()
    dist.all_reduce(sums)
    loss_sum, targets = sums.tolist()
    return loss_sum / targets, int(targets)


def is_save_due(train: TrainConfig, *, step: int, num_steps: int, steps_per_epoch: int) -> bool:
    """Whether a save follows ``step``: every n steps, and at the end of an epoch or of the run."""
    is_end = step == num_steps or step % steps_per_epoch == 0
    every = train.save_every_steps
    return (train.save_at_end and is_end) or (every is not None and step % every == 0)


def _fetch_step(job: Job, step: int, clock: Clock) -> tuple[list[DeviceBatch], float]:
    start_s = clock.monotonic()
    batches = [
        to_device(job.loader.fetch(step, index), job.topology.device)
        for index in range(job.gradient_accumulation_steps)
    ]
    return batches, clock.monotonic() - start_s


def _loss_sum(job: Job, batch: DeviceBatch) -> torch.Tensor:
    with compute_context(job.train, job.topology.device):
        logits_BTV = compute_logits(job.module, batch.input_ids_BT, batch.position_ids_BT)
    return token_loss_sum(logits_BTV, batch.labels_BT)


def _learning_rate(job: Job, step: int) -> float:
    return learning_rate_at(
        step,
        num_steps=job.num_steps,
        warmup_steps=job.train.warmup_steps,
        peak=job.train.learning_rate,
        min_ratio=job.train.min_learning_rate_ratio,
    )


def _after_step(job: Job, step: int, hooks: Hooks, clock: Clock) -> None:
    epoch, steps_into_epoch = divmod(step, job.loader.steps_per_epoch)
    if steps_into_epoch == 0:
        hooks.event(EventKind.EPOCH_END, step=step, epoch=epoch)
    every = job.train.eval_every_steps
    if every is not None and step % every == 0:
        hooks.phase(step, Phase.EVAL)
        start_s = clock.monotonic()
        loss, target_tokens = evaluate(job)
        hooks.event(
            EventKind.EVAL,
            step=step,
            loss=loss if math.isfinite(loss) else None,
            target_tokens=target_tokens,
            duration_s=clock.monotonic() - start_s,
        )
    if is_save_due(
        job.train,
        step=step,
        num_steps=job.num_steps,
        steps_per_epoch=job.loader.steps_per_epoch,
    ):
        _save(job, step, hooks, clock)


def _save(job: Job, step: int, hooks: Hooks, clock: Clock) -> None:
    assert job.train.checkpoint_dir is not None, "resolved before launch wherever saving is on"
    folder = Path(job.train.checkpoint_dir)
    hooks.phase(step, Phase.SAVE)
    hooks.event(EventKind.SAVE_BEGIN, step=step, folder=str(folder))
    start_s = clock.monotonic()
    path = checkpoint.save(
        folder,
        step=step,
        module=job.module,
        optimizer=job.optimizer,
        extra=job.checkpoint_extra,
    )
    duration_s = clock.monotonic() - start_s
    num_bytes = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    hooks.event(
        EventKind.SAVE_END, step=step, path=str(path), bytes=num_bytes, duration_s=duration_s
    )


def _step_record(job: Job, result: StepResult) -> StepRecord:
    return StepRecord(
        step=result.step,
        t_end_unix_s=result.t_end_unix_s,
        duration_s=result.duration_s,
        data_wait_s=result.data_wait_s,
        tokens=result.tokens,
        padded_tokens=result.padded_tokens,
        num_micro_batches=job.gradient_accumulation_steps,
        loss=result.loss if math.isfinite(result.loss) else None,
        grad_norm=result.grad_norm if math.isfinite(result.grad_norm) else None,
        peak_memory_bytes=peak_memory_bytes(job.topology.device),
        alloc_retries=alloc_retries(job.topology.device),
        data_bytes_read=result.bytes_read,
    )


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
