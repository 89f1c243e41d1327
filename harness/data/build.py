"""Find the block store of a corpus, or build it: once, whole or not at all.

Under the cache folder: ``tokenizers/`` (trained vocabularies), ``corpora/`` (what a corpus that has
not been touched since hashes to), ``stores/`` (block stores named by corpus, tokenizer and sequence
length). A build happens in a hidden folder beside, under a lock, and is renamed at the end, so a
killed one is never found; it starts again from the beginning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from harness.config import CorpusConfig, Dealing
from harness.data.blocks import BlockStore, write_blocks
from harness.data.corpus import (
    CorpusFile,
    CorpusHasher,
    CorpusScan,
    find_files,
    fingerprint,
    iterate_documents,
    scan,
)
from harness.data.index import (
    BLOCKS_NAME,
    INDEX_NAME,
    STORE_SCHEMA_VERSION,
    StoreIndex,
    read_index,
)
from harness.data.pack import pack
from harness.data.publish import locked, publish_folder, publish_text
from harness.data.tokenise import (
    hash_tokeniser,
    load_tokeniser,
    locate_tokeniser,
    train_bpe,
)
from harness.errors import ConfigError, DataError
from harness.parse import parse, to_plain

_LOG = logging.getLogger(__name__)

# Measured: the standard library of Python 3.11 under its own BPE of 4,096 entries. Estimates only.
_BYTES_PER_TOKEN = 3.46


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """A store that is there and whole; ``built`` says that this call made it."""

    path: Path
    store_hash: str
    corpus_hash: str
    tokenizer_hash: str
    num_blocks: int
    num_tokens: int
    num_documents: int
    eos_token_id: int
    vocab_size: int
    sequence_length: int
    built: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What a store is built from."""

    corpus: CorpusConfig
    files: tuple[CorpusFile, ...]
    scanned: CorpusScan
    tokenizer: Path
    tokenizer_hash: str
    sequence_length: int


def prepare_store(
    corpus: CorpusConfig, *, sequence_length: int, vocab_size: int, cache_dir: Path
) -> StoreInfo:
    """Give the verified store of a corpus, building whatever is missing.

    A corpus whose files were not touched since the last build is not read again. A second builder
    of the same store waits for the first.

    Args:
        corpus: Folder, tokenizer, limits.
        sequence_length: Tokens per block.
        vocab_size: Entries of the model's embedding; every token id must be below.
        cache_dir: Holds tokenizers and stores.

    Raises:
        DataError: the corpus or tokenizer cannot be used, the text does not fill one block, the
            vocabulary is larger than the model's, the disk is full, or a store that is there is
            damaged (names the shard).
        MissingExtraError: tokenizing without the ``train`` extra.
    """
    if corpus.tokenizer is None:
        _check_vocab(corpus, corpus.bpe_vocab_size, vocab_size)
    files = find_files(corpus)
    scanned = _scan(corpus, files, cache_dir)
    tokenizer = _tokenizer_file(corpus, files, scanned, cache_dir)
    source = _Source(
        corpus=corpus,
        files=files,
        scanned=scanned,
        tokenizer=tokenizer,
        tokenizer_hash=hash_tokeniser(tokenizer),
        sequence_length=sequence_length,
    )
    folder = _store_folder(cache_dir, scanned, source.tokenizer_hash, sequence_length)
    built = not folder.exists() and _build_alone(source, folder, vocab_size)
    known = read_index(folder)
    _check_vocab(corpus, known.vocab_size, vocab_size)
    _check_tokens(known.num_tokens, sequence_length)
    with BlockStore.open(folder, vocab_size=vocab_size) as store:
        store.verify()
    return _info(folder, store.index, built=built)


