"""Saves: model, optimizer and a few facts, sharded, synchronous, published whole or not at all.

A save is written to ``step-00000010.partial`` and renamed once every rank's bytes are on disk, so a
half-written one is never the latest. torch.distributed.checkpoint writes the shards; continuing is
tested, and allowed, on the world size that saved.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from harness.errors import ConfigError, RecordError

FORMAT_VERSION = 1
FACTS_FILE = "checkpoint.json"

_PARTIAL_SUFFIX = ".partial"
_REMEDY = "free space or choose train.checkpoint_dir=DIR"
_STEP_NAME = re.compile(r"step-(\d{8,})")


def save(
    folder: Path,
    *,
    step: int,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: dict[str, Any],
) -> Path:
    """Write one save and publish it; collective, returns on every rank once it is the latest.

    Args:
        folder: Where saves live, shared by all ranks; created if need be.
        step: The optimizer step just completed.
        module: What ``prepare_model`` gave.
        optimizer: It has taken at least one step.
        extra: Facts to continue by, plain JSON, the same on every rank.

    Returns:
        ``folder/step-<step>``; a save of that step already there is replaced.

    Raises:
        RecordError: the folder cannot be written or is full; what was there before stands.
    """
    facts = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "world_size": dist.get_world_size(),
        "extra": extra,
    }
    text = json.dumps(facts, indent=1)
    path = folder / f"step-{step:08d}"
    partial = path.with_name(path.name + _PARTIAL_SUFFIX)
    _on_rank_0(f"save {path}", lambda: _clear(partial))
    try:
        state_dict_saver.save(_state(module, optimizer), checkpoint_id=partial)
    except CheckpointException as error:
        causes = sorted({repr(cause[0]) for cause in error.failures.values()})
        raise RecordError(f"save {path}: {'; '.join(causes)}; {_REMEDY}") from error
    _on_rank_0(f"save {path}", lambda: _publish(partial, path, text))
    return path


def load(path: Path, *, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Overwrite model and optimizer with what ``path`` holds, bit for bit; collective.

    Args:
        path: What ``save`` or ``latest`` gave.
        module: Of the same model, strategy and world size as the one saved.
        optimizer: Over the parameters of ``module``.

    Returns:
        ``extra`` as given to ``save``, and ``step``.

    Raises:
        ConfigError: not a finished save, of another format version, world size or model; nothing
            has been changed then.
    """
    facts = _read_facts(path)
    world_size = dist.get_world_size()
    if facts["world_size"] != world_size:
        raise ConfigError(
            f"{path}: saved by {facts['world_size']} rank(s), this trial has {world_size}; the"
            f" order of data is tied to it, so continue with gpus={facts['world_size']}"
        )
    _check_model(path, get_model_state_dict(module))
    state = _state(module, optimizer)
    state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(
        module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return {**facts["extra"], "step": facts["step"]}


def latest(folder: Path) -> Path | None:
    """The finished save of the highest step in ``folder``; None if there is none."""
    if not folder.is_dir():
        return None
    steps = {
        int(match[1]): path
        for path in folder.iterdir()
        if (match := _STEP_NAME.fullmatch(path.name)) and (path / FACTS_FILE).is_file()
    }
    return steps[max(steps)] if steps else None


def _state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(module, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def _on_rank_0(what: str, action: Any) -> None:
    # The outcome is broadcast, so that a failure on rank 0 ends all ranks instead of hanging them;
    # the broadcast is the barrier, too.
    outcome: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            outcome[0] = str(error)
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise RecordError(f"{what}: {outcome[0]}; {_REMEDY}")


def _clear(partial: Path) -> None:
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)


def _publish(partial: Path, path: Path, facts: str) -> None:
    with (partial / FACTS_FILE).open("w", encoding="utf-8") as file:
        file.write(facts)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        replaced = path.with_name(f"{path.name}.replaced{_PARTIAL_SUFFIX}")
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
        partial.rename(path)
        shutil.rmtree(replaced)
    else:
        partial.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_facts(path: Path) -> dict[str, Any]:
    if path.name.endswith(_PARTIAL_SUFFIX):
        raise ConfigError(f"{path}: a half-written save; continue from a folder step-NNNNNNNN")
    try:
        facts = json.loads((path / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: not a save of this harness ({error}); expected a folder step-NNNNNNNN"
            f" with {FACTS_FILE}"
        ) from error
    if facts.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"{path}: format version {facts.get('format_version')}, this harness reads"
            f" {FORMAT_VERSION}; continue with the version that saved it"
        )
    return facts


def _check_model(path: Path, model_state: dict[str, Any]) -> None:
    stored = FileSystemReader(path).read_metadata().state_dict_metadata
    found = {
        name.removeprefix("model."): list(entry.size)
        for name, entry in stored.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }
    expected = {name: list(tensor.shape) for name, tensor in model_state.items()}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ConfigError(
                f"{path}: {name} has the shape {found.get(name)} there and {expected.get(name)} in"
                " this model; continue with the model that was saved"
            )
