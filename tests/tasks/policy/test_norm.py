"""The norm's own gradient under autocast against torch's."""

import pytest
import torch
from torch.nn import functional

from tasks.policy.norm import rms_norm


@pytest.mark.parametrize("frozen", [False, True])
def test_value_and_gradient_are_torchs(frozen):
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(3, 7, 24, generator=generator) * 4).requires_grad_()
    weight = torch.randn(24, generator=generator).requires_grad_(not frozen)
    outer = torch.randn(3, 7, 24, generator=generator)
    asked = (x,) if frozen else (x, weight)
    wanted = functional.rms_norm(x, (24,), weight, 1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = rms_norm(x, weight, 1e-5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted)
    gradients = (torch.autograd.grad(y, asked, outer) for y in (found, wanted))
    for given, right in zip(*gradients, strict=True):
        torch.testing.assert_close(given, right, rtol=1e-5, atol=1e-5)


def test_its_gradient_is_that_of_its_values():
    x = torch.randn(2, 5, requires_grad=True)
    weight = torch.randn(5, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (rms_norm(x, weight, 1e-3) ** 2).sum()
    to_x, to_weight = torch.autograd.grad(loss, (x, weight))
    step = 1e-3
    for tensor, found in ((x, to_x), (weight, to_weight)):
        for i in range(tensor.numel()):
            values = []
            for sign in (1, -1):
                moved = tensor.detach().double().clone().view(-1)
                moved[i] += sign * step
                given = [moved.view_as(tensor) if t is tensor else t.detach().double() for t in (x, weight)]
                values.append(float((functional.rms_norm(given[0], (5,), given[1], 1e-3) ** 2).sum()))
            assert float(found.view(-1)[i]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=2e-3, abs=2e-3)
