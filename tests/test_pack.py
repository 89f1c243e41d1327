import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import pack as pack_module
from harness.data.pack import pack

EOS = 0


def packed(documents, sequence_length):
    arrays = [np.array(d, dtype=np.int32) for d in documents]
    chunks = [
        (chunk.blocks.copy(), chunk.num_tokens)
        for chunk in pack(arrays, sequence_length=sequence_length, eos_token_id=EOS)
    ]
    return chunks, sum(n for _, n in chunks)


@settings(max_examples=100, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 9), max_size=30), min_size=1, max_size=20),
    sequence_length=st.integers(1, 17),
    chunk_tokens=st.integers(1, 40),
)
def test_blocks_hold_every_token_in_order_and_only_filler_besides(
    documents, sequence_length, chunk_tokens
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_module, "_CHUNK_TOKENS", chunk_tokens)
        chunks, num_tokens = packed(documents, sequence_length)
    flat = np.concatenate([blocks.ravel() for blocks, _ in chunks]).tolist()
    expected = [token for document in documents for token in [*document, EOS]]
    assert num_tokens == len(expected)
    assert flat[:num_tokens] == expected
    assert set(flat[num_tokens:]) <= {EOS}
    assert len(flat) - num_tokens < sequence_length
    assert len(flat) % sequence_length == 0
    assert all(n == blocks.size for blocks, n in chunks[:-1])


def test_a_document_longer_than_the_buffer_goes_through(monkeypatch):
    monkeypatch.setattr(pack_module, "_CHUNK_TOKENS", 8)
    chunks, num_tokens = packed([range(1, 101)], 4)
    assert num_tokens == 101
    assert len(chunks) == 13
    assert chunks[-1][0].tolist() == [[97, 98, 99, 100], [EOS, EOS, EOS, EOS]]
    assert chunks[-1][1] == 5


def test_nothing_in_gives_nothing_out():
    assert packed([], 4) == ([], 0)


def test_the_stream_is_lazy():
    def endless():
        while True:
            yield np.ones(1 << 18, dtype=np.int32)

    first = next(iter(pack(endless(), sequence_length=256, eos_token_id=EOS)))
    assert first.blocks.shape[1] == 256
    assert first.blocks.dtype == np.int32
