"""Cases of what a teacher's words train."""

from typing import Any

import torch

from specs.ladder import Listwise
from tasks.learning.algorithms import soft_label
from tasks.tensors import Batch
from tests.tasks.learning.algorithms.pairs import even

Json = dict[str, Any]


def listwise(i: Json) -> Json:
    target = soft_label.target(torch.tensor(i["scores"]), i["tau"])
    entropy = -(target * target.log()).sum().item()
    found: Json = {"target": target.tolist()}
    for utility, name in (("sum", "sum"), ("mean", "len_avg")):
        logprobs, batch = _candidates(i, target)
        made = soft_label.loss(batch, Listwise.model_validate({"tau": i["tau"], "utility": utility, "kappa": 1.0}))
        made.loss.backward()
        assert logprobs.grad is not None
        sums, tokens = logprobs.detach().sum(-1), torch.tensor(i["n_tokens"])
        assert batch.lists_B is not None
        log_p = soft_label.log_softmax_in_lists(soft_label.utilities(sums, tokens, utility), batch.lists_B)
        found |= {f"log_p_{name}": log_p.tolist(), f"loss_{name}": made.loss.item()}
        found[f"grad_wrt_seq_logp_{name}"] = logprobs.grad[:, 0].tolist()
        if utility == "sum":
            found["kl_sum"] = made.metrics["kl"].item()
            assert abs(found["kl_sum"] - (found["loss_sum"] - entropy)) < 1e-6
    return found


def _candidates(i: Json, target: torch.Tensor) -> tuple[torch.Tensor, Batch]:
    """Return candidates whose tokens share their sequence's logprob evenly, as one list."""
    longest = max(i["n_tokens"])
    rows = [[*even(total, n), *[0.0] * (longest - n)] for total, n in zip(i["seq_logp"], i["n_tokens"], strict=True)]
    logprobs = torch.tensor(rows, requires_grad=True)
    mask = torch.tensor([[t < n for t in range(longest)] for n in i["n_tokens"]])
    weights = mask / mask.sum(-1, keepdim=True) / len(rows)
    lists = torch.zeros(len(rows), dtype=torch.long)
    return logprobs, Batch(logprobs_BT=logprobs, weights_BT=weights, lists_B=lists, targets_B=target)


CASES = {"listwise": listwise}
