"""The head under bf16 autocast: fp32, and within some hundredths of a nat of it where its logits may be rounded."""

import pytest
import torch

from tasks.learning.head import CHUNK, SMALL_VOCABULARY, selected_logprobs

TOKENS, WIDTH = CHUNK + 44, 64
MEAN, MOST = 0.03, 0.15
"""Nats by which logprobs and entropies may differ from fp32's: on average, and the farthest. The logits' std is 5."""


def evaluated(vocabulary, *, bf16, rounded=False):
    """Return logprobs, entropies and the gradients of both sums, by the states and by the weight."""
    generator = torch.Generator().manual_seed(vocabulary)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator).requires_grad_()
    weight = (torch.randn(vocabulary, WIDTH, generator=generator) * 5 / WIDTH**0.5).requires_grad_()
    targets = torch.randint(0, vocabulary, (TOKENS,), generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        logprobs, entropy = selected_logprobs(hidden, weight, targets, entropy_gradient=True, rounded_logits=rounded)
    gradients = torch.autograd.grad(logprobs.mean() + 0.1 * entropy.mean(), (hidden, weight))
    return logprobs.detach(), entropy.detach(), *gradients


@pytest.mark.parametrize("rounded", [False, True])
def test_up_to_the_border_the_head_is_fp32(rounded):
    for exact, found in zip(
        *(evaluated(SMALL_VOCABULARY, bf16=b, rounded=rounded) for b in (False, True)), strict=True
    ):
        assert torch.equal(exact, found)


def test_beyond_the_border_its_logits_are_fp32():
    exact, found = (evaluated(SMALL_VOCABULARY + 904, bf16=b) for b in (False, True))
    assert torch.equal(exact[0], found[0])
    assert torch.equal(exact[1], found[1])
    for wanted, given in zip(exact[2:], found[2:], strict=True):
        assert given.dtype == torch.float32
        assert 0 < float((wanted - given).norm()) < 0.004 * float(wanted.norm()), "only its products are rounded"


def test_beyond_the_border_rounded_logits_are_near_fp32():
    exact, found = (evaluated(SMALL_VOCABULARY + 904, bf16=b, rounded=b) for b in (False, True))
    assert all(x.dtype == torch.float32 for x in found)
    for wanted, given in zip(exact[:2], found[:2], strict=True):
        apart = (wanted - given).abs()
        assert 0 < float(apart.mean()) < MEAN, "it is not computed in fp32, and not far from it"
        assert float(apart.max()) < MOST
    for wanted, given in zip(exact[2:], found[2:], strict=True):
        assert float((wanted - given).norm()) < 0.02 * float(wanted.norm())


@pytest.mark.parametrize("bf16", [False, True])
def test_rounded_logprobs_are_of_a_distribution(bf16):
    vocabulary = SMALL_VOCABULARY + 8
    generator = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(1, WIDTH, generator=generator), torch.randn(vocabulary, WIDTH, generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        states, targets = hidden.expand(vocabulary, -1), torch.arange(vocabulary)
        logprobs, _ = selected_logprobs(states, weight, targets, rounded_logits=True)
    assert float(logprobs.exp().sum()) == pytest.approx(1.0, abs=1e-4), "it is normalised in fp32"
