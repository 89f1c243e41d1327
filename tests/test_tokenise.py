import contextlib
import json
import os
import random
import signal
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from harness.data import tokenise
from harness.data.tokenise import (
    EOS_TOKENS,
    hash_tokeniser,
    load_tokeniser,
    locate_tokeniser,
    train_bpe,
)
from harness.errors import DataError, MissingExtraError

# Few distinct words: training ends at 297 entries, before the 300 asked for.
TEXTS = ["the cat sat on the mat\n" * 20, "def f(x):\n    return x + 1\n" * 20, "naïve café ☕\n"]


def trained(texts=TEXTS, vocab_size=300) -> str:
    num_bytes = sum(len(text.encode()) for text in texts)
    return train_bpe(iter(texts), num_bytes=num_bytes, vocab_size=vocab_size)


@pytest.fixture
def bpe(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(trained())
    return path


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    yield
    os.environ.pop("TOKENIZERS_PARALLELISM", None)


def test_training_twice_gives_the_same_file():
    assert trained() == trained()


def test_any_text_survives_the_round_trip(bpe):
    tokeniser = load_tokeniser(bpe)
    texts = ["unseen: żółć 漢字 \x00\t", *TEXTS]
    assert [tokeniser.decode(ids) for ids in tokeniser.encode(texts)] == texts


def test_ids_lie_below_the_vocabulary_size(bpe):
    tokeniser = load_tokeniser(bpe)
    assert tokeniser.vocab_size == 297
    assert tokeniser.eos_token_id == 0
    ids = np.concatenate(list(tokeniser.encode(TEXTS)))
    assert ids.dtype == np.int32
    assert ids.min() > 0
    assert ids.max() < 297


def test_batches_change_nothing(bpe, monkeypatch):
    tokeniser = load_tokeniser(bpe)
    whole = [ids.tolist() for ids in tokeniser.encode(TEXTS)]
    monkeypatch.setattr(tokenise, "_BATCH_CHARS", 1)
    assert [ids.tolist() for ids in tokeniser.encode(TEXTS)] == whole


def test_a_special_token_spelt_in_the_text_is_only_text(bpe):
    """A document about tokenizers would otherwise be cut in two by the token it mentions."""
    tokeniser = load_tokeniser(bpe)
    text = "before <|endoftext|> after"
    (ids,) = tokeniser.encode([text])
    assert tokeniser.eos_token_id not in ids
    assert tokeniser.decode(ids) == text


def test_truncation_padding_and_templates_of_the_file_are_switched_off(bpe):
    """A tokenizer.json saved with truncation silently dropped everything beyond 4 tokens."""
    plain = [ids.tolist() for ids in load_tokeniser(bpe).encode(TEXTS)]
    tokenizer = Tokenizer.from_file(str(bpe))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(bpe))
    assert [ids.tolist() for ids in load_tokeniser(bpe).encode(TEXTS)] == plain


def test_a_large_corpus_is_sampled_by_whole_documents(monkeypatch):
    monkeypatch.setattr(tokenise, "BPE_SAMPLE_BYTES", 300)
    texts = [c * 100 for c in "abcdefghi"]
    seen = list(tokenise._sample(iter(texts), 900))
    assert seen == ["a" * 100, "d" * 100, "g" * 100]
    assert list(tokenise._sample(iter(["x" * 1000, "y"]), 300)) == ["x" * 300]


def test_long_words_are_cut_for_training_and_only_there():
    """One word of 3 MB kept the training busy for more than nine minutes."""
    word = "".join(random.Random(0).choices("abcdefghij", k=20_000))
    whole = json.loads(trained([word], vocab_size=4096))
    pieces = [word[i : i + 256] for i in range(0, len(word), 256)]
    assert whole == json.loads(trained(pieces, vocab_size=4096))
    assert whole["pre_tokenizer"]["type"] == "ByteLevel"


@pytest.mark.parametrize("text", ["x" * 255, "x" * 256, "naïve café ☕ " * 100])
def test_words_up_to_the_limit_train_as_ever(text, monkeypatch):
    with_limit = trained([text])
    monkeypatch.setattr(tokenise, "BPE_MAX_WORD_BYTES", 1 << 20)
    assert trained([text]) == with_limit


