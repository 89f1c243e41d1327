"""From the records of a calibration campaign to the power table of its GPUs.

:mod:`harness.phase_windows` joins phases with telemetry, :mod:`harness.triage.calibrate` makes the
table; this module says what the table is of, and writes it beside the records. All of it can be
made again from the records, and analysis does. What was replayed is called so, in name, label and
notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from harness.errors import HarnessError, RecordError
from harness.phase_windows import PhaseRun, PhaseWindow, read_phase_run
from harness.record.read import read_manifest, read_summary
from harness.record.run_dir import RunDir, write_text
from harness.record.schema import Label, Manifest, Status
from harness.samples import PowerKind, PowerScope
from harness.triage.bands import Band, Table, TableLabel, table_to_yaml
from harness.triage.calibrate import CalibrationMeta, CalibrationResult, PhaseSamples, calibrate

T = TypeVar("T", str, float)

TABLE_FILE = "table.yaml"
_WINDOW_S = 1.0  # triage judges windows of one second, so the bands are of such
_NOT_REAL = {"emulated": "emulated", "slept": "slept through"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The table of one campaign, what it was made of, and what is to be known beside it."""

    result: CalibrationResult
    windows: tuple[PhaseWindow, ...]
    run_ids: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def table(self) -> Table:
        """The table."""
        return self.result.table


def write_table(experiment_dir: Path) -> tuple[str, ...]:
    """Make the table of a campaign and write it; gives sentences for whoever runs it.

    Raises:
        RecordError: the folder cannot be written.
    """
    folders = [path.parent for path in sorted(experiment_dir.glob("*/summary.json"))]
    try:
        calibrated = calibrate_runs([f for f in folders if is_usable(f)])
    except HarnessError as error:
        return (f"no power table: {error}",)
    path = experiment_dir / TABLE_FILE
    write_text(path, HEAD + table_to_yaml(calibrated.table))
    return (f"power table ({calibrated.table.label}): {path}", *describe(calibrated))


HEAD = """\
# Made by python -m harness experiment=calibration from the records beside it.
# Use it: python -m harness.triage FILE --table THIS_FILE
"""


def is_usable(run_root: Path) -> bool:
    """Whether a run went to its end; earlier tries stand beside it and do not count."""
    is_try = re.search(r"\.try\d+$", run_root.name) is not None
    return not is_try and read_summary(RunDir(run_root).summary).status is Status.FINISHED


def describe(calibrated: Calibrated) -> tuple[str, ...]:
    """What the table separates and what it does not, in sentences."""
    result = calibrated.result
    overlaps = [f"{o.below} and {o.above}" for o in result.overlaps]
    lines = [f"watts do not tell apart: {', '.join(overlaps)}"] if overlaps else []
    watts, baseline = result.confusion_watts, result.confusion_baseline
    if watts is None or baseline is None or watts.macro_f1 is None or baseline.macro_f1 is None:
        lines.append("no window was held out: three windows a phase are the least for a score")
    else:
        lines.append(
            f"on {result.num_held_out} held-out windows of one second ({result.table.label}):"
            f" F1 {watts.macro_f1:.2f} by watts and this table, {baseline.macro_f1:.2f} by"
            " utilization alone"
        )
    return (*lines, *calibrated.notes)


def calibrate_runs(run_roots: Sequence[Path]) -> Calibrated:
    """Make one table of the runs of one campaign.

    Raises:
        RecordError: there is no finished run, or the runs are of different GPUs, limits or meters.
        MetricError: too few states have readings of power.
    """
    if not run_roots:
        raise RecordError("no run of this calibration has finished")
    manifests = [read_manifest(RunDir(root).manifest) for root in run_roots]
    runs = [read_phase_run(root) for root in run_roots]
    windows = [w for run in runs for w in run.windows]
    # In turn over the GPUs, so that the windows held out are not all of one.
    windows.sort(key=lambda w: (w.run_id, w.window, w.gpu))
    notes = [note for run in runs for note in run.notes]
    meta = _meta(manifests, runs, windows)
    result = calibrate([_samples(w) for w in windows if w.state is not None], meta)
    return Calibrated(
        result=_mark_emulated(result, windows),
        windows=tuple(windows),
        run_ids=tuple(root.name for root in run_roots),
        notes=tuple(notes),
    )


