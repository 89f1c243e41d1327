"""A job on the grid of time that its GPUs share: when any of them worked, and when they waited."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.triage.classify import MINORITY, BoolArray, LevelArray
from harness.triage.states import ACTIVE_LEVELS, HOT_LEVELS, Level
from harness.triage.windows import FloatArray, Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A job, cell by cell; only cells in which one of its GPUs was observed have a row.

    Attributes:
        cell: Place on the grid.
        start_s: First sample of any GPU.
        end_s: End of the last window of any GPU.
        observed_s: Observed seconds, mean over the GPUs seen.
        samples: Samples, mean over the GPUs seen.
        is_active: More GPUs than may be odd drew the watts of work: the job moved.
        is_waiting: Not active, and half of the GPUs seen wait.
        has_work: Some GPU ran kernels and did not wait.
        has_pause_before: The sampler paused, for half of the GPUs seen.
    """

    cell: NDArray[np.int64]
    start_s: FloatArray
    end_s: FloatArray
    observed_s: FloatArray
    samples: FloatArray
    is_active: BoolArray
    is_waiting: BoolArray
    has_work: BoolArray
    has_pause_before: BoolArray


def make_timeline(
    windows: Windows, levels: LevelArray, bursts: BoolArray, pauses: BoolArray, job_size: int
) -> Timeline:
    """The job's cells.

    Args:
        windows: Those of its GPUs alone.
        levels: One per window.
        bursts: Windows with a sample at the watts of compute.
        pauses: Windows that do not follow the one before without a pause.
        job_size: GPUs of the job.
    """
    cell, row = np.unique(windows.cell, return_inverse=True)
    hot = np.isin(levels, HOT_LEVELS) | (bursts & (levels != Level.WEDGED))
    work = hot | np.isin(levels, ACTIVE_LEVELS)

    def count(mask: BoolArray) -> NDArray[np.int64]:
        return np.bincount(row[mask], minlength=len(cell))

    start_s, end_s = np.full(len(cell), np.inf), np.full(len(cell), -np.inf)
    np.minimum.at(start_s, row, windows.start_s)
    np.maximum.at(end_s, row, windows.end_s)
    num_gpus = max(len(np.unique(windows.gpu)), 1)
    num_seen = count(np.ones(len(row), dtype=np.bool_))
    # A pause cuts a GPU's window of one cell in two.
    num_seen_gpus = np.minimum(num_seen, num_gpus)
    is_active = count(hot) > np.floor(MINORITY * job_size)
    num_waiting = count((levels == Level.WAIT) & ~hot)
    pause = count(pauses) * 2 >= num_seen_gpus
    pause[:1] = True
    seconds = np.bincount(row, weights=windows.duration_s, minlength=len(cell))
    samples = np.bincount(row, weights=windows.count, minlength=len(cell))
    return Timeline(
        cell=cell,
        start_s=start_s,
        end_s=end_s,
        observed_s=seconds / np.maximum(num_seen_gpus, 1),
        samples=samples / np.maximum(num_seen_gpus, 1),
        is_active=is_active,
        is_waiting=~is_active & (num_waiting > 0) & (2 * num_waiting >= num_seen),
        has_work=count(work) > 0,
        has_pause_before=pause,
    )
