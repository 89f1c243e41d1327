import contextlib
import dataclasses
import json

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen3ForCausalLM

from harness.errors import ConfigError
from harness.train import weights
from harness.train.materialise import allocate, parameter_shards
from harness.train.model import build_config, build_model
from harness.train.weights import load_weights


@pytest.fixture
def small_config(smoke_config):
    return dataclasses.replace(
        smoke_config.model,
        num_layers=2,
        hidden_size=18,
        intermediate_size=27,
        vocab_size=101,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=6,
        tie_word_embeddings=False,
    )


@pytest.fixture
def save_folder(tmp_path):
    """A tiny checkpoint as transformers saves it: ``save_folder(config) -> (folder, tensors)``."""

    def save(config, **options):
        torch.manual_seed(11)
        model = Qwen3ForCausalLM(build_config(config))
        model.save_pretrained(tmp_path, **options)
        return tmp_path, {n: p.detach().clone() for n, p in model.named_parameters()}

    return save


def empty_model(config, mesh=None):
    module = build_model(config)
    if mesh is not None:
        for layer in module.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
    allocate(module, torch.device("cpu"))
    return module


@contextlib.contextmanager
def fake_ranks(rank, world_size):
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (world_size,))
    finally:
        dist.destroy_process_group()


def edit_tensors(folder, edit):
    path = folder / weights.SINGLE_FILE
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("options", [{}, {"max_shard_size": "10KB"}], ids=["single", "index"])
def test_saved_weights_arrive_bit_for_bit(small_config, save_folder, options, is_tied):
    config = dataclasses.replace(small_config, tie_word_embeddings=is_tied)
    folder, saved = save_folder(config, **options)
    assert (folder / weights.INDEX_FILE).exists() == bool(options)
    module = empty_model(config)
    load_weights(module, folder, config)
    loaded = dict(module.named_parameters())
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)


@pytest.mark.parametrize("world_size", [2, 4])
def test_each_rank_takes_its_own_rows(small_config, save_folder, world_size, monkeypatch):
    monkeypatch.setattr(weights, "CHUNK_ELEMENTS", 40)  # pieces of two rows
    folder, saved = save_folder(small_config)
    held = {name: [] for name in saved}
    for rank in range(world_size):
        with fake_ranks(rank, world_size) as mesh:
            module = empty_model(small_config, mesh)
            load_weights(module, folder, small_config)
            for shard in parameter_shards(module):
                held[shard.name].append(shard.local.clone())
    for name, tensor in saved.items():
        assert torch.equal(torch.cat(held[name]), tensor), name


def test_a_rank_reads_no_row_of_another(small_config, save_folder, monkeypatch):
    folder, saved = save_folder(small_config)
    read = {}

    class Spy:
        def __init__(self, name, rows):
            self.name, self.rows = name, rows

        def __getitem__(self, rows):
            read.setdefault(self.name, set()).update(range(rows.start, rows.stop))
            return self.rows[rows]

        def get_shape(self):
            return self.rows.get_shape()

    class Handle:
        def __init__(self, path):
            self.inner = original(path)

        def __enter__(self):
            self.inner = self.inner.__enter__()
            return self

        def __exit__(self, *exc):
            return self.inner.__exit__(*exc)

        def keys(self):
            return self.inner.keys()

        def get_slice(self, name):
            return Spy(name, self.inner.get_slice(name))

    original = weights._open
    monkeypatch.setattr(weights, "_open", Handle)
    with fake_ranks(1, 4) as mesh:
        load_weights(empty_model(small_config, mesh), folder, small_config)
    assert read["lm_head.weight"] == set(range(26, 52))
    assert sum(map(len, read.values())) < sum(len(t) for t in saved.values()) / 3


def test_bf16_weights_become_fp32_master_weights(small_config, save_folder):
    folder, saved = save_folder(small_config)
    edit_tensors(folder, lambda t: t.update({n: v.bfloat16() for n, v in t.items()}))
    module = empty_model(small_config)
    load_weights(module, folder, small_config)
    head = module.lm_head.weight
    assert head.dtype == torch.float32
    assert torch.equal(head, saved["lm_head.weight"].bfloat16().float())


def test_missing_and_unexpected_tensors_are_refused_by_name(small_config, save_folder):
    folder, _ = save_folder(small_config)
    edit_tensors(folder, lambda t: t.update(extra=t.pop("model.norm.weight")))
    with pytest.raises(ConfigError, match=r"missing: model.norm.weight; unexpected: extra"):
        load_weights(empty_model(small_config), folder, small_config)


def test_a_long_list_of_names_is_cut(small_config, save_folder):
    folder, _ = save_folder(small_config)
    edit_tensors(folder, lambda t: t.update({f"x{i}": torch.zeros(1) for i in range(9)}))
    with pytest.raises(ConfigError, match=r"missing: none; unexpected: x0, .*x4 and 4 more"):
        load_weights(empty_model(small_config), folder, small_config)


