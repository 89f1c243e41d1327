"""One rank of tests/integration/test_model_parallel.py: argv is a case and an output folder."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from harness.__main__ import compose
from harness.config import RunConfig
from harness.parse import parse
from harness.train import checkpoint
from harness.train.materialise import canonical_name
from harness.train.model import compute_logits
from harness.train.parallel import (
    clip_grad_norm,
    compute_context,
    prepare_model,
    set_gradient_sync,
)
from harness.train.topology import init_topology

# Rows that divide by neither 2 nor 4; 6 rows over 4 ranks leave the last with none.
SMALL = {
    "num_layers": 2,
    "hidden_size": 18,
    "intermediate_size": 27,
    "vocab_size": 101,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "initializer_range": 0.2,
}
# 0.5 GB in fp32; the head alone (131 MB, drawn last) is twice a layer.
LARGE = {
    "num_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "tie_word_embeddings": False,
}
VARIANTS = {
    "fsdp2": {"strategy": "fsdp2"},
    "ddp": {"strategy": "ddp"},
    "fsdp2_recompute": {"strategy": "fsdp2", "activation_checkpointing": "true"},
    "ddp_recompute": {"strategy": "ddp", "activation_checkpointing": "true"},
    "fsdp2_bf16": {"strategy": "fsdp2", "precision": "bf16"},
    "ddp_bf16": {"strategy": "ddp", "precision": "bf16"},
    "fsdp2_compile": {"strategy": "fsdp2", "compile": "true"},
}


def configure(model, **train):
    settings = {"strategy": "fsdp2", "precision": "fp32", **train}
    overrides = tuple(f"train.{key}={value}" for key, value in settings.items())
    config = parse(
        RunConfig, compose(("experiment=smoke", f"gpus={os.environ['WORLD_SIZE']}", *overrides))
    )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **model))


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_tensors(module):
    return {canonical_name(n): full(p.detach()).clone() for n, p in module.named_parameters()}


def full_gradients(module):
    return {canonical_name(n): full(p.grad).clone() for n, p in module.named_parameters()}


def batch():
    """Four sequences of 24 tokens, the same everywhere."""
    return torch.randint(0, 101, (4, 24), generator=torch.Generator().manual_seed(5))


def backward(module, config, topology, ids):
    with compute_context(config.train, topology.device):
        logits = compute_logits(module, ids, None)
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()
        )
    loss.backward()
    return str(logits.dtype)


def tensors(topology, out):
    for strategy in ("fsdp2", "ddp"):
        found = full_tensors(prepare_model(configure(SMALL, strategy=strategy), topology))
        torch.save(found, out / f"{strategy}-{topology.world_size}-{topology.rank}.pt")


def gradients(topology, out, *names):
    """Each rank's half of the batch in two micro batches, reducing only in the second."""
    for name in names:
        config = configure(SMALL, **VARIANTS[name])
        strategy = config.train.strategy
        module = prepare_model(config, topology)
        ids = batch().chunk(topology.world_size)[topology.rank]
        counts = []
        for i, micro_batch in enumerate(ids.chunk(2)):
            set_gradient_sync(module, strategy, i == 1)
            with CommDebugMode() as comm:
                dtype = backward(module, config, topology, micro_batch)
            counts.append({str(op): n for op, n in comm.get_comm_counts().items()})
        found = {n: g / 2 for n, g in full_gradients(module).items()}
        gradient_dtypes = {str(p.grad.dtype) for p in module.parameters()}
        norm = clip_grad_norm(module, 0.01) / 2
        result = {
            "gradients": found,
            "norm": norm,
            "clipped_norm": clip_grad_norm(module, 1e9),
            "clipped": full_gradients(module),
            "parameter_dtypes": {str(p.dtype) for p in module.parameters()},
            "gradient_dtypes": gradient_dtypes,
            "logits_dtype": dtype,
            "collectives": counts,
        }
        torch.save(result, out / f"{name}-{topology.rank}.pt")


