"""The block store on disk: ``blocks.i32``, little-endian int32 [num_blocks, T] in C order.

Read with ``preadv`` into the caller's memory and without read-ahead: a shuffled epoch reads blocks
at random, and a memory map would fetch megabytes around every one of them when the file is larger
than memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from harness.data.index import (
    BLOCKS_NAME,
    TOKEN_BYTES,
    Shard,
    StoreIndex,
    check_vocab,
    read_index,
)
from harness.data.pack import Packed
from harness.errors import DataError

SHARD_BYTES = 1 << 24
"""Size of a shard, rounded down to whole blocks: what a wrong checksum narrows the damage to."""


class BlockStore:
    """An open store: the shape, size and token range of its file agree with its index."""

    def __init__(self, path: Path, fd: int, index: StoreIndex) -> None:
        """Hold an open file; use :meth:`open`."""
        self.path = path
        self.index = index
        self._fd = fd

    @classmethod
    def open(cls, path: Path, *, vocab_size: int) -> BlockStore:
        """Open the store in the folder ``path``; checksums are left to :meth:`verify`.

        Raises:
            DataError: no store, another schema version, a file of the wrong size, or a token id
                that a model of ``vocab_size`` entries does not have; names the shard.
        """
        index = read_index(path)
        check_vocab(path, index, vocab_size)
        file = path / BLOCKS_NAME
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}") from error
        size = os.fstat(fd).st_size
        if size != index.num_bytes:
            os.close(fd)
            raise DataError(_wrong_size(path, index, size))
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return cls(path, fd, index)

    @property
    def num_blocks(self) -> int:
        """Blocks in the store."""
        return self.index.num_blocks

    @property
    def sequence_length(self) -> int:
        """Tokens per block, T."""
        return self.index.sequence_length

    @property
    def num_tokens(self) -> int:
        """Real tokens in the store; the filler of the last block is not counted."""
        return self.index.num_tokens

    @property
    def eos_token_id(self) -> int:
        """The token that ends every document, and fills the last block."""
        return self.index.eos_token_id

    def read_into(self, block: int, row: NDArray[np.int32]) -> int:
        """Read one block into ``row`` [T], contiguous int32; give the bytes read.

        Raises:
            DataError: the file ends early or the disk fails; names the shard.
        """
        assert 0 <= block < self.num_blocks, block
        assert row.shape == (self.sequence_length,), row.shape
        return self._read(block, row)

    def verify(self) -> None:
        """Read everything once and compare checksums and token ranges with the index.

        Raises:
            DataError: naming the first shard that is not what was written.
        """
        num_rows = max(shard.num_blocks for shard in self.index.shards)
        buffer = np.empty((num_rows, self.sequence_length), dtype="<i4")
        for shard in self.index.shards:
            blocks = buffer[: shard.num_blocks]
            self._read(shard.first_block, blocks)
            if _summarise(shard.first_block, blocks) != shard:
                raise DataError(
                    f"{self.path}: {self.index.name_shard(shard.first_block)} of {BLOCKS_NAME} has"
                    f" a wrong checksum; delete {self.path} and run again to rebuild it"
                )

    def _read(self, block: int, out: NDArray[np.int32]) -> int:
        view = out.view(np.uint8).data.cast("B")
        start = block * self.sequence_length * TOKEN_BYTES
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], start + done)
            except OSError as error:
                where = self.index.name_shard(block)
                raise DataError(f"cannot read {self.path}: {where}: {error.strerror}") from error
            if got == 0:
                raise DataError(
                    f"{self.path}: {self.index.name_shard(block)} is cut short;"
                    f" delete {self.path} and run again to rebuild it"
                )
            done += got
        return done

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> BlockStore:
        """Give the store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()


def write_blocks(
    file: Path, chunks: Iterable[Packed], *, sequence_length: int
) -> tuple[tuple[Shard, ...], int]:
    """Write ``blocks.i32``, synced to disk; give its shards and the number of real tokens.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    shard_blocks = max(1, SHARD_BYTES // (sequence_length * TOKEN_BYTES))
    pending = np.empty((shard_blocks, sequence_length), dtype="<i4")
    shards: list[Shard] = []
    filled = first_block = num_tokens = 0
    with file.open("wb") as out:
        for chunk in chunks:
            num_tokens += chunk.num_tokens
            start = 0
            while start < len(chunk.blocks):
                taken = min(len(chunk.blocks) - start, shard_blocks - filled)
                pending[filled : filled + taken] = chunk.blocks[start : start + taken]
                start += taken
                filled += taken
                if filled == shard_blocks:
                    out.write(pending.data)
                    shards.append(_summarise(first_block, pending))
                    first_block += filled
                    filled = 0
        if filled:
            out.write(pending[:filled].data)
            shards.append(_summarise(first_block, pending[:filled]))
        out.flush()
        os.fsync(out.fileno())
    return tuple(shards), num_tokens


def _summarise(first_block: int, blocks: NDArray[np.int32]) -> Shard:
    return Shard(
        first_block=first_block,
        num_blocks=len(blocks),
        min_token_id=int(blocks.min()),
        max_token_id=int(blocks.max()),
        sha256=hashlib.sha256(blocks.data).hexdigest(),
    )


def _wrong_size(path: Path, index: StoreIndex, size: int) -> str:
    repair = f"delete {path} and run again to rebuild it"
    found = f"{BLOCKS_NAME} is {size} bytes, expected {index.num_bytes}"
    if size > index.num_bytes:
        return f"{path}: {found}; {repair}"
    first_missing = size // (index.sequence_length * TOKEN_BYTES)
    return f"{path}: {index.name_shard(first_missing)} is cut short: {found}; {repair}"
