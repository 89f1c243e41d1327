"""The calibration campaigns of a results folder, each made into its power table again.

The table that a campaign left beside its records is not read: everything here comes from events and
telemetry, so a curated folder needs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.load import Results, Run
from harness.calibration import Calibrated, calibrate_runs, describe
from harness.errors import HarnessError
from harness.phase_windows import PhaseWindow
from harness.record.schema import Label, Status
from harness.stats import Interval, mean_interval
from harness.triage.bands import Band


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One campaign: its runs, and its table or the ``problem`` why there is none."""

    machine: str
    experiment: str
    label: Label
    runs: tuple[Run, ...]
    calibrated: Calibrated | None
    problem: str

    @property
    def num_finished(self) -> int:
        """How many runs went to their end."""
        return sum(run.summary.status is Status.FINISHED for run in self.runs)

    @property
    def status(self) -> str:
        """``finished``, or how many runs ended in what way."""
        ends = [run.summary.status.value for run in self.runs]
        counts = {end: ends.count(end) for end in sorted(set(ends), key=ends.index)}
        if list(counts) == [Status.FINISHED.value]:
            return Status.FINISHED.value
        return ", ".join(f"{count} {end}" for end, count in counts.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known beside the table, in sentences."""
        if self.calibrated is None:
            return (self.problem,)
        return (*self.calibrated.table.provenance.notes, *describe(self.calibrated))


def load_calibrations(results: Results) -> tuple[Calibration, ...]:
    """Make the table of every calibration campaign, in order of machine and folder."""
    campaigns: dict[Path, list[Run]] = {}
    for run in results.runs:
        if run.is_calibration:
            campaigns.setdefault(run.folder.parent, []).append(run)
    found = [_calibration(runs) for runs in campaigns.values()]
    return tuple(sorted(found, key=lambda c: (c.label is Label.REPLAY, c.machine, c.experiment)))


def band_interval(calibrated: Calibrated, band: Band) -> Interval:
    """The mean over runs of a band's median watts, with its 95 % interval."""
    by_run: dict[str, list[PhaseWindow]] = {}
    for window in calibrated.windows:
        if (window.state, window.variant) == (band.state, band.variant):
            by_run.setdefault(window.run_id, []).append(window)
    return mean_interval([_median_w(windows) for windows in by_run.values()])


def _median_w(windows: Sequence[PhaseWindow]) -> float:
    return float(np.median(np.concatenate([window.power_w for window in windows])))


def _calibration(runs: Sequence[Run]) -> Calibration:
    finished = [run.folder for run in runs if run.summary.status is Status.FINISHED]
    calibrated, problem = None, ""
    try:
        calibrated = calibrate_runs(finished)
    except HarnessError as error:
        problem = f"no power table: {error}"
    replayed = any(run.manifest.label is Label.REPLAY for run in runs)
    return Calibration(
        machine=runs[0].machine,
        experiment=runs[0].experiment,
        label=Label.REPLAY if replayed else Label.REAL,
        runs=tuple(runs),
        calibrated=calibrated,
        problem=problem,
    )
