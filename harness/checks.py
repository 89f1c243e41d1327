"""Settings that are well typed and still make no sense: refused before anything is planned.

Pure: what needs the machine or the data to be seen is checked in ``manifest``.
"""

from __future__ import annotations

import re

from harness.config import Backend, CalibrationPhase, Device, PowerSource, RunConfig, Task
from harness.errors import ConfigError


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
