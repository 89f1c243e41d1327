"""Where the lines run, in watts: from a table, from a share of the enforced limit, or from shape.

Uncalibrated shares of the limit: bare idle draws about 10 %, a held context 17 %, real hangs 14 to
22 % on datacentre cards, compute 43 % and more on H100. A TITAN X waits at 37 %, so what lies
between is decided by how flat it is and by what the same GPUs draw at their best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from harness.hardware import find_device
from harness.samples import GpuId
from harness.triage.bands import Table
from harness.triage.states import State
from harness.triage.windows import FloatArray, Windows

BARE_MAX_SHARE = 0.14
WAIT_MAX_SHARE = 0.30
COMPUTE_MIN_SHARE = 0.40
SPIN_MAX_SHARE = 0.50  # a flat spin may lie this high, where the same GPUs draw far more at work
WAIT_MAX_OF_TOP = 0.65
COMPUTE_MIN_OF_TOP = 0.70
# 22 % (the highest share seen in a hang on a datacentre card) of 1,400 W (the highest limit known).
WAIT_MAX_ANYWHERE_W = 308.0
_TOP_PERCENTILE = 95.0
_MIN_TOP_W = 1.0


class Basis(StrEnum):
    """What the lines of a GPU rest on."""

    TABLE = "table"
    LIMIT = "limit"
    SHAPE = "shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Lines in watts per window; NaN where there is none.

    ``top_w`` is what the GPU, or its neighbours of the same stream, draw at their best.
    """

    bare_max_w: FloatArray
    context_max_w: FloatArray
    wait_max_w: FloatArray
    compute_min_w: FloatArray
    spin_max_w: FloatArray
    top_w: FloatArray
    is_shape: NDArray[np.bool_]
    has_transfer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The enforced limit of one GPU and where it is from; ``watts`` is None where nothing says."""

    watts: float | None
    source: str


def find_limits(
    windows: Windows, gpus: Sequence[GpuId], limit_w: float | None
) -> tuple[Limit, ...]:
    """Per GPU: the given limit, else the file's, else the device's default."""
    found: list[Limit] = []
    for number, gpu in enumerate(gpus):
        own = windows.limit_w[windows.gpu == number]
        own = own[np.isfinite(own) & (own > 0)]
        facts = find_device(gpu.name) if gpu.name else None
        if limit_w is not None:
            found.append(Limit(watts=limit_w, source="--limit"))
        elif len(own):
            found.append(Limit(watts=float(np.median(own)), source="the file"))
        elif facts is not None and facts.default_power_limit_w is not None:
            found.append(Limit(watts=facts.default_power_limit_w, source="the device name"))
        else:
            found.append(Limit(watts=None, source="nothing"))
    return tuple(found)


def find_tops(windows: Windows, stream_of_gpu: Sequence[int]) -> FloatArray:
    """Per GPU: the watts that the GPUs of its stream reach for 5 % of the time; NaN if unknown."""
    streams = np.asarray(stream_of_gpu, dtype=np.int64)
    tops = np.full(len(streams), np.nan)
    for number in range(len(streams)):
        own = windows.power_w[windows.gpu == number]
        own = own[np.isfinite(own)]
        if len(own):
            tops[number] = float(np.percentile(own, _TOP_PERCENTILE))
    best = np.full(len(streams), np.nan)
    for stream in np.unique(streams):
        mine = tops[streams == stream]
        if np.isfinite(mine).any() and np.nanmax(mine) >= _MIN_TOP_W:
            best[streams == stream] = np.nanmax(mine)
    return best


def make_cuts(
    windows: Windows, *, table: Table | None, limits: Sequence[Limit], tops_w: FloatArray
) -> Cuts:
    """The lines for every window; see :class:`Basis` for what each may rest on."""
    top_w = tops_w[windows.gpu] if len(tops_w) else np.empty(0)
    none = np.full(len(windows.gpu), np.nan)
    if table is not None:
        return _table_cuts(table, top_w)
    limit_w = np.array([np.nan if x.watts is None else x.watts for x in limits], dtype=np.float64)
    limit = limit_w[windows.gpu] if len(limits) else none
    is_shape = ~np.isfinite(limit)
    return Cuts(
        bare_max_w=BARE_MAX_SHARE * limit,
        context_max_w=none,
        wait_max_w=np.where(is_shape, WAIT_MAX_OF_TOP * top_w, WAIT_MAX_SHARE * limit),
        compute_min_w=np.where(is_shape, COMPUTE_MIN_OF_TOP * top_w, COMPUTE_MIN_SHARE * limit),
        spin_max_w=SPIN_MAX_SHARE * limit,
        top_w=top_w,
        is_shape=is_shape,
        has_transfer=False,
    )


def basis_of(table: Table | None, limit: Limit) -> Basis:
    """What the lines of a GPU with this limit rest on."""
    if table is not None:
        return Basis.TABLE
    return Basis.SHAPE if limit.watts is None else Basis.LIMIT


def _table_cuts(table: Table, top_w: FloatArray) -> Cuts:
    """Thresholds of the table; between bands without one, the middle of their medians.

    Where the watts of a hang and of a collective are far apart (as in the report, 190 and 575 W),
    the lower one is the spin and the higher one moves data.
    """
    communication = table.median_w(State.COMMUNICATION)
    hang = table.median_w(State.CHECKPOINT_OR_DEADLOCK)
    spin_state = State.COMMUNICATION if hang is None else State.CHECKPOINT_OR_DEADLOCK
    has_transfer = hang is not None and communication is not None and communication > 1.5 * hang
    above_spin = State.COMMUNICATION if has_transfer else State.COMPUTE
    wait_max = _between(table, spin_state, above_spin, WAIT_MAX_SHARE)
    under_compute = State.COMMUNICATION if has_transfer else spin_state
    compute_min = _between(table, under_compute, State.COMPUTE, COMPUTE_MIN_SHARE)
    bare_max = _between(table, State.IDLE_BARE, State.IDLE_CONTEXT, BARE_MAX_SHARE)
    context_max = np.nan
    if table.is_separable(State.IDLE_CONTEXT, spin_state):
        context_max = _between(table, State.IDLE_CONTEXT, spin_state, None)
    shape = top_w.shape
    return Cuts(
        bare_max_w=np.full(shape, bare_max),
        context_max_w=np.full(shape, context_max),
        wait_max_w=np.full(shape, wait_max),
        compute_min_w=np.full(shape, max(compute_min, wait_max)),
        spin_max_w=np.full(shape, wait_max),
        top_w=top_w,
        is_shape=np.zeros(shape, dtype=np.bool_),
        has_transfer=has_transfer,
    )


def _between(table: Table, below: State, above: State, share: float | None) -> float:
    cut = table.cut_w(below, above)
    if cut is not None:
        return cut
    low, high = table.median_w(below), table.median_w(above)
    if low is not None and high is not None and low < high:
        return (low + high) / 2.0
    return np.nan if share is None else share * table.limit_w
