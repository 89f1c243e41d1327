"""The figures of the B300 field report (arXiv 2608.05944), typed, with where each comes from.

The data lie in ``results/reference`` of the project and travel inside the package. Nothing is
computed here; :mod:`analysis.audit` does the report's own arithmetic again.
"""

from __future__ import annotations

import csv
import types
import typing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import RecordError

T = TypeVar("T")


class ReferenceLabel(StrEnum):
    """How well a reference row is known: at first hand, or through a summary nobody could check."""

    ABSTRACT = "abstract"
    SECONDARY = "secondary"


def label_of(source: str) -> ReferenceLabel:
    """The label of a row by its ``source``; a row of both kinds is secondary."""
    return (
        ReferenceLabel.ABSTRACT
        if source.startswith("abstract") and ("secondary" not in source)
        else ReferenceLabel.SECONDARY
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingReference:
    """Strong scaling at a global batch of 262,144 tokens."""

    gpus: int
    nodes: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    epoch_hours: float
    gpu_hours_per_epoch: float
    strong_scaling_efficiency_pct: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReference:
    """One item of the set-up; ``value`` is text, a number where ``unit`` is one of a number."""

    item: str
    value: str
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatapathReference:
    """Throughput of one data path under one condition."""

    path: str
    condition: str
    tokens_per_second_median: float
    relative: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationCheckpointingReference:
    """Throughput with activation checkpointing ``on`` or ``off``."""

    activation_checkpointing: str
    tokens_per_second: float
    slowdown: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityReference:
    """One quantity; where it has no number, ``unit`` tells it in words."""

    quantity: str
    value: float | None
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTriageReference:
    """Board power by state; None where the figure is not known to us."""

    state: str
    board_power_w: float | None
    gpu_utilization: str
    shape_across_ranks: str
    source: str
    confidence: str


def reference_dir() -> Path:
    """The folder of the reference figures, in a checkout and in an installed package alike."""
    return Path(__file__).parent / "reference_data"


def load_scaling() -> tuple[ScalingReference, ...]:
    """Throughput, epoch time and GPU-hours on 4, 8 and 16 GPUs."""
    return _load("scaling.csv", ScalingReference)


def load_setup() -> tuple[SetupReference, ...]:
    """Hardware, software, model, batch and corpus."""
    return _load("setup.csv", SetupReference)


def load_datapath() -> tuple[DatapathReference, ...]:
    """Tokenising from shared storage at every step against a local pretokenised cache."""
    return _load("datapath.csv", DatapathReference)


def load_activation_checkpointing() -> tuple[ActivationCheckpointingReference, ...]:
    """Throughput with and without activation checkpointing."""
    return _load("activation_checkpointing.csv", ActivationCheckpointingReference)


def load_deadlock() -> tuple[QuantityReference, ...]:
    """The hang at the end of the epoch."""
    return _load("deadlock.csv", QuantityReference)


def load_power_triage() -> tuple[PowerTriageReference, ...]:
    """Board power by state."""
    return _load("power_triage.csv", PowerTriageReference)


def _load(name: str, cls: type[T]) -> tuple[T, ...]:
    path = reference_dir() / name
    hints = typing.get_type_hints(cls)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; reinstall wattline") from error
    return tuple(cls(**{key: _cell(hint, row[key]) for key, hint in hints.items()}) for row in rows)


def _cell(hint: Any, text: str) -> Any:
    if isinstance(hint, types.UnionType):
        return float(text) if text else None
    return hint(text)
