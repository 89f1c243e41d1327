"""Windows -> levels: what each window shows by itself, by watts and utilization and flatness.

Utilization is the share of time with any kernel running, a spinning collective included: it never
decides alone, and without it the idle and the waiting cannot be told apart uncalibrated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.hardware import find_device
from harness.samples import GpuId
from harness.triage.cuts import WAIT_MAX_ANYWHERE_W, Cuts
from harness.triage.states import Level
from harness.triage.windows import FloatArray, Windows

IDLE_MAX_PCT = 10.0
HOST_MAX_PCT = 25.0  # copies and small kernels of a rank that works on the host
SPARSE_MAX_PCT = 60.0
BURSTY_MAX_PCT = 75.0
BUSY_MIN_PCT = 80.0
NO_PROCESS_MAX_BYTES = 256 * 2**20  # what a driver keeps for itself; a CUDA context takes more
MINORITY = 0.25  # of a job's GPUs may be odd; more of them are another job
FLAT = 0.02  # of the power itself
UNEVEN = 0.01  # a spin was seen at 0.3 % and less, work at 2 % and more
BURSTY = 0.15
_LIMIT_SHARE_OF_SPARSE = 1.5  # x compute_min: 60 % of the limit

BoolArray = NDArray[np.bool_]
LevelArray = NDArray[np.int8]


def find_levels(windows: Windows, cuts: Cuts, utilization_pct: FloatArray) -> LevelArray:
    """The level of every window.

    Args:
        windows: In order of GPU and time.
        cuts: Lines in watts, one set per window.
        utilization_pct: As :func:`usable_utilization` gives it.
    """
    level = np.full(len(windows.gpu), Level.UNKNOWN, dtype=np.int8)
    power_w, no_process = windows.power_w, _has_no_process(windows)
    known = np.isfinite(utilization_pct)
    high = power_w >= cuts.compute_min_w
    low = power_w <= cuts.wait_max_w
    _put_without_utilization(level, windows, cuts, where=~known & np.isfinite(power_w))
    idle = known & (utilization_pct <= IDLE_MAX_PCT)
    quiet = idle & ~(high & ~cuts.is_shape)
    level[quiet] = Level.HOST
    level[quiet & _is_bare(windows, cuts, no_process)] = Level.BARE
    level[idle & ~quiet] = Level.PARTIAL  # the two meters lag each other: kernels come and go
    busy = known & (utilization_pct >= BUSY_MIN_PCT)
    between = known & ~idle & ~busy
    level[between] = Level.PARTIAL
    # Above what a held context draws, host work is no copy beside a save: the loader starves it.
    is_copying = between & low & (utilization_pct <= HOST_MAX_PCT) & ~find_bursts(windows, cuts)
    is_copying &= ~(power_w > cuts.context_max_w)
    level[is_copying & (windows.std_w <= FLAT * power_w)] = Level.HOST
    level[(busy | between) & high & ~_is_sparse(windows, cuts, utilization_pct)] = Level.COMPUTE
    level[busy & ~high & ~low] = Level.TRANSFER if cuts.has_transfer else Level.COMPUTE
    spins = busy & (low | _is_flat_spin(windows, cuts))
    level[spins] = Level.WAIT
    level[spins & no_process] = Level.WEDGED
    _put_unknown_tops(level, windows, cuts)
    slowed = (windows.throttled >= 0.5) & (busy | (known & (utilization_pct >= 50.0)) | ~known)
    level[slowed & (power_w > np.nan_to_num(cuts.bare_max_w))] = Level.THROTTLED
    level[~np.isfinite(power_w)] = Level.UNKNOWN
    return level


def find_bursts(windows: Windows, cuts: Cuts) -> BoolArray:
    """Windows below the watts of compute with at least one sample at them: the job moved."""
    return (windows.max_w >= cuts.compute_min_w) & (windows.power_w < cuts.compute_min_w)


def usable_utilization(windows: Windows, gpus: Sequence[GpuId], cuts: Cuts) -> FloatArray:
    """Utilization where it means what we take it for, else NaN.

    AMD counts it otherwise, so there only its extremes are kept; a meter that reads 0 throughout
    while the watts are those of compute is broken.
    """
    usable = windows.utilization_pct.copy()
    for number, gpu in enumerate(gpus):
        mine = windows.gpu == number
        facts = find_device(gpu.name) if gpu.name else None
        if facts is not None and facts.vendor == "AMD":
            usable[mine & (usable > IDLE_MAX_PCT) & (usable < BUSY_MIN_PCT)] = np.nan
        own = usable[mine]
        hot = windows.power_w[mine] >= np.maximum(cuts.compute_min_w[mine], 0.0)
        is_real_hot = hot & ~cuts.is_shape[mine]
        if np.isfinite(own).any() and np.nanmax(own) == 0.0 and is_real_hot.mean() > 0.5:
            usable[mine] = np.nan
    return usable


def is_flat(windows: Windows) -> BoolArray:
    """Power is the same inside a window and in its neighbours on the same GPU, within 2 %."""
    flat = windows.std_w <= FLAT * windows.power_w
    step = np.abs(np.diff(windows.power_w))
    same = windows.gpu[1:] == windows.gpu[:-1]
    level = step <= FLAT * windows.power_w[1:]
    flat[1:] &= ~same | level
    flat[:-1] &= ~same | level
    return flat


def _put_without_utilization(
    level: LevelArray, windows: Windows, cuts: Cuts, where: BoolArray
) -> None:
    power_w = windows.power_w
    level[where & (power_w >= cuts.compute_min_w)] = Level.COMPUTE
    level[where & (power_w <= cuts.bare_max_w)] = Level.BARE
    is_context = (power_w > cuts.bare_max_w) & (power_w <= cuts.context_max_w)
    level[where & is_context] = Level.HOST
    level[where & (power_w > cuts.context_max_w) & (power_w <= cuts.wait_max_w)] = Level.WAIT


def _put_unknown_tops(level: LevelArray, windows: Windows, cuts: Cuts) -> None:
    """Without a limit the best that was seen need not be compute.

    It is, where it draws more than any known GPU draws waiting, where it is uneven as work is, or
    where the same GPUs were also seen waiting far below it. Flat, it is unknown; but where a few
    peers hold a context and run nothing all the while, it is a spin.
    """
    doubtful = cuts.is_shape & (level == Level.COMPUTE) & (windows.power_w < WAIT_MAX_ANYWHERE_W)
    if not doubtful.any() or (cuts.is_shape & (level == Level.WAIT)).any():
        return
    flat: list[int] = []
    for number in np.unique(windows.gpu[doubtful]).tolist():
        mine = doubtful & (windows.gpu == number)
        power_w = windows.power_w[mine]
        spread_w = np.sqrt(np.mean(windows.std_w[mine] ** 2) + np.var(power_w))
        if spread_w <= UNEVEN * np.mean(power_w):
            flat.append(int(number))
    of_flat = doubtful & np.isin(windows.gpu, flat)
    level[of_flat] = Level.UNKNOWN
    holding = _num_holding(level, windows)
    if 0 < holding <= max(1.0, MINORITY * (len(flat) + holding)):
        level[of_flat & (windows.utilization_pct >= BUSY_MIN_PCT)] = Level.WAIT


def _num_holding(level: LevelArray, windows: Windows) -> int:
    """GPUs that hold a context and run nothing in nearly all of their windows."""
    total = np.bincount(windows.gpu)
    held = np.bincount(windows.gpu[level == Level.HOST], minlength=len(total))
    return int(((total > 0) & (held >= 0.9 * total)).sum())


def _has_no_process(windows: Windows) -> BoolArray:
    return windows.memory_used_bytes <= NO_PROCESS_MAX_BYTES


def _is_bare(windows: Windows, cuts: Cuts, no_process: BoolArray) -> BoolArray:
    unknown = ~np.isfinite(windows.memory_used_bytes)
    return no_process | (unknown & (windows.power_w <= cuts.bare_max_w))


def _is_sparse(windows: Windows, cuts: Cuts, utilization_pct: FloatArray) -> BoolArray:
    """Watts of compute, but only part of the time."""
    bursty = (utilization_pct < BURSTY_MAX_PCT) & (windows.std_w >= BURSTY * windows.mean_w)
    is_low = windows.power_w < np.where(
        cuts.is_shape, WAIT_MAX_ANYWHERE_W, _LIMIT_SHARE_OF_SPARSE * cuts.compute_min_w
    )
    return bursty | ((utilization_pct < SPARSE_MAX_PCT) & is_low)


def _is_flat_spin(windows: Windows, cuts: Cuts) -> BoolArray:
    """Above the usual line, but flat, and far below what these GPUs draw at work."""
    far_below = windows.power_w <= 0.65 * cuts.top_w
    return (windows.power_w <= cuts.spin_max_w) & far_below & is_flat(windows)
