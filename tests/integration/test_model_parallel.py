"""Proofs that need several ranks; each case is a function of tests/data/model_rank.py."""

import dataclasses
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from harness.train.materialise import canonical_name
from harness.train.model import build_config

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "data" / "model_rank.py"


def run_ranks(world_size, case, out, *arguments, timeout_s=120):
    """Start ranks through torchrun in a session of their own; none outlives this call."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(world_size), str(SCRIPT), case, str(out), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log = out / f"{case}-{world_size}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(30)
    assert code == 0, log.read_text()[-4000:]


@pytest.fixture(scope="module")
def initial_tensors(tmp_path_factory):
    """(strategy, world size) -> for each rank, every full tensor at step 0."""
    out = tmp_path_factory.mktemp("tensors")
    found = {}
    for world_size in (1, 2, 4):
        run_ranks(world_size, "tensors", out)
        for strategy in ("fsdp2", "ddp"):
            paths = [out / f"{strategy}-{world_size}-{rank}.pt" for rank in range(world_size)]
            found[strategy, world_size] = [torch.load(path) for path in paths]
    return found


def test_full_tensors_are_equal_bit_for_bit_for_every_world_size_and_strategy(initial_tensors):
    reference = initial_tensors["ddp", 1][0]
    assert len(reference) == 24
    for key, ranks in initial_tensors.items():
        for tensors in ranks:
            assert tensors.keys() == reference.keys()
            differing = [n for n in reference if not torch.equal(tensors[n], reference[n])]
            assert differing == [], key


@pytest.fixture(scope="module")
def plain_gradients(initial_tensors, smoke_config):
    """The whole batch through plain transformers in one process, without any of our wrapping."""
    script = runpy.run_path(str(SCRIPT))
    config = build_config(dataclasses.replace(smoke_config.model, **script["SMALL"]))
    module = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(initial_tensors["ddp", 1][0][name])
    ids = script["batch"]()
    logits = module(input_ids=ids).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    return {canonical_name(n): p.grad for n, p in module.named_parameters()}


def difference(found, expected):
    """The largest difference of any gradient, relative to the largest element of that gradient."""
    assert found.keys() == expected.keys()
    return max(
        ((found[n] - expected[n]).abs().max() / expected[n].abs().max()).item() for n in expected
    )


def norm_of(gradients):
    return torch.cat([g.double().flatten() for g in gradients.values()]).norm().item()


@pytest.fixture(scope="module")
def parallel_gradients(tmp_path_factory):
    out = tmp_path_factory.mktemp("gradients")
    names = ("fsdp2", "ddp", "fsdp2_recompute", "ddp_recompute", "fsdp2_bf16", "ddp_bf16")
    run_ranks(2, "gradients", out, *names)
    return {n: [torch.load(out / f"{n}-{r}.pt") for r in range(2)] for n in names}


@pytest.mark.parametrize("name", ["fsdp2", "ddp", "fsdp2_recompute", "ddp_recompute"])
def test_gradients_of_two_ranks_equal_those_of_one_process(
    parallel_gradients, plain_gradients, name
):
    for result in parallel_gradients[name]:
        assert difference(result["gradients"], plain_gradients) < 1e-5


@pytest.mark.parametrize("name", ["fsdp2", "ddp"])
def test_clipping_returns_the_global_norm_and_scales_all_gradients(
    parallel_gradients, plain_gradients, name
):
    for result in parallel_gradients[name]:
        assert result["norm"] == pytest.approx(norm_of(plain_gradients), rel=1e-5)
        assert result["clipped_norm"] == pytest.approx(0.01, rel=1e-5)
        scale = 0.01 / result["norm"]
        scaled = {n: g * scale for n, g in plain_gradients.items()}
        assert difference(result["clipped"], scaled) < 2e-5


@pytest.mark.parametrize("name", ["fsdp2", "ddp"])
def test_gradients_are_reduced_in_the_last_micro_batch_only(parallel_gradients, name):
    def reductions(counts):
        return sum(n for op, n in counts.items() if "reduce" in op)

    for result in parallel_gradients[name]:
        first, last = result["collectives"]
        assert reductions(first) == 0
        if name == "fsdp2":  # DDP reduces in C++, where CommDebugMode does not look
            assert reductions(last) == 3  # two layers and the root
            assert sum(n for op, n in first.items() if "allgather" in op.replace("_", "")) == 5


@pytest.mark.parametrize("name", ["fsdp2_bf16", "ddp_bf16"])
def test_bf16_keeps_fp32_master_weights_and_gradients(parallel_gradients, plain_gradients, name):
    for result in parallel_gradients[name]:
        assert result["logits_dtype"] == "torch.bfloat16"
        assert result["parameter_dtypes"] == {"torch.float32"}
        assert result["gradient_dtypes"] == {"torch.float32"}
        assert 1e-5 < difference(result["gradients"], plain_gradients) < 0.2


@pytest.mark.slow
def test_compiled_gradients_equal_eager_ones(tmp_path, plain_gradients):
    run_ranks(2, "gradients", tmp_path, "fsdp2_compile", timeout_s=280)
    result = torch.load(tmp_path / "fsdp2_compile-0.pt")
    assert difference(result["gradients"], plain_gradients) < 1e-5


def peak_facts(tmp_path, strategy):
    run_ranks(2, "memory", tmp_path, strategy)
    paths = [tmp_path / f"memory-{strategy}-{rank}.json" for rank in range(2)]
    return [json.loads(path.read_text()) for path in paths]


SLACK_BYTES = 24 << 20


def test_peak_memory_of_a_rank_is_its_shard_plus_about_one_layer(tmp_path):
    for facts in peak_facts(tmp_path, "fsdp2"):
        assert facts["shard_bytes"] < 0.51 * facts["model_bytes"]
        assert facts["peak_bytes"] > 0.95 * facts["shard_bytes"]
        limit = facts["shard_bytes"] + facts["layer_bytes"] + SLACK_BYTES
        assert facts["peak_bytes"] < limit, facts


def test_the_memory_proof_would_notice_a_whole_model(tmp_path):
    """The control of the test above: ddp holds all of it, and the same measurement says so."""
    for facts in peak_facts(tmp_path, "ddp"):
        limit = 0.5 * facts["model_bytes"] + facts["layer_bytes"] + SLACK_BYTES
        assert facts["peak_bytes"] > limit, facts


def test_two_ranks_continue_bit_for_bit_from_a_save(tmp_path):
    run_ranks(2, "saves", tmp_path)
    assert [(tmp_path / f"saves-{rank}").read_text() for rank in range(2)] == ["equal"] * 2


def test_a_rank_that_cannot_write_fails_the_save_on_every_rank(tmp_path):
    run_ranks(2, "broken_save", tmp_path)
    for rank in range(2):
        text = (tmp_path / f"broken-{rank}").read_text()
        assert text.startswith("step-00000001 RecordError: save ")
