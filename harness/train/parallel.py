"""Spreading the model over ranks: FSDP2 (ZeRO-3) or DDP, and what differs between them after.

Gradients come out averaged over ranks in both: a loss that is a sum over the global batch is
multiplied by the world size first.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from harness.config import Precision, RunConfig, Strategy, TrainConfig
from harness.train import materialise, weights
from harness.train.model import build_model
from harness.train.topology import Topology


def prepare_model(config: RunConfig, topology: Topology) -> nn.Module:
    """The model of this trial, spread over the ranks, on ``topology.device``, in training mode.

    Meta device -> activation checkpointing -> compile -> shards -> memory -> weights. With fsdp2
    no rank ever holds more than its shards; ddp holds all of it on each rank. Parameters are fp32
    (the master weights) in both. Collective.

    Raises:
        ConfigError: ``model.weights`` is no folder of weights that fits this model.
    """
    module, train = build_model(config.model), config.train
    _wrap_layers(module, train)
    if train.strategy is Strategy.FSDP2:
        _shard(module, train.precision, topology)
    materialise.allocate(module, topology.device)
    if config.model.weights is None:
        materialise.fill_random(module, seed=train.seed, std=config.model.initializer_range)
    else:
        weights.load_weights(module, Path(config.model.weights), config.model)
    module.train()
    if train.strategy is Strategy.FSDP2:
        return module
    return DistributedDataParallel(
        module,
        device_ids=[topology.device] if topology.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )


def compute_context(train: TrainConfig, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward and loss: autocast for ddp in bf16, nothing otherwise.

    FSDP2 casts by its own policy; DDP has none, so its fp32 parameters are cast where used.
    """
    if train.strategy is Strategy.DDP and train.precision is Precision.BF16:
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def set_gradient_sync(module: nn.Module, strategy: Strategy, enabled: bool) -> None:
    """Whether the backward passes from here on reduce gradients over the ranks.

    Call it before the *forward* of a micro batch: False for all but the last of a step. While it is
    off, gradients accumulate unreduced; under fsdp2 each rank then holds *full* fp32 gradients,
    4 bytes per parameter, until the step's last backward reduces and shards them.
    """
    if strategy is Strategy.FSDP2:
        assert isinstance(module, FSDPModule)
        module.set_requires_gradient_sync(enabled)
        return
    assert isinstance(module, DistributedDataParallel)
    module.require_backward_grad_sync = enabled


@torch.no_grad()
def clip_grad_norm(module: nn.Module, max_norm: float) -> float:
    """Scale all gradients so that their global 2-norm is at most ``max_norm``.

    Collective under fsdp2; waits for the device. Squares are summed in fp64: torch's fp32 norm on
    the CPU was off by 1e-3 at 2e7 elements, so the result would depend on the shard size.

    Returns:
        The norm before clipping, over all parameters and ranks; nan or inf if a gradient is.
    """
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    local = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    norms = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float64) for g in local])
    square = norms.square().sum()
    if isinstance(gradients[0], DTensor):
        dist.all_reduce(square, group=gradients[0].device_mesh.get_group())
    norm = square.sqrt().item()
    if not norm <= max_norm:
        for gradient in local:
            gradient.mul_(max_norm / norm)
    return norm


def _wrap_layers(module: nn.Module, train: TrainConfig) -> None:
    layers = module.get_submodule("model.layers")
    for name, layer in list(layers.named_children()):
        wrapped: nn.Module = layer
        if train.activation_checkpointing:
            wrapped = checkpoint_wrapper(layer, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
        if train.compile:
            wrapped.compile()
        layers.register_module(name, wrapped)


def _shard(module: nn.Module, precision: Precision, topology: Topology) -> None:
    policy = MixedPrecisionPolicy()
    if precision is Precision.BF16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in module.get_submodule("model.layers").children():
        fully_shard(layer, mesh=topology.mesh, mp_policy=policy, reshard_after_forward=True)
    # The root group (embeddings, last norm, head) is needed again at once by the backward pass.
    fully_shard(module, mesh=topology.mesh, mp_policy=policy, reshard_after_forward=False)
