"""Micro-batches on their way to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from harness.data.loader import MicroBatch


class Loader(Protocol):
    """Where micro-batches come from; stateless in ``step``, so that resuming is exact."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one pass over the training blocks."""
        ...

    @property
    def num_eval_micro_batches(self) -> int:
        """Micro-batches of one evaluation, equal on every rank."""
        ...

    def fetch(self, step: int, micro_batch: int) -> MicroBatch:
        """Micro-batch ``micro_batch`` (from 0) of optimizer step ``step`` (from 1)."""
        ...

    def fetch_eval(self, micro_batch: int) -> MicroBatch:
        """Evaluation micro-batch ``micro_batch`` (from 0)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    """One micro-batch as tensors [B, T] int64 on the device, and the counts of its source."""

    source: MicroBatch
    input_ids_BT: torch.Tensor
    labels_BT: torch.Tensor
    position_ids_BT: torch.Tensor | None


def to_device(batch: MicroBatch, device: torch.device) -> DeviceBatch:
    """Issue the copy of ``batch`` to ``device``; on CUDA it may still be under way on return."""
    position_ids = batch.position_ids
    return DeviceBatch(
        source=batch,
        input_ids_BT=_move(batch.input_ids, device),
        labels_BT=_move(batch.labels, device),
        position_ids_BT=None if position_ids is None else _move(position_ids, device),
    )


def _move(array: np.ndarray, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    # From pinned memory the copy runs beside the host; from pageable memory the host would wait.
    return tensor.pin_memory().to(device, non_blocking=True)
