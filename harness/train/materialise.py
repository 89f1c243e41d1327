"""From meta device to memory: each rank allocates and fills its own shards, nothing else.

Works on a plain module and on one sharded over dimension 0 by ``fully_shard``. No rank holds a
full tensor of a sharded parameter at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from harness.train import init_index

# What activation checkpointing, torch.compile and DDP insert into names.
_WRAPPER_PREFIXES = ("_checkpoint_wrapped_module.", "_orig_mod.")
_DDP_PREFIX = "module."


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterShard:
    """The part of one parameter that this rank holds.

    ``local`` shares memory with the parameter: rows ``first_row`` and on of a tensor of ``shape``.
    ``owner`` is the module that the parameter belongs to (the first one, if tied).
    """

    name: str
    local: torch.Tensor
    first_row: int
    shape: torch.Size
    owner: nn.Module

    @property
    def start(self) -> int:
        """Global flat index of the first local element."""
        return self.first_row * self.shape[1:].numel()


def canonical_name(name: str) -> str:
    """The name of a parameter without what wrappers put in: as the plain model says it."""
    for prefix in _WRAPPER_PREFIXES:
        name = name.replace(prefix, "")
    return name.removeprefix(_DDP_PREFIX)


def parameter_shards(module: nn.Module) -> Iterator[ParameterShard]:
    """Every parameter once (tied ones under their first name), as this rank holds it."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for name, parameter in owner.named_parameters(prefix, recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            local, first_row = _local_rows(parameter)
            yield ParameterShard(
                name=canonical_name(name),
                local=local,
                first_row=first_row,
                shape=parameter.shape,
                owner=owner,
            )


def allocate(module: nn.Module, device: torch.device) -> None:
    """Give a meta module memory on ``device``: parameters uninitialised, buffers rebuilt.

    ``to_empty`` makes one tensor per *use* of a parameter, so tied embeddings come apart and are
    tied again here; and it leaves garbage in non-persistent buffers, which no checkpoint mends.
    """
    is_tied = _is_tied(module)
    module.to_empty(device=device)
    if is_tied:
        module.get_submodule("lm_head").weight = module.get_submodule("model.embed_tokens").weight
    _rebuild_buffers(module)


def fill_random(module: nn.Module, *, seed: int, std: float) -> None:
    """Overwrite every parameter with its random initial value, as transformers initialises.

    Linear and embedding weights are normal(0, ``std``), norm weights one, biases zero. The value of
    an element depends on ``seed``, the parameter's name and its global index alone.
    """
    for shard in parameter_shards(module):
        _fill_shard(shard, seed=seed, std=std)


@torch.no_grad()
def _fill_shard(shard: ParameterShard, *, seed: int, std: float) -> None:
    if shard.name.rpartition(".")[2] == "bias":
        shard.local.zero_()
    elif isinstance(shard.owner, nn.Linear | nn.Embedding):
        key = init_index.stream_key(seed, shard.name)
        init_index.fill_normal(shard.local, key=key, start=shard.start, std=std)
    else:
        assert "RMSNorm" in type(shard.owner).__name__, f"{shard.name}: no rule for its values"
        shard.local.fill_(1.0)


def _local_rows(parameter: nn.Parameter) -> tuple[torch.Tensor, int]:
    if not isinstance(parameter, DTensor):
        return parameter.detach(), 0
    local = parameter.to_local().detach()
    (placement,) = parameter.placements
    if isinstance(placement, Replicate):
        return local, 0
    assert isinstance(placement, Shard), f"unknown placement {placement}"
    assert placement.dim == 0, f"sharded over dimension {placement.dim}; only 0 is contiguous"
    num_rows, mesh = parameter.shape[0], parameter.device_mesh
    rows_per_rank = -(-num_rows // mesh.size())  # as torch.chunk: the last ranks may hold none
    first_row = min(mesh.get_local_rank() * rows_per_rank, num_rows)
    assert local.shape[0] == min(rows_per_rank, num_rows - first_row)
    return local, first_row


def _is_tied(module: nn.Module) -> bool:
    output = module.get_submodule("lm_head").weight
    return output is module.get_submodule("model.embed_tokens").weight


@torch.no_grad()
def _rebuild_buffers(module: nn.Module) -> None:
    for name, owner in module.named_modules():
        names = [buffer for buffer, _ in owner.named_buffers(recurse=False)]
        if not names:
            continue
        assert isinstance(owner, Qwen3RotaryEmbedding), f"{name}: no rule for buffers {names}"
        # On the CPU, whatever the device: the same bits as in a plainly constructed model.
        frequencies, _ = Qwen3RotaryEmbedding.compute_default_rope_parameters(owner.config)
        for buffer in names:
            owner.get_buffer(buffer).copy_(frequencies)