@contextlib.contextmanager
def counted_alarms():
    """Count how often a signal handler ran while the block did, at 200 signals a second."""
    heard: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    try:
        yield heard
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_signals_are_heard_during_training_and_encoding(bpe):
    """Ctrl-C and SIGTERM were ignored: native code held the main thread until it was done."""
    text = "".join(random.Random(0).choices("abcdefghij", k=400_000))
    with counted_alarms() as heard:
        trained([text], vocab_size=1000)
    assert len(heard) > 3
    tokeniser = load_tokeniser(bpe)
    with counted_alarms() as heard:
        (ids,) = tokeniser.encode([text])
    assert len(heard) > 3
    assert tokeniser.decode(ids) == text


def test_a_vocabulary_that_cannot_hold_every_byte_is_refused():
    with pytest.raises(DataError, match=r"corpus\.bpe_vocab_size=256: .*at least 257"):
        trained(vocab_size=256)


def test_a_small_corpus_may_give_fewer_entries(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(trained(["aa"], vocab_size=5000))
    assert 257 <= load_tokeniser(path).vocab_size < 300


def test_a_tokenizer_is_found_as_file_or_folder(bpe):
    assert locate_tokeniser(str(bpe)) == bpe
    assert locate_tokeniser(str(bpe.parent)) == bpe


def test_a_folder_without_tokenizer_json_names_the_conversion(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(DataError, match=r"AutoTokenizer\.from_pretrained") as caught:
        locate_tokeniser(str(tmp_path))
    assert f"save_pretrained('{tmp_path}')" in str(caught.value)
    with pytest.raises(DataError, match=r"no such file or folder; .*leave corpus\.tokenizer"):
        locate_tokeniser(str(tmp_path / "nowhere"))


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "1.0"}')
    with pytest.raises(DataError, match=r"not a tokenizers file: .*; fetch it again, or .*convert"):
        load_tokeniser(path)
    with pytest.raises(DataError, match="cannot read"):
        load_tokeniser(tmp_path / "gone.json")


def test_the_end_of_text_token_named_beside_the_file_wins(bpe):
    tokenizer = Tokenizer.from_file(str(bpe))
    tokenizer.add_special_tokens(["<stop>"])
    tokenizer.save(str(bpe))
    assert load_tokeniser(bpe).eos_token_id == 0
    config = bpe.with_name("tokenizer_config.json")
    before = hash_tokeniser(bpe)
    config.write_text(json.dumps({"eos_token": "<stop>"}))
    assert load_tokeniser(bpe).eos_token_id == 297
    assert hash_tokeniser(bpe) != before
    config.write_text(json.dumps({"eos_token": {"content": "<stop>", "lstrip": False}}))
    assert load_tokeniser(bpe).eos_token_id == 297
    config.write_text(json.dumps({"eos_token": None}))
    assert load_tokeniser(bpe).eos_token_id == 0


def test_a_tokenizer_without_end_of_text_is_refused(bpe):
    config = bpe.with_name("tokenizer_config.json")
    config.write_text(json.dumps({"eos_token": "<nothing>"}))
    with pytest.raises(DataError, match="no end-of-text token; looked for <nothing>"):
        load_tokeniser(bpe)
    config.write_text("[]")
    with pytest.raises(DataError, match="not a JSON object"):
        load_tokeniser(bpe)
    config.unlink()
    bpe.write_text(bpe.read_text().replace(EOS_TOKENS[0], "<other>"))
    with pytest.raises(DataError, match=r"no end-of-text token; looked for <\|endoftext\|>"):
        load_tokeniser(bpe)


def test_the_hash_is_of_content_not_of_place(bpe, tmp_path):
    copy = tmp_path / "elsewhere" / "tokenizer.json"
    copy.parent.mkdir()
    copy.write_text(bpe.read_text())
    assert hash_tokeniser(copy) == hash_tokeniser(bpe)
    copy.write_text(trained(["other text"]))
    assert hash_tokeniser(copy) != hash_tokeniser(bpe)


def test_threads_are_forbidden_to_children_after_encoding(bpe):
    list(load_tokeniser(bpe).encode(TEXTS))
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


def test_a_setting_of_the_users_is_left_alone(bpe, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "0")
    list(load_tokeniser(bpe).encode(TEXTS))
    assert os.environ["TOKENIZERS_PARALLELISM"] == "0"


def test_without_tokenizers_the_extra_is_named(bpe, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"wattline\[train\]"):
        load_tokeniser(bpe)
    with pytest.raises(MissingExtraError, match=r"wattline\[train\]"):
        trained()
