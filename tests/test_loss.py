"""Token-weighted cross entropy, and the weight under which averaged gradients are exact."""

import math

import pytest
import torch
from torch.nn import functional

from harness.data.loader import IGNORED_LABEL
from harness.train.loss import loss_weight, token_loss_sum


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary_per_target():
    labels = torch.tensor([[1, 2, IGNORED_LABEL]])
    loss = token_loss_sum(torch.zeros(1, 3, 50), labels)
    assert loss.item() == pytest.approx(2 * math.log(50))


def test_sum_over_targets_is_the_ordinary_mean_times_their_count():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 7, 11), torch.randint(11, (2, 7))
    mean = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert token_loss_sum(logits, labels).item() == pytest.approx(14 * mean.item(), rel=1e-6)


def test_batch_without_targets_costs_nothing_and_has_a_zero_gradient():
    logits = torch.randn(1, 4, 5, requires_grad=True)
    loss = token_loss_sum(logits, torch.full((1, 4), IGNORED_LABEL))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_bf16_logits_are_summed_in_fp32():
    logits = torch.randn(1, 300, 8).to(torch.bfloat16)
    loss = token_loss_sum(logits, torch.zeros(1, 300, dtype=torch.int64))
    assert loss.dtype == torch.float32
    exact = -functional.log_softmax(logits.double(), dim=-1)[..., 0].sum()
    assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


def test_mean_of_weighted_rank_gradients_is_the_gradient_of_the_global_token_mean():
    """A mean per rank weighs a rank with few targets like one with many."""
    torch.manual_seed(0)
    weight = torch.randn(6, 9, requires_grad=True)
    hidden, labels = torch.randn(4, 5, 6), torch.randint(9, (4, 5))
    labels[0, 1:] = IGNORED_LABEL
    labels[1, :] = IGNORED_LABEL
    targets = int((labels != IGNORED_LABEL).sum())
    mean = functional.cross_entropy((hidden @ weight).flatten(0, 1), labels.flatten())
    (expected,) = torch.autograd.grad(mean, weight)
    gradients = []
    for rank in range(2):
        mine = slice(2 * rank, 2 * rank + 2)
        loss = token_loss_sum(hidden[mine] @ weight, labels[mine]) * loss_weight(2, targets)
        gradients.append(torch.autograd.grad(loss, weight)[0])
    assert torch.allclose(sum(gradients) / 2, expected, atol=1e-6)
