from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.config import Dealing
from harness.data.blocks import BlockStore, write_blocks
from harness.data.index import StoreIndex
from harness.data.loader import IGNORED_LABEL, BlockLoader
from harness.data.pack import pack
from harness.errors import DataError

EOS = 0
LENGTH = 6


def make_store(folder, documents, length=LENGTH):
    folder.mkdir(exist_ok=True)
    arrays = [np.array(d, dtype=np.int32) for d in documents]
    chunks = pack(arrays, sequence_length=length, eos_token_id=EOS)
    shards, num_tokens = write_blocks(folder / "blocks.i32", chunks, sequence_length=length)
    index = StoreIndex(
        schema_version=1,
        dealing=Dealing.GLOBAL,
        sequence_length=length,
        num_blocks=sum(s.num_blocks for s in shards),
        num_tokens=num_tokens,
        num_documents=len(documents),
        eos_token_id=EOS,
        vocab_size=1000,
        corpus_hash="c",
        tokenizer_hash="t",
        shards=shards,
    )
    (folder / "index.json").write_text(index.to_json())
    return BlockStore.open(folder, vocab_size=1000)


@pytest.fixture
def store(tmp_path):
    """Thirteen blocks whose first token says which; the last one has two tokens of filler."""
    flat = [[100 + b, 1, 2, 3, 4, 5] for b in range(13)]
    tokens = [t for block in flat for t in block][: 13 * LENGTH - 3]
    with make_store(tmp_path / "store", [tokens]) as opened:
        yield opened


def loader(store, **changes) -> BlockLoader:
    arguments = {
        "global_batch_size": 4,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "rank": 0,
        "world_size": 1,
        "shuffle_seed": 7,
        "eval_num_blocks": 0,
        "mask_documents": False,
    }
    return BlockLoader(store, **(arguments | changes))


def blocks_of(batch) -> list[int]:
    return [int(i) - 100 for i in batch.input_ids[:, 0] if i >= 100]


def blocks_of_step(store, step, world_size, micro_batch_size) -> set[int]:
    accumulation = 4 // (world_size * micro_batch_size)
    batches = [
        loader(
            store,
            rank=rank,
            world_size=world_size,
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=accumulation,
        ).fetch(step, micro_batch)
        for rank in range(world_size)
        for micro_batch in range(accumulation)
    ]
    found = [b for batch in batches for b in blocks_of(batch)]
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("step", [1, 3, 4, 6])
def test_the_global_batch_is_the_same_blocks_for_every_world_size(store, step):
    one = blocks_of_step(store, step, 1, 2)
    assert len(one) == (1 if step == 4 else 4)
    for world_size, micro_batch_size in [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)]:
        assert blocks_of_step(store, step, world_size, micro_batch_size) == one


def test_an_epoch_shows_every_block_once_and_accounts_for_every_token(store):
    a = loader(store)
    assert a.steps_per_epoch == 4
    batches = [a.fetch(s, m) for s in range(1, 5) for m in range(2)]
    assert sorted(b for batch in batches for b in blocks_of(batch)) == list(range(13))
    assert sum(b.tokens for b in batches) == store.num_tokens == 13 * LENGTH - 2
    assert sum(b.padded_tokens for b in batches) == 3 * LENGTH + 2
    assert sum(b.bytes_read for b in batches) == 13 * LENGTH * 4
    assert all(b.tokens + b.padded_tokens == 2 * LENGTH for b in batches)
    assert sum(b.target_tokens for b in batches) == 12 * (LENGTH - 1) + LENGTH - 3


