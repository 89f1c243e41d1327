"""Token-weighted cross entropy and the weight that makes averaged gradients exact.

The loss of a step is the mean over the target tokens of the *global* batch. FSDP2 and DDP average
gradients over ranks, so a mean per rank would weigh a rank with few targets like one with many.
Instead every rank back-propagates its sum of losses times :func:`loss_weight`.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch.nn import functional

from harness.data.loader import IGNORED_LABEL

Number = TypeVar("Number", float, torch.Tensor)


def token_loss_sum(logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """Sum of the cross entropy over target tokens, nats, fp32; 0 where there are none.

    Args:
        logits_BTV: Scores of the next token, any floating type; upcast to fp32 here.
        labels_BT: The next token, already shifted; ``IGNORED_LABEL`` marks no target.
    """
    return functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(),
        labels_BT.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
    )


def loss_weight(world_size: int, global_target_tokens: Number) -> Number:
    """Factor on a rank's sum of losses under which the mean over ranks is the global token mean.

    mean_r(w * sum_r) = (1 / W) * (W / N) * sum_r(sum_r) = global sum / N.

    Args:
        world_size: Ranks that the gradient is averaged over, W.
        global_target_tokens: Target tokens of all ranks and micro-batches of the step, N.
    """
    return world_size / global_target_tokens
