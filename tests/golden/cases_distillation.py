"""Cases of on-policy distillation: divergences, listed tokens, sampled tokens, several teachers."""

import math
from typing import Any

import torch
from torch import Tensor

from specs.distillation import OPD, Distillation, SampledTokens
from tasks.learning.algorithms import opd
from tasks.learning.distilling import Evidence, Hidden, Measure, Question, distill
from tasks.learning.divergences import Kind, Listed, confidence, confidence_weights, likeliest, log_linear, mixture
from tasks.learning.sampled import early_weights, gaps, return_to_go
from tasks.tensors import Batch

Json = dict[str, Any]


def compared(
    policy: list[float], teachers: list[list[float]], **how: Any
) -> tuple[float, list[float], dict[str, float]]:
    """Return the divergence of one token's logits from the teachers', its gradient, and figures, as the learner has them.

    The hidden states are the logits, the heads the identity.
    """
    direction, beta = how.pop("direction"), how.pop("beta", 0.5)
    settings = {"listed": None, "temperature": 1.0, "combine": "mixture", "by_confidence": False, "most": None} | how
    weights = settings.pop("weights", [1.0])
    states = torch.tensor([policy], dtype=torch.float64, requires_grad=True)
    head = torch.eye(len(policy), dtype=torch.float64)
    evidence = Evidence(
        [Hidden(torch.tensor([t], dtype=torch.float64), head) for t in teachers],
        torch.tensor(weights, dtype=torch.float64)[:, None],
    )
    measure = Measure(kind=Kind(direction, beta), **settings)
    one = torch.ones(1, dtype=torch.float64)
    found = distill(states, head, Question(torch.zeros(1, dtype=torch.long), one, evidence, measure))
    found.loss.backward()
    assert states.grad is not None
    return found.loss.item(), states.grad[0].tolist(), {n: v.item() for n, v in found.figures.items()}


def full_vocab_kl(i: Json) -> Json:
    def values(temperature: float) -> Json:
        def of(direction: str, beta: float = 0.5) -> tuple[float, list[float], dict[str, float]]:
            logits = (i["student_logits"], [i["teacher_logits"]])
            return compared(*logits, direction=direction, beta=beta, temperature=temperature)

        forward, to_forward, _ = of("forward")
        reverse, to_reverse, _ = of("reverse")
        return {
            "forward_KL_T_S": forward,
            "reverse_KL_S_T": reverse,
            **{f"jsd_beta_{name}": of("jsd", b)[0] for name, b in (("0_5", 0.5), ("0_1", 0.1), ("0_9", 0.9))},
            "grad_forward_KL_wrt_student_logits": to_forward,
            "grad_reverse_KL_wrt_student_logits": to_reverse,
            "forward_KL_times_T2": forward * temperature**2,
        }

    return {"T1": values(1.0), "Thigh": values(i["temperature_high"])}


def topk_tail(i: Json) -> Json:
    policy, teacher = [math.log(p) for p in i["student_p"]], [math.log(p) for p in i["teacher_p"]]

    def of(direction: str, *, by_policy: bool, rest: Any = "bucket") -> tuple[float, dict[str, float]]:
        listed = Listed(i["K"], by_policy=by_policy, rest=rest)
        value, _, figures = compared(policy, [teacher], direction=direction, listed=listed)
        return value, figures

    forms = {"tail": "bucket", "no_tail": "none", "renormalised": "renormalize"}
    own = of("reverse", by_policy=True)[1]
    return {
        "full_forward_KL": compared(policy, [teacher], direction="forward")[0],
        "full_reverse_KL": compared(policy, [teacher], direction="reverse")[0],
        "teacher_topk_idx": likeliest(torch.tensor([teacher]), i["K"])[0].tolist(),
        "student_topk_idx": likeliest(torch.tensor([policy]), i["K"])[0].tolist(),
        **{f"forward_KL_{name}": of("forward", by_policy=False, rest=rest)[0] for name, rest in forms.items()},
        **{f"reverse_KL_{name}": of("reverse", by_policy=True, rest=rest)[0] for name, rest in forms.items()},
        "jsd_half_student_topk_tail": of("jsd", by_policy=True)[0],
        "teacher_mass_on_student_topk": own["teacher_mass"],
        "overlap_ratio": own["overlap"],
    }


UNBOUNDED = SampledTokens(kind="sampled", most=1e9)


