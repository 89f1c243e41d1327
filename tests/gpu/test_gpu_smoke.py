"""One GPU, the kernel as it is meant to run: bf16, fused AdamW, flash attention, power, MFU."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from analysis.derive import measure
from analysis.load import load_results
from harness import hardware, metrics
from harness.record.read import read_events, read_jsonl
from harness.record.run_dir import RunDir
from harness.record.schema import EventKind
from harness.samples import GpuSample
from harness.train import materialise
from harness.train.model import build_model, compute_logits
from harness.train.optimizer import build_optimizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

_SPEC = importlib.util.spec_from_file_location(
    "train_run", Path(__file__).parents[1] / "data" / "train_run.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
train_run = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(train_run)

ROOT = Path(__file__).parents[2]
# Heads of 64 and enough work that a step is not all launch overhead.
MODEL = (
    "model.hidden_size=512",
    "model.intermediate_size=1536",
    "model.num_layers=4",
    "model.num_attention_heads=8",
    "model.num_key_value_heads=4",
    "model.head_dim=64",
    "train.precision=bf16",
    "train.sequence_length=256",
    "train.num_steps=30",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results folder of a campaign of one GPU, through the front door, NVML beside it."""
    folder = tmp_path_factory.mktemp("campaign")
    overrides = ["experiment=scaling", "gpus=1", "points=[1]", "experiment.design.repeats=1"]
    places = [f"results_dir={folder / 'results'}", f"cache_dir={folder / 'cache'}"]
    power = ["power=nvml", "power.interval_s=0.1", "corpus.max_bytes=2000000"]
    size = ["model=qwen3_tiny", "train.global_batch_size=32", "train.micro_batch_size=16"]
    pace = ["train.learning_rate=1e-3", "train.warmup_steps=3"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *overrides, *places, *power, *size, *pace, *MODEL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "results"


@pytest.fixture(scope="module")
def finished(results):
    """The one run of that campaign."""
    (path,) = results.glob("scaling/*/summary.json")
    return RunDir(path.parent)


def test_the_loss_falls_in_bf16(finished):
    losses = [record.loss for record in train_run.steps(finished)]
    assert len(losses) == 30
    assert losses[-1] < losses[0] - 0.5


def test_memory_is_the_gpus_and_nothing_was_retried(finished):
    last = train_run.steps(finished)[-1]
    (told,) = [e for e in read_events(finished.root).records if e.kind is EventKind.RANK_FINISHED]
    # fp32 weights and two moments of the 17 million parameters at the least
    assert last.peak_memory_bytes > 12 * metrics.num_parameters(_model(), embeddings=True)
    assert told.detail["peak_memory_bytes"] >= last.peak_memory_bytes
    assert last.alloc_retries == 0


def test_watts_of_the_rank_s_own_gpu_are_recorded(finished):
    (ready,) = [e for e in read_events(finished.root).records if e.kind is EventKind.RANK_READY]
    rows = [r for r in _gpu_rows(finished) if r.gpu_uuid == ready.detail["gpu_uuid"]]
    watts = [row.power_w for row in rows if row.power_w is not None]
    assert len(watts) > len(rows) / 2
    assert all(w > 0 for w in watts)
    assert all(row.power_w is not None or row.reason for row in rows)


def test_the_table_has_mfu_and_joules_of_a_known_gpu(results):
    (run,) = load_results(results).runs
    found = measure(run)
    assert found.is_clean, found.notes
    assert found.joules_per_token is None or found.joules_per_token > 0
    facts = hardware.find_device(torch.cuda.get_device_name())
    peak = None if facts is None else hardware.peak_flops(facts, "bf16")
    if peak is None:
        assert found.mfu.value is None
        assert found.mfu.reason
    else:
        assert 0 < found.mfu.value < 1
        assert found.mfu.peak_flops_per_s == peak.flops_per_s


def test_attention_without_a_mask_runs_on_the_flash_kernel():
    """Any mask, even a causal one, sends sdpa to a slower kernel."""
    model = _loaded_model().to(torch.bfloat16)
    ids = torch.randint(512, (2, 256), device="cuda")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        logits = compute_logits(model, ids, None)
        logits.float().logsumexp(-1).sum().backward()
    assert logits.dtype == torch.bfloat16
    assert bool(logits.isfinite().all())


def test_fused_adamw_equals_the_plain_one():
    models = [_loaded_model() for _ in range(2)]
    train = train_run.read_config(1, MODEL, "gpus").train
    fused = build_optimizer(models[0], train)
    plain = build_optimizer(models[1], train)
    for group in plain.param_groups:
        group.update(fused=False, foreach=False)
    for model, optimizer in zip(models, (fused, plain), strict=True):
        ids = torch.arange(64, device="cuda").reshape(1, 64)
        compute_logits(model, ids, None).logsumexp(-1).sum().backward()
        optimizer.step()
    assert all(group["fused"] for group in fused.param_groups)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def _model():
    return train_run.read_config(1, MODEL, "gpus").model


def _loaded_model():
    model = build_model(_model())
    materialise.allocate(model, torch.device("cuda"))
    materialise.fill_random(model, seed=1, std=0.02)
    return model


def _gpu_rows(run_dir) -> list[GpuSample]:
    path = run_dir.telemetry(0)
    lines = path.read_text().splitlines(keepends=True)
    gpu_only = path.with_name("gpu_only.jsonl")
    gpu_only.write_text("".join(line for line in lines if '"power_w"' in line))
    return list(read_jsonl(gpu_only, GpuSample).records)
