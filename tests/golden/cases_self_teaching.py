"""Cases of self-teaching, each computed by the functions that its losses use."""

from typing import Any

import torch
from torch import Tensor

from specs.self_teaching import Redistribute
from tasks.learning.algorithms import rlsd as redistribution
from tasks.learning.algorithms import sdar as gating
from tasks.tensors import token_weights

Json = dict[str, Any]


def _row(values: Any) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def rlsd(i: Json) -> Json:
    teacher, policy = _row(i["teacher_logp"]), _row(i["student_logp"])
    advantages = torch.full_like(teacher, i["advantage"])
    spec = Redistribute(mix=i["lam"], clip=i["eps_w"])
    weights = redistribution.token_weights(advantages, teacher, policy, spec.clip)
    return {
        "delta": (teacher - policy)[0].tolist(),
        "w": redistribution.token_weights(advantages, teacher, policy, clip=1e9)[0].tolist(),
        "w_clipped": weights[0].tolist(),
        "token_advantage": redistribution.redistributed(advantages, weights, spec)[0].tolist(),
    }


def sdar(i: Json) -> Json:
    teacher, policy = _row(i["teacher_logp"]), _row(i["student_logp"]).requires_grad_()
    weights = token_weights(torch.tensor([i["mask"]], dtype=torch.bool), "token").double()
    loss, gate = gating.distillation(teacher, policy, weights, i["beta"])
    (gradient,) = torch.autograd.grad(loss, policy)
    return {
        "gate": gate[0].tolist(),
        "loss": loss.item(),
        "lambda_times_loss": i["lam"] * loss.item(),
        "grad_wrt_student_logp": gradient[0].tolist(),
    }


CASES = {"rlsd": rlsd, "sdar": sdar}
