"""``python -m harness.triage FILE...``: what did the GPUs of these telemetry files do?

Exit code 0: healthy, slow, starving or idle (--strict: 1 for slow and starving). 1: a deadlock, a
stalled save, a crashed rank or wedged GPUs. 2: it cannot be told, the file is refused, or the
command is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ConfigError, FormatError, HarnessError, MissingExtraError

if TYPE_CHECKING:
    from harness.triage.bands import Table
    from harness.triage.result import TriageResult

_PICTURE = "triage.png"


def main(argv: Sequence[str] | None = None) -> int:
    """Read, judge, report; give the exit code."""
    arguments = _arguments(argv)
    try:
        if arguments.list_tables:
            return _list_tables()
        return _triage(arguments)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m harness.triage",
        description="Tell computing, waiting, starving, saving and hanging GPUs apart by watts.",
        epilog="exit codes: 0 fine, 1 a hang or the like was found, 2 could not tell, wrong usage",
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="telemetry, one per host"
    )
    parser.add_argument("--table", metavar="NAME|PATH", help="calibrated bands; see --list-tables")
    parser.add_argument("--limit", type=_positive, metavar="W", help="enforced power limit, watts")
    parser.add_argument(
        "--period",
        type=_positive,
        metavar="S",
        help="seconds between samples, where none are given",
    )
    parser.add_argument(
        "--columns", type=_columns, metavar="OURS=THEIRS,...", help="names of the file's columns"
    )
    parser.add_argument("--gpu-hour-price", type=_positive, metavar="X", help="money per GPU-hour")
    parser.add_argument(
        "--accept-mismatch", action="store_true", help="use a table made at another limit anyway"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit code 1 for slow and starving too"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write triage.md, triage.json and the picture there"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--list-tables", action="store_true", help="list the shipped tables")
    arguments = parser.parse_args(argv)
    if not arguments.files and not arguments.list_tables:
        parser.error("no file; give telemetry files, one per host")
    return arguments


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def _columns(text: str) -> Mapping[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if any(not (ours.strip() and equals and theirs.strip()) for ours, equals, theirs in pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected ours=theirs pairs with commas between, as time=ts,power=watts"
        )
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def _list_tables() -> int:
    from harness.triage.bands import list_tables, load_table

    for name in list_tables():
        table = load_table(name)
        missing = [band.state.value for band in table.bands if band.median_w is None]
        note = f"; no watts known for {', '.join(missing)}" if missing else ""
        print(f"{name}: {table.device} at {table.limit_w:g} W, {table.label}{note}")
    return 0


def _triage(arguments: argparse.Namespace) -> int:
    from harness.triage.as_json import to_json
    from harness.triage.as_text import print_sections
    from harness.triage.bands import load_table
    from harness.triage.report import sections
    from harness.triage.result import exit_code

    table = load_table(arguments.table) if arguments.table else None
    result = _judge(arguments, table)
    if arguments.out is not None:
        _write(result, arguments.out)
    if arguments.json:
        print(json.dumps(to_json(result), allow_nan=False))
    else:
        print_sections(sections(result), sys.stdout)
    return exit_code(result, strict=arguments.strict)


def _judge(arguments: argparse.Namespace, table: Table | None) -> TriageResult:
    from harness.formats.recipe import RECIPE
    from harness.formats.sniff import open_stream
    from harness.triage.engine import triage_stream
    from harness.triage.result import refusal

    try:
        streams = [
            open_stream(path, period_s=arguments.period, columns=arguments.columns)
            for path in arguments.files
        ]
        result = triage_stream(
            streams,
            table=table,
            limit_w=arguments.limit,
            gpu_hour_price=arguments.gpu_hour_price,
            accept_mismatch=arguments.accept_mismatch,
        )
    except FormatError as error:
        return refusal(str(error))
    if result.refused is None or result.refused.startswith("the table"):
        return result
    recipe = f"{result.refused}; record a usable file with: {RECIPE}"
    return dataclasses.replace(result, refused=recipe)


def _write(result: TriageResult, out: Path) -> None:
    from harness.triage.as_json import to_json
    from harness.triage.as_text import to_markdown
    from harness.triage.report import sections

    try:
        out.mkdir(parents=True, exist_ok=True)
        picture = _draw(result, out / _PICTURE)
        text = json.dumps(to_json(result), indent=1, allow_nan=False)
        (out / "triage.json").write_text(text + "\n", encoding="utf-8")
        report = to_markdown(sections(result), picture=picture)
        (out / "triage.md").write_text(report, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error}") from error


def _draw(result: TriageResult, path: Path) -> str | None:
    """Write the picture and give its name; None, with a line that says why, where there is none."""
    if result.traces is None or result.is_snapshot:
        return None
    try:
        from harness.triage.picture import draw

        draw(result, path)
    except MissingExtraError as error:
        print(f"no picture: {error}", file=sys.stderr)
        return None
    return path.name


if __name__ == "__main__":
    sys.exit(main())
