"""Any long or wide CSV: by names that we know, or by the columns that the user names.

Long: a row is one GPU at one time. Wide: a row is one time, and a header like ``gpu3_power_w`` or
``GPU3`` names the GPU. ``--columns time=when,power=board_w,gpu=card`` maps names of your own (or
positions from 0); a wide file maps ``power.0=left,power.1=right``.
"""

from __future__ import annotations

from harness.formats.recipe import refusal
from harness.formats.tables import open_table, shape_by_names, shape_of
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, Options, ReaderStream

NAME = "generic csv"


def claims(head: Head) -> Claim | None:
    """A guess from names of columns; every other reader goes first."""
    shape = shape_of(head)
    if shape is None or not shape.layout.header:
        return None
    if shape.layout.is_wide:
        numbers = [str(device.index) for device in shape.layout.devices]
        return Claim(score=45, why=f"a column of watts for each GPU ({', '.join(numbers)})")
    names = ", ".join(f"{ours} {theirs}" for ours, theirs in shape.layout.names().items())
    return Claim(score=40, why=f"a header with names that we know ({names})")


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """The stream of such a file.

    Raises:
        FormatError: it cannot be triaged, or ``--columns`` names what is not there.
    """
    if options.columns is not None:
        shape = shape_by_names(source, options)
    else:
        found = shape_of(source.head)
        if found is None:
            raise refusal(source.path, "no column names that we know; name them with --columns")
        shape = found
    return open_table(source, options, shape, format_name=NAME, why=why)
