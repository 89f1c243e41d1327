"""``nvidia-smi --query-gpu=... --format=csv``: any columns, any order, with or without a header."""

from __future__ import annotations

from harness.formats.recipe import refusal
from harness.formats.tables import Shape, open_table, shape_of
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, Options, ReaderStream

NAME = "nvidia-smi csv"

_OWN = ("utilization.", "memory.", "power.", "clocks", "temperature.", "pstate", "timestamp")


def claims(head: Head) -> Claim | None:
    """Sure of dotted names with units; fairly sure of rows with ``W``, ``%`` and ``MiB``."""
    shape = shape_of(head)
    if shape is None:
        return None
    if not shape.layout.header:
        return Claim(score=65, why="no header; its cells carry a time and the units of nvidia-smi")
    names = [name.lower() for name in shape.layout.header]
    own = [name for name in names if name.startswith(_OWN)]
    if len(own) >= 2 and any("." in name for name in own):
        return Claim(score=80, why=f"header of nvidia-smi --query-gpu ({', '.join(own[:3])}, ...)")
    return None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """The stream of such a file.

    Raises:
        FormatError: it cannot be triaged.
    """
    shape = _shape(source)
    if _is_mig(source.head, shape):
        raise refusal(
            source.path,
            "MIG is enabled: its instances have neither utilization nor watts of their own",
        )
    return open_table(source, options, shape, format_name=NAME, why=why)


def _is_mig(head: Head, shape: Shape) -> bool:
    names = [name.strip().lower() for name in shape.layout.header]
    if "mig.mode.current" not in names:
        return False
    column = names.index("mig.mode.current")
    rows = (line.split(",") for line in head.lines)
    return any(len(row) > column and row[column].strip() == "Enabled" for row in rows)


def _shape(source: TextSource) -> Shape:
    shape = shape_of(source.head)
    if shape is None:
        raise refusal(source.path, "neither a header of nvidia-smi nor rows with its units")
    return shape
