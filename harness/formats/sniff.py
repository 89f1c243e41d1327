"""The one sniffer: names the format of a file, and why, and opens it.

Each reader looks at the first 64 KiB and says how sure it is; the surest one reads the file. With
``--columns`` the file is a table of the user's own and no reader is asked. The shape of a reader is
in the package's docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, cast

from harness.errors import FormatError
from harness.formats import (
    amd_smi_csv,
    dcgm_csv,
    dmon,
    generic_csv,
    mlperf_log,
    nvidia_smi_csv,
    nvitop_csv,
    own_jsonl,
    prometheus_json,
    prometheus_text,
    rocm_smi_text,
    smi_table,
    trainer_json,
    wandb_jsonl,
)
from harness.formats.recipe import refusal
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, Options, ReaderStream
from harness.samples import SampleStream


class Reader(Protocol):
    """What a format module exports."""

    NAME: str
    claims: Callable[[Head], Claim | None]
    open_file: Callable[[TextSource, Options, str], ReaderStream]


READERS = cast(
    "tuple[Reader, ...]",
    (
        nvidia_smi_csv,
        dmon,
        smi_table,
        dcgm_csv,
        prometheus_text,
        prometheus_json,
        wandb_jsonl,
        nvitop_csv,
        amd_smi_csv,
        rocm_smi_text,
        mlperf_log,
        trainer_json,
        own_jsonl,
        generic_csv,
    ),
)
"""Every format we read; add a module here, in any order."""


def format_names() -> tuple[str, ...]:
    """The names that ``format`` of ``open_stream`` accepts."""
    return tuple(reader.NAME for reader in READERS)


def open_stream(
    path: Path,
    *,
    period_s: float | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,  # noqa: A002 - the word that the option and the account use
) -> SampleStream:
    """Open a telemetry file of any known format, gzip or not.

    Args:
        path: The file.
        period_s: Time from tick to tick, for a file that has no times of its own.
        columns: Our column (``time``, ``power``, ``gpu``, ``utilization``, ...) -> the file's, for
            a table with names of its own.
        format: One of ``format_names()``, to overrule the sniffer.

    Raises:
        FormatError: the file cannot be triaged; says why, and how to record one that can.
    """
    if period_s is not None and not 0.0 < period_s < 86400.0:
        raise FormatError(f"--period {period_s:g}: expected seconds, more than 0 and under a day")
    source = TextSource(path)
    options = Options(period_s=period_s, columns=dict(columns) if columns else None)
    reader, why = _choose(source, options, format)
    return reader.open_file(source, options, why).prime()


def _choose(source: TextSource, options: Options, name: str | None) -> tuple[Reader, str]:
    if name is not None:
        for reader in READERS:
            if name == reader.NAME:
                return reader, "named by --format"
        raise FormatError(f"--format {name}: unknown; one of {', '.join(format_names())}")
    if options.columns is not None:
        return cast("Reader", generic_csv), "its columns are named by --columns"
    claims = [(reader.claims(source.head), reader) for reader in READERS]
    scored = [(claim, reader) for claim, reader in claims if claim is not None]
    if not scored:
        raise refusal(source.path, "no known telemetry format")
    claim, reader = max(scored, key=lambda pair: pair[0].score)
    return reader, claim.why
