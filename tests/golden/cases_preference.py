"""Cases of preference losses, pairs and likelihood weighted by reward."""

from typing import Any

import torch

from specs.preference import DPO, IPO, KTO, ORPO, Pairing, SimPO
from specs.supervised import RewardWeighted
from tasks.learning.algorithms import dpo, ipo, kto, orpo, reward_weighted, simpo
from tasks.learning.algorithms.reward_weighted import AGGREGATION, mean_one, shares
from tasks.learning.batching import row_weights
from tasks.learning.rows import TrainingRow
from tasks.loops.pairing import pair_indices, pair_up
from tasks.tensors import Batch
from tests.tasks.learning.algorithms.pairs import even, pair_batch
from tests.tasks.loops.test_selection import drawn

Json = dict[str, Any]


def preference(i: Json) -> Json:
    lengths = (i["len_chosen"], i["len_rejected"])
    sides = [even(i[f"policy_{s}"], n) for s, n in zip(("chosen", "rejected"), lengths, strict=True)]
    reference = [even(i[f"ref_{s}"], n) for s, n in zip(("chosen", "rejected"), lengths, strict=True)]
    logprobs, batch = pair_batch(sides, reference)
    direct = dpo.loss(batch, DPO(type="dpo", beta=i["dpo_beta"]))
    direct.loss.backward()
    assert logprobs.grad is not None
    by_sum = ipo.loss(batch, IPO(type="ipo", tau=i["ipo_tau"], lengths="sum"))
    by_mean = ipo.loss(batch, IPO(type="ipo", tau=i["ipo_tau"]))
    odds = orpo.loss(batch, ORPO(type="orpo", odds_coef=i["orpo_lambda"]))
    simple = SimPO(type="simpo", beta=i["simpo_beta"], gamma_over_beta=i["simpo_gamma_over_beta"])
    return {
        "delta": direct.metrics["margin"].item(),
        "dpo_loss": direct.loss.item(),
        "dpo_grad_wrt_policy_chosen": logprobs.grad[0, 0].item(),
        "dpo_grad_wrt_policy_rejected": logprobs.grad[1, 0].item(),
        "ipo_loss_sum_logps": by_sum.loss.item(),
        "ipo_delta_len_avg": by_mean.metrics["margin"].item(),
        "ipo_loss_len_avg": by_mean.loss.item(),
        "orpo_log_odds_ratio": odds.metrics["log_odds_ratio"].item(),
        "orpo_or_term": odds.metrics["odds_loss"].item(),
        "orpo_loss": odds.loss.item(),
        "simpo_loss": simpo.loss(batch, simple).loss.item(),
    }


def kto_case(i: Json) -> Json:
    spec = KTO(type="kto", beta=i["beta"], desirable_weight=i["lambda_d"], undesirable_weight=i["lambda_u"])
    z = kto.baseline(i["mismatched_log_ratio"])
    ratio = torch.tensor(i["log_ratio"], dtype=torch.float64)
    preferred = torch.tensor(i["desirable"], dtype=torch.bool)
    given = kto.losses(ratio, preferred, torch.full_like(ratio, z), spec)
    batch = Batch(
        ratio[:, None],
        torch.full((len(ratio), 1), 1 / len(ratio), dtype=torch.float64),
        reference_logprobs_BT=torch.zeros(len(ratio), 1, dtype=torch.float64),
        preferred_B=preferred,
        baselines_B=torch.full_like(ratio, z),
    )
    return {"z": z, "losses": given.tolist(), "loss": kto.loss(batch, spec).loss.item()}


def pairs(i: Json) -> Json:
    every, _ = pair_indices(i["scores"], i["min_margin"], "all")
    best, _ = pair_indices(i["scores"], i["min_margin"], "best_worst")
    rolled = [drawn("p", f"t{k}", score) for k, score in enumerate(i["scores"])]
    for trajectory in rolled:
        trajectory.success = True
    made = pair_up(rolled, Pairing(choose="all", rejected="lower", margin=i["min_margin"])).pairs
    return {
        "all_pairs": [list(p) for p in every],
        "n_all_pairs": len(made),
        "best_worst": list(best[0]),
        "per_pair_weight_task_mean": made[0].weight,
    }


def reward_weighted_sft(i: Json) -> Json:
    rewards, tokens = i["reward"], i["n_tokens"]

    def loss(denominator: Any) -> float:
        spec = RewardWeighted(
            type="reward_weighted", reward_temperature=i["temperature"], among="all", denominator=denominator
        )
        weights, _ = mean_one(rewards, range(len(rewards)), spec)
        scaled = reward_weighted.row_weights(weights, tokens, spec)
        rows = [
            TrainingRow(id=str(k), source="s", ids=[0] * (n + 1), mask=[False] + [True] * n, weight=w)
            for k, (n, w) in enumerate(zip(tokens, scaled, strict=True))
        ]
        laid_out = row_weights(rows, AGGREGATION[denominator]).double()
        logprobs = torch.zeros_like(laid_out)
        for k, (total, n) in enumerate(zip(i["seq_logp"], tokens, strict=True)):
            logprobs[k, 1 : n + 1] = total / n
        return reward_weighted.loss(Batch(logprobs, laid_out), spec).loss.item()

    spec = RewardWeighted(type="reward_weighted", reward_temperature=i["temperature"], among="all")
    return {
        "w_softmax": shares(rewards, [0] * len(rewards), i["temperature"]),
        "w_mean_one": mean_one(rewards, range(len(rewards)), spec)[0],
        "loss_seq_sum": loss("sequences"),
        "loss_token_mean_weighted": loss("weighted_tokens"),
        "loss_plain_denominator": loss("tokens"),
    }


CASES = {
    "preference": preference,
    "kto": kto_case,
    "pairs": pairs,
    "reward_weighted_sft": reward_weighted_sft,
}
