"""The records of a run, field by field. Change them only together with ``SCHEMA_VERSION``.

Measurements only; ratios are made in analysis. Unknown is null with a reason, never 0, -1 or inf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SCHEMA_VERSION = 1


class Status(StrEnum):
    """How a trial ended."""

    FINISHED = "finished"
    INVALID = "invalid"
    REFUSED = "refused"
    OOM = "oom"
    CRASH = "crash"
    HANG = "hang"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    PREEMPTED = "preempted"


RERUN_STATUSES = frozenset({Status.INTERRUPTED, Status.PREEMPTED})
"""Statuses that say nothing about the trial itself: a resumed campaign runs these again."""


class Label(StrEnum):
    """Where a figure comes from; shown wherever the figure is."""

    REAL = "real"
    EMULATED = "emulated"
    REPLAY = "replay"


class Phase(StrEnum):
    """What a rank is doing, as its heartbeat says it."""

    START = "start"
    BUILD = "build"
    TRAIN = "train"
    EVAL = "eval"
    SAVE = "save"
    CALIBRATE = "calibrate"
    FINISH = "finish"


class EventKind(StrEnum):
    """The closed list of events."""

    CLOCK_ANCHOR = "clock_anchor"
    NODE_STARTED = "node_started"
    NODE_FINISHED = "node_finished"
    CHILD_STARTED = "child_started"
    CHILD_EXIT = "child_exit"
    PARENT_GONE = "parent_gone"
    STOP_REQUESTED = "stop_requested"
    TRIAL_TIMEOUT = "trial_timeout"
    HOST_OOM_KILL = "host_oom_kill"
    RANK_STARTED = "rank_started"
    RANK_READY = "rank_ready"
    RANK_EXIT = "rank_exit"
    RANK_ERROR = "rank_error"
    RANK_OOM = "rank_oom"
    RANK_FINISHED = "rank_finished"
    NON_FINITE_LOSS = "non_finite_loss"
    TEARDOWN_ABORT = "teardown_abort"
    COMPILE = "compile"
    EVAL = "eval"
    SAVE_BEGIN = "save_begin"
    SAVE_END = "save_end"
    RESUMED = "resumed"
    EPOCH_END = "epoch_end"
    PHASE_BEGIN = "phase_begin"
    PHASE_END = "phase_end"
    SAMPLER_STARTED = "sampler_started"
    SAMPLER_FAULT = "sampler_fault"
    SAMPLER_STOPPED = "sampler_stopped"
    PREFLIGHT = "preflight"
    PAGE_CACHE = "page_cache"
    HANG_SUSPECTED = "hang_suspected"
    HANG_CONFIRMED = "hang_confirmed"
    HANG_CLEARED = "hang_cleared"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step of one rank: ``steps/rank00000.jsonl``.

    ``duration_s`` runs from a synchronised start, before the first fetch, to a synchronised end,
    after the optimizer; ``data_wait_s`` is the part of it spent fetching. ``tokens`` are this
    rank's real tokens, ``padded_tokens`` those with weight zero. ``loss`` is the global mean.
    """

    step: int
    t_end_unix_s: float
    duration_s: float
    data_wait_s: float
    tokens: int
    padded_tokens: int
    num_micro_batches: int
    loss: float | None
    grad_norm: float | None
    peak_memory_bytes: int | None
    alloc_retries: int | None
    data_bytes_read: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened: ``events/<writer>.jsonl``."""

    t_unix_s: float
    kind: EventKind
    rank: int | None
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a rank last said of itself: ``heartbeat/rank00000``, overwritten in place."""

    step: int
    phase: Phase
    t_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of one arm: a row of the plan. ``levels`` holds the factor levels of this arm."""

    run_id: str
    experiment: str
    arm: str
    index: int
    block: int
    repeat: int
    world_size: int
    num_nodes: int
    gradient_accumulation_steps: int
    levels: Mapping[str, Any]
    spec_hash: str
    expected_status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeState:
    """Which code ran; ``diff_hash`` covers uncommitted changes, ``lock_hash`` the pins."""

    commit: str | None
    dirty: bool | None
    diff_hash: str | None
    lock_hash: str | None
    source_hash: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """One GPU of a host as its driver describes it; ``reason`` says why a null is null."""

    index: int
    name: str | None
    uuid: str | None
    pci_bus_id: str | None
    enforced_limit_w: float | None
    default_limit_w: float | None
    max_sm_clock_mhz: int | None
    memory_total_bytes: int | None
    mig_enabled: bool | None
    ecc_enabled: bool | None
    power_smoothing: bool | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """One host: what can change speed and is not a setting of ours."""

    host: str
    cpu_model: str | None
    num_cpus: int
    affinity_cpus: int
    memory_total_bytes: int
    governor: str | None
    numa_nodes: int | None
    kernel: str
    driver: str | None
    gpus: tuple[GpuInfo, ...]
    mounts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataState:
    """What the trial reads; all null when a trial reads no data."""

    store_path: str
    store_hash: str
    corpus_hash: str
    tokenizer_hash: str
    num_blocks: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What was about to run, and where: ``manifest.json``, written once before launch."""

    schema_version: int
    t_unix_s: float
    trial: Trial
    config: Mapping[str, Any]
    comparability: Mapping[str, Any]
    label: Label
    argv: tuple[str, ...]
    code: CodeState
    packages: Mapping[str, str]
    environment: Mapping[str, str]
    hosts: tuple[HostInfo, ...]
    data: DataState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """The whole plan and what it was made with: ``campaign.json``, written once."""

    schema_version: int
    t_unix_s: float
    experiment: str
    question: str
    response: str
    factors: Mapping[str, tuple[Any, ...]]
    trials: tuple[Trial, ...]
    code: CodeState
    devices: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How the trial ended: ``summary.json``, written last; its presence means ended.

    Can be rebuilt from the other records. ``tries`` counts this run and its renamed predecessors.
    """

    schema_version: int
    run_id: str
    status: Status
    expected_status: Status
    detail: str
    t_start_unix_s: float
    t_end_unix_s: float
    num_steps_planned: int
    last_step: int | None
    num_ranks_finished: int
    teardown_aborts: int
    compile_time_s: float | None
    peak_memory_bytes: int | None
    torn_lines: int
    tries: int
    drift: tuple[str, ...]
