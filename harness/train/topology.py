"""Who this rank is: its place among the ranks, its device, and the mesh that they form.

One mesh dimension only (data parallel). The process group is left running; whoever ends the rank
destroys it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.cuda import nccl
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.config import Device, RunConfig
from harness.errors import LaunchError

MESH_DIM = "dp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A rank's place: ``rank`` of ``world_size``, its device, and the mesh of all ranks.

    ``local_rank`` counts within the node and picks the GPU: ``rank`` would pick a GPU that the
    second node does not have.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh


def init_topology(config: RunConfig) -> Topology:
    """Start the process group that torchrun's environment describes.

    Reads RANK, LOCAL_RANK and WORLD_SIZE, and, through torch, MASTER_ADDR and MASTER_PORT.
    Collective: every rank of the trial calls it.

    Raises:
        LaunchError: a variable is missing or no number, the world size is not ``config.gpus``, or
            LOCAL_RANK names a GPU that this machine lacks.
    """
    rank, local_rank, world_size = (
        _rank_variable(os.environ, name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    )
    if world_size != config.gpus:
        raise LaunchError(
            f"WORLD_SIZE={world_size}: this trial declares gpus={config.gpus};"
            f" start {config.gpus} ranks"
        )
    device = _pick_device(config.on.device, local_rank)
    dist.init_process_group(
        config.on.backend.value,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=config.train.collective_timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=(MESH_DIM,))
    return Topology(
        rank=rank, local_rank=local_rank, world_size=world_size, device=device, mesh=mesh
    )


def gpu_uuid(device: torch.device) -> str | None:
    """The uuid of this rank's GPU as NVML and the telemetry write it; null on CPU."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def nccl_version(device: torch.device) -> str | None:
    """The NCCL that this rank talks through, as torch was built or loads it; null on CPU."""
    if device.type != "cuda":
        return None
    return ".".join(str(part) for part in nccl.version())


def _rank_variable(environment: Mapping[str, str], name: str) -> int:
    found = environment.get(name)
    if found is None or not found.isdecimal():
        raise LaunchError(
            f"{name}={found}: expected a whole number of 0 or more; ranks are started by torchrun,"
            " which sets RANK, LOCAL_RANK and WORLD_SIZE"
        )
    return int(found)


def _pick_device(device: Device, local_rank: int) -> torch.device:
    if device is Device.CPU:
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise LaunchError(
            f"LOCAL_RANK={local_rank}: this machine shows {found} CUDA device(s) to torch"
            f" {torch.__version__}; start at most {found} ranks on it, or use on=laptop"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
