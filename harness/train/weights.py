"""Weights from a local Hugging Face folder into a sharded model, rows by rows.

A rank reads the rows of its own shards and nothing else; safetensors maps the files, so the other
rows never enter its memory. Only safetensors, and only Qwen3 of the declared architecture.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import Qwen3Config

from harness.config import ModelConfig
from harness.errors import ConfigError
from harness.train.materialise import ParameterShard, parameter_shards
from harness.train.model import build_config

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Rows are read in pieces of about this many elements: 32 MiB of bf16, 64 MiB of fp32.
CHUNK_ELEMENTS = 1 << 24

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
# Transformers' name of what must agree -> our key.
_COMPARED = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "tie_word_embeddings": "tie_word_embeddings",
    "rms_norm_eps": "rms_norm_eps",
    "rope_parameters": "rope_theta",
}


def load_weights(module: nn.Module, folder: Path, model: ModelConfig) -> None:
    """Overwrite every parameter of ``module`` with this rank's rows of the folder's tensors.

    Args:
        module: Allocated; plain or sharded over dimension 0.
        folder: Holds config.json and model.safetensors, or several files and their index.
        model: The declared architecture; the folder must be of the same.

    Raises:
        ConfigError: no safetensors, another architecture, a damaged file, or names or shapes that
            differ; the message names them. Nothing is loaded before names and shapes are checked.
    """
    _check_config(folder, model)
    files = _tensor_files(folder)
    shards = {shard.name: shard for shard in parameter_shards(module)}
    _check_names(folder, expected=set(shards), found=set(files), is_tied=model.tie_word_embeddings)
    with contextlib.ExitStack() as stack:
        handles = {path: stack.enter_context(_open(path)) for path in sorted(set(files.values()))}
        slices = {name: handles[path].get_slice(name) for name, path in files.items()}
        expected = {name: list(shard.shape) for name, shard in shards.items()}
        if _HEAD in files:
            expected.setdefault(_HEAD, expected[_EMBEDDING])
        _check_shapes(folder, expected, {name: s.get_shape() for name, s in slices.items()})
        for name, shard in shards.items():
            _copy_rows(slices[name], shard)
        if model.tie_word_embeddings and _HEAD in slices:
            _check_head(folder, slices[_HEAD], shards[_EMBEDDING])


def _check_config(folder: Path, model: ModelConfig) -> None:
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"model.weights={folder}: no config.json there; expected a local Hugging Face folder"
            " (config.json and *.safetensors)"
        )
    model_type = _read_json(path).get("model_type")
    if model_type != "qwen3":
        raise ConfigError(f"{path}: model_type={model_type!r}; only 'qwen3' (dense) is supported")
    found, declared = _their_config(folder), build_config(model)
    for theirs, ours in _COMPARED.items():
        there, here = getattr(found, theirs), getattr(declared, theirs)
        if there != here:
            raise ConfigError(
                f"{path}: {theirs}={there}, but model.{ours} of {model.name} declares {here};"
                " choose the model that these weights belong to, or set the key"
            )
    if found.layer_types != declared.layer_types:
        raise ConfigError(f"{path}: sliding-window attention; only full attention is supported")


def _their_config(folder: Path) -> Qwen3Config:
    # Read by transformers, which knows the defaults that a config.json leaves out.
    try:
        return Qwen3Config.from_pretrained(folder, local_files_only=True)
    except StrictDataclassError as error:
        raise ConfigError(f"{folder / 'config.json'}: contradicts itself: {error}") from error


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> the file that holds it."""
    index = folder / INDEX_FILE
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, Mapping):
            raise ConfigError(f"{index}: no weight_map; download the index again")
        files = {str(name): folder / str(file) for name, file in weight_map.items()}
        missing = sorted({path.name for path in files.values() if not path.is_file()})
        if missing:
            raise ConfigError(f"{index}: names files that are not there: {', '.join(missing)}")
        return files
    single = folder / SINGLE_FILE
    if not single.is_file():
        raise ConfigError(
            f"model.weights={folder}: neither {SINGLE_FILE} nor {INDEX_FILE} there; convert with"
            " AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) of"
            " transformers, which writes safetensors"
        )
    with _open(single) as handle:
        return dict.fromkeys(handle.keys(), single)


def _check_names(folder: Path, *, expected: set[str], found: set[str], is_tied: bool) -> None:
    # Some folders of tied models hold the head as well.
    accepted = expected | {_HEAD} if is_tied else expected
    missing, unexpected = sorted(expected - found), sorted(found - accepted)
    if missing or unexpected:
        raise ConfigError(
            f"model.weights={folder}: tensors missing: {_some(missing)};"
            f" unexpected: {_some(unexpected)}"
        )


def _check_shapes(
    folder: Path, expected: Mapping[str, list[int]], found: Mapping[str, list[int]]
) -> None:
    for name, shape in expected.items():
        if list(found[name]) != shape:
            raise ConfigError(
                f"model.weights={folder}: {name} has the shape {list(found[name])},"
                f" expected {shape}"
            )


@torch.no_grad()
def _copy_rows(rows: Any, shard: ParameterShard) -> None:
    for begin, end in _row_pieces(shard):
        shard.local[begin:end].copy_(rows[shard.first_row + begin : shard.first_row + end])


def _check_head(folder: Path, rows: Any, embedding: ParameterShard) -> None:
    for begin, end in _row_pieces(embedding):
        head = rows[embedding.first_row + begin : embedding.first_row + end]
        ours = embedding.local[begin:end]
        if not torch.equal(head.to(device=ours.device, dtype=ours.dtype), ours):
            raise ConfigError(
                f"model.weights={folder}: {_HEAD} differs from {_EMBEDDING}, but config.json says"
                " tie_word_embeddings=true; set model.tie_word_embeddings=false there and here"
            )


def _row_pieces(shard: ParameterShard) -> list[tuple[int, int]]:
    count = shard.local.shape[0]
    step = max(1, CHUNK_ELEMENTS // max(1, shard.shape[1:].numel()))
    return [(begin, min(begin + step, count)) for begin in range(0, count, step)]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ConfigError(
            f"{path}: not a whole safetensors file ({error}); fetch it again"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error})") from error


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
