import pytest
import torch

from specs.ladder import Listwise
from tasks.learning.algorithms import soft_label
from tasks.tensors import Batch


def batch(sums, lengths, lists, targets, *, reference=None, weights=None):
    width = max(lengths)
    rows = torch.tensor(
        [[s / n] * n + [0.0] * (width - n) for s, n in zip(sums, lengths, strict=True)], dtype=torch.float64
    )
    logprobs = rows.requires_grad_()
    mask = torch.tensor([[t < n for t in range(width)] for n in lengths]).double()
    shares = torch.tensor(weights or [1 / len(sums)] * len(sums), dtype=torch.float64)
    return logprobs, Batch(
        logprobs, mask / mask.sum(-1, keepdim=True) * shares[:, None],
        reference_logprobs_BT=None if reference is None else torch.full_like(rows.detach(), reference),
        lists_B=torch.tensor(lists), targets_B=torch.tensor(targets, dtype=torch.float64),
    )  # fmt: skip


def test_the_gradient_is_policy_less_target():
    logprobs, made = batch([-4.0, -6.0], [2, 2], [0, 0], [0.75, 0.25])
    out = soft_label.loss(made, Listwise(utility="sum", kappa=2.0))
    out.loss.backward()
    policy = torch.softmax(torch.tensor([-2.0, -3.0], dtype=torch.float64), 0)
    wanted = (policy - torch.tensor([0.75, 0.25])) / 2.0
    assert logprobs.grad is not None
    assert logprobs.grad[:, 0].tolist() == pytest.approx(wanted.tolist())
    assert out.loss.item() == pytest.approx(-(0.75 * policy[0].log() + 0.25 * policy[1].log()).item())


def test_a_policy_at_its_target_has_no_gradient_and_no_kl():
    target = torch.softmax(torch.tensor([-1.0, -2.0]), 0)
    logprobs, made = batch([-3.0, -6.0], [3, 3], [0, 0], target.tolist())
    out = soft_label.loss(made, Listwise(utility="mean", kappa=1.0))
    out.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.abs().max().item() == pytest.approx(0.0, abs=1e-6)
    assert out.metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)


def test_means_compare_lengths_and_sums_do_not():
    _, made = batch([-4.0, -8.0], [4, 8], [0, 0], [0.5, 0.5])
    assert soft_label.loss(made, Listwise(kappa=1.0)).metrics["kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert soft_label.loss(made, Listwise(utility="sum", kappa=1.0)).metrics["kl"].item() > 1.0
    _, made = batch([-4.0, -8.0], [4, 8], [0, 0], [0.5, 0.5], reference=-1.0)
    assert soft_label.loss(made, Listwise(utility="ratio", kappa=1.0)).metrics["kl"].item() == pytest.approx(
        0.0, abs=1e-6
    )


def test_lists_do_not_meet_and_weigh_what_their_rows_do():
    _, both = batch(
        [-1.0, -2.0, -9.0, -5.0, -7.0],
        [1] * 5,
        [0, 0, 1, 1, 1],
        [0.9, 0.1, 0.2, 0.5, 0.3],
        weights=[0.25, 0.25, 1 / 6, 1 / 6, 1 / 6],
    )
    _, one = batch([-1.0, -2.0], [1, 1], [0, 0], [0.9, 0.1])
    _, two = batch([-9.0, -5.0, -7.0], [1] * 3, [0] * 3, [0.2, 0.5, 0.3])
    spec = Listwise(kappa=1.0)
    whole = soft_label.loss(both, spec).loss.item()
    assert whole == pytest.approx((soft_label.loss(one, spec).loss.item() + soft_label.loss(two, spec).loss.item()) / 2)


def test_a_list_of_one_teaches_nothing():
    logprobs, made = batch([-5.0], [2], [0], [1.0])
    out = soft_label.loss(made, Listwise())
    out.loss.backward()
    assert logprobs.grad is not None
    assert out.loss.item() == 0.0
    assert logprobs.grad.abs().max().item() == 0.0
