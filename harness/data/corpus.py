"""Which files make a corpus, the documents in them, and hashes that say which text it was.

The order of files is that of their names relative to the corpus folder, so it does not depend on
where the folder lies. Text is taken as it is: no cleaning, no deduplication.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.config import CorpusConfig
from harness.data import documents
from harness.errors import DataError

# Not text by people, or not the same on two machines with the same Python: third-party packages,
# tests (some are deliberately not UTF-8), bytecode, and the settings of this one build.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib-dynload"}
)
_STDLIB_SKIPPED_PREFIXES = ("_sysconfigdata", "config-")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """One file of a corpus; ``name`` is relative to the folder, with forward slashes."""

    name: str
    path: Path
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusScan:
    """What one pass over all documents found; ``num_bytes`` is UTF-8 text."""

    corpus_hash: str
    num_documents: int
    num_bytes: int


class CorpusHasher:
    """Sums up documents as they go by: sha256 over relative names and text, and counts."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._sha256 = hashlib.sha256()
        self._num_documents = 0
        self._num_bytes = 0

    def add(self, name: str, data: bytes) -> None:
        """Take one document: the name of its file and its UTF-8 text."""
        # fsencode: a name need not be UTF-8.
        self._sha256.update(b"%d:%b:%d:" % (len(name), os.fsencode(name), len(data)))
        self._sha256.update(data)
        self._num_documents += 1
        self._num_bytes += len(data)

    def result(self) -> CorpusScan:
        """Give hash and counts of what was added so far."""
        return CorpusScan(
            corpus_hash=self._sha256.hexdigest(),
            num_documents=self._num_documents,
            num_bytes=self._num_bytes,
        )


def find_files(corpus: CorpusConfig) -> tuple[CorpusFile, ...]:
    """List the files of a corpus, sorted by relative name.

    Hidden files and folders are passed over, links to folders are not followed, and of the standard
    library its tests, bytecode and build settings are left out.

    Raises:
        DataError: the folder is missing, unreadable or empty, a file is unreadable or not a regular
            one, or none has one of ``corpus.suffixes``; says which suffixes were found.
    """
    root = _root(corpus)
    is_stdlib = corpus.path is None
    others: Counter[str] = Counter()
    found: list[CorpusFile] = []
    for path in _walk(root, is_stdlib=is_stdlib):
        if path.suffix.lower() not in corpus.suffixes:
            others[path.suffix.lower() or "no suffix"] += 1
            continue
        found.append(_describe(path, root))
    if not found:
        raise DataError(_nothing_found(root, corpus, others))
    return tuple(sorted(found, key=lambda file: file.name))


def iterate_documents(
    corpus: CorpusConfig, files: Iterable[CorpusFile], hasher: CorpusHasher | None = None
) -> Iterator[str]:
    """Yield the text of every document that is not empty, file after file.

    Stops after the document that reaches ``corpus.max_bytes`` of UTF-8 text, so the last one is
    whole and the same text comes on every machine. Memory is that of the largest document.

    Args:
        corpus: Names the text field and the limit.
        files: What :func:`find_files` gave.
        hasher: Takes every document that is yielded.

    Raises:
        DataError: a document cannot be read; names the file and the line, row or byte.
    """
    num_bytes = 0
    for file in files:
        for text in documents.read_documents(file.path, corpus.text_field):
            if not text:
                continue
            data = text.encode()
            if hasher is not None:
                hasher.add(file.name, data)
            yield text
            num_bytes += len(data)
            if corpus.max_bytes is not None and num_bytes >= corpus.max_bytes:
                return


def scan(corpus: CorpusConfig, files: Iterable[CorpusFile]) -> CorpusScan:
    """Read the whole corpus once: its hash and counts, and proof that it can be read.

    Raises:
        DataError: a document cannot be read, or none has anything but blanks.
    """
    hasher = CorpusHasher()
    has_text = False
    for text in iterate_documents(corpus, files, hasher):
        has_text = has_text or not text.isspace()
    if not has_text:
        within = "" if corpus.max_bytes is None else f" within corpus.max_bytes={corpus.max_bytes}"
        raise DataError(
            f"corpus.path={_root(corpus)}: has no text: every document{within} is empty or blank;"
            " put text there or name another folder"
        )
    return hasher.result()


def fingerprint(corpus: CorpusConfig, files: Iterable[CorpusFile]) -> str:
    """Hash names, sizes and times without reading: equal means that nothing was touched.

    Times of change are in it, so that an edit which restores the modification time is seen.
    """
    sha256 = hashlib.sha256()
    settings = (os.fspath(_root(corpus)), corpus.text_field, corpus.max_bytes)
    sha256.update(repr(settings).encode())
    for file in files:
        row = (file.name, file.size_bytes, file.mtime_ns, file.ctime_ns)
        sha256.update(repr(row).encode())
    return sha256.hexdigest()


def _root(corpus: CorpusConfig) -> Path:
    if corpus.path is None:
        if corpus.name == "folder":
            raise DataError("corpus.path=null: corpus=folder needs a folder; set corpus.path=DIR")
        return Path(sysconfig.get_path("stdlib"))
    root = Path(corpus.path).expanduser().absolute()
    if not root.exists():
        raise DataError(
            f"corpus.path={corpus.path}: no such folder ({root});"
            " set corpus.path=DIR to a folder of text"
        )
    if not root.is_dir():
        raise DataError(f"corpus.path={corpus.path}: is a file; name the folder that holds it")
    return root


def _walk(root: Path, *, is_stdlib: bool) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise DataError(f"cannot list {error.filename}: {error.strerror}") from error

    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not _is_skipped(name, is_stdlib=is_stdlib)]
        for name in names:
            if not _is_skipped(name, is_stdlib=is_stdlib):
                yield Path(folder, name)


def _is_skipped(name: str, *, is_stdlib: bool) -> bool:
    if name.startswith("."):
        return True
    return is_stdlib and (
        name in _STDLIB_SKIPPED_FOLDERS or name.startswith(_STDLIB_SKIPPED_PREFIXES)
    )


def _describe(path: Path, root: Path) -> CorpusFile:
    try:
        status = path.stat()
    except OSError as error:
        what = f"link to {path.readlink()}: " if path.is_symlink() else ""
        raise DataError(
            f"cannot read {path}: {what}{error.strerror}; mend it or take it out of the corpus"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a regular file; move it out of the corpus")
    return CorpusFile(
        name=str(PurePosixPath(path.relative_to(root))),
        path=path,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def _nothing_found(root: Path, corpus: CorpusConfig, others: Counter[str]) -> str:
    wanted = ", ".join(corpus.suffixes)
    if not others:
        return f"corpus.path={root}: the folder is empty; expected files with {wanted}"
    seen = ", ".join(f"{suffix} ({count})" for suffix, count in others.most_common(5))
    return (
        f"corpus.path={root}: no file with {wanted} (corpus.suffixes); found {seen};"
        " accepted are .txt, .md, .rst, .py, .jsonl, .parquet"
    )
