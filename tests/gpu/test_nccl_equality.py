"""Two GPUs over NCCL give the losses of one."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
]

_SPEC = importlib.util.spec_from_file_location(
    "train_run", Path(__file__).parents[1] / "data" / "train_run.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
train_run = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(train_run)


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Give the losses of a finished run; each is made once."""
    store = train_run.make_store(tmp_path_factory.mktemp("store"))
    known = {}

    def get(world_size: int, *overrides: str) -> list[float]:
        key = (world_size, overrides)
        if key not in known:
            run_dir = train_run.make_run(
                tmp_path_factory.mktemp("run"),
                store,
                world_size=world_size,
                overrides=overrides,
                on="gpus",
            )
            code = train_run.run(run_dir, world_size)
            assert code == 0, run_dir.log("rank00000.err").read_text()[-3000:]
            known[key] = [record.loss for record in train_run.steps(run_dir)]
        return known[key]

    return get


@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_two_gpus_equal_one_in_fp32(losses, strategy):
    one, two = losses(1), losses(2, f"train.strategy={strategy}")
    assert two == pytest.approx(one, abs=1e-4)  # CUDA sums in an order that depends on the batch


def test_two_gpus_equal_one_in_bf16(losses):
    one, two = (losses(n, "train.precision=bf16") for n in (1, 2))
    assert two == pytest.approx(one, abs=2e-2)  # bf16 keeps 8 bits


def test_ranks_with_uneven_targets_equal_one(losses):
    one, two = (losses(n, "data.mask_documents=true") for n in (1, 2))
    assert two == pytest.approx(one, abs=1e-4)
