import pytest
import torch

from specs.self_teaching import RLSD, Redistribute
from tasks.learning.algorithms import rlsd
from tests.tasks.learning.algorithms.gradients import ADVANTAGES, LOGPROBS, MASK, OLD, batch, tensor, value_and_gradient

SPEC = RLSD(type="rlsd", form="redistribute")
TEACHER = [[-0.2, -2.9, -0.5], [-0.9, -0.4, torch.nan]]


def found(spec=SPEC, teacher=TEACHER, **more):
    return value_and_gradient(rlsd.loss, spec, teacher_logprobs_BT=tensor(teacher), **more)


def test_by_hand():
    value, gradient, metrics = found(RLSD(type="rlsd", form="redistribute", clip_high=9.0, clip_low=0.99))
    advantage = [1.0 * (0.5 + 0.5 * 1.2), 1.0 * (0.5 + 0.5 * 0.8), 1.0]
    ratio = (tensor(LOGPROBS) - tensor(OLD)).exp()[0].tolist()
    second = [-0.5 * (0.5 + 0.5 * 1.2), -0.5]
    other = (tensor(LOGPROBS) - tensor(OLD)).exp()[1].tolist()
    terms = [a * r for a, r in zip(advantage, ratio, strict=True)] + [
        a * r for a, r in zip(second, other, strict=False)
    ]
    assert value == pytest.approx(-sum(terms) / 5)
    assert gradient[0][0] == pytest.approx(-terms[0] / 5)
    assert gradient[1][2] == 0.0
    assert metrics["teacher_gap"] == pytest.approx((0.5 - 0.5 - 0.7) / 5)


def test_the_sign_is_the_verifiers_and_nothing_comes_from_nothing():
    advantages = tensor([[2.0, -2.0, 0.0]])
    weights = rlsd.token_weights(advantages, tensor([[0.0, 0.0, 0.0]]), tensor([[-1.0, -1.0, -1.0]]), 0.2)
    made = rlsd.redistributed(advantages, weights, Redistribute(mix=1.0))
    assert made[0].tolist() == pytest.approx([2.4, -1.6, 0.0])
    assert (made.sign() == advantages.sign()).all()


def test_without_a_share_or_a_teacher_it_is_the_clipped_surrogate():
    plain = found(SPEC.model_copy(update={"redistribute": Redistribute(mix=0.0)}))
    silent = found(teacher=[[torch.nan] * 3] * 2)
    assert silent[0] == pytest.approx(plain[0])
    assert silent[1] == plain[1]


def test_what_is_masked_has_no_teacher():
    logprobs = tensor(LOGPROBS).requires_grad_()
    made = batch(logprobs, OLD, MASK, ADVANTAGES, teacher_logprobs_BT=tensor([[0.0] * 3, [0.0, 0.0, -torch.inf]]))
    assert torch.autograd.grad(rlsd.loss(made, SPEC).loss, logprobs)[0].isfinite().all()


@pytest.mark.parametrize("given", [1.0, 0.03, 0.0, -1.0])
@pytest.mark.parametrize("gap", [1.0, -1.0])
def test_kl_in_the_reward_is_taken_off_afterwards(given, gap):
    """A ((1 - m) + m w) - beta k1, w by the sign of A: what k1 takes off changes no sign and no weight."""
    spec = SPEC.model_copy(update={"kl_coef": 0.1, "kl": "k1_in_reward", "redistribute": Redistribute(mix=0.5)})
    logprobs = tensor([[-1.0, -1.0]]).requires_grad_()
    told = {
        "reference_logprobs_BT": tensor([[-2.0, -1.5]]),
        "teacher_logprobs_BT": tensor([[-1.0 + gap, -1.0 + gap]]),
    }
    made = batch(logprobs, [[-1.0, -1.0]], [[1, 1]], [given], **told)
    (gradient,) = torch.autograd.grad(rlsd.loss(made, spec).loss, logprobs)
    weight = 1 + 0.2 * (given * gap > 0) - 0.2 * (given * gap < 0)
    whole = given * (0.5 + 0.5 * weight)
    assert (-2 * gradient[0]).tolist() == pytest.approx([whole - 0.1 * 1.0, whole - 0.1 * 0.5])
