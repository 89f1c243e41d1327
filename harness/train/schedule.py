"""The learning rate of a step: linear warm-up, then a cosine. Pure, so resuming needs no state."""

from __future__ import annotations

import math


def learning_rate_at(
    step: int, *, num_steps: int, warmup_steps: int, peak: float, min_ratio: float
) -> float:
    """Learning rate of one optimizer step.

    Rises linearly to ``peak`` at step ``warmup_steps``, then falls along half a cosine to
    ``min_ratio * peak`` at step ``num_steps``. A warm-up longer than the run never
    reaches the peak.

    Args:
        step: Optimizer step, 1-based, at most ``num_steps``.
        num_steps: Last step of the whole run, also of its resumed parts.
        warmup_steps: Length of the warm-up, 0 for none.
        peak: Highest learning rate.
        min_ratio: Learning rate of the last step over ``peak``, 0-1.
    """
    assert 1 <= step <= num_steps, (step, num_steps)
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / (num_steps - warmup_steps)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (min_ratio + (1.0 - min_ratio) * cosine)
