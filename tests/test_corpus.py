import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from harness.config import CorpusConfig
from harness.data.corpus import CorpusFile, find_files, fingerprint, iterate_documents, scan
from harness.data.documents import read_documents
from harness.errors import DataError, MissingExtraError


def config(path: Path | None, **changes) -> CorpusConfig:
    settings = {
        "name": "test",
        "path": None if path is None else str(path),
        "suffixes": (".py", ".txt", ".md", ".rst", ".jsonl", ".parquet"),
        "text_field": "text",
        "tokenizer": None,
        "bpe_vocab_size": 300,
        "max_bytes": None,
        "expected_tokens": None,
    }
    return CorpusConfig(**(settings | changes))


def texts(corpus: CorpusConfig) -> list[str]:
    return list(iterate_documents(corpus, find_files(corpus)))


def jsonl(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def table(path: Path, **columns: list) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def test_every_kind_of_file_yields_its_documents_in_order_of_name(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "z.md").write_text("two")
    (tmp_path / "a.txt").write_text("one")
    jsonl(tmp_path / "c.jsonl", {"text": "three", "id": 1}, {"text": "four"})
    table(tmp_path / "d.parquet", text=["five", "six"], other=[1, 2])
    (tmp_path / "ignored.pdf").write_bytes(b"\xff")
    assert texts(config(tmp_path)) == ["one", "two", "three", "four", "five", "six"]


def test_hidden_files_empty_documents_and_byte_order_marks_are_passed_over(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "description.txt").write_text("hidden")
    (tmp_path / ".notes.txt").write_text("hidden")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbftext")
    assert texts(config(tmp_path)) == ["text"]


def test_line_ends_are_kept_as_they_are(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n")
    assert texts(config(tmp_path)) == ["one\r\ntwo\n"]


def test_blank_lines_of_jsonl_are_no_documents(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "two"}')
    assert texts(config(tmp_path)) == ["one", "two"]


def test_reading_stops_after_the_document_that_reaches_the_limit(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name * 10)
    assert texts(config(tmp_path, max_bytes=11)) == ["a" * 10, "b" * 10]
    assert texts(config(tmp_path, max_bytes=10)) == ["a" * 10]


def test_the_hash_does_not_depend_on_where_the_folder_lies(tmp_path):
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.txt").write_text("text")
    here, there = (config(tmp_path / place) for place in ("here", "there"))
    assert scan(here, find_files(here)) == scan(there, find_files(there))
    assert fingerprint(here, find_files(here)) != fingerprint(there, find_files(there))


@pytest.mark.parametrize("change", ["name", "text", "split"])
def test_the_hash_changes_with_names_text_and_borders_of_documents(tmp_path, change):
    jsonl(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"})
    corpus = config(tmp_path)
    before = scan(corpus, find_files(corpus))
    if change == "name":
        (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")
    elif change == "text":
        jsonl(tmp_path / "a.jsonl", {"text": "one"}, {"text": "tvo"})
    else:
        jsonl(tmp_path / "a.jsonl", {"text": "on"}, {"text": "etwo"})
    after = scan(corpus, find_files(corpus))
    assert after.corpus_hash != before.corpus_hash
    assert after.num_bytes == before.num_bytes == 6


@pytest.mark.parametrize("field", ["name", "size_bytes", "mtime_ns", "ctime_ns"])
def test_the_fingerprint_sees_names_sizes_and_both_times(tmp_path, field):
    """An edit that restores the modification time still changes the time of change."""
    (tmp_path / "a.txt").write_text("one")
    corpus = config(tmp_path)
    (file,) = find_files(corpus)
    edited = dataclasses.replace(file, **{field: "b.txt" if field == "name" else 1})
    assert fingerprint(corpus, [edited]) != fingerprint(corpus, [file])
    assert fingerprint(corpus, find_files(corpus)) == fingerprint(corpus, [file])


def test_the_default_corpus_is_the_standard_library_without_its_tests():
    corpus = config(None, max_bytes=200_000)
    names = [file.name for file in find_files(corpus)]
    assert "argparse.py" in names
    assert "pydoc_data/topics.py" in names
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert not [n for n in names if n.startswith("_sysconfigdata")]
    assert scan(corpus, find_files(corpus)).num_bytes >= 200_000


def test_the_folder_corpus_without_a_path_is_refused():
    with pytest.raises(DataError, match=r"set corpus\.path=DIR"):
        find_files(config(None, name="folder"))


def test_a_missing_folder_a_file_and_an_empty_folder_are_named(tmp_path):
    with pytest.raises(DataError, match=r"no such folder .*set corpus\.path=DIR"):
        find_files(config(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="the folder is empty"):
        find_files(config(tmp_path))
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(DataError, match="is a file"):
        find_files(config(tmp_path / "file.txt"))


def test_a_folder_of_other_files_says_which_suffixes_were_found(tmp_path):
    for name in ("a.pdf", "b.pdf", "c.docx", "LICENSE"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=r"found \.pdf \(2\)") as caught:
        find_files(config(tmp_path))
    assert ".docx (1)" in str(caught.value)
    assert "no suffix (1)" in str(caught.value)


@pytest.mark.parametrize("text", ["", "  \n", "\ufeff"])
def test_a_corpus_of_blank_documents_is_refused(tmp_path, text):
    """A file of two blanks gave a store of one block and a throughput in the table."""
    (tmp_path / "a.txt").write_text(text)
    corpus = config(tmp_path)
    with pytest.raises(DataError, match="has no text: every document is empty or blank"):
        scan(corpus, find_files(corpus))
    limited = config(tmp_path, max_bytes=1)
    with pytest.raises(DataError, match=r"every document within corpus\.max_bytes=1 is empty"):
        scan(limited, find_files(limited))


def test_blank_documents_beside_text_are_kept(tmp_path):
    jsonl(tmp_path / "a.jsonl", {"text": " \n"}, {"text": "word"})
    corpus = config(tmp_path)
    assert scan(corpus, find_files(corpus)).num_documents == 2
    assert texts(corpus) == [" \n", "word"]


def test_file_names_need_not_be_utf8(tmp_path):
    """A file named with the byte 0xff was a traceback, as .parquet even before it was hashed."""
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("one")
    table(tmp_path / "b.parquet", text=["two"])
    (tmp_path / "b.parquet").rename(tmp_path / os.fsdecode(b"\xff.parquet"))
    corpus = config(tmp_path)
    files = find_files(corpus)
    assert sorted(texts(corpus)) == ["one", "two"]
    before = scan(corpus, files)
    assert fingerprint(corpus, files) == fingerprint(corpus, find_files(corpus))
    (tmp_path / os.fsdecode(b"\xff.txt")).rename(tmp_path / os.fsdecode(b"\xfe.txt"))
    assert scan(corpus, find_files(corpus)).corpus_hash != before.corpus_hash


def test_the_hash_of_ordinary_names_is_that_of_earlier_versions(tmp_path):
    """A changed hash would have every cached store of a user built again."""
    (tmp_path / "é.txt").write_text("one")
    corpus = config(tmp_path)
    expected = hashlib.sha256("5:é.txt:3:one".encode()).hexdigest()
    assert scan(corpus, find_files(corpus)).corpus_hash == expected


def test_a_byte_order_mark_before_the_first_line_of_jsonl_is_passed_over(tmp_path):
    """A .jsonl saved by a spreadsheet on Windows was refused as not JSON on its first line."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"text": "one"}\n{"text": "two"}\n')
    assert texts(config(tmp_path)) == ["one", "two"]
    file.write_bytes(b'\xef\xbb\xbf{"text": "\xe9"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1: not UTF-8 at byte 13 of the file"):
        texts(config(tmp_path))
    file.write_bytes(b'{"text": "one"}\n\xef\xbb\xbf{"text": "two"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: not a line of JSON"):
        texts(config(tmp_path))


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", os.fspath(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot list .*Permission denied"):
        find_files(config(tmp_path))


def test_a_broken_link_is_named(tmp_path):
    """It said "cannot read a.txt: No such file" of a file that a listing shows."""
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    message = r"a\.txt: link to .*gone: No such file or directory; mend it or take it out"
    with pytest.raises(DataError, match=message):
        find_files(config(tmp_path))


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"a\.txt: not a regular file"):
        find_files(config(tmp_path))


def test_a_file_that_vanishes_is_named(tmp_path):
    gone = CorpusFile(name="a.txt", path=tmp_path / "a.txt", size_bytes=1, mtime_ns=0, ctime_ns=0)
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: No such file"):
        list(iterate_documents(config(tmp_path), [gone]))


def test_text_that_is_not_utf8_is_named_with_its_byte(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 at byte 3 \(0xe9\)"):
        texts(config(tmp_path))
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xe9"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: not UTF-8 at byte 24 of the file"):
        texts(config(tmp_path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{text: 1}", r"a\.jsonl:2: not a line of JSON"),
        ("[1]", r"a\.jsonl:2: expected an object .* found list"),
        ('{"body": "x", "id": 1}', r"a\.jsonl:2: no field 'text'; found body, id"),
        ("{}", r"a\.jsonl:2: no field 'text'; found none"),
        ('{"text": 7}', r"a\.jsonl:2: field 'text' is int, expected text"),
        ('{"text": null}', r"a\.jsonl:2: field 'text' is null, .*jq -c .*\[\"text\"\]"),
        ('{"text": "\\ud800"}', r"a\.jsonl:2: .*half a surrogate pair at character 0"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        texts(config(tmp_path))


def test_the_list_of_fields_found_is_cut_short(tmp_path):
    jsonl(tmp_path / "a.jsonl", {f"f{i}": i for i in range(20)})
    with pytest.raises(DataError, match=r"found f0, .*f7, \.\.\.;"):
        texts(config(tmp_path))


def test_another_text_field_can_be_named(tmp_path):
    jsonl(tmp_path / "a.jsonl", {"body": "words"})
    assert texts(config(tmp_path, text_field="body")) == ["words"]


def test_bad_parquet_is_named(tmp_path):
    file = table(tmp_path / "a.parquet", body=["x"])
    with pytest.raises(DataError, match=r"a\.parquet: no field 'text'; found body"):
        texts(config(tmp_path))
    table(file, text=["x", None])
    with pytest.raises(DataError, match=r"a\.parquet row 2: field 'text' is null, .*dropna"):
        texts(config(tmp_path))
    file.write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match=r"a\.parquet: not a parquet file"):
        texts(config(tmp_path))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    table(tmp_path / "a.parquet", text=["x"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"wattline\[train\]"):
        texts(config(tmp_path))


def test_a_suffix_that_nobody_reads_is_refused(tmp_path):
    (tmp_path / "a.html").write_text("x")
    with pytest.raises(DataError, match=r"accepted: \.txt, \.md"):
        list(read_documents(tmp_path / "a.html", "text"))
