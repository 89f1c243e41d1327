"""Text to token ids: a tokenizer file of the user's, or a byte-level BPE trained on the corpus.

Text that spells a special token, say ``<|endoftext|>`` in a document about tokenizers, is encoded
as the plain characters it is, never as the control token; only tokens that a tokenizer file adds
*without* marking them special (``<think>`` of Qwen3) are matched in text, as their authors mean it.
Truncation, padding and templates of a tokenizer file are switched off: they would lose or add text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.data.background import call_interruptibly
from harness.errors import DataError, MissingExtraError

EOS_TOKENS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "</s>",
    "<eos>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek spells it with these characters
)
"""End-of-text tokens looked for, in this order, where no tokenizer_config.json names one."""

BPE_MIN_VOCAB_SIZE = 257
"""The 256 bytes and the end-of-text token: the smallest byte-level vocabulary."""

BPE_SAMPLE_BYTES = 8_000_000
"""Training reads about this much text at most; see :func:`train_bpe`."""

BPE_MAX_WORD_BYTES = 256
"""Training cuts longer words into pieces of this size; see :func:`train_bpe`."""

_BATCH_CHARS = 1 << 20


class Tokeniser:
    """A loaded tokenizer, its end-of-text token, and the size of its vocabulary.

    ``vocab_size`` is the highest id plus one, added tokens included.
    """

    def __init__(self, tokenizer: Any, *, path: Path, eos_token: str | None) -> None:
        """Wrap a ``tokenizers.Tokenizer`` read from ``path``; see :func:`load_tokeniser`."""
        self._tokenizer = tokenizer
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.eos_token_id = _eos_token_id(tokenizer, path, eos_token)

    def encode(self, documents: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        """Yield the token ids of each document, in order, encoded in batches on all cores.

        Memory is that of one batch, about a megabyte of text or the largest document. Time grows
        with the text alone, however long its words: 3 MB without a blank take seconds.
        """
        encode = partial(self._tokenizer.encode_batch_fast, add_special_tokens=False)
        with _parallelism():
            for batch in _batches(documents):
                for encoding in call_interruptibly(partial(encode, batch)):
                    yield np.array(encoding.ids, dtype=np.int32)

    def decode(self, token_ids: NDArray[np.int32]) -> str:
        """Give the text of token ids [any], special tokens spelt out."""
        return self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=False)


def locate_tokeniser(setting: str) -> Path:
    """Find the file that ``corpus.tokenizer`` names: a tokenizer.json or the folder around it.

    Raises:
        DataError: nothing is there, or a folder has no tokenizer.json; says how to convert it.
    """
    path = Path(setting).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(
            f"corpus.tokenizer={setting}: no such file or folder; name a tokenizer.json or the"
            " folder that holds one, or leave corpus.tokenizer out and one is trained on the corpus"
        )
    if not (path / "tokenizer.json").is_file():
        raise DataError(
            f"corpus.tokenizer={setting}: the folder has no tokenizer.json; {_conversion(path)}"
        )
    return path / "tokenizer.json"


def hash_tokeniser(path: Path) -> str:
    """Hash the content of a tokenizer file and the end-of-text token named beside it.

    Raises:
        DataError: the file cannot be read.
    """
    sha256 = hashlib.sha256(_read(path))
    sha256.update((_named_eos(path) or "").encode())
    return sha256.hexdigest()


def load_tokeniser(path: Path) -> Tokeniser:
    """Load a tokenizer.json.

    Raises:
        DataError: the file is not a tokenizer, or has no end-of-text token that is known.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("tokenizers", "train") from error
    try:
        tokenizer = Tokenizer.from_buffer(_read(path))
    except ValueError as error:
        raise DataError(
            f"{path}: not a tokenizers file: {error}; fetch it again, or where other tokenizer"
            f" files lie beside it, remove it and {_conversion(path.parent)}"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return Tokeniser(tokenizer, path=path, eos_token=_named_eos(path))


def train_bpe(documents: Iterable[str], *, num_bytes: int, vocab_size: int) -> str:
    """Train a byte-level BPE and give its tokenizer.json.

    Of a corpus above ``BPE_SAMPLE_BYTES`` every k-th document is read, k chosen so that about that
    much remains: time stays bounded and the sample is the same on every machine. What lies between
    two blanks is cut, for training only, into pieces of ``BPE_MAX_WORD_BYTES``: the time is
    quadratic in the longest word, and no token of use is longer.

    Args:
        documents: The whole corpus.
        num_bytes: Its size, UTF-8.
        vocab_size: Entries asked for; a small corpus may have too few pairs and give less.

    Raises:
        DataError: ``vocab_size`` is too small to hold every byte.
        MissingExtraError: ``tokenizers`` is not installed.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingExtraError("tokenizers", "train") from error
    if vocab_size < BPE_MIN_VOCAB_SIZE:
        raise DataError(
            f"corpus.bpe_vocab_size={vocab_size}: a byte-level vocabulary needs at least"
            f" {BPE_MIN_VOCAB_SIZE} entries"
        )
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # After ByteLevel every character stands for a byte.
    cut = pre_tokenizers.FixedLength(length=BPE_MAX_WORD_BYTES)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([byte_level, cut])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKENS[0]],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = list(_sample(documents, num_bytes))
    with _parallelism():
        call_interruptibly(partial(tokenizer.train_from_iterator, texts, trainer))
    tokenizer.pre_tokenizer = byte_level
    return tokenizer.to_str()


def _conversion(folder: Path) -> str:
    return (
        'convert it with: python -c "from transformers import AutoTokenizer;'
        f" AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')\""
    )


def _sample(documents: Iterable[str], num_bytes: int) -> Iterator[str]:
    stride = max(1, round(num_bytes / BPE_SAMPLE_BYTES))
    left = BPE_SAMPLE_BYTES
    for index, text in enumerate(documents):
        if index % stride == 0:
            yield text[:left]
            left -= len(text)
            if left <= 0:
                return


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_chars = 0
    for text in documents:
        batch.append(text)
        num_chars += len(text)
        if num_chars >= _BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


@contextmanager
def _parallelism() -> Generator[None]:
    """Let ``tokenizers`` use its threads now and forbid them to whatever forks from here later.

    A child forked after the threads have run can block for ever on their locks; a setting of the
    user's is left alone.
    """
    if "TOKENIZERS_PARALLELISM" in os.environ:
        yield
        return
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        yield
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _named_eos(path: Path) -> str | None:
    """Read ``eos_token`` from the tokenizer_config.json beside a tokenizer.json, if any."""
    beside = path.with_name("tokenizer_config.json")
    if not beside.is_file():
        return None
    try:
        named = json.loads(_read(beside)).get("eos_token")
    except (ValueError, AttributeError) as error:
        raise DataError(f"{beside}: not a JSON object: {error}; mend or remove it") from error
    if isinstance(named, dict):
        named = named.get("content")
    return named if isinstance(named, str) else None


def _eos_token_id(tokenizer: Any, path: Path, named: str | None) -> int:
    candidates = EOS_TOKENS if named is None else (named,)
    for token in candidates:
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            return token_id
    raise DataError(
        f"{path}: no end-of-text token; looked for {', '.join(candidates)};"
        ' name it in a tokenizer_config.json beside it: {"eos_token": "..."}'
    )
