import dataclasses
import hashlib
import json
import os

import numpy as np
import pytest

from harness.config import Dealing
from harness.data import blocks as blocks_module
from harness.data.blocks import BlockStore, write_blocks
from harness.data.index import StoreIndex, read_index
from harness.data.pack import pack
from harness.errors import DataError

LENGTH = 8


@pytest.fixture
def store_path(tmp_path, monkeypatch):
    """Ten blocks in shards of four, tokens 1 to 50 and the end of text 0; the last has filler."""
    monkeypatch.setattr(blocks_module, "SHARD_BYTES", 4 * LENGTH * 4 + 3)
    tokens = [np.arange(1, 51, dtype=np.int32), np.arange(1, 26, dtype=np.int32)]
    chunks = pack(tokens, sequence_length=LENGTH, eos_token_id=0)
    folder = tmp_path / "store"
    folder.mkdir()
    shards, num_tokens = write_blocks(folder / "blocks.i32", chunks, sequence_length=LENGTH)
    index = StoreIndex(
        schema_version=1,
        dealing=Dealing.GLOBAL,
        sequence_length=LENGTH,
        num_blocks=10,
        num_tokens=num_tokens,
        num_documents=2,
        eos_token_id=0,
        vocab_size=51,
        corpus_hash="c",
        tokenizer_hash="t",
        shards=shards,
    )
    (folder / "index.json").write_text(index.to_json())
    return folder


def edit_index(folder, **changes):
    path = folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_file_is_little_endian_int32_in_c_order(store_path):
    raw = np.fromfile(store_path / "blocks.i32", dtype="<i4").reshape(10, LENGTH)
    expected = [*range(1, 51), 0, *range(1, 26), 0, 0, 0, 0]
    assert raw.ravel().tolist() == expected
    with BlockStore.open(store_path, vocab_size=51) as store:
        assert (store.num_blocks, store.sequence_length, store.num_tokens) == (10, LENGTH, 77)
        assert store.eos_token_id == 0
        row = np.empty(LENGTH, dtype=np.int32)
        for block in (9, 0, 4):
            assert store.read_into(block, row) == LENGTH * 4
            assert row.tolist() == raw[block].tolist()
        store.verify()


def test_shards_cover_all_blocks_and_carry_checksums(store_path):
    shards = read_index(store_path).shards
    assert [(s.first_block, s.num_blocks) for s in shards] == [(0, 4), (4, 4), (8, 2)]
    assert [(s.min_token_id, s.max_token_id) for s in shards] == [(1, 32), (0, 50), (0, 25)]
    raw = (store_path / "blocks.i32").read_bytes()
    assert shards[1].sha256 == hashlib.sha256(raw[128:256]).hexdigest()


def test_a_chunk_that_ends_with_a_shard_leaves_no_empty_shard(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_module, "SHARD_BYTES", 2 * LENGTH * 4)
    chunks = pack([np.ones(31, dtype=np.int32)], sequence_length=LENGTH, eos_token_id=0)
    shards, num_tokens = write_blocks(tmp_path / "b", chunks, sequence_length=LENGTH)
    assert [s.num_blocks for s in shards] == [2, 2]
    assert num_tokens == 32


def test_one_flipped_bit_names_the_shard(store_path):
    file = store_path / "blocks.i32"
    raw = bytearray(file.read_bytes())
    raw[5 * LENGTH * 4] ^= 1
    file.write_bytes(raw)
    with (
        BlockStore.open(store_path, vocab_size=51) as store,
        pytest.raises(DataError, match=r"shard 1 \(blocks 4 to 7\) .*wrong checksum; delete"),
    ):
        store.verify()


def test_a_short_file_names_the_first_shard_that_is_missing(store_path):
    os.truncate(store_path / "blocks.i32", 8 * LENGTH * 4 + 5)
    with pytest.raises(DataError, match=r"shard 2 \(blocks 8 to 9\) is cut short.*261 bytes"):
        BlockStore.open(store_path, vocab_size=51)


def test_a_file_that_is_too_long_is_refused(store_path):
    with (store_path / "blocks.i32").open("ab") as file:
        file.write(b"1234")
    with pytest.raises(DataError, match="is 324 bytes, expected 320"):
        BlockStore.open(store_path, vocab_size=51)


