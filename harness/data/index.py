"""``index.json`` of a block store: what is in ``blocks.i32``, shard by shard, and what made it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from harness.config import Dealing
from harness.errors import ConfigError, DataError
from harness.parse import parse, to_plain

STORE_SCHEMA_VERSION = 1
INDEX_NAME = "index.json"
BLOCKS_NAME = "blocks.i32"
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A run of blocks of ``blocks.i32`` with a checksum of its own.

    Token ids lie in ``min_token_id`` to ``max_token_id``, both included.
    """

    first_block: int
    num_blocks: int
    min_token_id: int
    max_token_id: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIndex:
    """Everything a reader must know of a store.

    ``num_tokens`` are real tokens, one end-of-text token per document among them; the filler at the
    end of the last block is not. ``vocab_size`` is the tokenizer's. ``dealing`` says how documents
    were dealt to ranks before packing: ``global`` is not at all.
    """

    schema_version: int
    dealing: Dealing
    sequence_length: int
    num_blocks: int
    num_tokens: int
    num_documents: int
    eos_token_id: int
    vocab_size: int
    corpus_hash: str
    tokenizer_hash: str
    shards: tuple[Shard, ...]

    @property
    def num_bytes(self) -> int:
        """Size of ``blocks.i32``."""
        return self.num_blocks * self.sequence_length * TOKEN_BYTES

    @property
    def store_hash(self) -> str:
        """Hash of the index, and through its checksums of every token."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Give the text of ``index.json``."""
        return json.dumps(to_plain(self), indent=1) + "\n"

    def name_shard(self, block: int) -> str:
        """Name the shard that holds ``block``, for an error message."""
        for number, shard in enumerate(self.shards):
            last = shard.first_block + shard.num_blocks - 1
            if shard.first_block <= block <= last:
                return f"shard {number} (blocks {shard.first_block} to {last})"
        return f"block {block}, which no shard holds"


def read_index(folder: Path) -> StoreIndex:
    """Read ``index.json`` of the store ``folder``.

    Raises:
        DataError: missing, of another schema version, not an index, or its counts contradict each
            other.
    """
    path = folder / INDEX_NAME
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{folder}: not a block store, {INDEX_NAME} is missing") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read the index: {error}; {_repair(folder)}") from error
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version != STORE_SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema_version={version!r}, this version reads {STORE_SCHEMA_VERSION};"
            f" {_repair(folder)}"
        )
    try:
        index = parse(StoreIndex, value)
    except ConfigError as error:
        raise DataError(f"{path}: {error}; {_repair(folder)}") from error
    if not _is_consistent(index):
        raise DataError(f"{path}: its counts contradict each other; {_repair(folder)}")
    return index


def check_vocab(folder: Path, index: StoreIndex, vocab_size: int) -> None:
    """Refuse token ids that a model of ``vocab_size`` entries has no embedding for.

    Raises:
        DataError: naming the first such shard.
    """
    for shard in index.shards:
        if shard.min_token_id < 0 or shard.max_token_id >= vocab_size:
            found = shard.min_token_id if shard.min_token_id < 0 else shard.max_token_id
            raise DataError(
                f"{folder}: {index.name_shard(shard.first_block)} holds token id {found};"
                f" the model takes 0 to {vocab_size - 1} (model.vocab_size={vocab_size})"
            )


def _is_consistent(index: StoreIndex) -> bool:
    expected = 0
    for shard in index.shards:
        if shard.first_block != expected or shard.num_blocks < 1:
            return False
        expected += shard.num_blocks
    capacity = index.num_blocks * index.sequence_length
    return (
        expected == index.num_blocks > 0
        and index.sequence_length > 0
        and capacity - index.sequence_length < index.num_tokens <= capacity
    )


def _repair(folder: Path) -> str:
    return f"delete {folder} and run again to rebuild it"
