"""Trajectories of several contexts: one ratio together (gspo), one reward at the end of the last (critics)."""

from dataclasses import replace

import pytest
import torch

from specs.group_relative import GSPO
from specs.value_based import PPO, SAO, TurnPPO
from tasks.learning.algorithms import gspo, loss_for
from tasks.learning.critic import estimate
from tasks.learning.microbatches import micro_batches
from tasks.learning.rows import TrainingRow
from tasks.learning.surrogate import row_means
from tasks.tensors import Batch
from tests.tasks.learning.algorithms.gradients import tensor
from tests.tasks.learning.tiny import learner, random_rows, tiny_model

WIDE = GSPO(type="gspo", clip_low=0.9, clip_high=9.0)


def test_the_ratio_is_over_all_contexts_and_every_token_has_the_same_gradient():
    logprobs = tensor([[-0.7, -2.4, -0.5], [-0.2, -0.4, 0.0], [-1.0, 0.0, 0.0]]).requires_grad_()
    old = tensor([[-1.0, -2.0, -0.5], [-1.5, -0.7, 0.0], [-1.0, 0.0, 0.0]])
    weights = tensor([[0.1, 0.1, 0.1], [0.1, 0.1, 0.0], [0.5, 0.0, 0.0]])
    units = torch.tensor([4, 4, 0]).unique(return_inverse=True)[1]
    made = Batch(
        logprobs, weights, sampler_logprobs_BT=old, advantages_BT=tensor([1.0, 1.0, -1.0])[:, None].expand(3, 3),
        units_B=units,
    )  # fmt: skip
    output = gspo.loss(made, WIDE)
    (gradient,) = torch.autograd.grad(output.loss, logprobs)
    ratio = torch.tensor((0.3 - 0.4 + 0.0 + 1.3 + 0.3) / 5).exp().item()
    assert output.loss.item() == pytest.approx(-0.5 * ratio + 0.5)
    inside = [*gradient[0].tolist(), *gradient[1, :2].tolist()]
    assert inside == pytest.approx([-0.5 * ratio / 5] * 5)
    assert row_means(tensor([[2.0, 0.0]]), torch.tensor([[True, False]])).tolist() == [[2.0]]


def split_rows():
    """Return rows of three trajectories; the first has three contexts."""
    rows = random_rows(5)
    for row, name, contexts in zip(rows, "aaabc", (3, 3, 3, 1, 1), strict=True):
        row.trajectory, row.contexts, row.group = name, contexts, "g"
        row.unit = name if contexts > 1 else ""
        row.advantage = 1.0 if name == "a" else -0.5
        row.sampler_logprobs = [-1.0 - 0.1 * len(row.ids)] * len(row.ids)
    return rows


def test_contexts_stay_in_one_forward_pass_however_small_it_is():
    rows = split_rows()
    found = [m.rows for m in micro_batches(rows, 8, share=True)]
    assert any({0, 1, 2} <= set(m) for m in found)
    assert sorted(i for m in found for i in m) == [0, 1, 2, 3, 4]


def test_the_step_is_the_same_however_it_is_split():
    after = []
    for tokens in (4, 8192):
        model = tiny_model()
        made = learner(model, micro_batch_tokens=tokens)
        report = made.step(split_rows(), loss_for(WIDE), "sequence")
        after.append((report.loss, torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert after[0][0] == pytest.approx(after[1][0], rel=1e-5)
    torch.testing.assert_close(after[0][1], after[1][1], rtol=1e-4, atol=1e-6)


def row(mask, reward, name, trajectory=""):
    return TrainingRow(
        id=name, source="s", ids=list(range(1, len(mask) + 1)), mask=mask, advantage=reward, trajectory=trajectory
    )


@pytest.mark.parametrize(
    "spec",
    [PPO(type="ppo", whiten=False), SAO(type="sao"), TurnPPO(type="turn_ppo", whiten=False), PPO(type="ppo")],
    ids=lambda s: f"{s.type}-{s.whiten}",
)
def test_contexts_are_judged_as_one_trajectory_with_its_reward_at_the_end(spec):
    first, second = row([False, True, True, False], 1.0, "t/0", "t"), row([False, False, True, True], 1.0, "t/1", "t")
    other = row([False, True], -0.5, "o", "o")
    whole = row([*first.mask, *second.mask], 1.0, "t", "t")
    values = [[9.0, 0.1, 0.2, 9.0], [9.0, 9.0, 0.4, 0.6], [9.0, 0.3]]
    by_turn = isinstance(spec, TurnPPO)
    parts = estimate([first, second, replace(other)], values, spec, by_turn=by_turn)
    together = estimate([whole, replace(other)], [values[0] + values[1], values[2]], spec, by_turn=by_turn)
    assert first.advantages is not None
    assert second.advantages is not None
    assert first.advantages + second.advantages == pytest.approx(whole.advantages)
    assert parts.returns[0] + parts.returns[1] == pytest.approx(together.returns[0])
    assert parts.returns[2] == pytest.approx(together.returns[1])