def test_a_file_cut_while_open_names_the_shard(store_path):
    row = np.empty(LENGTH, dtype=np.int32)
    with BlockStore.open(store_path, vocab_size=51) as store:
        os.truncate(store_path / "blocks.i32", 8 * LENGTH * 4)
        with pytest.raises(DataError, match=r"shard 2 .* is cut short"):
            store.read_into(8, row)


def test_a_failing_disk_names_the_shard(store_path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    with BlockStore.open(store_path, vocab_size=51) as store:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(DataError, match=r"shard 0 .*Input/output error"):
            store.read_into(0, np.empty(LENGTH, dtype=np.int32))


def test_short_reads_are_continued(store_path, monkeypatch):
    """A network file system may return less than was asked for."""
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:5]], at))
    row = np.empty(LENGTH, dtype=np.int32)
    with BlockStore.open(store_path, vocab_size=51) as store:
        assert store.read_into(0, row) == LENGTH * 4
    assert row.tolist() == list(range(1, 9))


def test_a_token_beyond_the_vocabulary_names_the_shard(store_path):
    with pytest.raises(DataError, match=r"shard 1 .* holds token id 50; .*model\.vocab_size=50"):
        BlockStore.open(store_path, vocab_size=50)


def test_a_negative_token_is_refused(store_path):
    shards = json.loads((store_path / "index.json").read_text())["shards"]
    shards[2]["min_token_id"] = -4
    edit_index(store_path, shards=shards)
    with pytest.raises(DataError, match=r"shard 2 .* holds token id -4"):
        BlockStore.open(store_path, vocab_size=51)


def test_another_schema_version_is_refused_with_the_repair(store_path):
    edit_index(store_path, schema_version=2)
    with pytest.raises(DataError, match="schema_version=2, this version reads 1; delete"):
        BlockStore.open(store_path, vocab_size=51)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 11},
        {"num_blocks": 0, "shards": []},
        {"num_tokens": 81},
        {"num_tokens": 72},
        {"sequence_length": 0},
    ],
)
def test_counts_that_contradict_each_other_are_refused(store_path, changes):
    edit_index(store_path, **changes)
    with pytest.raises(DataError, match="counts contradict"):
        read_index(store_path)


def test_shards_with_a_gap_are_refused(store_path):
    shards = json.loads((store_path / "index.json").read_text())["shards"]
    edit_index(store_path, shards=[shards[0], shards[2]])
    with pytest.raises(DataError, match="counts contradict"):
        read_index(store_path)


def test_a_folder_that_is_no_store_is_refused(store_path):
    edit_index(store_path, surplus=1)
    with pytest.raises(DataError, match="surplus: unknown key"):
        read_index(store_path)
    (store_path / "index.json").write_text("{")
    with pytest.raises(DataError, match="cannot read the index"):
        read_index(store_path)
    (store_path / "index.json").write_text("[]")
    with pytest.raises(DataError, match="schema_version=None"):
        read_index(store_path)
    (store_path / "index.json").unlink()
    with pytest.raises(DataError, match=r"index\.json is missing"):
        read_index(store_path)


def test_an_index_without_blocks_is_refused(store_path):
    (store_path / "blocks.i32").unlink()
    with pytest.raises(DataError, match=r"cannot read .*blocks\.i32: No such file"):
        BlockStore.open(store_path, vocab_size=51)


def test_closing_twice_is_safe_and_gives_the_file_back(store_path):
    store = BlockStore.open(store_path, vocab_size=51)
    store.close()
    store.close()
    with pytest.raises(DataError, match="Bad file descriptor"):
        store.read_into(0, np.empty(LENGTH, dtype=np.int32))


def test_the_store_hash_covers_every_checksum(store_path):
    index = read_index(store_path)
    other = dataclasses.replace(index.shards[0], sha256="0" * 64)
    changed = dataclasses.replace(index, shards=(other, *index.shards[1:]))
    assert changed.store_hash != index.store_hash
    assert index.name_shard(99) == "block 99, which no shard holds"


def test_a_platform_without_fadvise_still_reads(store_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    with BlockStore.open(store_path, vocab_size=51) as store:
        store.verify()
        assert store.num_blocks == 10
