import contextlib
import dataclasses

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen3ForCausalLM

from harness.train.materialise import allocate, canonical_name, fill_random, parameter_shards
from harness.train.model import build_config, build_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def small_config(smoke_config, request):
    # 101 and 6 rows divide by neither 4 nor 5; over 4 ranks 6 rows leave the last with none.
    return dataclasses.replace(
        smoke_config.model,
        num_layers=2,
        hidden_size=18,
        intermediate_size=27,
        vocab_size=101,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=6,
        tie_word_embeddings=request.param,
    )


def materialised(config, *, wrap=None, mesh=None, seed=3):
    module = build_model(config)
    for name, layer in list(module.model.layers.named_children()):
        wrapped = layer if wrap is None else wrap(layer)
        module.model.layers.register_module(name, wrapped)
        if mesh is not None:
            fully_shard(wrapped, mesh=mesh)
    if mesh is not None:
        fully_shard(module, mesh=mesh)
    allocate(module, CPU)
    fill_random(module, seed=seed, std=0.02)
    return module


def tensors(module):
    return {shard.name: shard.local for shard in parameter_shards(module)}


@contextlib.contextmanager
def fake_ranks(rank, world_size):
    """A process group that never communicates: what one rank of many would hold."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (world_size,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7])
def test_shards_of_all_ranks_make_up_the_plain_tensors_bit_for_bit(small_config, world_size):
    plain = tensors(materialised(small_config))
    held = {name: [] for name in plain}
    for rank in range(world_size):
        with fake_ranks(rank, world_size) as mesh:
            for shard in parameter_shards(materialised(small_config, mesh=mesh)):
                assert shard.shape == plain[shard.name].shape
                assert shard.start == shard.first_row * plain[shard.name][0].numel()
                held[shard.name].append(shard.local.clone())
    for name, whole in plain.items():
        assert torch.equal(torch.cat(held[name]), whole), name


def test_a_rank_may_hold_no_row_of_a_parameter(small_config):
    with fake_ranks(3, 4) as mesh:
        shards = {s.name: s for s in parameter_shards(materialised(small_config, mesh=mesh))}
    norm = shards["model.layers.0.self_attn.q_norm.weight"]
    assert (norm.local.numel(), norm.first_row) == (0, 6)


def test_tied_embeddings_stay_tied_after_sharding_and_allocating(small_config):
    with fake_ranks(1, 2) as mesh:
        sharded = materialised(small_config, mesh=mesh)
        pairs = [(m.lm_head.weight, m.model.embed_tokens.weight) for m in (sharded,)]
        assert len(list(sharded.parameters())) == len(tensors(sharded))
    plain = materialised(small_config)
    pairs.append((plain.lm_head.weight, plain.model.embed_tokens.weight))
    assert [a is b for a, b in pairs] == [small_config.tie_word_embeddings] * 2


def test_rope_buffers_are_those_of_a_plainly_constructed_model(small_config):
    """to_empty leaves garbage in non-persistent buffers, and no checkpoint holds them."""
    expected = dict(Qwen3ForCausalLM(build_config(small_config)).named_buffers())
    module = build_model(small_config)
    allocate(module, CPU)
    found = dict(module.named_buffers())
    assert found.keys() == expected.keys()
    assert "model.rotary_emb.inv_freq" in found
    for name, buffer in expected.items():
        assert torch.equal(found[name], buffer), name


def test_values_follow_the_rules_of_transformers(small_config):
    config = dataclasses.replace(small_config, hidden_size=256, vocab_size=1024)
    ours = tensors(materialised(config))
    theirs = dict(Qwen3ForCausalLM(build_config(config)).named_parameters())
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if name.endswith("norm.weight"):
            assert torch.equal(ours[name], tensor)
        else:
            tolerance = 5 * 0.02 / tensor.numel() ** 0.5
            assert ours[name].std().item() == pytest.approx(tensor.std().item(), abs=tolerance)
            assert ours[name].mean().abs().item() < tolerance


def test_no_two_parameters_repeat_each_other(small_config):
    weights = [t.flatten()[:20] for n, t in tensors(materialised(small_config)).items()]
    random = [w for w in weights if not torch.equal(w, torch.ones_like(w))]
    first_values = {w[0].item() for w in random}
    assert len(first_values) == len(random) > 10


def test_another_seed_gives_other_weights(small_config):
    one = materialised(small_config, seed=1).model.embed_tokens.weight
    assert not torch.equal(one, materialised(small_config, seed=2).model.embed_tokens.weight)


def compiled(layer):
    return torch.compile(layer, backend="eager")


@pytest.mark.parametrize(
    "wrap",
    [checkpoint_wrapper, compiled, lambda layer: compiled(checkpoint_wrapper(layer))],
    ids=["activation_checkpointing", "compile", "both"],
)
def test_wrappers_change_neither_names_nor_values(small_config, wrap):
    plain = tensors(materialised(small_config))
    wrapped = tensors(materialised(small_config, wrap=wrap))
    assert plain.keys() == wrapped.keys()
    assert all(torch.equal(plain[name], wrapped[name]) for name in plain)


def test_canonical_names_are_those_of_the_plain_model():
    wrapped = "module.model.layers.3._orig_mod._checkpoint_wrapped_module.mlp.up_proj.weight"
    assert canonical_name(wrapped) == "model.layers.3.mlp.up_proj.weight"
    assert canonical_name("lm_head.weight") == "lm_head.weight"


def test_biases_are_zero():
    linear = nn.Linear(3, 2)
    fill_random(linear, seed=1, std=0.02)
    assert torch.equal(linear.bias, torch.zeros(2))
    assert linear.weight.abs().max() > 0


def test_a_parameter_without_a_rule_is_not_guessed():
    with pytest.raises(AssertionError, match="no rule for its values"):
        fill_random(nn.PReLU(), seed=1, std=0.02)


def test_a_buffer_without_a_rule_is_not_left_as_garbage(small_config):
    module = build_model(small_config)
    module.model.norm.register_buffer("scale", torch.ones(1, device="meta"))
    with pytest.raises(AssertionError, match="no rule for buffers"):
        allocate(module, CPU)
