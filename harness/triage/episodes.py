"""States of windows -> episodes of a GPU or a job.

An episode lasts at least three windows and never spans a pause of the sampler. Shorter stretches
count in the shares; inside compute they are part of the episode, and where nothing lasts three
windows the stretch as a whole is an episode of what it mostly is. All that a fast sampler saw
between two pauses is an episode too, where it is of one state and at least ten samples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.samples import Gap
from harness.triage.classify import BoolArray
from harness.triage.states import (
    IDLE_STATES,
    MIN_WINDOWS,
    STATE_CODE,
    Episode,
    State,
    StateArray,
    states_of,
)
from harness.triage.windows import FloatArray

_ENOUGH_SAMPLES = 10
_STARVED_SHARE = 0.2  # of a stretch without a lasting state; more, and it starves
_ABSORBING = frozenset({State.COMPUTE, State.DATA_STARVATION})


def find_episodes(
    start_s: FloatArray,
    end_s: FloatArray,
    states: StateArray,
    pauses: BoolArray,
    samples: FloatArray,
) -> tuple[Episode, ...]:
    """The episodes of one GPU, or job, from its windows in order of time.

    Args:
        start_s: First sample of each window.
        end_s: Its end.
        states: Positions in ``STATE_ORDER``.
        pauses: Whether a pause lies before it.
        samples: Samples in it, of one GPU.
    """
    if not len(states):
        return ()
    states = _absorb(states, pauses)
    cuts = np.flatnonzero((np.diff(states) != 0) | pauses[1:]) + 1
    firsts = np.append(0, cuts)
    lasts = np.append(cuts, len(states)) - 1
    runs = [
        _Run(
            state=state, num=last + 1 - first, samples=count, start_s=since, end_s=until, is_cut=cut
        )
        for state, first, last, count, since, until, cut in zip(
            states_of(states[firsts]),
            firsts.tolist(),
            lasts.tolist(),
            np.add.reduceat(samples, firsts).tolist(),
            start_s[firsts].tolist(),
            end_s[lasts].tolist(),
            pauses[firsts].tolist(),
            strict=True,
        )
    ]
    return _merge_runs(runs)


def _absorb(states: StateArray, pauses: BoolArray) -> StateArray:
    """Give a single short run between two lasting ones of an absorbing state their state.

    The merging of runs would do the same one by one; a day of steps has half a million of them.
    """
    starts = np.flatnonzero(np.append(True, (np.diff(states) != 0) | pauses[1:]))
    if len(starts) < 3:
        return states
    lengths = np.diff(np.append(starts, len(states)))
    code, is_cut, lasts = states[starts], pauses[starts], lengths >= MIN_WINDOWS
    absorbing = np.isin(code, [STATE_CODE[state] for state in _ABSORBING])
    inside = np.zeros(len(starts), dtype=np.bool_)
    inside[1:-1] = (
        ~lasts[1:-1]
        & (lasts & absorbing)[:-2]
        & lasts[2:]
        & (code[:-2] == code[2:])
        & ~is_cut[1:-1]
        & ~is_cut[2:]
    )
    code = np.where(inside, np.roll(code, 1), code)
    return np.repeat(code, lengths).astype(np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    state: State
    num: int
    samples: float
    start_s: float
    end_s: float
    is_cut: bool  # a pause lies before it


def _merge_runs(runs: Sequence[_Run]) -> tuple[Episode, ...]:
    done: list[_Run] = []
    short: list[_Run] = []
    for run in runs:
        if run.is_cut:
            _flush(done, short, at_pause=True)
        if run.num < MIN_WINDOWS:
            short.append(run)
            continue
        is_inside = (
            not run.is_cut
            and bool(done)
            and done[-1].state is run.state
            and run.state in _ABSORBING
            and sum(r.num for r in short) < MIN_WINDOWS
            and done[-1].end_s == (short[0] if short else run).start_s
        )
        if is_inside:
            short.clear()
        else:
            _flush(done, short, at_pause=False)
        _append(done, run)
    _flush(done, short, at_pause=True)
    return tuple(Episode(state=r.state, start_s=r.start_s, end_s=r.end_s) for r in done)


def _flush(done: list[_Run], short: list[_Run], *, at_pause: bool) -> None:
    """Make an episode of short runs that together last long enough."""
    is_whole = at_pause and len(short) == 1 and short[0].is_cut
    is_seen = is_whole and short[0].samples >= _ENOUGH_SAMPLES
    if short and (is_seen or sum(r.num for r in short) >= MIN_WINDOWS):
        joined = dataclasses.replace(
            short[0],
            state=_mostly(short),
            num=sum(r.num for r in short),
            samples=sum(r.samples for r in short),
            end_s=short[-1].end_s,
        )
        _append(done, joined)
    short.clear()


def _append(done: list[_Run], run: _Run) -> None:
    """Add a run, or lengthen the last one, of the same state and with nothing in between."""
    last = done[-1] if done else None
    is_joined = (
        last is not None
        and not run.is_cut
        and last.state is run.state
        and (last.end_s == run.start_s or run.state in _ABSORBING)
    )
    if last is None or not is_joined:
        done.append(run)
        return
    done[-1] = dataclasses.replace(
        last, num=last.num + run.num, samples=last.samples + run.samples, end_s=run.end_s
    )


def _mostly(runs: Sequence[_Run]) -> State:
    seconds: dict[State, float] = {}
    for run in runs:
        seconds[run.state] = seconds.get(run.state, 0.0) + run.end_s - run.start_s
    total = sum(seconds.values())
    hungry = seconds.get(State.DATA_STARVATION, 0.0)
    hungry += sum(seconds.get(state, 0.0) for state in IDLE_STATES)
    if hungry >= _STARVED_SHARE * total and seconds.get(State.DATA_STARVATION, 0.0) > 0:
        return State.DATA_STARVATION
    return max(seconds, key=lambda state: seconds[state])


def split_at(
    episodes: Sequence[Episode], pauses: Sequence[Gap], min_s: float
) -> tuple[Episode, ...]:
    """Cut episodes at the pauses of the sampler; a piece shorter than ``min_s`` is none."""
    starts = np.array([p.start_s for p in pauses])
    kept: list[Episode] = []
    for episode in episodes:
        first, last = np.searchsorted(starts, (episode.start_s, episode.end_s))
        inside = [
            p for p in pauses[max(int(first) - 1, 0) : int(last)] if p.end_s > episode.start_s
        ]
        if not inside:
            kept.append(episode)
            continue
        since = [episode.start_s, *(p.end_s for p in inside)]
        until = [*(p.start_s for p in inside), episode.end_s]
        pieces = [
            Episode(state=episode.state, start_s=a, end_s=b)
            for a, b in zip(since, until, strict=True)
        ]
        # A pause that begins within the last period only trims the end.
        is_cut = inside[0].end_s < episode.end_s
        kept += [p for p in pieces if p.duration_s >= (min_s if is_cut else 1e-9)]
    return tuple(kept)
