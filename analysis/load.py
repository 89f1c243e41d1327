"""Finding and reading the runs of a results folder: typed, tolerant, never silent.

Reads ``<root>/<experiment>/<run_id>/`` and ``<root>/measured/<machine>/<experiment>/<run_id>/``.
The machine of a run is the folder name under ``measured``, elsewhere the first host of its
manifest. Folders renamed to ``*.old<k>`` are passed over, ``*.try<k>`` are counted. A record that
cannot be read is named in a warning; what it belongs to becomes a row or is counted, never lost.
No ratio is made here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.power_trace import PowerTrace, load_power
from harness.config import Task
from harness.errors import RecordError
from harness.record.read import (
    read_campaign,
    read_events,
    read_manifest,
    read_steps,
    read_summary,
)
from harness.record.run_dir import RunDir
from harness.record.schema import (
    Campaign,
    Event,
    Manifest,
    Status,
    StepRecord,
    Summary,
    Trial,
)
from harness.record.summary import summary_of

MEASURED = "measured"
PASSED_OVER = frozenset({"reference", "tables", "figures"})
_OLD = re.compile(r"\.old\d+$")
_TRY = re.compile(r"^(?P<run_id>.+)\.try\d+$")
_RECORDS = ("summary.json", "steps", "events")
_MAX_DEPTH = 3  # measured / machine / experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run folder, read. ``problem`` says what of it could not be read, or is empty."""

    folder: Path
    machine: str
    experiment: str
    factors: tuple[str, ...]
    manifest: Manifest
    summary: Summary
    is_summary_rebuilt: bool
    steps: Mapping[int, tuple[StepRecord, ...]]
    events: tuple[Event, ...]
    power: tuple[PowerTrace, ...]
    tries: int
    torn_lines: int
    problem: str

    @property
    def is_calibration(self) -> bool:
        """Whether its ranks held phases, in windows, instead of taking steps."""
        return self.manifest.config.get("task") == Task.CALIBRATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A planned trial that has no record yet."""

    machine: str
    trial: Trial
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that a results folder holds; ``questions`` maps an experiment to its question."""

    runs: tuple[Run, ...]
    pending: tuple[Pending, ...]
    questions: Mapping[str, str]
    num_skipped: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experiment:
    """What one experiment folder holds."""

    campaign: Campaign | None
    runs: tuple[Run, ...]
    pending: tuple[Pending, ...]
    warnings: tuple[str, ...]
    num_skipped: int


def load_results(root: Path) -> Results:
    """Read every run below ``root``; a missing or empty folder holds no runs.

    Raises:
        RecordError: ``root`` is a file.
    """
    if root.exists() and not root.is_dir():
        raise RecordError(f"{root}: not a folder; give the folder that holds the experiments")
    found = [_load_experiment(folder) for folder in _experiment_folders(root, 0)]
    campaigns = [e.campaign for e in found if e.campaign is not None]
    return Results(
        runs=tuple(run for e in found for run in e.runs),
        pending=tuple(p for e in found for p in e.pending),
        questions={c.experiment: c.question for c in campaigns},
        num_skipped=sum(e.num_skipped for e in found),
        warnings=tuple(w.replace(f"{root}/", "") for e in found for w in e.warnings),
    )