def test_every_epoch_has_an_order_of_its_own_and_any_step_can_be_asked_for(store):
    a = loader(store)
    orders = [
        [b for s in range(4) for m in range(2) for b in blocks_of(a.fetch(4 * e + s + 1, m))]
        for e in range(3)
    ]
    assert all(sorted(order) == list(range(13)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    late, fresh = a.fetch(2, 1), loader(store).fetch(2, 1)
    assert late.input_ids.tolist() == fresh.input_ids.tolist()
    assert blocks_of(loader(store, shuffle_seed=8).fetch(1, 0)) != blocks_of(a.fetch(1, 0))


def test_labels_are_the_next_tokens(store):
    batch = loader(store).fetch(1, 0)
    assert batch.input_ids.dtype == batch.labels.dtype == np.int64
    assert batch.labels[:, :-1].tolist() == batch.input_ids[:, 1:].tolist()
    assert batch.labels[:, -1].tolist() == [IGNORED_LABEL] * 2
    assert batch.position_ids is None
    assert batch.tokens == 2 * LENGTH


def test_a_batch_does_not_change_when_the_next_is_fetched(store):
    a = loader(store)
    batch = a.fetch(1, 0)
    before = batch.input_ids.copy()
    a.fetch(1, 1)
    assert (batch.input_ids == before).all()


def test_filler_and_missing_blocks_have_no_targets(store):
    batches = [loader(store).fetch(s, m) for s in range(1, 5) for m in range(2)]
    rows = {int(i[0]): (i, x) for b in batches for i, x in zip(b.input_ids, b.labels, strict=True)}
    ids, labels = rows[112]
    assert ids.tolist() == [112, 1, 2, EOS, EOS, EOS]
    assert labels.tolist() == [1, 2, EOS, *[IGNORED_LABEL] * 3]
    ids, labels = rows[EOS]
    assert ids.tolist() == [EOS] * LENGTH
    assert labels.tolist() == [IGNORED_LABEL] * LENGTH


def test_a_micro_batch_of_padding_alone_weighs_nothing(store):
    batch = loader(store, mask_documents=True).fetch(4, 1)
    assert (batch.tokens, batch.target_tokens, batch.bytes_read) == (0, 0, 0)
    assert batch.padded_tokens == 2 * LENGTH
    assert batch.position_ids.tolist() == [list(range(LENGTH))] * 2


def test_masked_documents_restart_positions_and_lose_the_target_across(tmp_path):
    with make_store(tmp_path / "s", [[5, 6], [7], [], [8, 9, 10, 11]], length=10) as store:
        batch = loader(
            store,
            micro_batch_size=1,
            global_batch_size=1,
            gradient_accumulation_steps=1,
            mask_documents=True,
        ).fetch(1, 0)
    gone = IGNORED_LABEL
    assert batch.input_ids.tolist() == [[5, 6, EOS, 7, EOS, EOS, 8, 9, 10, 11]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1, 2, 3]]
    assert batch.labels.tolist() == [[6, EOS, gone, EOS, gone, gone, 9, 10, 11, gone]]
    assert batch.target_tokens == 6


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents=st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=1, max_size=8))
def test_masked_batches_equal_a_plain_loop_over_tokens(documents):
    flat = [t for d in documents for t in [*d, EOS]]
    num_blocks = -(-len(flat) // LENGTH)
    rows = np.array(flat + [EOS] * (num_blocks * LENGTH - len(flat))).reshape(-1, LENGTH)

    def read_into(block, row):
        row[:] = rows[block]
        return row.nbytes

    fake = SimpleNamespace(
        num_blocks=num_blocks,
        sequence_length=LENGTH,
        num_tokens=len(flat),
        eos_token_id=EOS,
        read_into=read_into,
    )
    a = loader(
        fake,
        micro_batch_size=1,
        global_batch_size=1,
        gradient_accumulation_steps=1,
        mask_documents=True,
    )
    for step in range(1, num_blocks + 1):
        batch = a.fetch(step, 0)
        ids, real, position = batch.input_ids[0].tolist(), batch.tokens, 0
        for t in range(LENGTH):
            assert batch.position_ids[0, t] == position
            has_target = t + 1 < real and ids[t] != EOS
            assert batch.labels[0, t] == (ids[t + 1] if has_target else IGNORED_LABEL)
            position = 0 if ids[t] == EOS and t < real else position + 1


@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 1), (1, 3), (2, 2), (4, 1)])
def test_held_out_blocks_are_the_last_ones_and_each_is_seen_once(
    store, world_size, micro_batch_size
):
    loaders = [
        loader(
            store,
            eval_num_blocks=5,
            rank=r,
            world_size=world_size,
            micro_batch_size=micro_batch_size,
            gradient_accumulation_steps=1,
            global_batch_size=world_size * micro_batch_size,
        )
        for r in range(world_size)
    ]
    counts = {a.num_eval_micro_batches for a in loaders}
    assert counts == {-(-5 // (world_size * micro_batch_size))}
    batches = [a.fetch_eval(m) for a in loaders for m in range(counts.copy().pop())]
    assert sorted(b for batch in batches for b in blocks_of(batch)) == list(range(8, 13))
    assert sum(b.tokens for b in batches) == 5 * LENGTH - 2
    trained = [
        b
        for a in loaders
        for s in range(1, a.steps_per_epoch + 1)
        for b in blocks_of(a.fetch(s, 0))
    ]
    assert sorted(trained) == list(range(8))


def test_without_held_out_blocks_there_is_nothing_to_evaluate(store):
    assert loader(store).num_eval_micro_batches == 0


@pytest.mark.parametrize("eval_num_blocks", [13, 20])
def test_holding_out_everything_is_refused(store, eval_num_blocks):
    with pytest.raises(DataError, match=r"the store has 13 blocks .* nothing is left to train on"):
        loader(store, eval_num_blocks=eval_num_blocks)


def test_a_store_smaller_than_a_batch_gives_one_padded_step(store):
    a = loader(store, global_batch_size=32, gradient_accumulation_steps=16)
    assert a.steps_per_epoch == 1
    assert sum(a.fetch(1, m).tokens for m in range(16)) == store.num_tokens


@pytest.mark.parametrize(("step", "micro_batch"), [(0, 0), (1, 2), (1, -1)])
def test_a_step_or_micro_batch_that_does_not_exist_is_a_bug_of_the_caller(store, step, micro_batch):
    with pytest.raises(AssertionError):
        loader(store).fetch(step, micro_batch)
