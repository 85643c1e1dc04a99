"""What holds for every loss on examples and on preferences: masks, padding and the order of rows change nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.preference import DPO, IPO, KTO, ORPO, SimPO
from specs.reward_models import RewardModel
from specs.supervised import RFT, SFT, RewardWeighted
from tasks.learning.algorithms import loss_for
from tasks.tensors import Batch, token_weights
from tests.tasks.learning.algorithms.gradients import tensor

SPECS = [
    SFT(type="sft"), RFT(type="rft"), RewardWeighted(type="reward_weighted"), DPO(type="dpo", nll_coef=0.3),
    DPO(type="dpo", lengths="mean", label_smoothing=0.1), IPO(type="ipo"), IPO(type="ipo", lengths="sum"),
    ORPO(type="orpo"), SimPO(type="simpo"), KTO(type="kto"), RewardModel(type="reward_model", center_coef=0.1),
]  # fmt: skip
every = pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.type)
numbers = st.floats(-4, -0.0078125, width=16)
quick = settings(max_examples=15, deadline=None, derandomize=True)


@st.composite
def grids(draw):
    """Return logprobs and reference of some pairs (chosen sides at even rows), a mask with something in each row, and weights."""
    rows, columns = 2 * draw(st.integers(1, 3)), draw(st.integers(1, 5))

    def grid():
        return tensor([[draw(numbers) for _ in range(columns)] for _ in range(rows)])

    mask = torch.tensor([[draw(st.booleans()) for _ in range(columns)] for _ in range(rows)])
    mask[range(rows), [draw(st.integers(0, columns - 1)) for _ in range(rows)]] = True
    weights = tensor([draw(st.sampled_from([0.5, 1.0, 3.0])) for _ in range(rows // 2)]).repeat_interleave(2)
    return grid(), grid(), mask, weights


def made(logprobs, reference, mask, weights, order=None):
    """Return a batch of pairs; `order`: the rows in another one."""
    count = len(logprobs)
    order = torch.arange(count) if order is None else order
    places = order.argsort()  # of each row, where it stands now
    shares = token_weights(mask, "sequence").double() * (weights / weights.mean())[:, None]
    return Batch(
        logprobs[order],
        shares[order],
        reference_logprobs_BT=reference[order],
        preferred_B=(torch.arange(count) % 2 == 0)[order],
        pairs_P2=places.view(-1, 2).flip(0),
        baselines_B=torch.full((count,), 0.1, dtype=torch.float64),
    )


@every
@given(grid=grids())
@quick
def test_what_is_masked_or_padded_changes_nothing(spec, grid):
    logprobs, reference, mask, weights = grid
    loss = loss_for(spec)
    plain = loss(made(logprobs, reference, mask, weights))
    spoiled, broken = torch.where(mask, logprobs, -torch.inf).requires_grad_(), torch.where(mask, reference, torch.nan)
    hidden = loss(made(spoiled, broken, mask, weights))
    torch.testing.assert_close(hidden.loss, plain.loss)
    torch.testing.assert_close(hidden.metrics, plain.metrics)
    (gradient,) = torch.autograd.grad(hidden.loss, spoiled)
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()

    def pad(grid, value):
        return torch.nn.functional.pad(grid, (0, 3), value=value)

    wider = loss(made(pad(logprobs, -3.0), pad(reference, -1.0), pad(mask, False), weights))
    torch.testing.assert_close(wider.loss, plain.loss)
    torch.testing.assert_close(wider.metrics, plain.metrics)


@every
@given(grid=grids(), chance=st.randoms(use_true_random=False))
@quick
def test_rows_may_come_in_any_order(spec, grid, chance):
    logprobs, reference, mask, weights = grid
    order = torch.tensor(chance.sample(range(len(logprobs)), len(logprobs)))
    given_in = logprobs.clone().requires_grad_()
    loss = loss_for(spec)
    plain, other = loss(made(given_in, reference, mask, weights)), loss(made(given_in, reference, mask, weights, order))
    torch.testing.assert_close(other.loss, plain.loss)
    torch.testing.assert_close(other.metrics, plain.metrics)
    gradients = [torch.autograd.grad(output.loss, given_in)[0] for output in (plain, other)]
    torch.testing.assert_close(*gradients)
