"""Predicted states against labels: precision, recall, F1 per state, and the confusion matrix.

Labels of a file are only ever scored against, never an input. Watts and the utilization baseline
are always scored on the same windows. Where a label is coarser than a prediction (``idle`` against
``idle_context``) the prediction is counted as the coarser one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.triage.states import State, StateArray, states_of

# What people write beside their samples -> our word. Phases that say when, and not what (warmup,
# steady, train step 3), name no state and are left out.
_WORDS: Mapping[str, State] = MappingProxyType(
    {
        **{state.value: state for state in State},
        "bare_idle": State.IDLE_BARE,
        "context_idle": State.IDLE_CONTEXT,
        "memory_bound": State.COMPUTE,
        "training": State.COMPUTE,
        "allreduce": State.COMMUNICATION,
        "all_reduce": State.COMMUNICATION,
        "nccl_wait": State.COMMUNICATION,
        "collective_wait": State.COMMUNICATION,
        "starved": State.DATA_STARVATION,
        "dataloader": State.DATA_STARVATION,
        "save": State.CHECKPOINT,
        "saving": State.CHECKPOINT,
        "ckpt": State.CHECKPOINT,
        "hang": State.DEADLOCK,
        "hung": State.DEADLOCK,
    }
)
_COARSER: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.IDLE: frozenset({State.IDLE_BARE, State.IDLE_CONTEXT}),
        State.CHECKPOINT_OR_DEADLOCK: frozenset({State.CHECKPOINT, State.DEADLOCK}),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How well one state was found; a ratio without a denominator is null."""

    state: State
    support: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One classifier's scores; ``confusion[truth][predicted]`` counts windows."""

    per_state: tuple[Score, ...]
    accuracy: float | None
    macro_f1: float | None
    confusion: Mapping[State, Mapping[State, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Watts and utilization on the same windows; ``ignored`` are labels that name no state."""

    num_windows: int
    watts: Scores
    utilization: Scores
    ignored: tuple[str, ...]


def evaluate(labels: NDArray[Any], watts: StateArray, utilization: StateArray) -> Evaluation | None:
    """Score both classifiers; None where no label names a state.

    Args:
        labels: One per window, text or None.
        watts: Predicted states, positions in ``STATE_ORDER``.
        utilization: The baseline's.
    """
    own: list[str | None] = labels.tolist()
    words = {word for word in own if word is not None}
    known = {word: state for word in words if (state := _state_of(word)) is not None}
    keep = np.array([word in known for word in own], dtype=np.bool_)
    if not keep.any():
        return None
    truth = [known[word] for word in own if word in known]
    return Evaluation(
        num_windows=len(truth),
        watts=score(truth, states_of(watts[keep])),
        utilization=score(truth, states_of(utilization[keep])),
        ignored=tuple(sorted(words - set(known))),
    )


def score(truth: Sequence[State], predicted: Sequence[State]) -> Scores:
    """Scores of one classifier over windows with known states."""
    pairs = [(t, _coarsen(t, p)) for t, p in zip(truth, predicted, strict=True)]
    confusion: dict[State, dict[State, int]] = {}
    for t, p in pairs:
        row = confusion.setdefault(t, {})
        row[p] = row.get(p, 0) + 1
    per_state = tuple(_score(state, confusion) for state in State if state in confusion)
    right = sum(row.get(state, 0) for state, row in confusion.items())
    f1s = [s.f1 if s.f1 is not None else 0.0 for s in per_state]
    return Scores(
        per_state=per_state,
        accuracy=right / len(pairs) if pairs else None,
        macro_f1=sum(f1s) / len(f1s) if f1s else None,
        confusion=confusion,
    )


def _score(state: State, confusion: Mapping[State, Mapping[State, int]]) -> Score:
    support = sum(confusion[state].values())
    right = confusion[state].get(state, 0)
    claimed = sum(row.get(state, 0) for row in confusion.values())
    precision = right / claimed if claimed else None
    recall = right / support if support else None
    f1 = 2.0 * right / (claimed + support) if claimed + support else None
    return Score(state=state, support=support, precision=precision, recall=recall, f1=f1)


def _coarsen(truth: State, predicted: State) -> State:
    if predicted in _COARSER.get(truth, frozenset()):
        return truth
    if truth in _COARSER.get(predicted, frozenset()) and predicted is State.IDLE:
        return truth
    return predicted


def _state_of(word: str) -> State | None:
    return _WORDS.get(word.strip().lower().replace(" ", "_").replace("-", "_"))
