import hashlib
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.train import init_index
from harness.train.init_index import CHUNK_ELEMENTS, fill_normal, stream_key


def draw(start, count, *, key=None, std=1.0):
    out = torch.empty(count)
    fill_normal(out, key=stream_key(7, "w") if key is None else key, start=start, std=std)
    return out


def splitmix64(key, index):
    """The published finaliser in plain Python, modulo 2**64."""
    mask = (1 << 64) - 1
    x = (key + (index + 1) * 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_the_hash_is_splitmix64_counted_by_the_global_index():
    key = stream_key(2608, "model.embed_tokens.weight")
    values = draw(12345, 500, key=key)
    normal = NormalDist()
    for offset, value in enumerate(values.tolist()):
        hashed = splitmix64(key, 12345 + offset)
        tail = ((hashed >> 12) * 2 + 1) / 2.0**54
        expected = -normal.inv_cdf(tail) * (-1 if hashed & 1 else 1)
        assert value == pytest.approx(expected, abs=3.5e-6)


@settings(max_examples=40, deadline=None)
@given(start=st.integers(0, 3 * CHUNK_ELEMENTS), count=st.integers(0, 300))
def test_any_slice_equals_the_same_slice_of_the_whole_bit_for_bit(start, count):
    whole = draw(0, 3 * CHUNK_ELEMENTS + 301)
    assert torch.equal(draw(start, count), whole[start : start + count])


@settings(max_examples=20, deadline=None)
@given(start=st.integers(2**33, 2**40))
def test_indices_beyond_32_bits_count(start):
    """A 151,936 x 5,120 embedding stays below 2**32, a bigger model does not."""
    assert torch.equal(draw(start, 64)[32:], draw(start + 32, 32))
    assert not torch.equal(draw(start, 64), draw(start % 2**32, 64))


def test_number_of_threads_does_not_change_a_bit():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = draw(3, 200_003)
        torch.set_num_threads(2)
        assert torch.equal(draw(3, 200_003), one)
    finally:
        torch.set_num_threads(before)


def test_values_are_normally_distributed():
    values = draw(0, 1_000_000).double()
    assert stats.kstest(values.numpy(), "norm").pvalue > 1e-3
    assert values.mean().abs() < 5e-3
    assert values.std().item() == pytest.approx(1.0, abs=5e-3)
    assert (values**4).mean().item() == pytest.approx(3.0, abs=0.05)


def test_values_scale_with_the_standard_deviation():
    assert torch.allclose(draw(0, 1000, std=0.02), draw(0, 1000) * 0.02, rtol=1e-6)


def test_streams_of_other_names_and_seeds_are_unrelated():
    first = draw(0, 50_000, key=stream_key(7, "model.layers.0.mlp.up_proj.weight"))
    for seed, name in [(8, "model.layers.0.mlp.up_proj.weight"), (7, "model.layers.1")]:
        other = draw(0, 50_000, key=stream_key(seed, name))
        assert torch.corrcoef(torch.stack([first, other]))[0, 1].abs() < 0.02


def test_neighbouring_values_are_uncorrelated():
    values = draw(0, 200_001)
    assert torch.corrcoef(torch.stack([values[:-1], values[1:]]))[0, 1].abs() < 0.01


def test_an_empty_shard_is_left_alone():
    assert draw(17, 0).numel() == 0


def test_a_tensor_is_filled_in_c_order():
    out = torch.empty(7, 5)
    fill_normal(out, key=stream_key(7, "w"), start=0, std=1.0)
    assert torch.equal(out.flatten(), draw(0, 35))


def test_a_stream_is_the_same_today_as_when_it_was_recorded():
    """Saved runs name seeds; a change of method would silently change what they stand for."""
    drawn = draw(0, 4096, key=stream_key(2608, "lm_head.weight"), std=0.02)
    assert (
        hashlib.sha256(drawn.numpy().tobytes()).hexdigest()
        == "c78c93e44ead7670b9b0d38dd7f83ffa77478a5758ccf17331644905cd4effe8"
    )


def test_extra_memory_is_a_few_chunks(monkeypatch):
    sizes = []
    original = init_index._standard_normal

    def spy(key, start, count, device):
        sizes.append(count)
        return original(key, start, count, device)

    monkeypatch.setattr(init_index, "_standard_normal", spy)
    draw(0, 2 * CHUNK_ELEMENTS + 10)
    assert sizes == [CHUNK_ELEMENTS, CHUNK_ELEMENTS, 10]
    assert CHUNK_ELEMENTS * 8 * 8 <= 64 << 20
