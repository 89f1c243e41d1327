"""Records as pandas frames, for notebooks: every step and every run, nothing averaged away.

from analysis.frames import runs_frame, steps_frame
steps = steps_frame("results")
steps[~steps.is_warmup].groupby("run_id").duration_s.describe()
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.derive import measure
from analysis.load import Run, load_results
from analysis.steps import step_rows
from harness.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

_MEASURES = (
    "status",
    "is_clean",
    "num_steps",
    "num_warmup_steps",
    "is_settled",
    "step_time_s",
    "tokens_per_second",
    "data_wait_share",
    "epoch_tokens",
    "gpu_hours_per_epoch",
    "joules_per_token",
    "peak_memory_bytes",
    "alloc_retries",
    "device",
)


def steps_frame(results: str | Path) -> pd.DataFrame:
    """One row per run and optimizer step: slowest rank, longest wait, sum of tokens.

    Args:
        results: A results folder; curated runs below ``measured`` are included.

    Raises:
        MissingExtraError: pandas is not installed.
        RecordError: ``results`` is not a folder.
    """
    rows = [
        {**_identity(run), **asdict(row)}
        for run in load_results(Path(results)).runs
        for row in step_rows(run)
    ]
    return _frame(rows)


def runs_frame(results: str | Path) -> pd.DataFrame:
    """One row per run, failed ones included: status, rates over the steady steps, and its factors.

    Args:
        results: A results folder; curated runs below ``measured`` are included.

    Raises:
        MissingExtraError: pandas is not installed.
        RecordError: ``results`` is not a folder.
    """
    rows: list[dict[str, Any]] = []
    for run in load_results(Path(results)).runs:
        measures = measure(run)
        found = {name: getattr(measures, name) for name in _MEASURES}
        rows.append({**_identity(run), **found, "mfu": measures.mfu.value})
    return _frame(rows)


def _identity(run: Run) -> dict[str, Any]:
    trial = run.manifest.trial
    return {
        "machine": run.machine,
        "experiment": run.experiment,
        "run_id": trial.run_id,
        "label": run.manifest.label.value,
        "world_size": trial.world_size,
        "block": trial.block,
        "repeat": trial.repeat,
    }


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("pandas", "analysis") from error
    return pd.DataFrame(rows)
