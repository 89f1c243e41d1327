"""The Qwen3 architecture on the meta device, and its forward pass from tokens to logits.

Weights are somebody else's business (materialise, weights); so is spreading them (parallel).
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from harness.config import ModelConfig


def build_config(model: ModelConfig) -> Qwen3Config:
    """The transformers configuration of ``model``: dense causal attention, sdpa, no cache."""
    return Qwen3Config(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
        rms_norm_eps=model.rms_norm_eps,
        tie_word_embeddings=model.tie_word_embeddings,
        initializer_range=model.initializer_range,
        use_cache=False,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )


def build_model(model: ModelConfig) -> Qwen3ForCausalLM:
    """A Qwen3ForCausalLM of fp32 parameters on the meta device: shapes without memory."""
    with torch.device("meta"):
        return Qwen3ForCausalLM(build_config(model)).float()


def compute_logits(
    module: nn.Module, input_ids_BT: torch.Tensor, position_ids_BT: torch.Tensor | None
) -> torch.Tensor:
    """Logits of every position.

    Args:
        module: What ``prepare_model`` or ``build_model`` gave, materialised.
        input_ids_BT: Token ids, int64, [B, T].
        position_ids_BT: Positions within documents, int64, [B, T]; wherever they do not continue,
            a document begins and attention does not look back beyond it. None: one causal window.

    Returns:
        Logits [B, T, vocab_size] in the type of the forward pass (bf16 under mixed precision).
    """
    mask = None if position_ids_BT is None else document_mask(position_ids_BT)
    # A ready mask per layer type keeps transformers from deriving one from the position ids, which
    # reads a value back from the device in every forward pass. None means plain causal attention,
    # the only form for which sdpa takes its flash kernel.
    output = module(
        input_ids=input_ids_BT,
        position_ids=position_ids_BT,
        attention_mask={"full_attention": mask},
        use_cache=False,
    )
    return output.logits


def document_mask(position_ids_BT: torch.Tensor) -> torch.Tensor:
    """True where a query may see a key: same document, and not later.

    Args:
        position_ids_BT: Positions within documents, int64, [B, T].

    Returns:
        bool, [B, 1, T, T], queries before keys.
    """
    length = position_ids_BT.shape[1]
    is_start = position_ids_BT.diff(dim=1) != 1
    document_BT = nn.functional.pad(is_start, (1, 0)).cumsum(dim=1)
    is_same = document_BT[:, :, None] == document_BT[:, None, :]
    is_earlier = torch.ones(length, length, dtype=torch.bool, device=is_same.device).tril()
    return (is_same & is_earlier)[:, None]
