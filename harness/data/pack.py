"""Documents end to end, cut into blocks of one length; nothing is dropped, nothing is cut short.

Every document is followed by the end-of-text token. The tail of the last block is filled with that
token, which the loader gives weight zero; :class:`Packed` says how many tokens are real.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_CHUNK_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Some blocks [n, T] int32 in order, and how many of their tokens are real.

    The memory of ``blocks`` is reused: it holds until the next chunk is asked for.
    """

    blocks: NDArray[np.int32]
    num_tokens: int


def pack(
    documents: Iterable[NDArray[np.int32]], *, sequence_length: int, eos_token_id: int
) -> Iterator[Packed]:
    """Cut documents into blocks, a chunk at a time, in memory that does not grow.

    Args:
        documents: Token ids of one document each, shape [any].
        sequence_length: Tokens per block, T.
        eos_token_id: Follows every document and fills the last block.

    Yields:
        Full blocks; only the last chunk can hold filler, at the end of its last block.
    """
    chunk_blocks = max(1, _CHUNK_TOKENS // sequence_length)
    buffer = np.empty(chunk_blocks * sequence_length, dtype=np.int32)
    eos = np.array([eos_token_id], dtype=np.int32)
    filled = 0
    for document in documents:
        for piece in (document, eos):
            start = 0
            while start < len(piece):
                taken = min(len(piece) - start, len(buffer) - filled)
                buffer[filled : filled + taken] = piece[start : start + taken]
                start += taken
                filled += taken
                if filled == len(buffer):
                    yield Packed(blocks=buffer.reshape(-1, sequence_length), num_tokens=filled)
                    filled = 0
    if filled:
        num_blocks = -(-filled // sequence_length)
        rest = buffer[: num_blocks * sequence_length]
        rest[filled:] = eos_token_id
        yield Packed(blocks=rest.reshape(num_blocks, sequence_length), num_tokens=filled)
