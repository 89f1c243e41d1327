"""Writing under the cache folder so that a reader sees all of a file or folder, or nothing."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from harness import files
from harness.errors import DataError

_LOG = logging.getLogger(__name__)


def naming(path: Path) -> AbstractContextManager[None]:
    """Turn an ``OSError`` on ``path`` into a DataError that says what to do."""
    return files.naming(path, setting="cache_dir", error=DataError)


def publish_text(path: Path, text: str) -> None:
    """Write a file beside its place, sync it and rename it there.

    Raises:
        DataError: the disk is full or the folder cannot be written.
    """
    files.write_text(path, text, setting="cache_dir", error=DataError)


@contextmanager
def publish_folder(folder: Path) -> Generator[Path]:
    """Give an empty hidden folder that becomes ``folder`` when the block ends without an error.

    What an earlier, killed build left behind is removed first. Call it under :func:`locked`.

    Raises:
        DataError: the disk is full or the folder cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    with naming(folder):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            files.sync_folder(partial)
            partial.rename(folder)
            files.sync_folder(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock of ``path``, waiting for the process that holds it; its pid is logged.

    The kernel drops the lock of a process that dies, however it dies.

    Raises:
        DataError: the folder of ``path`` cannot be written.
    """
    lock = path.with_name(f".{path.name}.lock")
    with naming(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with naming(lock):
            _take(fd, path)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _take(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        _LOG.warning("waiting for process %s, which is building %s", holder, path)
        fcntl.flock(fd, fcntl.LOCK_EX)
