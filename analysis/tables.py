"""The command that rebuilds every table and figure from records: ``python -m analysis.tables``.

Writes NAME.csv and NAME.md per table and figures/NAME.svg and .png, and prints the tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis import console
from analysis.audit import audit_rows
from analysis.calibrations import Calibration, load_calibrations
from analysis.derive import Measures, measure
from analysis.groups import Group, group_runs
from analysis.load import Results, load_results
from analysis.markdown import to_markdown
from analysis.power import power_table
from analysis.reference import load_power_triage
from analysis.reported import Reported, load_reported
from analysis.run_rows import audit_table, statistics_table
from analysis.scaling import scaling_table
from analysis.scaling_rows import FACTOR
from analysis.table import Table, to_csv, to_text
from analysis.triage_evaluation import evaluation_table
from harness.errors import RecordError
from harness.record.run_dir import write_text
from harness.triage.bands import Table as PowerTable
from harness.triage.bands import load_table

REPORT_TABLE, TRACES_TABLE = "b300-report", "h100-sxm-traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything derived from one results folder and the reference."""

    results: Results
    measures: tuple[Measures, ...]
    scaling_groups: tuple[Group, ...]
    reported: Reported
    calibrations: tuple[Calibration, ...]
    report_table: PowerTable
    traces_table: PowerTable
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """The table of that name."""
        return next(t for t in self.tables if t.name == name)


def analyse(results_root: Path) -> Analysis:
    """Read a results folder and make every table of it.

    Raises:
        RecordError: the folder is a file, or the reference is not installed.
    """
    results = load_results(results_root)
    measures = tuple(measure(run) for run in results.runs)
    groups = group_runs([m for m in measures if FACTOR in m.run.factors], (FACTOR,))
    reported = load_reported()
    calibrations = load_calibrations(results)
    report_table, traces_table = load_table(REPORT_TABLE), load_table(TRACES_TABLE)
    return Analysis(
        calibrations=calibrations,
        report_table=report_table,
        traces_table=traces_table,
        results=results,
        measures=measures,
        scaling_groups=groups,
        reported=reported,
        tables=(
            scaling_table(results, groups, reported),
            power_table(calibrations, load_power_triage(), report_table, traces_table),
            evaluation_table(calibrations),
            statistics_table(results, measures),
            audit_table(audit_rows()),
        ),
    )


def write_tables(tables: Sequence[Table], out: Path) -> None:
    """Write NAME.csv and NAME.md of every table below ``out``.

    Raises:
        RecordError: the folder cannot be written.
    """
    for table in tables:
        write_text(out / f"{table.name}.csv", to_csv(table))
        write_text(out / f"{table.name}.md", to_markdown(table))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tables", description=__doc__)
    add_folders(parser)
    parser.add_argument("--no-figures", action="store_true", help="tables only")
    parser.add_argument("--only", metavar="NAME", help="print this table alone; all are written")
    args = parser.parse_args(argv)
    return console.guarded(
        lambda: _run(args.results, args.out, draw=not args.no_figures, only=args.only)
    )


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add ``--results`` and ``--out`` to a command."""
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="folder of the records (default: results)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder to write to (default: <results>/tables)"
    )


def _run(results: Path | None, out: Path | None, *, draw: bool, only: str | None) -> int:
    root = console.results_folder(results)
    out = out or root / "tables"
    analysis = analyse(root)
    names = [table.name for table in analysis.tables]
    if only is not None and only not in names:
        raise RecordError(f"--only {only}: there is {', '.join(names)}")
    write_tables(analysis.tables, out)
    printed = [table for table in analysis.tables if only in {None, table.name}]
    console.show("\n\n".join(to_text(table) for table in printed))
    console.warn(analysis.results.warnings)
    if analysis.results.num_skipped:
        console.warn([f"skipped, named above: {analysis.results.num_skipped} records"])
    console.show(f"written: {out}/{{{','.join(t.name for t in analysis.tables)}}}.{{csv,md}}")
    if draw:
        from analysis.figures import draw_all  # matplotlib is slow to load and optional

        paths = draw_all(analysis, out / "figures")
        console.show("drawn: " + ", ".join(str(p) for p in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