def memory_kib(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise KeyError(key)


def memory(topology, out, strategy):
    """How far resident memory rose, at its highest, while the model was prepared."""
    config = configure(LARGE, strategy=strategy)
    prepare_model(configure(SMALL, strategy=strategy), topology)  # what is loaded lazily
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = memory_kib("VmRSS")
    module = prepare_model(config, topology)
    peak_bytes = (memory_kib("VmHWM") - before) * 1024
    local = [p.to_local() if isinstance(p, DTensor) else p for p in module.parameters()]
    layers = module.get_submodule("model.layers" if strategy == "fsdp2" else "module.model.layers")
    facts = {
        "peak_bytes": peak_bytes,
        "shard_bytes": sum(t.nbytes for t in local),
        "layer_bytes": sum(p.numel() * 4 for p in layers.get_submodule("0").parameters()),
        "model_bytes": sum(p.numel() * 4 for p in module.parameters()),
    }
    (out / f"memory-{strategy}-{topology.rank}.json").write_text(json.dumps(facts))


def saves(topology, out):
    """Train, save, load into another model of other weights, compare, and train both on."""
    for strategy in ("fsdp2", "ddp"):
        config = configure(SMALL, strategy=strategy, activation_checkpointing="true")
        module, optimizer = trained(config, topology)
        path = checkpoint.save(
            out / strategy, step=2, module=module, optimizer=optimizer, extra={"k": 1}
        )
        other_config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=99))
        other, other_optimizer = trained(other_config, topology, steps=0)
        facts = checkpoint.load(path, module=other, optimizer=other_optimizer)
        assert facts == {"k": 1, "step": 2}
        assert_equal(module, optimizer, other, other_optimizer)
        for pair in ((module, optimizer), (other, other_optimizer)):
            take_step(config, topology, *pair)
        assert_equal(module, optimizer, other, other_optimizer)
    (out / f"saves-{topology.rank}").write_text("equal")


def broken_save(topology, out):
    """Rank 1 cannot write: every rank must get the error, none may hang or publish."""
    import resource

    module, optimizer = trained(configure(SMALL), topology)
    checkpoint.save(out, step=1, module=module, optimizer=optimizer, extra={})
    if topology.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        checkpoint.save(out, step=2, module=module, optimizer=optimizer, extra={})
        outcome = "saved"
    except checkpoint.RecordError as error:
        outcome = f"{type(error).__name__}: {error}"
    latest = checkpoint.latest(out)
    assert latest is not None
    (out / f"broken-{topology.rank}").write_text(f"{latest.name} {outcome}")


def trained(config, topology, steps=2):
    module = prepare_model(config, topology)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(steps):
        take_step(config, topology, module, optimizer)
    return module, optimizer


def take_step(config, topology, module, optimizer):
    backward(module, config, topology, batch().chunk(topology.world_size)[topology.rank])
    optimizer.step()
    optimizer.zero_grad()


def assert_equal(module, optimizer, other, other_optimizer):
    pairs = list(zip(module.parameters(), other.parameters(), strict=True))
    for ours, theirs in pairs:
        assert torch.equal(full(ours), full(theirs))
        assert set(optimizer.state[ours]) == {"exp_avg", "exp_avg_sq", "step"}
        for key, value in optimizer.state[ours].items():
            assert torch.equal(full(value), full(other_optimizer.state[theirs][key])), key


CASES = {f.__name__: f for f in (tensors, gradients, memory, saves, broken_save)}


def main():
    case, out, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    topology = init_topology(configure(SMALL))
    CASES[case](topology, Path(out), *rest)
    dist.barrier()
    dist.destroy_process_group()
    # torch 2.13 with gloo aborts in 6 of 10 orderly interpreter exits after a destroyed group.
    os._exit(0)


if __name__ == "__main__":
    main()
