"""The streaming classifier: feed it samples, it says when a GPU's state or a job's verdict changes.

It keeps the windows of the last half hour and nothing else, so its memory does not grow. It judges
what it holds exactly as a recorded file is judged; a stall at the end of what it holds is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.samples import GpuId, SampleBatch
from harness.triage.analyse import analyse, job_judgement
from harness.triage.bands import Table
from harness.triage.collect import Collected
from harness.triage.states import STATE_ORDER, State, Verdict
from harness.triage.verdict import Judgement
from harness.triage.windows import WindowBuilder, Windows, choose_window_s, concatenate

HISTORY_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """A GPU is in another state since ``t_s``."""

    t_s: float
    gpu: str
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictChange:
    """A job has another verdict, or other odd GPUs, as of ``t_s``."""

    t_s: float
    gpus: tuple[str, ...]
    verdict: Verdict
    reason: str
    odd_gpus: tuple[str, ...]


class Classifier:
    """Triage of a live source of one clock, window by window."""

    def __init__(
        self,
        table: Table | None,
        limit_w: float | None,
        *,
        gpus: Sequence[GpuId],
        period_s: float,
        history_s: float = HISTORY_S,
    ) -> None:
        """Judge samples ``period_s`` seconds apart; ``gpus`` may grow, positions never change."""
        self._table = table
        self._limit_w = limit_w
        self._gpus = gpus
        self._history_s = history_s
        self._window_s = choose_window_s(period_s)
        self._builder = WindowBuilder(window_s=self._window_s, period_s=period_s)
        self._windows = concatenate([])
        self._states: dict[int, State] = {}
        self._verdicts: dict[tuple[str, ...], tuple[Verdict, tuple[str, ...]]] = {}

    def feed(self, batch: SampleBatch) -> tuple[StateChange | VerdictChange, ...]:
        """Take samples in order of time per GPU; give what changed."""
        closed = self._builder.feed(batch)
        if not len(closed.gpu):
            return ()
        merged = concatenate([self._windows, closed])
        newest_s = float(merged.end_s.max())
        self._windows = merged.take(merged.end_s > newest_s - self._history_s)
        return self._judge(newest_s)

    @property
    def num_windows(self) -> int:
        """Windows held, bounded by the history."""
        return len(self._windows.gpu)

    def _judge(self, newest_s: float) -> tuple[StateChange | VerdictChange, ...]:
        collected = self._collected()
        analysis = analyse(collected, table=self._table, limit_w=self._limit_w)
        last = _last_rows(self._windows)
        changes: list[StateChange | VerdictChange] = []
        for row in last.tolist():
            gpu, state = int(self._windows.gpu[row]), STATE_ORDER[int(analysis.states[row])]
            if self._states.get(gpu) is not state:
                self._states[gpu] = state
                t_s = float(self._windows.start_s[row])
                changes.append(StateChange(t_s=t_s, gpu=self._gpus[gpu].label, state=state))
        held: dict[tuple[str, ...], tuple[Verdict, tuple[str, ...]]] = {}
        for job in analysis.jobs:
            judged = job_judgement(collected, analysis, job)
            labels = tuple(self._gpus[g].label for g in job.gpus)
            odd = tuple(self._gpus[g].label for g in judged.odd)
            held[labels] = (judged.verdict, odd)
            if self._verdicts.get(labels) != held[labels]:
                changes.append(_changed(newest_s, labels, judged, odd))
        self._verdicts = held
        return tuple(changes)

    def _collected(self) -> Collected:
        number = len(self._gpus)
        return Collected(
            windows=self._windows,
            gpus=tuple(self._gpus),
            stream_of_gpu=(0,) * number,
            clock_of_gpu=(0,) * number,
            accounts=(),
            window_s=self._window_s,
            last_readings=(),
            energy=(),
        )


def _changed(
    t_s: float, labels: tuple[str, ...], judged: Judgement, odd: tuple[str, ...]
) -> VerdictChange:
    return VerdictChange(
        t_s=t_s, gpus=labels, verdict=judged.verdict, reason=judged.reason, odd_gpus=odd
    )


def _last_rows(windows: Windows) -> NDArray[np.intp]:
    return np.flatnonzero(np.append(windows.gpu[1:] != windows.gpu[:-1], True))
