import gzip
from pathlib import Path

import pytest

from harness.errors import FormatError
from harness.formats.recipe import RECIPE
from harness.formats.text import TextSource

ROWS = "time, watts\n1, 10 W\n2, 20 W\n"


def lines(path: Path) -> list[tuple[str, bool]]:
    return [(line.text, line.torn) for line in TextSource(path).lines()]


WHOLE = [("time, watts", False), ("1, 10 W", False), ("2, 20 W", False)]


@pytest.mark.parametrize(
    "raw",
    [
        ROWS.encode(),
        b"\xef\xbb\xbf" + ROWS.encode(),
        ROWS.replace("\n", "\r\n").encode(),
        b"\xff\xfe" + ROWS.encode("utf-16-le"),
        b"\xfe\xff" + ROWS.encode("utf-16-be"),
        ROWS.encode("utf-16-le"),
        ROWS.encode("utf-16-be"),
        gzip.compress(ROWS.encode()),
        gzip.compress(b"\xff\xfe" + ROWS.encode("utf-16-le")),
        ROWS.replace("\n", "\n\n  \n").encode(),
    ],
)
def test_every_encoding_gives_the_same_lines(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(raw)
    assert lines(path) == WHOLE
    assert TextSource(path).head.lines[0] == "time, watts"


def test_a_last_line_without_its_end_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1, 10 W\n2, 2")
    assert lines(path) == [("1, 10 W", False), ("2, 2", True)]


def test_what_touches_a_run_of_nuls_is_torn_and_the_runs_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1, 10 W\n2, 20" + bytes(5000) + b" W\n3, 30 W\n")
    source = TextSource(path)
    found = [(line.text, line.torn) for line in source.lines()]
    assert found == [("1, 10 W", False), ("2, 20", True), (" W", True), ("3, 30 W", False)]
    assert source.troubles["runs of NUL bytes"] == 1


def test_undecodable_bytes_become_a_mark_that_no_number_contains(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1, 1\xff0 W\n")
    assert lines(path) == [("1, 1\ufffd0 W", False)]


def test_a_gzip_cut_short_gives_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    text = "".join(f"{i}, {i * 7919 % 1000} W\n" for i in range(20000)).encode()
    path.write_bytes(gzip.compress(text)[:-2000])
    source = TextSource(path)
    found = list(source.lines())
    assert len(found) > 1000
    assert found[0].text == "0, 0 W"
    assert source.troubles["gzip stream damaged or cut short"] == 1


def test_blocks_are_cut_at_line_ends_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    raw = b"".join(b"%d, %d W\n" % (i, i) for i in range(5000)) + b"x" * 500
    path.write_bytes(raw)
    blocks = list(TextSource(path).blocks(size=100))
    assert b"".join(blocks) == raw
    assert all(block.endswith(b"\n") for block in blocks[:-1])


def test_a_document_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(b"\xef\xbb\xbf[1,\n2]")
    assert TextSource(path).read_all() == "[1,\n2]"


def test_a_document_of_any_size_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.formats.text.DOCUMENT_BYTES", 3)
    path = tmp_path / "log.json"
    path.write_text("[1, 2]")
    with pytest.raises(FormatError, match="over 3 bytes"):
        TextSource(path).read_all()


@pytest.mark.parametrize("raw", [b"", b"\n \r\n", bytes(9000)])
def test_an_empty_file_is_refused_with_the_recipe(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="empty") as caught:
        _ = TextSource(path).head
    assert RECIPE in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file"):
        TextSource(tmp_path / "absent.csv")