def estimate_blocks(
    corpus: CorpusConfig, *, sequence_length: int, cache_dir: Path
) -> tuple[int, bool] | None:
    """Give the number of blocks without reading text, and whether it is exact.

    Exact when the store is there; otherwise from ``corpus.expected_tokens``, or from the sizes of
    text files at the bytes per token that were measured on the default corpus. Null when nothing
    is known: no folder, or .parquet, whose size says little about its text.
    """
    files: tuple[CorpusFile, ...] = ()
    with contextlib.suppress(DataError):
        files = find_files(corpus)
        known = _known_index(corpus, files, sequence_length, cache_dir)
        if known is not None:
            return known.num_blocks, True
    if corpus.expected_tokens is not None:
        return max(1, -(-corpus.expected_tokens // sequence_length)), False
    if not files or any(file.path.suffix.lower() == ".parquet" for file in files):
        return None
    num_bytes = sum(file.size_bytes for file in files)
    if corpus.max_bytes is not None:
        num_bytes = min(num_bytes, corpus.max_bytes)
    return max(1, round(num_bytes / _BYTES_PER_TOKEN / sequence_length)), False


def _known_index(
    corpus: CorpusConfig, files: tuple[CorpusFile, ...], sequence_length: int, cache_dir: Path
) -> StoreIndex | None:
    scanned = _read_scan(_scan_file(corpus, files, cache_dir))
    if scanned is None:
        return None
    if corpus.tokenizer is not None:
        tokenizer = locate_tokeniser(corpus.tokenizer)
    else:
        tokenizer = _bpe_file(corpus, scanned, cache_dir)
        if not tokenizer.exists():
            return None
    folder = _store_folder(cache_dir, scanned, hash_tokeniser(tokenizer), sequence_length)
    return read_index(folder) if folder.exists() else None


def _check_vocab(corpus: CorpusConfig, found: int, vocab_size: int) -> None:
    if found <= vocab_size:
        return
    if corpus.tokenizer is None:
        raise DataError(
            f"corpus.bpe_vocab_size={found}: the model has only model.vocab_size={vocab_size}"
            f" entries; set corpus.bpe_vocab_size={vocab_size} or less"
        )
    raise DataError(
        f"corpus.tokenizer={corpus.tokenizer}: has {found} entries, the model only"
        f" model.vocab_size={vocab_size}; use a smaller tokenizer, or leave corpus.tokenizer out"
        f" and set corpus.bpe_vocab_size={vocab_size}"
    )


def _check_tokens(num_tokens: int, sequence_length: int) -> None:
    if num_tokens < sequence_length:
        raise DataError(
            f"the corpus has {num_tokens} tokens, less than one block of"
            f" train.sequence_length={sequence_length}; give it more text, raise corpus.max_bytes"
            " if that is set, or use a smaller train.sequence_length"
        )


def _scan_file(corpus: CorpusConfig, files: tuple[CorpusFile, ...], cache_dir: Path) -> Path:
    return cache_dir / "corpora" / f"{fingerprint(corpus, files)[:32]}.json"


def _scan(corpus: CorpusConfig, files: tuple[CorpusFile, ...], cache_dir: Path) -> CorpusScan:
    path = _scan_file(corpus, files, cache_dir)
    known = _read_scan(path)
    if known is not None:
        return known
    scanned = scan(corpus, files)
    publish_text(path, json.dumps(to_plain(scanned)) + "\n")
    return scanned


def _read_scan(path: Path) -> CorpusScan | None:
    try:
        return parse(CorpusScan, json.loads(path.read_bytes()))
    except (OSError, ValueError, ConfigError):
        return None  # only a shortcut: without it the corpus is read again


def _bpe_file(corpus: CorpusConfig, scanned: CorpusScan, cache_dir: Path) -> Path:
    name = f"bpe-{corpus.bpe_vocab_size}-{scanned.corpus_hash[:16]}"
    return cache_dir / "tokenizers" / name / "tokenizer.json"


def _tokenizer_file(
    corpus: CorpusConfig, files: tuple[CorpusFile, ...], scanned: CorpusScan, cache_dir: Path
) -> Path:
    if corpus.tokenizer is not None:
        return locate_tokeniser(corpus.tokenizer)
    path = _bpe_file(corpus, scanned, cache_dir)
    if not path.exists():
        _LOG.info("training a byte-level BPE of %s entries", corpus.bpe_vocab_size)
        documents = iterate_documents(corpus, files)
        text = train_bpe(documents, num_bytes=scanned.num_bytes, vocab_size=corpus.bpe_vocab_size)
        publish_text(path, text)
    return path


def _store_folder(
    cache_dir: Path, scanned: CorpusScan, tokenizer_hash: str, sequence_length: int
) -> Path:
    parts = (STORE_SCHEMA_VERSION, scanned.corpus_hash, tokenizer_hash, sequence_length)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
    return cache_dir / "stores" / key


def _build_alone(source: _Source, folder: Path, vocab_size: int) -> bool:
    """Build unless another process did while this one waited; give whether this one did."""
    with locked(folder):
        if folder.exists():
            return False
        _build(source, folder, vocab_size)
        return True


def _build(source: _Source, folder: Path, vocab_size: int) -> None:
    tokeniser = load_tokeniser(source.tokenizer)
    _check_vocab(source.corpus, tokeniser.vocab_size, vocab_size)
    _LOG.info("building %s from %s documents", folder, source.scanned.num_documents)
    hasher = CorpusHasher()
    token_ids = tokeniser.encode(iterate_documents(source.corpus, source.files, hasher))
    length = source.sequence_length
    chunks = pack(token_ids, sequence_length=length, eos_token_id=tokeniser.eos_token_id)
    with publish_folder(folder) as partial:
        shards, num_tokens = write_blocks(partial / BLOCKS_NAME, chunks, sequence_length=length)
        if hasher.result() != source.scanned:
            raise DataError("the corpus changed while it was read; run again")
        _check_tokens(num_tokens, length)
        index = StoreIndex(
            schema_version=STORE_SCHEMA_VERSION,
            dealing=Dealing.GLOBAL,
            sequence_length=length,
            num_blocks=sum(shard.num_blocks for shard in shards),
            num_tokens=num_tokens,
            num_documents=source.scanned.num_documents,
            eos_token_id=tokeniser.eos_token_id,
            vocab_size=tokeniser.vocab_size,
            corpus_hash=source.scanned.corpus_hash,
            tokenizer_hash=source.tokenizer_hash,
            shards=shards,
        )
        publish_text(partial / INDEX_NAME, index.to_json())


def _info(folder: Path, index: StoreIndex, *, built: bool) -> StoreInfo:
    return StoreInfo(
        path=folder,
        store_hash=index.store_hash,
        corpus_hash=index.corpus_hash,
        tokenizer_hash=index.tokenizer_hash,
        num_blocks=index.num_blocks,
        num_tokens=index.num_tokens,
        num_documents=index.num_documents,
        eos_token_id=index.eos_token_id,
        vocab_size=index.vocab_size,
        sequence_length=index.sequence_length,
        built=built,
    )