def test_another_shape_is_refused_before_anything_is_loaded(small_config, save_folder):
    folder, _ = save_folder(small_config)
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": torch.ones(19)}))
    module = empty_model(small_config)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(5.0)
    with pytest.raises(ConfigError, match=r"model.norm.weight has the shape \[19\], expected"):
        load_weights(module, folder, small_config)
    assert all((p == 5.0).all() for p in module.parameters())


@pytest.mark.parametrize(
    ("theirs", "ours", "there"),
    [
        ("hidden_size", "hidden_size", 20),
        ("num_hidden_layers", "num_layers", 3),
        ("num_attention_heads", "num_attention_heads", 4),
        ("vocab_size", "vocab_size", 102),
        ("tie_word_embeddings", "tie_word_embeddings", True),
    ],
)
def test_another_architecture_is_refused_naming_key_and_both_values(
    small_config, save_folder, theirs, ours, there
):
    folder, _ = save_folder(small_config)
    edit_config(folder, **{theirs: there, "layer_types": None})
    here = getattr(small_config, ours)
    with pytest.raises(ConfigError, match=rf"{theirs}={there}, but model\.{ours} .* {here};"):
        load_weights(empty_model(small_config), folder, small_config)


def test_a_config_that_contradicts_itself_is_refused(small_config, save_folder):
    folder, _ = save_folder(small_config)
    edit_config(folder, num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"contradicts itself: [\s\S]*layer_types"):
        load_weights(empty_model(small_config), folder, small_config)


def test_sliding_window_attention_is_refused(small_config, save_folder):
    folder, _ = save_folder(small_config)
    edit_config(folder, layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(ConfigError, match="only full attention"):
        load_weights(empty_model(small_config), folder, small_config)


def test_another_rope_base_is_refused(small_config, save_folder):
    folder, _ = save_folder(small_config)
    other = dataclasses.replace(small_config, rope_theta=10_000.0)
    with pytest.raises(ConfigError, match=r"model\.rope_theta"):
        load_weights(empty_model(other), folder, other)


def test_a_rope_base_at_the_top_level_of_config_json_is_understood(small_config, save_folder):
    """Qwen3's published config.json has rope_theta there; transformers 5 writes rope_parameters."""
    folder, saved = save_folder(small_config)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    path.write_text(json.dumps({**config, "rope_theta": rope["rope_theta"], "rope_scaling": None}))
    module = empty_model(small_config)
    load_weights(module, folder, small_config)
    assert torch.equal(module.lm_head.weight, saved["lm_head.weight"])


def test_another_model_family_is_refused(small_config, save_folder):
    folder, _ = save_folder(small_config)
    edit_config(folder, model_type="llama")
    with pytest.raises(ConfigError, match="model_type='llama'; only 'qwen3'"):
        load_weights(empty_model(small_config), folder, small_config)


def test_a_folder_without_safetensors_is_refused_with_the_conversion(small_config, save_folder):
    folder, _ = save_folder(small_config)
    (folder / weights.SINGLE_FILE).rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"convert with .*save_pretrained"):
        load_weights(empty_model(small_config), folder, small_config)


@pytest.mark.parametrize("text", [None, "{"])
def test_a_folder_without_a_readable_config_is_refused(small_config, tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"no config\.json there|not JSON"):
        load_weights(empty_model(small_config), tmp_path, small_config)


def test_a_truncated_file_is_refused(small_config, save_folder):
    folder, _ = save_folder(small_config)
    path = folder / weights.SINGLE_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        load_weights(empty_model(small_config), folder, small_config)


def test_an_index_that_names_absent_files_is_refused(small_config, save_folder):
    folder, _ = save_folder(small_config, max_shard_size="10KB")
    gone = sorted(folder.glob("*.safetensors"))[0]
    gone.unlink()
    with pytest.raises(ConfigError, match=gone.name):
        load_weights(empty_model(small_config), folder, small_config)


def test_an_index_without_a_weight_map_is_refused(small_config, save_folder):
    folder, _ = save_folder(small_config, max_shard_size="10KB")
    (folder / weights.INDEX_FILE).write_text("{}")
    with pytest.raises(ConfigError, match="no weight_map"):
        load_weights(empty_model(small_config), folder, small_config)


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_stored_head_of_a_tied_model_must_equal_the_embedding(
    small_config, save_folder, is_equal
):
    config = dataclasses.replace(small_config, tie_word_embeddings=True)
    folder, saved = save_folder(config)
    head = saved["model.embed_tokens.weight"].clone()
    head[100, 17] += 0.0 if is_equal else 1.0
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": head}))
    module = empty_model(config)
    if is_equal:
        load_weights(module, folder, config)
        assert torch.equal(module.lm_head.weight, head)
    else:
        with pytest.raises(ConfigError, match=r"lm_head\.weight differs from model\.embed_tokens"):
            load_weights(module, folder, config)
