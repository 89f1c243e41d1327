"""The settings of one experiment as frozen dataclasses: what ``experiments/*.yaml`` parses into.

Only shapes live here; what makes no sense together is refused in ``checks``. Values live in
``experiments/*.yaml``; a setting that decides a result has no default in code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Strategy(StrEnum):
    """How parameters and gradients are spread over the ranks."""

    FSDP2 = "fsdp2"
    DDP = "ddp"


class Precision(StrEnum):
    """Arithmetic of forward and backward; master weights and reductions are fp32 in both."""

    BF16 = "bf16"
    FP32 = "fp32"


class Device(StrEnum):
    """Where a rank computes."""

    CPU = "cpu"
    CUDA = "cuda"


class Backend(StrEnum):
    """The collective library of the process group."""

    GLOO = "gloo"
    NCCL = "nccl"


class Order(StrEnum):
    """The order of trials: whole blocks of every arm, shuffled inside, or arm after arm."""

    INTERLEAVED = "interleaved"
    SEQUENTIAL = "sequential"


class Dealing(StrEnum):
    """How blocks reach the ranks; ``global`` packs once and deals blocks round robin."""

    GLOBAL = "global"


class PowerSource(StrEnum):
    """Where watts come from; ``auto`` is nvml or amd_smi, whose driver answers, otherwise none."""

    AUTO = "auto"
    NVML = "nvml"
    AMD_SMI = "amd_smi"
    REPLAY = "replay"
    NONE = "none"


class Task(StrEnum):
    """What the ranks of a trial do."""

    TRAIN = "train"
    CALIBRATE = "calibrate"


class CalibrationPhase(StrEnum):
    """What a GPU is made to do while its watts are recorded."""

    BARE_IDLE = "bare_idle"
    CONTEXT_IDLE = "context_idle"
    COMPUTE_BURN = "compute_burn"
    MEMORY_BURN = "memory_burn"
    COLLECTIVE_WAIT = "collective_wait"
    STARVED_LOADER = "starved_loader"
    BLOCKING_SAVE = "blocking_save"


class LauncherKind(StrEnum):
    """How the node process is started."""

    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignConfig:
    """Repeats per arm, the order of trials and the seed of that order."""

    repeats: int
    order: Order
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentConfig:
    """A small scientific design: a question, its factors and the response that answers it.

    ``factors`` maps a dotted setting to the levels it takes (``gpus`` is the world size); a factor
    without levels takes the points that the command line or the defaults give. ``sizes`` maps a
    size to a list of overrides, which anything said on the command line beats.
    """

    name: str
    question: str
    response: str
    factors: Mapping[str, tuple[Any, ...]]
    design: DesignConfig
    sizes: Mapping[str, tuple[str, ...]]
    expected_tokens_per_second_per_gpu: float | None
    expected_startup_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OnConfig:
    """The kind of machine: device, collective backend, and the size that suits it."""

    name: str
    device: Device
    backend: Backend
    default_size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Architecture of a Qwen3 dense model, and where its weights come from.

    ``weights`` is null for random weights or the path of a local Hugging Face folder.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    initializer_range: float
    weights: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusConfig:
    """A folder of text and the tokenizer that reads it.

    ``path`` null is the documentation and source of the running Python's standard library;
    ``tokenizer`` null is a byte-level BPE of ``bpe_vocab_size`` entries trained once on the corpus.
    ``max_bytes`` stops reading after that many bytes of text; null reads all.
    ``expected_tokens`` is what a plan says before the corpus is there.
    """

    name: str
    path: str | None
    suffixes: tuple[str, ...]
    text_field: str
    tokenizer: str | None
    bpe_vocab_size: int
    max_bytes: int | None
    expected_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """How packed blocks reach the ranks; ``eval_num_blocks`` are held out from training."""

    dealing: Dealing
    mask_documents: bool
    shuffle_seed: int
    eval_num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The FSDP training kernel.

    ``num_steps`` null trains one epoch. ``learning_rate`` rises over ``warmup_steps`` and falls
    along a cosine to ``min_learning_rate_ratio`` of itself at the last step. ``resume_from`` is a
    checkpoint folder or null. ``checkpoint_dir`` null puts saves under the cache folder.
    ``reduce_every_micro_batch`` false reduces gradients once a step, which under fsdp2 holds full
    fp32 gradients on every rank meanwhile (4 bytes a parameter); true reduces them each time.
    """

    strategy: Strategy
    precision: Precision
    sequence_length: int
    global_batch_size: int
    micro_batch_size: int
    num_steps: int | None
    learning_rate: float
    min_learning_rate_ratio: float
    warmup_steps: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    max_grad_norm: float
    reduce_every_micro_batch: bool
    activation_checkpointing: bool
    compile: bool
    deterministic: bool
    seed: int
    eval_every_steps: int | None
    save_every_steps: int | None
    save_at_end: bool
    checkpoint_dir: str | None
    resume_from: str | None
    cpu_threads_per_rank: int
    collective_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfig:
    """The telemetry sampler: its source, its period, and the recording that a replay reads.

    ``replay_path`` is the telemetry of an earlier run, or a recording by calibration phase, YAML,
    by its path or by the name of a packaged one.
    """

    source: PowerSource
    interval_s: float
    replay_path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationConfig:
    """The phases of a calibration and how they are run.

    Each of ``phases`` gets ``windows_per_phase`` windows of ``window_s`` seconds; the ``settle_s``
    seconds before each belong to no state, because the sensor still shows what was before.
    ``matmul_size`` is the side of the square matrices of the compute burn, ``copy_bytes`` the size
    of each of the two buffers of the memory burn; both shrink to ``memory_fraction`` of what is
    free. A starved loader computes for ``starved_burst_s``, then waits for ``starved_wait_s``.
    A blocking save writes ``save_bytes`` again and again.
    """

    phases: tuple[CalibrationPhase, ...]
    windows_per_phase: int
    window_s: float
    settle_s: float
    matmul_size: int
    copy_bytes: int
    memory_fraction: float
    starved_burst_s: float
    starved_wait_s: float
    save_bytes: int

    @property
    def num_windows(self) -> int:
        """Windows of one trial."""
        return len(self.phases) * self.windows_per_phase

    @property
    def duration_s(self) -> float:
        """Seconds of all windows of one trial, settling included."""
        return self.num_windows * (self.settle_s + self.window_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherConfig:
    """How node processes start, and how many ranks one node holds at the most."""

    kind: LauncherKind
    gpus_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything one command line declares.

    ``gpus`` is the largest world size (CPU ranks with ``on=laptop``), ``points`` the world sizes
    asked for instead of the defaults. ``cache_dir`` holds tokenizers, block stores and checkpoints.
    """

    experiment: ExperimentConfig
    task: Task
    on: OnConfig
    model: ModelConfig
    corpus: CorpusConfig
    data: DataConfig
    train: TrainConfig
    calibration: CalibrationConfig
    power: PowerConfig
    launcher: LauncherConfig
    size: str
    gpus: int
    points: tuple[int, ...] | None
    results_dir: str
    cache_dir: str | None
    plan: bool
    fresh: bool
    accept_drift: bool
    retry_failed: bool
    trial_timeout_s: float
