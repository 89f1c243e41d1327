"""What every command of analysis does at its edge: one line for a user's error, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from analysis.table import DAGGER
from harness.errors import HarnessError, RecordError

DEFAULT_RESULTS = Path("results")


def guarded(command: Callable[[], int]) -> int:
    """Run a command: its exit code, or 2 with one line where the user can mend it."""
    try:
        code = command()
        sys.stdout.flush()
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def show(text: str) -> None:
    """Print; an ASCII terminal gets a plus for the dagger."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace(DAGGER, "+").encode(encoding, errors="replace").decode(encoding)
    print(text)


def warn(lines: Iterable[str]) -> None:
    """Print warnings, one a line, where they do not mix with the tables."""
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def results_folder(given: Path | None) -> Path:
    """The folder to read: the one given, which must be there, or the default, which need not.

    Raises:
        RecordError: the folder given is not there.
    """
    if given is None:
        return DEFAULT_RESULTS
    if not given.is_dir():
        raise RecordError(f"--results {given}: no such folder; give the folder of the experiments")
    return given
