import dataclasses
import socket

import pytest
import torch
import torch.distributed as dist

from harness.config import Device
from harness.errors import LaunchError
from harness.train.topology import init_topology


@pytest.fixture
def one_rank(smoke_config):
    return dataclasses.replace(smoke_config, gpus=1)


@pytest.fixture
def rank_environment(monkeypatch):
    """What torchrun sets for the only rank of a node, changed by keyword."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in (values | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}).items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.usefixtures("rank_environment")
def test_a_single_rank_forms_a_mesh_of_one(one_rank):
    topology = init_topology(one_rank)
    try:
        assert (topology.rank, topology.local_rank, topology.world_size) == (0, 0, 1)
        assert topology.device == torch.device("cpu")
        assert topology.mesh.size() == 1
        assert dist.get_backend() == "gloo"
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_missing_variable_is_named(one_rank, rank_environment, name):
    rank_environment.delenv(name)
    with pytest.raises(LaunchError, match=f"^{name}=None: .*torchrun"):
        init_topology(one_rank)


def test_a_variable_that_is_no_number_is_refused(one_rank, rank_environment):
    rank_environment.setenv("LOCAL_RANK", "first")
    with pytest.raises(LaunchError, match="LOCAL_RANK=first: expected a whole number"):
        init_topology(one_rank)


def test_another_number_of_ranks_than_declared_is_refused(one_rank, rank_environment):
    rank_environment.setenv("WORLD_SIZE", "3")
    with pytest.raises(LaunchError, match=r"WORLD_SIZE=3: this trial declares gpus=1"):
        init_topology(one_rank)


def test_a_local_rank_without_a_gpu_is_refused_before_any_group_starts(
    one_rank, rank_environment, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    rank_environment.setenv("LOCAL_RANK", "2")
    config = dataclasses.replace(one_rank, on=dataclasses.replace(one_rank.on, device=Device.CUDA))
    with pytest.raises(LaunchError, match=r"LOCAL_RANK=2: this machine shows 2 CUDA device"):
        init_topology(config)
    assert not dist.is_initialized()


def test_local_rank_not_rank_picks_the_gpu(one_rank, rank_environment, monkeypatch):
    """On the second node rank 9 is local rank 1; device 9 does not exist there."""
    picked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", picked.append)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **kwargs: picked.append(kwargs))
    monkeypatch.setattr("harness.train.topology.init_device_mesh", lambda *_, **__: None)
    for name, value in {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}.items():
        rank_environment.setenv(name, value)
    on = dataclasses.replace(one_rank.on, device=Device.CUDA)
    topology = init_topology(dataclasses.replace(one_rank, gpus=16, on=on))
    assert topology.device == torch.device("cuda", 1)
    assert picked[0] == 1
    assert picked[1]["device_id"] == torch.device("cuda", 1)
    assert (picked[1]["rank"], picked[1]["world_size"]) == (9, 16)
