"""Reading records back: typed, strict about fields, tolerant of one torn last line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from harness.errors import ConfigError, RecordError
from harness.parse import parse
from harness.record.schema import SCHEMA_VERSION, Campaign, Event, Manifest, StepRecord, Summary

T = TypeVar("T")
_VERSIONED = TypeVar("_VERSIONED", Manifest, Campaign, Summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Generic[T]):
    """The records of one JSON Lines file, and how many torn last lines were left out (0 or 1)."""

    records: tuple[T, ...]
    torn: int


def read_jsonl(path: Path, cls: type[T]) -> Lines[T]:
    """Read every whole line of ``path`` as ``cls``; a missing file is empty.

    Raises:
        RecordError: a line that ends in a newline is not a record of ``cls``; names ``file:line``.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Lines(records=(), torn=0)
    lines = raw.split(b"\n")
    torn = 1 if lines[-1] else 0
    records = tuple(
        _line(path, number, line, cls) for number, line in enumerate(lines[:-1], start=1)
    )
    return Lines(records=records, torn=torn)


def read_steps(path: Path) -> Lines[StepRecord]:
    """Read the step records of one rank."""
    return read_jsonl(path, StepRecord)


def read_events(run_root: Path) -> Lines[Event]:
    """Read the events of every writer of a run, in order of time."""
    files = [read_jsonl(p, Event) for p in sorted((run_root / "events").glob("*.jsonl"))]
    events = sorted((e for f in files for e in f.records), key=lambda e: e.t_unix_s)
    return Lines(records=tuple(events), torn=sum(f.torn for f in files))


def read_manifest(path: Path) -> Manifest:
    """Read ``manifest.json``; see :func:`read_versioned` for errors."""
    return read_versioned(path, Manifest)


def read_campaign(path: Path) -> Campaign:
    """Read ``campaign.json``; see :func:`read_versioned` for errors."""
    return read_versioned(path, Campaign)


def read_summary(path: Path) -> Summary:
    """Read ``summary.json``; see :func:`read_versioned` for errors."""
    return read_versioned(path, Summary)


def read_versioned(path: Path, cls: type[_VERSIONED]) -> _VERSIONED:
    """Read a whole-file record of this schema version.

    Raises:
        RecordError: missing, not JSON, of another schema version, or with other fields; says the
            repair.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RecordError(f"{path}: missing; is this a run folder?") from error
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); move it away") from error
    except ValueError as error:
        raise RecordError(
            f"{path}: not JSON ({error}); move its folder away to go on without it"
        ) from error
    if not isinstance(value, dict):
        raise RecordError(f"{path}: not a record; move its folder away to go on without it")
    record = cast("dict[str, Any]", value)
    found = record.get("schema_version")
    if found != SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema version {found}, this version reads {SCHEMA_VERSION};"
            " read it with the version that wrote it, or start anew with fresh=true"
        )
    try:
        return parse(cls, record)
    except ConfigError as error:
        raise RecordError(f"{path}: {error}") from error


def _line(path: Path, number: int, line: bytes, cls: type[T]) -> T:
    try:
        return parse(cls, json.loads(line))
    except (ValueError, ConfigError) as error:
        raise RecordError(f"{path}:{number}: {error}") from error
