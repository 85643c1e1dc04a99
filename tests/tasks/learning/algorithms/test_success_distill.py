import pytest
import torch

from specs.self_teaching import RLSD, SuccessDistill
from tasks.learning.algorithms import success_distill
from tasks.learning.self_taught import at_step, temperature_at
from tasks.tensors import Batch, token_weights
from tests.tasks.learning.algorithms.gradients import LOGPROBS, MASK, tensor


def test_the_likelihood_of_what_is_taught_rises():
    logprobs = tensor(LOGPROBS).requires_grad_()
    weights = token_weights(torch.tensor(MASK), "token").double()
    made = success_distill.distillation(Batch(logprobs, weights), SuccessDistill(coef=0.5))
    assert made.loss.item() == pytest.approx(0.5 * (0.7 + 2.4 + 0.5 + 0.2 + 0.4) / 5)
    (gradient,) = torch.autograd.grad(made.loss, logprobs)
    torch.testing.assert_close(gradient, -0.5 * weights)


def test_weights_are_reward_times_shortness_with_a_mean_of_one():
    found = success_distill.trajectory_weights([1.0, 1.0, 0.5], [8, 12, 12], ["a", "a", "b"], 1.2)
    assert sum(found) / 3 == pytest.approx(1.0)
    assert found[0] / found[1] == pytest.approx(1.2)
    assert found[2] / found[1] == pytest.approx(0.5)
    assert success_distill.trajectory_weights([0.0, -1.0], [1, 2], ["a", "a"], 1.2) == [1.0, 1.0]
    assert success_distill.trajectory_weights([], [], [], 1.2) == []


def test_the_least_sure_tokens_are_kept_over_all_rows_together():
    masks = success_distill.least_sure([[0.0, 3.0, 1.0], [9.0, 2.0]], [[False, True, True], [False, True]], 0.5)
    assert masks == [[False, True, False], [False, True]]
    assert success_distill.least_sure([[1.0, 1.0]], [[False, True]], 0.01) == [[False, True]]


def test_coefficients_and_temperature_follow_the_steps():
    rlsd = RLSD(type="rlsd", form="redistribute")
    assert at_step(rlsd, 25).redistribute.mix == pytest.approx(0.25)
    assert at_step(rlsd, 99).redistribute.mix == 0.0
    spec = RLSD(type="rlsd", steps=5, success_distill=SuccessDistill(coef=0.2, warmup_steps=4, final_temperature=0.5))
    assert [at_step(spec, s).success_distill.coef for s in (0, 3, 9)] == pytest.approx([0.05, 0.2, 0.2])
    assert at_step(spec, 9, 0.0).success_distill.coef == 0.0
    assert [temperature_at(spec, s) for s in (0, 2, 4)] == pytest.approx([1.0, 0.75, 0.5])
    assert temperature_at(rlsd, 3) == 1.0
