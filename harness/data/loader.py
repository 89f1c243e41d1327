"""Which blocks a rank trains on at a step, as arrays ready for the model.

Stateless by step: the same step gives the same blocks whoever asks and in whatever order, so a
continued run reads what it would have read. The global batch of a step is the same set of blocks
for every world size. Nothing is dropped: what is missing in the last step of an epoch, and the tail
of the last block of the store, has weight zero and is counted as padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.data.blocks import BlockStore
from harness.data.order import Permutation
from harness.errors import DataError

IGNORED_LABEL = -100
"""The label of a position without a target: what torch's cross entropy ignores by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass of one rank.

    Attributes:
        input_ids: [B, T] int64.
        labels: [B, T] int64, already shifted: ``labels[:, t]`` is the token at t + 1, or
            ``IGNORED_LABEL``.
        position_ids: [B, T] int64, restarting after every document, or null: 0 to T - 1.
        tokens: Real tokens among the B x T.
        padded_tokens: The others; ``tokens + padded_tokens == B * T``.
        target_tokens: Labels that are not ignored.
        bytes_read: Bytes asked of the store for this batch.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    position_ids: NDArray[np.int64] | None
    tokens: int
    padded_tokens: int
    target_tokens: int
    bytes_read: int


class BlockLoader:
    """Deals the blocks of a store to ranks, round robin over a shuffle that is new every epoch."""

    def __init__(
        self,
        store: BlockStore,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        gradient_accumulation_steps: int,
        rank: int,
        world_size: int,
        shuffle_seed: int,
        eval_num_blocks: int,
        mask_documents: bool,
    ) -> None:
        """Deal ``store`` to ``rank`` of ``world_size``; the last ``eval_num_blocks`` are held out.

        Raises:
            DataError: no block is left to train on.
        """
        assert global_batch_size == micro_batch_size * gradient_accumulation_steps * world_size
        assert 0 <= rank < world_size, (rank, world_size)
        if eval_num_blocks >= store.num_blocks:
            raise DataError(
                f"data.eval_num_blocks={eval_num_blocks}: the store has {store.num_blocks} blocks"
                f" of {store.sequence_length} tokens, nothing is left to train on; lower it,"
                " raise corpus.max_bytes, or shorten train.sequence_length"
            )
        self._store = store
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._accumulation = gradient_accumulation_steps
        self._rank = rank
        self._world_size = world_size
        self._seed = shuffle_seed
        self._num_eval = eval_num_blocks
        self._mask_documents = mask_documents
        self._num_train = store.num_blocks - eval_num_blocks
        self._order = Permutation(self._num_train, seed=shuffle_seed, epoch=0)
        self._order_epoch = 0
        shape = (micro_batch_size, store.sequence_length)
        self._buffer = np.empty(shape, dtype="<i4")

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that show every training block once; the last may be padded."""
        return -(-self._num_train // self._global_batch_size)

    @property
    def num_eval_micro_batches(self) -> int:
        """Micro-batches of an evaluation pass, the same on every rank."""
        return -(-self._num_eval // (self._micro_batch_size * self._world_size))

    def fetch(self, step: int, micro_batch: int) -> MicroBatch:
        """Give one micro-batch of this rank.

        Args:
            step: Optimizer step, from 1; beyond an epoch the next one begins, shuffled anew.
            micro_batch: From 0, below ``gradient_accumulation_steps``.

        Raises:
            DataError: the store cannot be read any more; names the shard.
        """
        assert step >= 1, step
        assert 0 <= micro_batch < self._accumulation, micro_batch
        epoch, step_of_epoch = divmod(step - 1, self.steps_per_epoch)
        if epoch != self._order_epoch:
            self._order = Permutation(self._num_train, seed=self._seed, epoch=epoch)
            self._order_epoch = epoch
        positions = self._positions(step_of_epoch * self._global_batch_size, micro_batch)
        return self._load([self._order[p] if p < self._num_train else None for p in positions])

    def fetch_eval(self, micro_batch: int) -> MicroBatch:
        """Give one micro-batch of held-out blocks, in store order; the last ones may be padding.

        Raises:
            DataError: the store cannot be read any more; names the shard.
        """
        assert 0 <= micro_batch < self.num_eval_micro_batches, micro_batch
        positions = self._positions(0, micro_batch)
        return self._load([self._num_train + p if p < self._num_eval else None for p in positions])

    def _positions(self, start: int, micro_batch: int) -> range:
        first = start + self._rank + self._world_size * self._micro_batch_size * micro_batch
        return range(first, first + self._world_size * self._micro_batch_size, self._world_size)

    def _load(self, blocks: list[int | None]) -> MicroBatch:
        store = self._store
        num_rows, length = self._buffer.shape
        real = np.zeros((num_rows, 1), dtype=np.int64)
        bytes_read = 0
        for row, block in enumerate(blocks):
            if block is None:
                self._buffer[row] = store.eos_token_id
            else:
                bytes_read += store.read_into(block, self._buffer[row])
                real[row] = min(length, store.num_tokens - block * length)
        input_ids = self._buffer.astype(np.int64)
        labels = _shift(input_ids, real, store.eos_token_id, mask=self._mask_documents)
        position_ids = None
        if self._mask_documents:
            position_ids = _positions_in_documents(input_ids, real, store.eos_token_id)
        tokens = int(real.sum())
        return MicroBatch(
            input_ids=input_ids,
            labels=labels,
            position_ids=position_ids,
            tokens=tokens,
            padded_tokens=num_rows * length - tokens,
            target_tokens=int(np.count_nonzero(labels != IGNORED_LABEL)),
            bytes_read=bytes_read,
        )


def _shift(
    input_ids: NDArray[np.int64], real: NDArray[np.int64], eos_token_id: int, *, mask: bool
) -> NDArray[np.int64]:
    """Give the next token of each position; ignored at the last real one and beyond.

    With ``mask`` a document's end has no target either: what follows is another document.
    """
    labels = np.full_like(input_ids, IGNORED_LABEL)
    labels[:, :-1] = input_ids[:, 1:]
    columns = np.arange(input_ids.shape[1])
    labels[columns >= real - 1] = IGNORED_LABEL
    if mask:
        labels[input_ids == eos_token_id] = IGNORED_LABEL
    return labels


def _positions_in_documents(
    input_ids: NDArray[np.int64], real: NDArray[np.int64], eos_token_id: int
) -> NDArray[np.int64]:
    """Count positions from the start of each document; filler counts as one document."""
    columns = np.arange(input_ids.shape[1])
    is_start = np.zeros(input_ids.shape, dtype=bool)
    is_start[:, 1:] = input_ids[:, :-1] == eos_token_id
    is_start &= columns <= real
    starts = np.where(is_start, columns, 0)
    return columns - np.maximum.accumulate(starts, axis=1)