def sampled_batch(
    teachers: list[list[float]], policy: list[float], mask: list[int] | None = None, **more: Any
) -> tuple[Tensor, Batch]:
    """Return the policy's logprobs and a batch of one row in which every token inside the mask counts the same."""
    logprobs = torch.tensor([policy], dtype=torch.float64, requires_grad=True)
    inside = torch.tensor([mask or [1] * len(policy)], dtype=torch.float64)
    even = inside / inside.sum()
    batch = Batch(
        logprobs_BT=logprobs,
        weights_BT=even,
        distill_weights_BT=even,
        teacher_logprobs_MBT=torch.tensor([[t] for t in teachers], dtype=torch.float64),
        teacher_weights_MB=torch.ones(len(teachers), 1, dtype=torch.float64) / len(teachers),
        **more,
    )
    return logprobs, batch


def sampled_opd(i: Json) -> Json:
    spec = OPD(type="opd", over=UNBOUNDED)
    _, batch = sampled_batch([i["teacher_logp"]], i["student_logp"], i["mask"])
    mask = torch.tensor([i["mask"]], dtype=torch.bool)
    advantages = gaps(batch, spec, "equal")
    weights = early_weights(advantages, mask, i["gamma_iw"])
    return {
        "advantage_discount0": return_to_go(advantages, mask, 0.0)[0].tolist(),
        "k1_reverse_KL_estimate": opd.loss(batch, spec).own["teacher_gap"].item(),
        "return_to_go_gamma1": return_to_go(advantages, mask, 1.0)[0].tolist(),
        "return_to_go_gamma0_9": return_to_go(advantages, mask, 0.9)[0].tolist(),
        "iw_weights": weights[0].tolist(),
        "iw_advantage": (weights * advantages)[0].tolist(),
    }


def multi_teacher(i: Json) -> Json:
    policy = [math.log(p) for p in i["student_probs"]]
    teachers = [[math.log(p) for p in t] for t in i["teacher_probs"]]
    logprobs_MNV = torch.tensor(teachers, dtype=torch.float64)[:, None]
    weights_MN = torch.tensor(i["weights"], dtype=torch.float64)[:, None]
    product, log_sum = log_linear(logprobs_MNV, weights_MN)

    def of(combine: str) -> float:
        return compared(policy, teachers, direction="reverse", combine=combine, weights=i["weights"])[0]

    spread = (1 - confidence(logprobs_MNV)) * math.log(len(policy))
    return {
        "mixture": mixture(logprobs_MNV, weights_MN)[0].exp().tolist(),
        "log_linear": product[0].exp().tolist(),
        "log_linear_Z": log_sum.exp().item(),
        "reverse_KL_to_mixture": of("mixture"),
        "reverse_KL_to_log_linear": of("log_linear"),
        "weighted_sum_of_reverse_KLs": of("sum"),
        "teacher_entropy": spread[:, 0].tolist(),
        "entropy_confidence": confidence(logprobs_MNV)[:, 0].tolist(),
        "confidence_weights": confidence_weights(logprobs_MNV, weights_MN)[:, 0].tolist(),
    }


def mopd(i: Json) -> Json:
    """The weights are what the loss multiplies an advantage of 1 with."""
    over = UNBOUNDED.model_copy(update={"ratio_band": tuple(i["band"])})
    spec = OPD(type="opd", over=over, outcome_coef=i["alpha"])
    rollout = torch.tensor([i["rollout_logp"]], dtype=torch.float64)
    mask = torch.tensor([i["mask"]], dtype=torch.bool)

    def step(teacher: list[float], outcome: float) -> tuple[float, Tensor, Batch]:
        constant = torch.full(mask.shape, outcome, dtype=torch.float64)
        logprobs, batch = sampled_batch(
            [teacher], i["student_logp"], i["mask"], sampler_logprobs_BT=rollout, advantages_BT=constant
        )
        loss = opd.loss(batch, spec).loss
        (gradient,) = torch.autograd.grad(loss, logprobs)
        return loss.item(), gradient[0], batch

    loss, gradient, batch = step(i["teacher_logp"], i["outcome_advantage"])
    _, even, _ = step([p + 1.0 for p in i["student_logp"]], 0.0)
    advantages = gaps(batch, Distillation(over=over), "equal")
    combined = torch.where(mask, advantages + i["alpha"] * i["outcome_advantage"], 0.0)
    return {
        "opd_advantage": advantages[0].tolist(),
        "combined_advantage": combined[0].tolist(),
        "ratio": (batch.logprobs_BT.detach() - rollout).exp()[0].tolist(),
        "weight": (-even * mask.sum()).tolist(),
        "loss": loss,
        "grad_wrt_student_logp": gradient.tolist(),
    }


CASES = {
    "full_vocab_kl": full_vocab_kl,
    "topk_tail": topk_tail,
    "sampled_opd": sampled_opd,
    "multi_teacher": multi_teacher,
    "mopd": mopd,
}
