"""The gated unit against torch's own, to the bit; and what a layer keeps for its backward pass."""

import pytest
import torch
from torch.nn import functional

from tasks.policy.swiglu import swiglu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_value_and_gradient_are_torchs_to_the_bit(dtype):
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(3, 7, 48, generator=generator).to(dtype).mul_(3) for _ in range(2)]
    outer = torch.randn(3, 7, 24, generator=generator).to(dtype)
    one, other = given[0].clone().requires_grad_(), given[0].clone().requires_grad_()
    gate, up = one.chunk(2, -1)
    wanted, found = functional.silu(gate) * up, swiglu(other)
    assert torch.equal(found, wanted)
    (to_one,), (to_other,) = torch.autograd.grad(wanted, one, outer), torch.autograd.grad(found, other, outer)
    assert torch.equal(to_one, to_other)
    with torch.no_grad():
        assert torch.equal(swiglu(other), wanted)


def test_it_keeps_what_came_in_and_nothing_else():
    kept = []
    given = torch.randn(5, 48, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        swiglu(given)
    assert [t.data_ptr() for t in kept] == [given.data_ptr()]
