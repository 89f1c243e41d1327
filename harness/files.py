"""Writing files so that a reader sees all of one or nothing, and naming what stands in the way."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import HarnessError

_FIXES = {
    errno.ENOSPC: "the disk is full; free space or set {setting}=DIR on another disk",
    errno.EDQUOT: "the quota is used up; free space or set {setting}=DIR elsewhere",
    errno.EACCES: "permission denied; set {setting}=DIR to a folder you can write",
    errno.EROFS: "the file system is read-only; set {setting}=DIR elsewhere",
    errno.ENOTDIR: "a file stands where a folder is needed; set {setting}=DIR elsewhere",
    errno.EEXIST: "a file stands where a folder is needed; set {setting}=DIR elsewhere",
}


@contextmanager
def naming(path: Path, *, setting: str, error: type[HarnessError]) -> Generator[None]:
    """Turn an ``OSError`` on ``path`` into ``error``, saying which ``setting`` mends it."""
    try:
        yield
    except OSError as cause:
        fix = _FIXES.get(cause.errno or 0, cause.strerror or str(cause))
        raise error(f"cannot write {path}: {fix.format(setting=setting)}") from cause


def write_text(path: Path, text: str, *, setting: str, error: type[HarnessError]) -> None:
    """Write a file beside its place, sync it, and rename it there; its folder is created.

    Raises:
        HarnessError: ``error``, when the disk is full or the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with naming(path, setting=setting, error=error):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in ``folder`` reach the disk; a rename alone may not."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
