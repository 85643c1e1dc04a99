"""Attention in bf16 against torch's in fp32."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tasks.policy import attention


def drawn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def causal(q, k, v):
    return attention.attention(q, k, v, None)


def passed(attend, inputs, dtype):
    given = [t.to(dtype).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in inputs[:3]]
    out = attend(*given)
    out.backward(inputs[3].to(dtype))
    return [out.detach(), *(t.grad for t in given)]


@pytest.mark.parametrize("scores", [2**22, 300])  # all heads at a time, and one after another
@pytest.mark.parametrize("shape", [(3, 4, 17, 16), (2, 3, 1, 8), (1, 2, 70, 64)])
def test_value_and_gradients_are_those_of_fp32_but_for_rounding(shape, scores, monkeypatch):
    monkeypatch.setattr(attention, "_SCORES", scores)
    inputs = [drawn(shape, i) for i in range(4)]
    inputs = [t.bfloat16().float() for t in inputs]
    expected = passed(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), inputs, torch.float32)
    found = passed(causal, inputs, torch.bfloat16)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).norm() <= 0.01 * other.norm() + 1e-6


@pytest.mark.parametrize("scores", [2**22, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_shared_by_a_group_have_the_gradients_of_all_its_heads(dtype, scores, monkeypatch):
    monkeypatch.setattr(attention, "_SCORES", scores)
    shapes = [(2, 6, 11, 16), (2, 2, 11, 16), (2, 2, 11, 16), (2, 6, 11, 16)]
    inputs = [drawn(shape, i).bfloat16().float() for i, shape in enumerate(shapes)]

    def repeated(q, k, v):
        return scaled_dot_product_attention(q, *(t.repeat_interleave(3, 1) for t in (k, v)), is_causal=True)

    expected = passed(repeated, inputs, torch.float32)
    for one, other in zip(passed(causal, inputs, dtype), expected, strict=True):
        assert one.shape == other.shape
        assert (one.float() - other).norm() <= (0.01 if dtype == torch.bfloat16 else 1e-6) * other.norm()


def test_no_token_hears_of_what_follows_it():
    inputs = [drawn((1, 2, 9, 16), i) for i in range(3)]
    late = torch.zeros(1, 2, 9, 16)
    late[:, :, 4] = 1.0
    _, to_q, to_k, to_v = passed(causal, [*inputs, late], torch.bfloat16)
    assert to_q[:, :, [0, 1, 2, 3, 5, 6, 7, 8]].abs().max() == 0
    assert to_k[:, :, 5:].abs().max() == 0
    assert to_v[:, :, 5:].abs().max() == 0
    assert to_v[:, :, :5].abs().min(-1).values.max() > 0


def test_what_a_mask_hides_is_hidden_with_the_gradients_of_fp32():
    inputs = [drawn((2, 2, 6, 16), i).bfloat16().float() for i in range(4)]
    seen = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    seen[1, :, 4:, 2:4] = False

    def masked(q, k, v):
        return attention.attention(q, k, v, seen)

    expected = passed(masked, inputs, torch.float32)
    found = passed(masked, inputs, torch.bfloat16)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).norm() <= 0.01 * other.norm()
    assert not torch.equal(expected[0][1, :, 5], passed(causal, inputs, torch.float32)[0][1, :, 5])
