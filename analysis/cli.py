"""The ``wattline`` script: one door to the commands that read records."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_COMMANDS = {
    "tables": "rebuild tables and figures from a results folder",
    "figures": "draw the figures alone",
    "report": "write REPORT.md from the curated results, or check that it is up to date",
    "curate": "copy a campaign into the curated results, without paths and host names",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its own ``--help`` tells its options."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(_usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "tables":
        from analysis import tables as command
    elif name == "figures":
        from analysis import figures as command
    elif name == "report":
        from analysis import report as command
    elif name == "curate":
        from analysis import curate as command
    else:
        print(f"error: {name}: no such command; one of {', '.join(_COMMANDS)}", file=sys.stderr)
        return 2
    return command.main(rest)


def _usage() -> str:
    lines = [f"  {name:<9}{what}" for name, what in _COMMANDS.items()]
    run = "To run an experiment: python -m harness --help"
    return "\n".join(["usage: wattline COMMAND [options]", "", *lines, "", run])