def _experiment_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders that hold a campaign or runs, in order of name."""
    for child in _folders(folder):
        if child.name in PASSED_OVER or _OLD.search(child.name):
            continue
        if (child / "campaign.json").exists() or any(child.glob("*/manifest.json")):
            yield child
        elif depth + 1 < _MAX_DEPTH:
            yield from _experiment_folders(child, depth + 1)


def _load_experiment(folder: Path) -> _Experiment:
    warnings: list[str] = []
    campaign, skipped = _load_campaign(folder, warnings)
    tries: dict[str, int] = {}
    for child in _folders(folder):
        if match := _TRY.match(child.name):
            tries[match["run_id"]] = tries.get(match["run_id"], 0) + 1
    runs: list[Run] = []
    seen: set[str] = set()
    for child in _folders(folder):
        if _TRY.match(child.name):
            continue
        if not (child / "manifest.json").exists():
            if any((child / name).exists() for name in _RECORDS):
                skipped += 1
                warnings.append(f"skipped: {child}: it holds records and no manifest.json")
            continue
        seen.add(child.name)
        try:
            runs.append(load_run(child, campaign, earlier_tries=tries.get(child.name, 0)))
        except RecordError as error:
            skipped += 1
            warnings.append(f"skipped: {error}")
    machine = _machine_folder(folder) or (runs[0].machine if runs else "unknown")
    trials = campaign.trials if campaign else ()
    pending = tuple(
        Pending(machine=machine, trial=trial, tries=tries.get(trial.run_id, 0))
        for trial in trials
        if trial.run_id not in seen
    )
    return _Experiment(
        campaign=campaign,
        runs=tuple(runs),
        pending=pending,
        warnings=tuple(warnings),
        num_skipped=skipped,
    )


def _load_campaign(folder: Path, warnings: list[str]) -> tuple[Campaign | None, int]:
    path = folder / "campaign.json"
    if not path.exists():
        warnings.append(f"{path}: missing; its runs are read without their plan")
        return None, 0
    try:
        return read_campaign(path), 0
    except RecordError as error:
        warnings.append(f"skipped: {error}")
        return None, 1


def load_run(folder: Path, campaign: Campaign | None, *, earlier_tries: int) -> Run:
    """Read one run folder; a missing summary is rebuilt with status ``interrupted``.

    Raises:
        RecordError: the manifest or the summary is unreadable or of another schema version.
    """
    run_dir = RunDir(folder)
    manifest = read_manifest(run_dir.manifest)
    problems: list[str] = []
    steps, torn_steps = _load_steps(run_dir, manifest.trial.world_size, problems)
    events, torn_events = _load_events(folder, problems)
    power, torn_power = load_power(folder)
    torn = torn_steps + torn_events + torn_power
    is_rebuilt = not run_dir.summary.exists()
    summary = (
        _rebuilt(manifest, steps, events, torn_lines=torn, tries=earlier_tries + 1)
        if is_rebuilt
        else read_summary(run_dir.summary)
    )
    return Run(
        folder=folder,
        machine=_machine_folder(folder.parent) or _host(manifest),
        experiment=manifest.trial.experiment,
        factors=tuple(campaign.factors) if campaign else tuple(manifest.trial.levels),
        manifest=manifest,
        summary=summary,
        is_summary_rebuilt=is_rebuilt,
        steps=steps,
        events=events,
        power=power,
        tries=max(summary.tries, earlier_tries + 1),
        torn_lines=torn,
        problem="; ".join(problems).replace(f"{folder}/", ""),
    )


def _load_steps(
    run_dir: RunDir, world_size: int, problems: list[str]
) -> tuple[dict[int, tuple[StepRecord, ...]], int]:
    steps: dict[int, tuple[StepRecord, ...]] = {}
    torn = 0
    for rank in range(world_size):
        try:
            lines = read_steps(run_dir.steps(rank))
        except RecordError as error:
            problems.append(str(error))
            continue
        steps[rank] = lines.records
        torn += lines.torn
    return steps, torn


def _load_events(folder: Path, problems: list[str]) -> tuple[tuple[Event, ...], int]:
    try:
        lines = read_events(folder)
    except RecordError as error:
        problems.append(str(error))
        return (), 0
    return lines.records, lines.torn


def _rebuilt(
    manifest: Manifest,
    steps: Mapping[int, tuple[StepRecord, ...]],
    events: tuple[Event, ...],
    *,
    torn_lines: int,
    tries: int,
) -> Summary:
    """The summary that was never written: nobody saw this run end, whatever its records say."""
    by_rank = [steps.get(rank, ()) for rank in range(manifest.trial.world_size)]
    summary = summary_of(manifest, events, by_rank, torn_lines=torn_lines, tries=tries, drift=())
    detail = f"no summary.json (interrupted, or still running): {summary.detail}"
    return replace(summary, status=Status.INTERRUPTED, detail=detail)


def _machine_folder(experiment_folder: Path) -> str | None:
    parent = experiment_folder.resolve().parent
    return parent.name if parent.parent.name == MEASURED else None


def _host(manifest: Manifest) -> str:
    return manifest.hosts[0].host if manifest.hosts else "unknown"


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
