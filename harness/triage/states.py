"""The words of triage: states of a GPU, verdicts on a job, and the levels that one window shows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

MIN_WINDOWS = 3  # a power sensor that sees a quarter of the time needs more than one window
HANG_S = 120.0  # the same sample is an all-reduce for 0.5 s, a save for 15 s, a hang from here on
CRASH_S = 30.0  # a launcher that still lives has torn the peers of a dead rank down by then


class State(StrEnum):
    """What a GPU did for a while."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    DATA_STARVATION = "data_starvation"
    CHECKPOINT_OR_DEADLOCK = "checkpoint_or_deadlock"
    CHECKPOINT = "checkpoint"
    DEADLOCK = "deadlock"
    WEDGED = "wedged"
    THROTTLED = "throttled"
    IDLE_BARE = "idle_bare"
    IDLE_CONTEXT = "idle_context"
    IDLE = "idle"
    UNKNOWN = "unknown"


IDLE_STATES = frozenset({State.IDLE, State.IDLE_BARE, State.IDLE_CONTEXT})
WAITING_STATES = frozenset(
    {State.COMMUNICATION, State.CHECKPOINT, State.CHECKPOINT_OR_DEADLOCK, State.DEADLOCK}
)
STALLED_STATES = frozenset(
    {State.CHECKPOINT, State.CHECKPOINT_OR_DEADLOCK, State.DEADLOCK, State.WEDGED}
)
LOST_STATES = STALLED_STATES | {State.DATA_STARVATION}

STATE_ORDER = tuple(State)
StateArray = NDArray[np.int8]
"""States by their positions in ``STATE_ORDER``."""
STATE_CODE = {state: code for code, state in enumerate(STATE_ORDER)}


class Verdict(StrEnum):
    """What is to be said about a job."""

    HEALTHY = "healthy"
    SLOW = "slow"
    STARVING = "starving"
    STALLED_SAVE = "stalled_save"
    DEADLOCK = "deadlock"
    CRASHED_RANK = "crashed_rank"
    WEDGED = "wedged"
    IDLE = "idle"
    UNKNOWN = "unknown"


FOUND = frozenset({Verdict.DEADLOCK, Verdict.STALLED_SAVE, Verdict.CRASHED_RANK, Verdict.WEDGED})
WARNINGS = frozenset({Verdict.SLOW, Verdict.STARVING})


class Level(IntEnum):
    """What one window of one GPU shows by itself, before peers and time are looked at."""

    UNKNOWN = 0
    BARE = 1  # no process: idle power, no kernels, no memory held
    HOST = 2  # a process holds the GPU and runs next to nothing on it
    WAIT = 3  # kernels run all the time and draw next to nothing: a spin
    PARTIAL = 4  # kernels run part of the time
    COMPUTE = 5
    THROTTLED = 6
    WEDGED = 7  # kernels "run", watts are idle, and no process holds memory
    TRANSFER = 8  # a collective that moves data, where a table gives it watts of its own


HOT_LEVELS = (Level.COMPUTE, Level.THROTTLED, Level.TRANSFER)
ACTIVE_LEVELS = (Level.PARTIAL, *HOT_LEVELS)


def states_of(codes: StateArray) -> list[State]:
    """States by their positions in ``STATE_ORDER``."""
    positions: list[int] = codes.tolist()
    return [STATE_ORDER[position] for position in positions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One state of one GPU, or of a job, over a stretch without a pause."""

    state: State
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s
