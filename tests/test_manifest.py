"""What must be true before anything starts, and what a trial is compared by."""

import dataclasses

import pytest

from harness.errors import ConfigError, LaunchError, RecordError
from harness.manifest import (
    check_data,
    check_devices,
    check_folders,
    check_power,
    device_model,
    visible_gpus,
)
from harness.plan import make_plan
from harness.record.schema import GpuInfo


def gpu(index, **changes):
    known = {
        "index": index,
        "name": "NVIDIA B300",
        "uuid": f"GPU-{index}{index}{index}",
        "pci_bus_id": None,
        "enforced_limit_w": 1100.0,
        "default_limit_w": None,
        "max_sm_clock_mhz": None,
        "memory_total_bytes": None,
        "mig_enabled": False,
        "ecc_enabled": None,
        "power_smoothing": None,
        "reason": None,
    }
    return GpuInfo(**(known | changes))


def test_sixteen_gpus_on_a_machine_with_two_says_so(scaling_config, make_host):
    host = make_host(gpus=(gpu(0), gpu(1)))
    with pytest.raises(LaunchError, match=r"^gpus=16: this machine has 2 GPUs, and launcher=local"):
        check_devices(scaling_config, make_plan(scaling_config), host)


def test_as_many_ranks_as_one_node_holds_are_accepted(compose_config, smoke_config, make_host):
    config = compose_config("experiment=scaling", "gpus=8")
    check_devices(config, make_plan(config), make_host(gpus=tuple(gpu(i) for i in range(8))))
    check_devices(smoke_config, make_plan(smoke_config), make_host())


@pytest.mark.parametrize("overrides", [("on=laptop", "gpus=16"), ("on=gpus", "gpus=16")])
def test_ranks_of_a_second_node_are_refused_by_the_local_launcher(
    compose_config, make_host, overrides
):
    """Half of the ranks were started, and every one of them crashed on its world size."""
    config = compose_config(
        "experiment=scaling", "train.global_batch_size=16", "train.micro_batch_size=1", *overrides
    )
    host = make_host(gpus=tuple(gpu(i) for i in range(16)))
    with pytest.raises(LaunchError, match=r"2 nodes of launcher\.gpus_per_node=8.*node=16"):
        check_devices(config, make_plan(config), host)


def test_a_replay_without_its_recording_is_refused_before_the_campaign(compose_config, tmp_path):
    """The sampler ended at once, and the trial finished without telemetry or a word."""
    config = compose_config("power=replay", f"power.replay_path={tmp_path / 'none.jsonl'}")
    with pytest.raises(RecordError, match=r"none\.jsonl"):
        check_power(config)


def test_an_interval_that_nvml_does_not_bear_is_refused(compose_config):
    with pytest.raises(ConfigError, match=r"power\.interval_s=0\.01"):
        check_power(compose_config("power=nvml", "power.interval_s=0.01"))


def test_holding_out_the_whole_store_is_refused(compose_config):
    """Every trial crashed, although the store was known before the first."""
    config = compose_config("data.eval_num_blocks=50")
    check_data(config, make_plan(config), num_blocks=51)
    with pytest.raises(ConfigError, match=r"data\.eval_num_blocks=50: .*; use at most 49"):
        check_data(config, make_plan(config), num_blocks=50)


def test_an_arm_with_another_store_is_refused(smoke_config):
    factors = {"gpus": (1,), "train.sequence_length": (64, 128)}
    experiment = dataclasses.replace(smoke_config.experiment, factors=factors)
    config = dataclasses.replace(smoke_config, experiment=experiment, points=None)
    with pytest.raises(ConfigError, match="cannot be factors"):
        check_data(config, make_plan(config), num_blocks=1000)


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-111", [1]),
        ("GPU-2, 0", [2, 0]),
        ("1,7,0", [1]),
        ("0,0", [0]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_give(value, indices):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    found = visible_gpus([gpu(0), gpu(1), gpu(2)], environment)
    assert [g.index for g in found] == indices


def test_different_gpus_are_all_named(compose_config, make_host):
    config = compose_config("experiment=scaling")
    host = make_host(gpus=(gpu(0), gpu(1, name="NVIDIA H200"), gpu(2)))
    assert device_model(config, host) == "NVIDIA B300, NVIDIA H200"


def test_folders_that_are_not_there_are_refused_before_every_rank_looks_for_them(
    compose_config, tmp_path
):
    """Each trial crashed, and still stood as crashed when the path had been mended."""
    with pytest.raises(ConfigError, match=r"model\.weights=.*safetensors"):
        check_folders(compose_config(f"model.weights={tmp_path}"))
    with pytest.raises(ConfigError, match=r"train\.resume_from=.*no such folder"):
        check_folders(compose_config(f"train.resume_from={tmp_path / 'none'}"))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_folders(compose_config(f"model.weights={tmp_path}", f"train.resume_from={tmp_path}"))
