import dataclasses

import pytest
import torch
from transformers import Qwen3ForCausalLM

from harness.metrics import num_parameters
from harness.train.materialise import allocate, fill_random
from harness.train.model import build_config, build_model, compute_logits, document_mask

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small_config(smoke_config):
    return dataclasses.replace(
        smoke_config.model, num_layers=2, hidden_size=64, intermediate_size=96, vocab_size=211
    )


@pytest.fixture(scope="module")
def small_model(small_config):
    module = build_model(small_config)
    allocate(module, CPU)
    # Wide weights: with 0.02 the attention hardly tells one context from another.
    fill_random(module, seed=1, std=0.2)
    return module.eval()


def count(config):
    return sum(p.numel() for p in build_model(config).parameters())


def test_qwen3_32b_has_32_762_billion_parameters(compose_config):
    model = compose_config("experiment=scaling").model
    assert model.name == "qwen3_32b"
    assert count(model) == 32_762_123_264


@pytest.mark.parametrize("name", ["qwen3_32b", "qwen3_0_6b", "qwen3_tiny"])
def test_closed_form_of_parameters_equals_the_model(compose_config, name):
    model = compose_config("experiment=scaling", f"model={name}").model
    assert count(model) == num_parameters(model, embeddings=True)


def test_model_is_built_without_memory_in_fp32_with_sdpa(small_config):
    module = build_model(small_config)
    tensors = [*module.parameters(), *module.buffers()]
    assert {t.device.type for t in tensors} == {"meta"}
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert module.config._attn_implementation == "sdpa"
    assert module.config.use_cache is False


def test_logits_without_position_ids_are_those_of_transformers(small_model):
    ids = torch.randint(0, 211, (2, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        ours = compute_logits(small_model, ids, None)
        assert torch.equal(ours, small_model(input_ids=ids).logits)
    assert ours.shape == (2, 24, 211)


def test_later_tokens_do_not_change_earlier_logits(small_model):
    ids = torch.randint(0, 211, (1, 24), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        whole = compute_logits(small_model, ids, None)
        half = compute_logits(small_model, ids[:, :12], None)
    torch.testing.assert_close(whole[:, :12], half, rtol=1e-5, atol=1e-5)


LENGTHS = [[9, 1, 1, 13], [5, 12, 7, 0]]  # documents in each of two blocks of 24 tokens


def packed_block():
    ids = torch.randint(0, 211, (2, 24), generator=torch.Generator().manual_seed(5))
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in LENGTHS])
    return ids, positions


def test_logits_of_a_packed_document_equal_those_of_it_alone(small_model):
    ids, positions = packed_block()
    with torch.no_grad():
        packed = compute_logits(small_model, ids, positions)
        for row, lengths in enumerate(LENGTHS):
            begin = 0
            for length in filter(None, lengths):
                document = slice(begin, begin + length)
                alone = compute_logits(small_model, ids[row : row + 1, document], None)
                torch.testing.assert_close(packed[row, document], alone[0], rtol=1e-4, atol=1e-4)
                begin += length


def test_plain_concatenation_lets_documents_see_each_other(small_model):
    ids, positions = packed_block()
    with torch.no_grad():
        masked = compute_logits(small_model, ids, positions)
        plain = compute_logits(small_model, ids, None)
    torch.testing.assert_close(masked[0, :9], plain[0, :9], rtol=1e-4, atol=1e-4)
    assert (masked[0, 9:] - plain[0, 9:]).abs().max() > 0.1


def test_masking_needs_more_than_restarting_position_ids(small_model):
    """Rotary positions are relative: restarts alone would leave attention across documents."""
    ids, positions = packed_block()
    causal = torch.ones(24, 24, dtype=torch.bool).tril()[None, None].expand(2, 1, 24, 24)
    with torch.no_grad():
        masked = compute_logits(small_model, ids, positions)
        unmasked = small_model(
            input_ids=ids, position_ids=positions, attention_mask={"full_attention": causal}
        ).logits
    assert (masked[0, 9:] - unmasked[0, 9:]).abs().max() > 0.1


def test_document_mask_is_causal_within_each_document():
    mask = document_mask(torch.tensor([[0, 1, 0, 0, 1]]))
    assert mask.shape == (1, 1, 5, 5)
    expected = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    assert mask[0, 0].int().tolist() == expected


def test_a_block_may_begin_inside_a_document():
    mask = document_mask(torch.tensor([[7, 8, 0, 1]]))
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_every_architecture_setting_reaches_transformers(small_config):
    config = build_config(small_config)
    module = Qwen3ForCausalLM(config)
    assert module.model.rotary_emb.inv_freq[1].item() == pytest.approx(
        small_config.rope_theta ** (-2 / small_config.head_dim)
    )
    assert module.model.layers[0].self_attn.q_norm.variance_epsilon == small_config.rms_norm_eps
    assert config.tie_word_embeddings is small_config.tie_word_embeddings
