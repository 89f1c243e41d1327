"""The settings of one experiment as frozen dataclasses: what ``experiments/*.yaml`` parses into.

Only shapes and checks that need no machine live here. Values live in ``experiments/*.yaml``; a
setting that decides a result has no default in code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.errors import ConfigError


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


def check(config: RunConfig) -> None:
    """Refuse settings that are well typed and still make no sense.

    Raises:
        ConfigError: naming the dotted key, the value found and what would be accepted.
    """
    train, model, on = config.train, config.model, config.on
    positive = {
        "gpus": config.gpus,
        "trial_timeout_s": config.trial_timeout_s,
        "experiment.design.repeats": config.experiment.design.repeats,
        "experiment.expected_tokens_per_second_per_gpu": (
            config.experiment.expected_tokens_per_second_per_gpu
        ),
        "train.sequence_length": train.sequence_length,
        "train.global_batch_size": train.global_batch_size,
        "train.micro_batch_size": train.micro_batch_size,
        "train.num_steps": train.num_steps,
        "train.learning_rate": train.learning_rate,
        "train.max_grad_norm": train.max_grad_norm,
        "train.eval_every_steps": train.eval_every_steps,
        "train.save_every_steps": train.save_every_steps,
        "train.cpu_threads_per_rank": train.cpu_threads_per_rank,
        "train.collective_timeout_s": train.collective_timeout_s,
        "calibration.windows_per_phase": config.calibration.windows_per_phase,
        "calibration.window_s": config.calibration.window_s,
        "calibration.matmul_size": config.calibration.matmul_size,
        "calibration.copy_bytes": config.calibration.copy_bytes,
        "calibration.memory_fraction": config.calibration.memory_fraction,
        "calibration.starved_burst_s": config.calibration.starved_burst_s,
        "calibration.starved_wait_s": config.calibration.starved_wait_s,
        "calibration.save_bytes": config.calibration.save_bytes,
        "corpus.bpe_vocab_size": config.corpus.bpe_vocab_size,
        "corpus.max_bytes": config.corpus.max_bytes,
        "power.interval_s": config.power.interval_s,
        "launcher.gpus_per_node": config.launcher.gpus_per_node,
        "model.hidden_size": model.hidden_size,
        "model.intermediate_size": model.intermediate_size,
        "model.num_layers": model.num_layers,
        "model.num_attention_heads": model.num_attention_heads,
        "model.num_key_value_heads": model.num_key_value_heads,
        "model.head_dim": model.head_dim,
        "model.vocab_size": model.vocab_size,
    }
    for key, value in positive.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{key}={value}: expected a number above 0")
    _check_ranges(config)
    _check_calibration(config)
    if train.sequence_length > model.max_position_embeddings:
        raise ConfigError(
            f"train.sequence_length={train.sequence_length}: {model.name} takes at most"
            f" {model.max_position_embeddings} (model.max_position_embeddings)"
        )
    fitting = Backend.NCCL if on.device is Device.CUDA else Backend.GLOO
    if on.backend is not fitting:
        raise ConfigError(
            f"on.backend={on.backend}: on.device={on.device} takes on.backend={fitting}"
        )
    if train.eval_every_steps is not None and config.data.eval_num_blocks == 0:
        raise ConfigError(
            f"train.eval_every_steps={train.eval_every_steps}: there is nothing to evaluate on;"
            " set data.eval_num_blocks=16, say"
        )
    if config.power.source is PowerSource.REPLAY and config.power.replay_path is None:
        raise ConfigError("power.source=replay: name the recording with power.replay_path=FILE")
    if config.size not in config.experiment.sizes:
        accepted = ", ".join(sorted(config.experiment.sizes))
        raise ConfigError(
            f"size={config.size}: experiment {config.experiment.name} has the sizes {accepted}"
        )


def _check_ranges(config: RunConfig) -> None:
    train, model = config.train, config.model
    not_negative = {
        "data.eval_num_blocks": config.data.eval_num_blocks,
        "calibration.settle_s": config.calibration.settle_s,
        "train.warmup_steps": train.warmup_steps,
        "train.weight_decay": train.weight_decay,
        "train.min_learning_rate_ratio": train.min_learning_rate_ratio,
    }
    for key, value in not_negative.items():
        if value < 0:
            raise ConfigError(f"{key}={value}: expected 0 or more")
    for key, value in {"adam_beta1": train.adam_beta1, "adam_beta2": train.adam_beta2}.items():
        if not 0 <= value < 1:
            raise ConfigError(f"train.{key}={value}: expected a number from 0 to below 1")
    if model.num_attention_heads % model.num_key_value_heads:
        raise ConfigError(
            f"model.num_attention_heads={model.num_attention_heads}: not a multiple of"
            f" model.num_key_value_heads={model.num_key_value_heads}"
        )
    if config.corpus.tokenizer is None and config.corpus.bpe_vocab_size > model.vocab_size:
        raise ConfigError(
            f"corpus.bpe_vocab_size={config.corpus.bpe_vocab_size}: {model.name} has"
            f" model.vocab_size={model.vocab_size}; use at most that"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", config.experiment.name):
        raise ConfigError(
            f"experiment.name={config.experiment.name!r}: it names a folder of results_dir;"
            " use letters, digits, _ and -"
        )
    if not config.results_dir:
        raise ConfigError("results_dir='': expected a folder; results is the default")


def _check_calibration(config: RunConfig) -> None:
    calibration = config.calibration
    if not calibration.memory_fraction < 1:
        raise ConfigError(
            f"calibration.memory_fraction={calibration.memory_fraction}: expected a number below 1"
        )
    if config.task is not Task.CALIBRATE:
        return
    phases = [phase.value for phase in calibration.phases]
    if not phases or len(set(phases)) < len(phases):
        raise ConfigError(
            f"calibration.phases={phases}: expected different ones of {', '.join(CalibrationPhase)}"
        )
    fitting = "replay" if config.on.device is Device.CPU else "nvml"
    if config.power.source.value != fitting:
        raise ConfigError(
            f"power.source={config.power.source}: a calibration on.device={config.on.device} takes"
            f" power.source={fitting}; a CPU rank has no board power of its own (power=synthetic),"
            " and a replay says nothing about a GPU that is there"
        )
    blocked_s = calibration.settle_s + calibration.window_s
    if blocked_s >= config.train.collective_timeout_s:
        raise ConfigError(
            f"calibration.window_s={calibration.window_s}: with calibration.settle_s"
            f" {calibration.settle_s} a rank waits {blocked_s:g} s in a collective, longer than"
            f" train.collective_timeout_s={config.train.collective_timeout_s}; raise that, or take"
            " shorter windows"
        )