def _samples(window: PhaseWindow) -> PhaseSamples:
    assert window.state is not None
    return PhaseSamples(
        state=window.state,
        variant=window.variant,
        t_s=window.t_s,
        power_w=window.power_w,
        utilization_pct=window.utilization_pct,
        memory_used_bytes=window.memory_used_bytes,
        is_emulated=window.load == "emulated",
    )


def _meta(
    manifests: Sequence[Manifest], runs: Sequence[PhaseRun], windows: Sequence[PhaseWindow]
) -> CalibrationMeta:
    first = manifests[0]
    recordings = [run.recording for run in runs if run.recording is not None]
    is_replay = bool(recordings) or any(m.label is Label.REPLAY for m in manifests)
    device = str(recordings[0]["device"]) if recordings else _device(manifests, runs)
    limit_w = _only([w for run in runs for w in run.limits_w], "enforced power limits")
    drivers = sorted({host.driver or "" for m in manifests for host in m.hosts})
    gpus = sorted({gpu for run in runs for gpu in run.gpus})
    return CalibrationMeta(
        name=f"{'replay-' if is_replay else ''}{_slug(device)}-{limit_w:g}w",
        device=device,
        device_names=() if is_replay else (device,),
        limit_w=limit_w,
        power_kind=PowerKind(_only([k for r in runs for k in r.power_kinds], "kinds of power")),
        power_scope=PowerScope(_only([s for r in runs for s in r.power_scopes], "power scopes")),
        driver=None if is_replay else _only(drivers, "drivers") or None,
        num_gpus=len(gpus),
        label=TableLabel.REPLAY if is_replay else TableLabel.REAL,
        source=_source(manifests, recordings[0] if recordings else None),
        date=datetime.fromtimestamp(first.t_unix_s, tz=UTC).date().isoformat(),
        window_s=_WINDOW_S,
        seed=int(first.config["experiment"]["design"]["seed"]),
        notes=(
            *_table_notes(recordings[0] if recordings else None, windows),
            *_smoothing_notes(manifests),
        ),
    )


def _source(manifests: Sequence[Manifest], recording: Mapping[str, object] | None) -> str:
    runs = f"{len(manifests)} run(s) of experiment=calibration"
    if recording is not None:
        return f"replay of {recording['name']} ({recording['provenance']}) in {runs}"
    return runs


def _table_notes(
    recording: Mapping[str, object] | None, windows: Sequence[PhaseWindow]
) -> tuple[str, ...]:
    notes: list[str] = []
    if recording is not None:
        notes.append(f"replay: {recording['provenance']}; these watts say nothing about any GPU")
    for load, said in _NOT_REAL.items():
        phases = sorted({w.phase for w in windows if w.load == load})
        if phases:
            notes.append(f"{said}: {', '.join(phases)}")
    return tuple(notes)


def _smoothing_notes(manifests: Sequence[Manifest]) -> tuple[str, ...]:
    smoothed = any(g.power_smoothing for m in manifests for host in m.hosts for g in host.gpus)
    return ("power smoothing was on: an idle GPU may burn watts on purpose",) if smoothed else ()


def _device(manifests: Sequence[Manifest], runs: Sequence[PhaseRun]) -> str:
    """The one model of the GPUs that were used, as the driver names it."""
    used = {gpu for run in runs for gpu in run.gpus}
    known = [gpu for m in manifests for host in m.hosts for gpu in host.gpus]
    names = sorted({gpu.name for gpu in known if gpu.uuid in used and gpu.name is not None})
    return _only(names, "GPU models")


def _only(values: Sequence[T], what: str) -> T:
    found = sorted(set(values))
    if len(found) != 1:
        told = ", ".join(str(value) for value in found) or "none"
        raise RecordError(
            f"a power table is of one GPU model at one limit; found {len(found)} {what} ({told}):"
            " calibrate them one by one, with CUDA_VISIBLE_DEVICES and a results_dir for each"
        )
    return found[0]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _mark_emulated(result: CalibrationResult, windows: Sequence[PhaseWindow]) -> CalibrationResult:
    """Label the band of a collective that a flag stood in for."""
    if result.table.label is not TableLabel.REAL:
        return result
    emulated = {(w.state, w.variant) for w in windows if w.load == "emulated"}

    def marked(band: Band) -> Band:
        is_emulated = (band.state, band.variant) in emulated
        return replace(band, label=TableLabel.EMULATED) if is_emulated else band

    bands = tuple(marked(band) for band in result.table.bands)
    return replace(result, table=replace(result.table, bands=bands))
