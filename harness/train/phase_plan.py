"""Which window of a calibration comes when, and what each rank does in it. Pure.

Bare idle can only come before a rank has a CUDA context, so all of its windows come first. The rest
is in complete blocks, every phase once, each in an order of its own drawn from a seed: a GPU that
warms up, or a neighbour that comes and goes, then falls on all phases alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from harness.config import CalibrationConfig, CalibrationPhase


class Role(StrEnum):
    """What one rank does in a window; ``all`` where every rank does the same."""

    ALL = "all"
    WAITS = "waits"
    LATE = "late"
    WRITES = "writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWindow:
    """One window of every rank; ``index`` counts from 1, ``odd_rank`` does what its peers do not.

    ``odd_rank`` is null where all ranks do the same; it moves on from round to round, so that every
    GPU is seen in both roles.
    """

    index: int
    round: int
    phase: CalibrationPhase
    odd_rank: int | None


def plan_windows(
    calibration: CalibrationConfig, *, world_size: int, seed: str
) -> tuple[PlannedWindow, ...]:
    """Order all windows of one trial; every rank gets the same from the same ``seed``."""
    bare = CalibrationPhase.BARE_IDLE
    rounds = range(calibration.windows_per_phase)
    ordered = [(number, bare) for number in rounds if bare in calibration.phases]
    for number in rounds:
        block = [phase for phase in calibration.phases if phase is not bare]
        random.Random(f"{seed}-{number}").shuffle(block)
        ordered += [(number, phase) for phase in block]
    odd = (CalibrationPhase.COLLECTIVE_WAIT, CalibrationPhase.BLOCKING_SAVE)
    return tuple(
        PlannedWindow(
            index=index,
            round=number,
            phase=phase,
            odd_rank=number % world_size if phase in odd else None,
        )
        for index, (number, phase) in enumerate(ordered, start=1)
    )


def role_of(window: PlannedWindow, *, rank: int, world_size: int) -> Role:
    """What ``rank`` does in ``window``; a rank without peers waits for a flag instead of them."""
    if window.odd_rank is None:
        return Role.ALL
    is_odd = rank == window.odd_rank
    if window.phase is CalibrationPhase.BLOCKING_SAVE:
        return Role.WRITES if is_odd else Role.WAITS
    return Role.LATE if is_odd and world_size > 1 else Role.WAITS
