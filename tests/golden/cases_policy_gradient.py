"""Cases of policy gradients, each computed by the algorithm that a program would name."""

from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from specs.group_relative import CISPO, DAPO, GSPO, REINFORCE, RLOO, DrGRPO, SoftOverlong
from specs.grpo import GRPO
from specs.policy_gradient import Correction
from specs.supervised import SFT
from specs.turn_credit import G2PO, GiGPO
from specs.value_based import SAO, TurnPPO
from tasks.learning import correction, critic
from tasks.learning.algorithms import cispo, dapo, dr_grpo, g2po, gigpo, grpo, gspo, reinforce, rloo, sao, sft, turn_ppo
from tasks.learning.gae import adaptive_lambda, gae, value_losses, whitened
from tasks.learning.grouping import Rewarded, Walk, count_groups, varies
from tasks.learning.head import selected_logprobs
from tasks.learning.surrogate import clipped, kl_k1, kl_k2, kl_k3, row_means
from tasks.tensors import Batch, importance_ratio, token_weights, turn_numbers, turn_sums

Json = dict[str, Any]


def _t(values: Any, *, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def _mask(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def _spread(advantage: Any, shape: Any) -> Tensor:
    """Return advantages by token; they are given by row or by token."""
    given = _t(advantage)
    return (given[:, None] if given.dim() == 1 else given).expand(shape)


def _batch(logp: Tensor, old: Tensor, advantage: Any, mask: Tensor, mean: Any = "token") -> Batch:
    return Batch(
        logp,
        token_weights(mask, mean).double(),
        sampler_logprobs_BT=old,
        advantages_BT=_spread(advantage, logp.shape),
    )


def _ratio(logp: Tensor, old: Tensor) -> Tensor:
    """Return the ratio of every token, masked ones included."""
    return importance_ratio(logp, old, torch.ones_like(logp, dtype=torch.bool))


def _gradient(loss: Tensor, of: Tensor) -> list[Any]:
    (found,) = torch.autograd.grad(loss, of, retain_graph=True)
    return found.tolist()


def sft_masked(i: Json) -> Json:
    logp, mask, spec = _t(i["logp"]), _mask(i["mask"]), SFT(type="sft")

    def mean(how: Any, rows: slice = slice(None)) -> float:
        batch = Batch(logp[rows], token_weights(mask[rows], how).double())
        return sft.loss(batch, spec).loss.item()

    return {
        "token_mean": mean("token"),
        "seq_mean_excl_empty": mean("sequence"),
        "seq_mean_all_rows": fmean(mean("sequence", slice(b, b + 1)) for b in range(len(logp))),
        "constant_BxL": mean(i["L_const"]),
    }


def grpo_adv(i: Json) -> Json:
    rewarded = Rewarded(i["reward"], i["group"])

    def by(scale: Any, floor: float) -> list[float | None]:
        return grpo.advantages(rewarded, GRPO(type="grpo", scale_rewards=scale, std_floor=floor))

    return {
        "sample_std": by("group_std", i["eps"]),
        "population_std": by("group_population_std", i["eps"]),
        "mean_only": dr_grpo.advantages(rewarded, DrGRPO(type="dr_grpo")),
        "sample_std_eps_1e4": by("group_std", 1e-4),
    }


def rloo_adv(i: Json) -> Json:
    return {"advantage": rloo.advantages(Rewarded(i["reward"], i["group"]), RLOO(type="rloo"))}


def opo_passk(i: Json) -> Json:
    rewarded = Rewarded(i["reward"], ["g"] * len(i["reward"]), i["length"])
    opo = reinforce.advantages(rewarded, REINFORCE(type="reinforce", baseline="length_weighted"))
    best = reinforce.advantages(rewarded, REINFORCE(type="reinforce", baseline="second_best"))
    assert opo[0] is not None
    return {"opo_baseline": i["reward"][0] - opo[0], "opo_advantage": opo, "passk_best_only": best}


def dynamic_sampling(i: Json) -> Json:
    groups = i["group_rewards"]
    flat = Rewarded([r for g in groups for r in g], [n for n, g in enumerate(groups) for _ in g])
    counts = count_groups(flat)
    return {"keep": [varies(g) for g in groups], "frac_zero_std": counts.flat / counts.groups}


def dapo_clip(i: Json) -> Json:
    logp, old, mask = _t(i["logp"], grad=True), _t(i["old_logp"]), _mask(i["mask"])
    clips: Json = {"clip_low": i["eps_low"], "clip_high": i["eps_high"]}
    spec = DAPO(type="dapo", **clips)
    ratio = _ratio(logp, old)
    advantages = _spread(i["advantage"], logp.shape)
    token = dapo.loss(_batch(logp, old, i["advantage"], mask), spec)
    dual = DAPO(type="dapo", dual_clip=i["dual_clip_c"], **clips)
    constant = _batch(logp, old, i["advantage"], mask, logp.shape[1])
    return {
        "ratio": ratio.tolist(),
        "token_loss": torch.where(mask, clipped(ratio, advantages, spec)[0], 0.0).tolist(),
        "loss_token_mean": token.loss.item(),
        "loss_seq_mean": grpo.loss(
            _batch(logp, old, i["advantage"], mask, "sequence"), GRPO(type="grpo", **clips)
        ).loss.item(),
        "loss_dr_grpo_constant_L": dr_grpo.loss(constant, DrGRPO(type="dr_grpo", **clips)).loss.item(),
        "loss_dual_clip_token_mean": dapo.loss(_batch(logp, old, i["advantage"], mask), dual).loss.item(),
        "clip_fraction": token.metrics["clip_fraction"].item(),
        "grad_wrt_logp_token_mean": _gradient(token.loss, logp),
    }


def overlong_shaping(i: Json) -> Json:
    spec = SoftOverlong(limit=i["L_max"], buffer=i["L_cache"])
    return {"penalty": [dapo.penalty(n, spec) for n in i["length"]]}


def gspo_case(i: Json) -> Json:
    logp, mask = _t(i["log_ratio"], grad=True), _mask(i["mask"])
    spec = GSPO(type="gspo", clip_low=i["eps_low"], clip_high=i["eps_high"])
    output = gspo.loss(_batch(logp, torch.zeros_like(logp), i["advantage"], mask, spec.aggregation), spec)
    ratio = row_means(logp, mask).exp()
    return {
        "s": ratio[:, 0].tolist(),
        "seq_loss": clipped(ratio, _t(i["advantage"])[:, None], spec)[0][:, 0].tolist(),
        "loss": output.loss.item(),
        "grad_wrt_logp": _gradient(output.loss, logp),
    }


def cispo_case(i: Json) -> Json:
    logp, old, mask = _t(i["logp"], grad=True), _t(i["old_logp"]), _mask(i["mask"])
    low, high = i["two_sided"]
    specs = {
        "two_sided": CISPO(type="cispo", ratio_low=1 - low, ratio_high=1 + high),
        "upper_cap": CISPO(type="cispo", ratio_high=i["upper_cap"]),
    }
    found: Json = {"ratio": _ratio(logp, old).tolist()}
    for name, spec in specs.items():
        loss, even = (cispo.loss(_batch(logp, old, a, mask), spec).loss for a in (i["advantage"], [1.0] * len(logp)))
        found |= {f"loss_{name}": loss.item(), f"grad_wrt_logp_{name}": _gradient(loss, logp)}
        found[f"weight_{name}"] = (-_t(_gradient(even, logp)) * mask.sum()).tolist()
    return found


def kl_estimators(i: Json) -> Json:
    logp, reference = _t(i["logp"])[None], _t(i["ref_logp"])[None]
    every = torch.ones_like(logp, dtype=torch.bool)
    found: Json = {n: f(logp, reference, every)[0].tolist() for n, f in (("k1", kl_k1), ("k2", kl_k2), ("k3", kl_k3))}
    z, q = _t(i["p"]).log().requires_grad_(), _t(i["q"])
    own, other = z.log_softmax(-1), q.log()
    p, mask = own.exp(), torch.ones(1, len(q), dtype=torch.bool)
    kl = (p * (own - other)).sum()
    found |= {"exact_KL_p_q": kl.item(), "true_grad_reverse_KL": _gradient(kl, z)}
    found["grad_forward_KL_q_p"] = _gradient((q * (other - own)).sum(), z)
    # gradients of what `total` computes, weighted by the policy's own probabilities: their expectation over samples
    for name, estimator in (("k1", kl_k1), ("k2", kl_k2), ("k3", kl_k3)):
        expected = (p.detach() * estimator(own[None], other[None], mask)[0]).sum()
        found |= {f"E_{name}": expected.item(), f"Egrad_{name}_in_loss": _gradient(expected, z)}
    batch = Batch(
        own[None], p.detach()[None], own.detach()[None], advantages_BT=_t([[0.0] * len(q)]),
        reference_logprobs_BT=other[None],
    )  # fmt: skip
    in_reward = rloo.loss(batch, RLOO(type="rloo", kl_coef=1.0, kl="k1_in_reward")).loss
    found["Egrad_k1_in_reward_detached"] = _gradient(in_reward, z)
    return found


def entropy_bonus(i: Json) -> Json:
    logits = _t(i["logits"]).float()
    _, entropy = selected_logprobs(logits, torch.eye(logits.shape[1]), torch.zeros(len(logits), dtype=torch.long))
    weights = token_weights(_mask(i["mask"])[None], "token")[0]
    return {"entropy": entropy.tolist(), "mean_entropy": (weights * entropy).sum().item()}


def minus_inf(i: Json) -> Json:
    logp, old, mask = _t([i["logp"]], grad=True), _t([i["old_logp"]]), _mask([i["mask"]])
    spec = DAPO(type="dapo", clip_low=i["eps_low"], clip_high=i["eps_high"])
    output = dapo.loss(_batch(logp, old, [i["advantage"]], mask), spec)
    ratio = torch.where(mask, importance_ratio(logp, old, mask), 0.0)
    finite = [output.loss, ratio, *output.metrics.values(), _t(_gradient(output.loss, logp))]
    return {
        "ratio": ratio[0].tolist(),
        "loss_token_mean": output.loss.item(),
        "all_finite": all(bool(x.isfinite().all()) for x in finite),
    }


def mismatch(i: Json) -> Json:
    mask = _mask([i["mask"]])
    d = correction.log_ratios(_t([i["train_logp"]]), _t([i["rollout_logp"]]), mask)
    tis = Correction(band=(1e-9, i["tis_cap"]))

    def weights(**spec: Any) -> list[float]:
        return correction.correction_weights(d, mask, tis.model_copy(update=spec))[0].tolist()

    figures = correction.mismatch(d, mask)
    return {
        "ratio": d.exp()[0].tolist(),
        "tis": weights(),
        "mis": weights(outside="zero", band=tuple(i["mis_band"])),
        "icepop": weights(outside="zero", band=tuple(i["icepop_band"])),
        "seq_ratio": correction.sequence_ratio(d, mask).item(),
        "seq_tis": weights(ratio="sequence")[0],
        "geo_ratio": correction.geometric_ratio(d, mask).item(),
        "kl_k1_rollout_train": figures["mismatch_k1"],
        "kl_k3": figures["mismatch_k3"],
        "chi2": figures["mismatch_chi2"],
        "mean_abs_logp_gap": figures["mismatch_mean"],
        "max_abs_logp_gap": figures["mismatch_max"],
        "ess_fraction_tis": correction.effective_share(_t([weights()]), mask),
        "tis_batch_normalised": weights(normalize=True),
    }


def sequence_is(i: Json) -> Json:
    mask = _mask(i["mask"])
    d = correction.log_ratios(_t(i["log_ratio_new_minus_old"]), torch.zeros(mask.shape), mask)
    spec = Correction(ratio="sequence", band=(1e-9, i["cap"]), reject_drifted=i["delta"])
    masked = Correction(ratio="sequence", outside="zero", band=tuple(i["band"]))
    gone = correction.rejected(d, mask, _t(i["advantage"]), spec)["reject_drifted"]
    return {
        "seq_ratio": correction.sequence_ratio(d, mask)[:, 0].tolist(),
        "seq_tis": correction.correction_weights(d, mask, spec)[:, 0].tolist(),
        "seq_mis": correction.correction_weights(d, mask, masked)[:, 0].tolist(),
        "geo_ratio": correction.geometric_ratio(d, mask)[:, 0].tolist(),
        "off_policy_keep": (~gone).tolist(),
    }


def staleness(i: Json) -> Json:
    found = correction.staleness(i["current_version"], i["oldest_version_in_sample"], i["max_lag"], i["decay"])
    return {
        "lag": [lag for lag, _ in found],
        "kept": [w is not None for _, w in found],
        "weight": [w or 0.0 for _, w in found],
    }


def gigpo_case(i: Json) -> Json:
    names = list(dict.fromkeys(i["trajectory"]))
    rewarded, places = _walked(i, {n: _sum_of(i, "step_reward", n) for n in names}, dict.fromkeys(names, True))
    base: Json = {"type": "gigpo", "discount": i["gamma"], "turn_coef": i["omega"], "turn_rewards": True}

    def spread(values: Any) -> list[float]:
        return [values[n][k] for n, k in places]

    def made(**more: Any) -> tuple[list[float], list[float], list[float]]:
        spec = GiGPO(**base, **more)
        own = gigpo.turns_own(rewarded, spec)
        whole = gigpo.advantages(rewarded, spec)
        joint = gigpo.turn_advantages(rewarded, spec)
        return [whole[n] or 0.0 for n, _ in places], [own[p] for p in places], spread(joint)

    by_trajectory, own, joint = made()
    by_turn, _, joint_by_turn = made(statistics="turns")
    _, own_scaled, joint_scaled = made(scale_rewards="group_std")
    returns = [gigpo.turn_returns(rewarded, n, GiGPO(**base)) for n in range(len(names))]
    return {
        "step_return": spread(returns),
        "episode_adv_traj_mean": by_trajectory,
        "episode_adv_row_mean": by_turn,
        "step_adv_mean": own,
        "step_adv_mean_std": own_scaled,
        "joint_traj_mean": joint,
        "joint_row_mean": joint_by_turn,
        "joint_mean_std_traj": joint_scaled,
    }


def g2po_case(i: Json) -> Json:
    rewarded, places = _walked(i, i["success"], i["success"])
    spec = G2PO(type="g2po", discount=i["gamma"], success_value=i["terminal_success_value"])
    every, scaled = list(range(len(i["success"]))), spec.model_copy(update={"scale_rewards": "group_std"})

    def spread(values: dict[tuple[int, int], float]) -> list[float]:
        return [values[p] for p in places]

    def following(n: int, k: int) -> str:
        anchors = rewarded.walks[n].anchors
        return str(anchors[k + 1]) if k + 1 < len(anchors) else "SUCCESS" if rewarded.walks[n].success else "FAIL"

    return {
        "node_value": g2po.worths(rewarded, every, spec),
        "next_node": [following(*p) for p in places],
        "within_node_centred": spread(g2po.within_states(rewarded, every, spec)),
        "td_gain": spread(g2po.gains(rewarded, every, spec)),
        "step_adv_mean_norm": spread(g2po.turns_own(rewarded, spec)),
        "step_adv_mean_std_norm": spread(g2po.turns_own(rewarded, scaled)),
    }


def _sum_of(i: Json, column: str, name: str) -> float:
    return sum(v for v, n in zip(i[column], i["trajectory"], strict=True) if n == name)


def _walked(i: Json, rewards: Json, success: Json) -> tuple[Rewarded, list[tuple[int, int]]]:
    """Return one group of walks, and the (trajectory, turn) of each row of the case."""
    names = list(dict.fromkeys(i["trajectory"]))
    valid = i.get("action_valid", [1] * len(i["trajectory"]))
    earned = i.get("step_reward", [0.0] * len(i["trajectory"]))
    places: list[tuple[int, int]] = []
    walks: list[Walk] = []
    for name in names:
        rows = [r for r, n in enumerate(i["trajectory"]) if n == name]
        anchors, called = [i["anchor_observation"][r] for r in rows], [bool(valid[r]) for r in rows]
        walks.append(Walk(anchors, called, bool(success[name]), [float(earned[r]) for r in rows]))
    for row, name in enumerate(i["trajectory"]):
        places.append((names.index(name), i["trajectory"][:row].count(name)))
    return Rewarded([float(rewards[n]) for n in names], ["task"] * len(names), walks=walks), places


def _gae(i: Json, lambdas: Tensor) -> tuple[Tensor, Tensor]:
    return gae(_t(i["reward"]), _t(i["value"]), _mask(i["mask"]), i["gamma"], lambdas)


def gae_masked(i: Json) -> Json:
    advantages, returns = _gae(i, _t([i["lam"]] * len(i["reward"])))
    white = whitened(advantages, _mask(i["mask"]))
    return {"advantage": advantages.tolist(), "returns": returns.tolist(), "whitened": white.tolist()}


def length_adaptive_gae(i: Json) -> Json:
    mask = _mask(i["mask"])
    lambdas = adaptive_lambda(mask, i["alpha"])
    return {
        "length": int(mask.sum()),
        "lambda_policy": lambdas[0].item(),
        "policy_advantage": _gae(i, lambdas)[0].tolist(),
        "critic_target_lambda1": _gae(i, torch.ones_like(lambdas))[1].tolist(),
    }


def value_loss(i: Json) -> Json:
    values, old, returns = (_t([i[name]]) for name in ("value", "old_value", "returns"))
    weights = token_weights(_mask([i["mask"]]), "token").double()
    batch = Batch(values, weights, old_logprobs_BT=old, advantages_BT=returns)
    return {
        "token_loss": value_losses(values, old, returns, i["eps_v"])[0].tolist(),
        "loss": critic.value_loss(batch, i["eps_v"]).loss.item(),
    }


def dis_sao(i: Json) -> Json:
    logp, old, mask = _t([i["logp"]], grad=True), _t([i["rollout_logp"]]), _mask([i["mask"]])
    spec = SAO(type="sao", drift_low=i["eps_low"], drift_high=i["eps_high"])
    output, even = (sao.loss(_batch(logp, old, [a], mask), spec) for a in (i["advantage"], [1.0]))
    return {
        "ratio": _ratio(logp, old)[0].tolist(),
        "weight": (-_t(_gradient(even.loss, logp)[0]) * mask.sum()).tolist(),
        "loss": output.loss.item(),
        "grad_wrt_logp": _gradient(output.loss, logp)[0],
        "kept_fraction": 1 - output.metrics["clip_fraction"].item(),
    }


def turn_ppo_case(i: Json) -> Json:
    rewards, values = _t([i["turn_reward"]]), _t([i["turn_value"]])
    every = torch.ones(rewards.shape, dtype=torch.bool)
    advantages, returns = gae(rewards, values, every, i["gamma"], _t([i["lam"]]))
    turns = i["token_log_ratio_per_turn"]
    tokens = [x for turn in turns for x in [*turn, 0.0]]  # an observation after each turn
    mask = _mask([[inside for turn in turns for inside in [*([True] * len(turn)), False]]])
    spread = [[a for a, turn in zip(advantages[0].tolist(), turns, strict=True) for _ in [*turn, 0.0]]]

    def loss(ratio: Any, only: int | None = None) -> float:
        spec = TurnPPO(type="turn_ppo", ratio=ratio, clip_low=i["clip"], clip_high=i["clip"])
        kept = mask if only is None else mask & (turn_numbers(mask) == only)
        batch = Batch(
            _t([tokens]), token_weights(kept, "turn").double(), torch.zeros_like(_t([tokens])),
            advantages_BT=_t(spread),
        )  # fmt: skip
        return turn_ppo.loss(batch, spec).loss.item()

    numbers, lengths = turn_numbers(mask), _t([float(len(t)) for t in turns])
    ends = torch.cumsum(lengths.long() + 1, 0) - 2
    sums = turn_sums(_t([tokens]), numbers)[0, ends]
    return {
        "turn_advantage": advantages[0].tolist(),
        "turn_return": returns[0].tolist(),
        "ratio_product": sums.exp().tolist(),
        "ratio_geometric": (sums / lengths).exp().tolist(),
        "loss_per_turn_product": [loss("product", k) for k in range(len(turns))],
        "loss_product_mean": loss("product"),
        "loss_geometric_mean": loss("geometric"),
    }


CASES = {
    "turn_ppo": turn_ppo_case,
    "gae_masked": gae_masked,
    "length_adaptive_gae": length_adaptive_gae,
    "value_loss": value_loss,
    "dis_sao": dis_sao,
    "gigpo": gigpo_case,
    "g2po": g2po_case,
    "sft_masked": sft_masked,
    "grpo_adv": grpo_adv,
    "rloo_adv": rloo_adv,
    "opo_passk": opo_passk,
    "dynamic_sampling": dynamic_sampling,
    "dapo_clip": dapo_clip,
    "overlong_shaping": overlong_shaping,
    "gspo": gspo_case,
    "cispo": cispo_case,
    "kl_estimators": kl_estimators,
    "entropy_bonus": entropy_bonus,
    "minus_inf": minus_inf,
    "mismatch": mismatch,
    "sequence_is": sequence_is,
    "staleness": staleness,
}
