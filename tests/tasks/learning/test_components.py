"""Further losses of one update: their gradients add up, each has a denominator of its own, and one alone is enough."""

import pytest
import torch

from specs.self_teaching import SuccessDistill
from specs.supervised import SFT
from tasks.learning.algorithms import loss_for, success_distill
from tasks.learning.learner import Component
from tasks.tensors import LossOutput
from tests.tasks.learning.tiny import learner, random_rows, tiny_model

NLL = loss_for(SFT(type="sft"))
ROWS, OTHERS = random_rows(5, seed=1), random_rows(7, seed=2)


def half(batch):
    return success_distill.distillation(batch, SuccessDistill(coef=0.5))


def gradients(rows, *, also=(), **more):
    """Return the gradient of a step, caught before the weights move."""
    model = tiny_model()
    found = {}

    def guard(report):
        found.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

    report = learner(model, **more).step(rows, NLL, guard=guard, also=also)
    return found, report


def test_gradients_add_up_however_the_rows_are_split():
    one, first = gradients(ROWS)
    other, second = gradients(OTHERS)
    scale = min(1.0, 1.0 / first.grad_norm), min(1.0, 1.0 / second.grad_norm)
    for tokens in (8192, 40):
        both, report = gradients(ROWS, also=[Component(OTHERS, half, name="more")], micro_batch_tokens=tokens)
        assert report.loss == pytest.approx(first.loss + 0.5 * second.loss, rel=1e-4)
        assert report.metrics["more_loss"] == pytest.approx(0.5 * second.loss, rel=1e-4)
        assert report.trained_tokens == first.trained_tokens + second.trained_tokens
        clip = min(1.0, 1.0 / report.grad_norm)
        for name, value in both.items():
            whole = one[name] / scale[0] + 0.5 * other[name] / scale[1]
            torch.testing.assert_close(value / clip, whole, atol=2e-4, rtol=2e-3)


def test_a_component_alone_moves_the_weights_and_an_empty_one_does_not():
    model = tiny_model()
    made = learner(model)
    before = model.embed.weight.clone()
    assert not made.step([], NLL, also=[Component([], half)]).updated
    assert torch.equal(model.embed.weight, before)
    report = made.step([], NLL, also=[Component(OTHERS, half)])
    assert report.updated
    assert report.metrics["also_loss"] > 0
    assert not torch.equal(model.embed.weight, before)


def test_entropies_are_those_of_the_forward_pass():
    model = tiny_model()
    made = learner(model)
    seen = {}

    def loss(batch):
        seen["entropy"] = batch.entropy_BT
        return LossOutput((batch.weights_BT * batch.logprobs_BT).sum() * 0, {})

    rows = ROWS[:1]
    made.step(rows, loss)
    found = made.entropies(rows)[0]
    assert found[: seen["entropy"].shape[1]] == pytest.approx(seen["entropy"][0].tolist(), abs=1e-5)
    assert all((e > 0) == m for e, m in zip(found, rows[0].mask, strict=True))
