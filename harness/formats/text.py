"""A file as lines of text, whatever its bytes: gzip, UTF-8 or UTF-16, NULs, CRLF, a torn end.

Bytes that cannot be decoded become U+FFFD, which no number or time contains, so a damaged cell is
never read as another value. What was found on the way is counted in ``TextSource.troubles``.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from harness.errors import FormatError
from harness.formats.recipe import refusal

HEAD_BYTES = 64 * 1024
BLOCK_BYTES = 4 * 1024 * 1024
DOCUMENT_BYTES = 512 * 1024 * 1024
"""The largest JSON document that is read whole."""

_GZIP = b"\x1f\x8b"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NULS = re.compile(b"\0+")


class Line(NamedTuple):
    """One line without its end; ``torn`` where bytes beside it are missing."""

    text: str
    torn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first 64 KiB of a file as text, for the sniffer; ``name`` is the file's name."""

    name: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines that are not blank, NULs taken as line ends; the last may be cut."""
        parts = re.split("[\0\n]+", self.text)
        return [line.rstrip("\r") for line in parts if line.strip()]


class TextSource:
    """One telemetry file; every pass over it opens it again.

    Raises:
        FormatError: it is missing, empty or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.troubles: Counter[str] = Counter()
        try:
            with path.open("rb") as file:
                self._is_gzip = file.read(2) == _GZIP
        except OSError as error:
            raise FormatError(f"{path}: cannot be read ({error.strerror})") from error

    @cached_property
    def encoding(self) -> str:
        """The encoding, by its byte order mark or, without one, by where its NULs stand."""
        start = self._start
        for bom, encoding in _BOMS:
            if start.startswith(bom):
                return encoding
        return _guess_utf16(start) or "utf-8"

    @cached_property
    def head(self) -> Head:
        """The first 64 KiB, decoded."""
        text = self._start.decode(self.encoding, errors="replace").lstrip("\ufeff")
        if not text.strip("\0 \t\r\n"):
            raise refusal(self.path, "the file is empty")
        return Head(name=self.path.name, text=text)

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[bytes]:
        """The whole file as UTF-8, cut at line ends; only the last block may lack one."""
        rest = b""
        for block in self._utf8(size):
            cut = block.rfind(b"\n") + 1
            if not cut:
                rest += block
                continue
            yield rest + block[:cut]
            rest = block[cut:]
        if rest:
            yield rest

    def lines(self) -> Iterator[Line]:
        """Every line that is not blank."""
        for block in self.blocks():
            yield from self.split(block)

    def split(self, block: bytes) -> Iterator[Line]:
        """The lines of one block of ``blocks`` that are not blank."""
        whole, end, last = block.rpartition(b"\n")
        if end and b"\0" not in whole:
            for text in whole.decode("utf-8", errors="replace").split("\n"):
                if text and not text.isspace():
                    yield Line(text.rstrip("\r"), torn=False)
        elif end:
            for line in whole.split(b"\n"):
                yield from self._pieces(line)
        for piece in self._pieces(last):
            yield Line(piece.text, torn=True)

    def read_all(self) -> str:
        """The whole text, for a format that is one document.

        Raises:
            FormatError: it is larger than ``DOCUMENT_BYTES``.
        """
        parts: list[bytes] = []
        total = 0
        for block in self._utf8(BLOCK_BYTES):
            total += len(block)
            if total > DOCUMENT_BYTES:
                raise refusal(self.path, f"one JSON document of over {DOCUMENT_BYTES} bytes")
            parts.append(block)
        # A blank for each, so that what stands on either side is never read as one number.
        return b"".join(parts).replace(b"\0", b" ").decode("utf-8", errors="replace")

    def _pieces(self, line: bytes) -> Iterator[Line]:
        """What stands between runs of NULs; a piece that touches one may be cut there."""
        pieces = _NULS.split(line)
        self.troubles["runs of NUL bytes"] += len(pieces) - 1
        for piece in pieces:
            text = piece.decode("utf-8", errors="replace").strip("\r\n")
            if text and not text.isspace():
                yield Line(text, torn=len(pieces) > 1)

    @cached_property
    def _start(self) -> bytes:
        return next(self._raw(HEAD_BYTES), b"")

    def _utf8(self, size: int) -> Iterator[bytes]:
        if self.encoding in ("utf-8", "utf-8-sig"):
            bom = len(codecs.BOM_UTF8) if self.encoding == "utf-8-sig" else 0
            for raw in self._raw(size):
                yield raw[bom:]
                bom = 0
            return
        decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace")
        mark = "\ufeff"
        for raw in self._raw(size):
            yield decoder.decode(raw).removeprefix(mark).encode("utf-8", errors="replace")
            mark = ""
        yield decoder.decode(b"", final=True).encode("utf-8", errors="replace")

    def _raw(self, size: int) -> Iterator[bytes]:
        with self.path.open("rb") as plain:
            if not self._is_gzip:
                while block := plain.read(size):
                    yield block
                return
            yield from self._unzip(gzip.GzipFile(fileobj=plain), size)

    def _unzip(self, file: gzip.GzipFile, size: int) -> Iterator[bytes]:
        """Blocks of ``size``, and before a damage all that can still be had."""
        block = bytearray()
        try:
            while part := file.read1(size):
                block += part
                if len(block) >= size:
                    yield bytes(block)
                    block.clear()
        except (EOFError, gzip.BadGzipFile, zlib.error):
            self.troubles["gzip stream damaged or cut short"] = 1
        if block:
            yield bytes(block)


def _guess_utf16(start: bytes) -> str | None:
    """UTF-16 without a mark: ASCII text has a NUL in nearly every second byte, on one side."""
    even, odd = start[0::2], start[1::2]
    if not odd:
        return None
    even_share, odd_share = even.count(0) / len(even), odd.count(0) / len(odd)
    if odd_share > 0.8 and even_share < 0.2:
        return "utf-16-le"
    if even_share > 0.8 and odd_share < 0.2:
        return "utf-16-be"
    return None
