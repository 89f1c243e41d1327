"""How much memory this rank has used so far."""

from __future__ import annotations

import resource

import torch

_KIB = 1024


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory held at once so far: by the GPU's allocator, or resident on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB  # Linux counts in KiB


def alloc_retries(device: torch.device) -> int | None:
    """How often the GPU's allocator had to flush its cache; above 0 is no clean throughput sample.

    Null on CPU, where there is no such allocator.
    """
    if device.type != "cuda":
        return None
    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))
