import errno
import fcntl
import json
import logging
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from harness.config import CorpusConfig
from harness.data import build
from harness.data.blocks import BlockStore
from harness.data.build import estimate_blocks, prepare_store
from harness.data.publish import locked, publish_text
from harness.data.tokenise import load_tokeniser, train_bpe
from harness.errors import DataError

TEXTS = {"a.txt": "one two three four five six seven\n" * 30, "b/c.md": "# Title\n\nwords\n" * 20}


def config(path: Path, **changes) -> CorpusConfig:
    settings = {
        "name": "test",
        "path": str(path),
        "suffixes": (".txt", ".md", ".parquet"),
        "text_field": "text",
        "tokenizer": None,
        "bpe_vocab_size": 280,
        "max_bytes": None,
        "expected_tokens": None,
    }
    return CorpusConfig(**(settings | changes))


@pytest.fixture(autouse=True)
def _single_thread(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def corpus_dir(tmp_path):
    folder = tmp_path / "corpus"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def prepare(corpus, cache, sequence_length=16, vocab_size=300):
    return prepare_store(
        corpus, sequence_length=sequence_length, vocab_size=vocab_size, cache_dir=cache
    )


def leftovers(cache) -> list[str]:
    return [p.name for p in cache.rglob("*.partial")]


def test_a_store_holds_the_whole_corpus(corpus_dir, cache):
    info = prepare(config(corpus_dir), cache)
    assert info.built
    assert info.num_documents == 2
    assert (info.sequence_length, info.vocab_size, info.eos_token_id) == (16, 280, 0)
    (tokenizer,) = cache.glob("tokenizers/*/tokenizer.json")
    with BlockStore.open(info.path, vocab_size=300) as store:
        rows = np.empty((store.num_blocks, 16), dtype=np.int32)
        for block in range(store.num_blocks):
            store.read_into(block, rows[block])
    text = load_tokeniser(tokenizer).decode(rows.ravel()[: info.num_tokens])
    assert text == "<|endoftext|>".join([*TEXTS.values(), ""])
    assert leftovers(cache) == []


def test_an_untouched_corpus_is_not_read_again(corpus_dir, cache, monkeypatch):
    first = prepare(config(corpus_dir), cache)

    def read(*_):
        raise AssertionError("the corpus was read again")

    monkeypatch.setattr(build, "scan", read)
    monkeypatch.setattr(build, "iterate_documents", read)
    second = prepare(config(corpus_dir), cache)
    assert not second.built
    assert second.store_hash == first.store_hash
    assert second.path == first.path


def test_the_same_text_elsewhere_finds_the_same_store(corpus_dir, cache, tmp_path):
    first = prepare(config(corpus_dir), cache)
    shutil.copytree(corpus_dir, tmp_path / "copy")
    second = prepare(config(tmp_path / "copy"), cache)
    assert not second.built
    assert second.path == first.path


def test_two_caches_hold_the_same_bytes(corpus_dir, cache, tmp_path):
    first = prepare(config(corpus_dir), cache)
    second = prepare(config(corpus_dir), tmp_path / "other")
    assert second.built
    assert second.store_hash == first.store_hash


def test_text_tokenizer_and_length_each_make_a_store_of_their_own(corpus_dir, cache):
    """A cache keyed without the tokenizer's content silently reuses old tokens."""
    tokenizer = cache.parent / "tokenizer.json"
    tokenizer.write_text(train_bpe(["abc"], num_bytes=3, vocab_size=257))
    corpus = config(corpus_dir, tokenizer=str(tokenizer))
    paths = {prepare(corpus, cache).path, prepare(corpus, cache, sequence_length=8).path}
    tokenizer.write_text(train_bpe(["words words"], num_bytes=11, vocab_size=260))
    paths.add(prepare(corpus, cache).path)
    (corpus_dir / "a.txt").write_text("other")
    paths.add(prepare(corpus, cache).path)
    paths.add(prepare(config(corpus_dir), cache).path)
    assert len(paths) == 5


def test_a_vocabulary_above_the_models_names_both_keys(corpus_dir, cache):
    with pytest.raises(DataError, match=r"bpe_vocab_size=280: .*model\.vocab_size=270"):
        prepare(config(corpus_dir), cache, vocab_size=270)
    assert not cache.exists()
    tokenizer = cache.parent / "tokenizer.json"
    tokenizer.write_text(train_bpe(TEXTS.values(), num_bytes=999, vocab_size=280))
    corpus = config(corpus_dir, tokenizer=str(tokenizer))
    message = r"corpus\.tokenizer=.*: has 280 entries, .*model\.vocab_size=270"
    with pytest.raises(DataError, match=message):
        prepare(corpus, cache, vocab_size=270)
    assert leftovers(cache) == []
    assert prepare(corpus, cache, vocab_size=280).built
    with pytest.raises(DataError, match=message):
        prepare(corpus, cache, vocab_size=270)


def test_text_that_does_not_fill_one_block_is_refused(corpus_dir, cache):
    """A few words trained happily on one block of filler and gave a row in the table."""
    shutil.rmtree(corpus_dir / "b")
    (corpus_dir / "a.txt").write_text("one two")
    message = r"has \d tokens, less than one block of train\.sequence_length=16; give it more text"
    with pytest.raises(DataError, match=message):
        prepare(config(corpus_dir), cache)
    assert leftovers(cache) == []
    info = prepare(config(corpus_dir), cache, sequence_length=2)
    assert info.num_tokens >= 2


def test_a_store_of_less_than_a_block_from_earlier_is_refused(corpus_dir, cache, monkeypatch):
    (corpus_dir / "a.txt").write_text("one two")
    with monkeypatch.context() as patch:
        patch.setattr(build, "_check_tokens", lambda *_: None)
        prepare(config(corpus_dir), cache, sequence_length=4096)
    with pytest.raises(DataError, match=r"less than one block of train\.sequence_length=4096"):
        prepare(config(corpus_dir), cache, sequence_length=4096)


def test_a_damaged_store_is_refused_with_its_shard(corpus_dir, cache):
    info = prepare(config(corpus_dir), cache)
    file = info.path / "blocks.i32"
    raw = bytearray(file.read_bytes())
    raw[7] ^= 0x10
    file.write_bytes(raw)
    with pytest.raises(DataError, match=r"shard 0 .*wrong checksum; delete"):
        prepare(config(corpus_dir), cache)
    shutil.rmtree(info.path)
    assert prepare(config(corpus_dir), cache).store_hash == info.store_hash


def test_a_killed_build_is_never_taken_for_whole(corpus_dir, cache, tmp_path):
    whole = prepare(config(corpus_dir), tmp_path / "other")
    partial = cache / "stores" / f".{whole.path.name}.partial"
    partial.mkdir(parents=True)
    (partial / "blocks.i32").write_bytes(b"half")
    (partial / "stale").write_bytes(b"")
    info = prepare(config(corpus_dir), cache)
    assert info.built
    assert info.store_hash == whole.store_hash
    assert sorted(p.name for p in info.path.iterdir()) == ["blocks.i32", "index.json"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), r"the disk is full; .*set cache_dir=DIR"),
        (OSError(errno.EIO, "Input/output error"), r"Input/output error"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(corpus_dir, cache, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(build, "write_blocks", fail)
        with pytest.raises(DataError, match=message) as caught:
            prepare(config(corpus_dir), cache)
    assert "\n" not in str(caught.value)
    assert leftovers(cache) == []
    assert prepare(config(corpus_dir), cache).built


def test_an_interrupted_build_leaves_nothing(corpus_dir, cache, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "write_blocks", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(config(corpus_dir), cache)
    assert leftovers(cache) == []
    assert [p for p in (cache / "stores").iterdir() if p.is_dir()] == []


def test_a_cache_that_is_a_file_is_named(corpus_dir, cache):
    cache.write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write .*set cache_dir=DIR elsewhere"):
        prepare(config(corpus_dir), cache)


def test_a_failed_file_leaves_no_partial(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EDQUOT, "Quota")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DataError, match="the quota is used up"):
        publish_text(tmp_path / "x.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_that_changes_under_the_builder_is_refused(corpus_dir, cache, monkeypatch):
    train = build.train_bpe

    def edit_then_train(*args, **kwargs):
        (corpus_dir / "a.txt").write_text("something else")
        return train(*args, **kwargs)

    monkeypatch.setattr(build, "train_bpe", edit_then_train)
    with pytest.raises(DataError, match="the corpus changed while it was read; run again"):
        prepare(config(corpus_dir), cache)
    assert leftovers(cache) == []
    assert prepare(config(corpus_dir), cache).built


def test_a_broken_note_about_the_corpus_only_costs_time(corpus_dir, cache):
    first = prepare(config(corpus_dir), cache)
    (note,) = (cache / "corpora").iterdir()
    note.write_text("{")
    assert prepare(config(corpus_dir), cache).store_hash == first.store_hash
    assert json.loads(note.read_text())["num_documents"] == 2


def test_a_second_builder_waits_for_the_first_and_names_its_pid(corpus_dir, cache, tmp_path):
    path = cache / "stores" / prepare(config(corpus_dir), tmp_path / "other").path.name
    waiting = threading.Event()
    messages = []

    class Listener(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())
            waiting.set()

    listener = Listener(level=logging.WARNING)
    logger = logging.getLogger("harness.data.publish")
    logger.addHandler(listener)
    found = []
    second = threading.Thread(target=lambda: found.append(prepare(config(corpus_dir), cache)))
    try:
        with locked(path):
            second.start()
            assert waiting.wait(30)
            shutil.copytree(tmp_path / "other" / "stores" / path.name, path)
        second.join(30)
    finally:
        logger.removeHandler(listener)
    assert messages == [f"waiting for process {os.getpid()}, which is building {path}"]
    assert [info.built for info in found] == [False]


def test_a_lock_that_the_file_system_refuses_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(DataError, match=r"cannot write .*lock: No locks available"),
        locked(tmp_path / "store"),
    ):
        pass


def estimate(corpus, cache):
    return estimate_blocks(corpus, sequence_length=16, cache_dir=cache)


def test_an_estimate_is_exact_once_the_store_is_there(corpus_dir, cache):
    found = estimate(config(corpus_dir), cache)
    assert found is not None
    num_blocks, exact = found
    assert not exact
    assert num_blocks == round(sum(map(len, TEXTS.values())) / 3.46 / 16)
    info = prepare(config(corpus_dir), cache)
    assert estimate(config(corpus_dir), cache) == (info.num_blocks, True)
    (tokenizer,) = cache.glob("tokenizers/*/tokenizer.json")
    named = config(corpus_dir, tokenizer=str(tokenizer))
    assert estimate(named, cache) == (info.num_blocks, True)
    shutil.rmtree(info.path)
    assert estimate(config(corpus_dir), cache) == (num_blocks, False)
    shutil.rmtree(cache / "tokenizers")
    assert estimate(config(corpus_dir), cache) == (num_blocks, False)


def test_an_estimate_without_text_takes_what_the_experiment_expects(tmp_path, cache):
    nowhere = tmp_path / "nowhere"
    assert estimate(config(nowhere), cache) is None
    assert estimate(config(nowhere, expected_tokens=161), cache) == (11, False)


def test_an_estimate_heeds_the_limit_and_does_not_guess_at_parquet(corpus_dir, cache):
    assert estimate(config(corpus_dir, max_bytes=200), cache) == (4, False)
    assert estimate(config(corpus_dir, max_bytes=1), cache) == (1, False)
    (corpus_dir / "d.parquet").write_bytes(b"x")
    assert estimate(config(corpus_dir), cache) is None


def test_an_estimate_survives_a_tokenizer_that_is_missing(corpus_dir, cache):
    prepare(config(corpus_dir), cache)
    corpus = config(corpus_dir, tokenizer=str(corpus_dir / "nowhere"))
    assert estimate(corpus, cache) == (24, False)
