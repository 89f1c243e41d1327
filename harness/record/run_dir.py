"""Where each record of a run lies, and the writers that put it there.

One writer per file. JSON Lines files only grow, one flushed line a record; whole files are
published by a rename. A full disk or a missing permission is one line that names the file.
"""

from __future__ import annotations

import json
import os
import struct
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import files
from harness.errors import RecordError
from harness.parse import to_plain
from harness.record.schema import Event, EventKind, Heartbeat, Phase

_HEARTBEAT = struct.Struct("<qd16s")  # step, t_unix_s, phase in ASCII padded with NUL


class RunDir:
    """Paths of one run: ``results/<experiment>/<run_id>/``."""

    def __init__(self, root: Path) -> None:
        """Name the folder ``root``; nothing is created."""
        self.root = root

    @property
    def manifest(self) -> Path:
        """``manifest.json``."""
        return self.root / "manifest.json"

    @property
    def summary(self) -> Path:
        """``summary.json``."""
        return self.root / "summary.json"

    def steps(self, rank: int) -> Path:
        """Step records of one rank."""
        return self.root / "steps" / f"rank{rank:05d}.jsonl"

    def telemetry(self, node: int) -> Path:
        """Telemetry samples of one node."""
        return self.root / "telemetry" / f"node{node:03d}.jsonl"

    def heartbeat(self, rank: int) -> Path:
        """Heartbeat of one rank."""
        return self.root / "heartbeat" / f"rank{rank:05d}"

    def events(self, writer: str) -> Path:
        """Events of one writer: ``rank00000``, ``node000``, ``torchrun000``, ``sampler000``."""
        return self.root / "events" / f"{writer}.jsonl"

    def log(self, name: str) -> Path:
        """A text log, say ``rank00000.out``; for people only, nothing reads it back."""
        return self.root / "logs" / name

    def create(self) -> None:
        """Make the folders of a run.

        Raises:
            RecordError: the folder cannot be written.
        """
        with naming(self.root):
            for name in ("steps", "telemetry", "heartbeat", "events", "logs"):
                (self.root / name).mkdir(parents=True, exist_ok=True)


class JsonlWriter:
    """Appends records to one JSON Lines file, one unbuffered write per line."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending; its folder is created."""
        self.path = path
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, record: object) -> None:
        """Write one dataclass as one line.

        Raises:
            RecordError: the disk is full or the file is gone; names the file.
        """
        line = json.dumps(to_plain(record), separators=(",", ":"), allow_nan=False) + "\n"
        with naming(self.path):
            _append(self._fd, line.encode())

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> JsonlWriter:
        """Give the writer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()


class EventWriter:
    """Appends events under one writer's name."""

    def __init__(self, run_dir: RunDir, writer: str) -> None:
        """Open ``events/<writer>.jsonl`` of ``run_dir``."""
        self._writer = JsonlWriter(run_dir.events(writer))

    def write(self, kind: EventKind, rank: int | None = None, **detail: Any) -> None:
        """Record that ``kind`` happened now, with free ``detail`` that JSON can hold."""
        self._writer.append(Event(t_unix_s=time.time(), kind=kind, rank=rank, detail=detail))

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._writer.close()


class HeartbeatWriter:
    """Overwrites one fixed-size record in place, so that a reader never sees half of two."""

    def __init__(self, path: Path) -> None:
        """Open ``path``; its folder is created."""
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def beat(self, step: int, phase: Phase) -> None:
        """Say that ``step`` is under way in ``phase``, now."""
        os.pwrite(self._fd, _HEARTBEAT.pack(step, time.time(), phase.encode()), 0)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Read the last beat; null when the rank has not beaten yet."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) != _HEARTBEAT.size:
        return None
    step, t_unix_s, phase = _HEARTBEAT.unpack(raw)
    return Heartbeat(step=step, phase=Phase(phase.rstrip(b"\0").decode()), t_unix_s=t_unix_s)


def write_json(path: Path, record: object) -> None:
    """Publish a whole record: written beside, synced, renamed; never half of it.

    Raises:
        RecordError: the disk is full or the folder cannot be written; names the file.
    """
    write_text(path, json.dumps(to_plain(record), indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Publish a text file atomically.

    Raises:
        RecordError: the disk is full or the folder cannot be written; names the file.
    """
    files.write_text(path, text, setting="results_dir", error=RecordError)


def naming(path: Path) -> AbstractContextManager[None]:
    """Turn an ``OSError`` on ``path`` into a RecordError that says what to do."""
    return files.naming(path, setting="results_dir", error=RecordError)


def _append(fd: int, data: bytes) -> None:
    """Write all of ``data``, or none of it: half a line would join the next one."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            written = len(data) - len(view)
            if written:
                os.ftruncate(fd, os.fstat(fd).st_size - written)
            raise
