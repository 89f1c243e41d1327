"""CSV written by scripts around DCGM: fields by DCGM's names, or with its activity columns."""

from __future__ import annotations

from harness.formats.recipe import refusal
from harness.formats.tables import open_table, shape_of
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, Options, ReaderStream

NAME = "dcgm csv"

_OWN = (
    "dcgm_fi_",
    "sm_active",
    "tensor_active",
    "dram_active",
    "gr_engine_active",
    "pcie_tx_bytes",
    "nvlink_tx_bytes",
    "throttle_reasons",
)


def claims(head: Head) -> Claim | None:
    """Sure of two columns that only DCGM measures."""
    shape = shape_of(head)
    if shape is None:
        return None
    own = [name for name in shape.layout.header if name.lower().startswith(_OWN)]
    if len(own) < 2:
        return None
    return Claim(score=85, why=f"header with DCGM's fields ({', '.join(own[:3])}, ...)")


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """The stream of such a file.

    Raises:
        FormatError: it cannot be triaged.
    """
    shape = shape_of(source.head)
    if shape is None:
        raise refusal(source.path, "no header with DCGM's fields")
    return open_table(source, options, shape, format_name=NAME, why=why)
