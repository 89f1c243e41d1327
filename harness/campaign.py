"""One campaign at a time in a results folder: its lock, its file, and what resuming may not change.

``campaign.json`` is written once, before the first trial. Running the same command again resumes:
trials that ended stand, the rest runs. A plan that is not part of the campaign is refused, and so
are drifted code or machines, unless the drift is accepted and marked on every row.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.errors import ConfigError, RecordError
from harness.record.read import read_campaign, read_manifest, read_summary
from harness.record.run_dir import RunDir, naming, write_json
from harness.record.schema import RERUN_STATUSES, Campaign, CodeState, Summary


@contextmanager
def results_lock(results_dir: Path) -> Generator[None]:
    """Hold ``results_dir`` for one campaign; two at once would disturb each other's figures.

    Raises:
        RecordError: the folder cannot be written, or another campaign holds it; names its pid.
    """
    with naming(results_dir):
        results_dir.mkdir(parents=True, exist_ok=True)
        file = (results_dir / ".lock").open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise RecordError(
                f"{results_dir}: a campaign is running here already (pid {pid});"
                " wait for it, or set results_dir=DIR"
            ) from error
        with naming(results_dir / ".lock"):
            file.seek(0)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
        yield


def set_aside(folder: Path, suffix: str) -> Path | None:
    """Rename ``folder`` to the first free ``<folder>.<suffix><k>``; null when there is none."""
    if not folder.exists():
        return None
    k = 1
    while (aside := folder.with_name(f"{folder.name}.{suffix}{k}")).exists():
        k += 1
    with naming(folder):
        folder.rename(aside)
    return aside


def open_campaign(
    experiment_dir: Path, campaign: Campaign, *, accept_drift: bool
) -> tuple[str, ...]:
    """Start ``campaign``, or go on with the one that is there; see :func:`check_campaign`."""
    path = experiment_dir / "campaign.json"
    if path.exists():
        return check_campaign(experiment_dir, campaign, accept_drift=accept_drift)
    write_json(path, campaign)
    return ()


def check_campaign(
    experiment_dir: Path, campaign: Campaign, *, accept_drift: bool
) -> tuple[str, ...]:
    """Check that ``campaign`` goes on with the one in ``experiment_dir``, if there is one.

    Returns:
        What differs from the stored campaign, by name; empty unless ``accept_drift``.

    Raises:
        ConfigError: the plan is not part of the stored one, or code or machines have drifted.
        RecordError: the stored campaign is of another schema version or unreadable.
    """
    path = experiment_dir / "campaign.json"
    if not path.exists():
        return ()
    stored = read_campaign(path)
    known = {trial.run_id for trial in stored.trials}
    unknown = [trial.run_id for trial in campaign.trials if trial.run_id not in known]
    if unknown:
        raise ConfigError(
            f"{path}: this campaign has another plan ({len(unknown)} of {len(campaign.trials)}"
            f" trials are not in it, first {unknown[0]}); go on with the command that started it,"
            " set results_dir=DIR, or start anew with fresh=true (the old one is kept beside)"
        )
    drift = (*_code_drift(stored.code, campaign.code), *_drift(stored.devices, campaign.devices))
    if drift and not accept_drift:
        raise ConfigError(
            f"{path}: not the same as when this campaign began: {'; '.join(drift)};"
            " start anew with fresh=true, or go on with accept_drift=true (every row is marked)"
        )
    return drift


def ended(run_root: Path, *, retry_failed: bool) -> Summary | None:
    """The summary of a trial that stands and is not to run again, else null.

    Raises:
        RecordError: its summary is of another schema version or unreadable.
    """
    path = RunDir(run_root).summary
    if not path.exists():
        return None
    summary = read_summary(path)
    read_manifest(RunDir(run_root).manifest)
    if summary.status in RERUN_STATUSES:
        return None
    if retry_failed and summary.status is not summary.expected_status:
        return None
    return summary


def num_tries(run_root: Path) -> int:
    """How many earlier tries of this run were set aside."""
    return len(list(run_root.parent.glob(f"{run_root.name}.try*")))


def _code_drift(stored: CodeState, now: CodeState) -> tuple[str, ...]:
    """Code drifts where its source or its pins differ; a commit of anything else does not count."""
    return tuple(
        f"{name} was {_short(getattr(stored, name))}, is {_short(getattr(now, name))}"
        for name in ("lock_hash", "source_hash")
        if getattr(stored, name) != getattr(now, name)
    )


def _drift(stored: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{name} was {stored.get(name, 'not there')}, is {now.get(name, 'not there')}"
        for name in sorted({*stored, *now})
        if stored.get(name) != now.get(name)
    )


def _short(value: str | None) -> str:
    return "none" if value is None else value[:12]
