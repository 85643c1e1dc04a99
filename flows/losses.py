"""What a policy-gradient stage minimises, in an equation and in words. Pure."""

from typing import assert_never

from flows.losses_of_replay import beside
from flows.losses_of_self import self_taught
from specs.algorithms import PolicyGradientAlgorithm
from specs.group_relative import CISPO, DAPO, GSPO, REINFORCE, RLOO, DrGRPO
from specs.grpo import GRPO
from specs.policy_gradient import Correction
from specs.self_teaching import SelfTaught
from specs.turn_credit import G2PO, GiGPO
from specs.value_based import PPO, SAO, TurnPPO

MEAN = {
    "token": "w = 1 / trained tokens of the step (every token counts the same)",
    "sequence": "w = 1 / (trajectories x trained tokens of the trajectory) (every trajectory counts the same)",
    "turn": "w = 1 / (turns of the step x trained tokens of the turn) (every turn counts the same)",
    "sequence_sum": "w = 1 / trajectories (token sums: long trajectories count more)",
}
_COMPARED = {"rloo": "R - mean of the others", "dr_grpo": "R - mean"}
_SCALED = {
    "group_std": "(R - mean) / std",
    "group_population_std": "(R - mean) / population std",
    "batch_std": "(R - mean) / std of the step",
    "none": "R - mean",
}
_KL = {
    "k1_in_reward": "k1 of the sampled tokens, taken off A",
    "k2": "k2",
    "k3": "k3, whose gradient is that of KL(start || pi)",
    "k3_plus": "k3 with the gradient of k2",
}


def policy_gradient_loss(spec: PolicyGradientAlgorithm) -> tuple[str, str]:
    """Return the equation of a policy gradient and what its terms are."""
    weight = "w" if spec.correction is None else "w c"
    advantage, ratio = "A", spec.updates_per_batch
    in_loss = spec.kl_coef > 0 and spec.kl != "k1_in_reward"
    if spec.kl_coef > 0 and not in_loss:
        advantage = f"(A - {spec.kl_coef:g} k1)"
    equation = f"L = {_surrogate(spec, weight, advantage)}"
    if in_loss:
        equation += f" + {spec.kl_coef:g} sum w {spec.kl.partition('_')[0]}(pi || start)"
    if isinstance(spec, PPO | TurnPPO | SAO) and spec.critic.backbone == "shared":
        equation += f" + {spec.critic.coef:g} mean (V - return)^2 / 2"
    if spec.entropy_coef:
        equation += f" - {spec.entropy_coef:g} sum w entropy"
    cut = [f"R at most {spec.clip_rewards:g} std of its group from the mean"] if spec.clip_rewards else []
    words = [_advantages(spec), *cut, *_ratio_words(spec, ratio), _mean(spec), *_varying(spec), *_cut_words(spec)]
    words += beside(spec)
    if spec.correction is not None:
        words.append(_correction(spec.correction))
    if spec.kl_coef > 0:
        words.append(f"KL to the policy that the stage started from by {_KL[spec.kl]}")
    else:
        words.append("no reference")
    if isinstance(spec, SelfTaught):
        equation, more = self_taught(spec, equation)
        words += more
    return equation, "; ".join(words)


def _surrogate(spec: PolicyGradientAlgorithm, weight: str, advantage: str) -> str:
    match spec:
        case REINFORCE() | RLOO():
            return f"- sum {weight} {advantage} log pi(token)"
        case CISPO():
            bounded = f"stop(clip(r, {spec.ratio_low:g}, {spec.ratio_high:g}))"
            return f"- sum {weight} {bounded} {advantage} log pi(token)"
        case SAO():
            inside = f"stop(r where {1 - spec.drift_low:g} < r < {1 + spec.drift_high:g}, else 0)"
            return f"- sum {weight} {inside} {advantage} log pi(token)"
        case GRPO() | DrGRPO() | DAPO() | GSPO() | GiGPO() | G2PO() | PPO() | TurnPPO() | SelfTaught():
            r = "s" if isinstance(spec, GSPO | TurnPPO) else "r"
            bounds = f"{1 - spec.clip_low:g}, {1 + spec.clip_high:g}"
            inner = f"min({r} {advantage}, clip({r}, {bounds}) {advantage})"
            if spec.dual_clip is not None:
                inner = f"max({inner}, {spec.dual_clip:g} {advantage} where A < 0)"
            return f"- sum {weight} {inner}"
        case _:
            assert_never(spec)


def _advantages(spec: PolicyGradientAlgorithm) -> str:
    group = f"within a group of {spec.group_size}"
    match spec:
        case RLOO() | DrGRPO() | GSPO() | CISPO() | SelfTaught():
            return f"A = {_COMPARED.get(spec.type, '(R - mean) / std')} {group}"
        case REINFORCE():
            return _against_baseline(spec, group)
        case GRPO():
            return f"A = {_SCALED[spec.scale_rewards]} {group}"
        case DAPO():
            return f"A = (R - mean) / std {group}{_overlong(spec)}"
        case GiGPO() | G2PO():
            return _by_turn(spec, group)
        case PPO() | TurnPPO() | SAO():
            return _by_critic(spec)
        case _:
            assert_never(spec)


_TURN_REWARDS = ", what a turn earned by itself standing there and the rest at the end"


def _against_baseline(spec: REINFORCE, group: str) -> str:
    return {
        "batch_mean": "A = R - mean of the step",
        "running_mean": f"A = R - running mean of earlier steps (of which a step keeps {spec.decay:g})",
        "length_weighted": f"A = R - mean weighted by tokens {group}",
        "second_best": f"A = (best R - second best R) / std for the best {group}, 0 for the others",
    }[spec.baseline]


def _overlong(spec: DAPO) -> str:
    if spec.overlong is None:
        return ""
    return f", R less up to 1 between {spec.overlong.limit - spec.overlong.buffer} and {spec.overlong.limit} tokens"


def _by_critic(spec: PPO | TurnPPO | SAO) -> str:
    over = "turns" if isinstance(spec, TurnPPO) else "tokens"
    if spec.length_adaptive is None:
        own = f"lambda {spec.gae_lambda:g}"
    else:
        own = f"lambda 1 - 1 / ({spec.length_adaptive:g} x {over})"
    learns = own if spec.value_lambda is None else f"lambda {spec.value_lambda:g}"
    words = f"A = GAE over the policy's {over} (discount {spec.discount:g}, {own})"
    words += " with a mean of 0 and a variance of 1" if spec.whiten else ""
    words += _TURN_REWARDS if spec.turn_rewards else ""
    if spec.critic.backbone == "shared":
        critic = f"V, a head of the policy, learns returns ({learns}) in the same updates"
    else:
        critic = f"the critic learns returns ({learns}) in {spec.critic.updates_per_batch} updates a step"
    if spec.critic.clip is not None:
        critic += f", clipped at {spec.critic.clip:g}"
    alone = f", alone in the first {spec.critic.warmup_steps} steps" if spec.critic.warmup_steps else ""
    return f"{words}; {critic}{alone}"


def _by_turn(spec: GiGPO | G2PO, group: str) -> str:
    over = "" if spec.scale_rewards == "none" else ", each by its std"
    state = "last observation" if spec.anchor == "observation" else "observations so far"
    if isinstance(spec, GiGPO):
        own = f"what followed (discount {spec.discount:g}) less its mean over turns after the same {state}"
        own += _TURN_REWARDS if spec.turn_rewards else ""
        whole = "R - mean" if spec.statistics == "trajectories" else "R - mean over turns"
    else:
        own = f"the worth of the next state among turns after the same {state}, plus the gain in worth"
        own += f" (success {spec.success_value:g}, discount {spec.discount:g}, invalid call -{spec.invalid_penalty:g})"
        whole = "R - mean"
    return f"A of a turn = {whole} {group} + {spec.turn_coef:g} x {own}{over}"


def _ratio_words(spec: PolicyGradientAlgorithm, passes: int) -> list[str]:
    if isinstance(spec, REINFORCE | RLOO):
        return []
    if isinstance(spec, SAO):
        return ["r = pi / sampler"]
    if spec.correction is not None:
        base = "pi / pi before the update"
    elif isinstance(spec, GSPO):
        base = "pi / pi before the update (the sampler's, where it is this process and both are fp32)"
    else:
        base = "pi / sampler" + ("" if passes == 1 else ", from the second pass on pi / pi of the first")
    if isinstance(spec, TurnPPO):
        return [f"s = {'geometric mean' if spec.ratio == 'geometric' else 'product'} over a turn of r, r = {base}"]
    return [f"s = geometric mean over a trajectory of r, r = {base}" if isinstance(spec, GSPO) else f"r = {base}"]


def _mean(spec: PolicyGradientAlgorithm) -> str:
    if spec.aggregation == "constant":
        budget = "the policy's max_length" if spec.token_budget is None else f"{spec.token_budget} tokens"
        return f"w = 1 / (trajectories x {budget}) (no mean over a length)"
    return MEAN[spec.aggregation]


def _varying(spec: PolicyGradientAlgorithm) -> list[str]:
    """Return over whom the means are, where the policy's is over others than those of further terms."""
    gated = isinstance(spec, SelfTaught) and spec.form == "gated"
    further = spec.kl_coef > 0 or spec.entropy_coef != 0 or spec.distill is not None or gated
    alone = isinstance(spec, PPO | TurnPPO | SAO) or spec.aggregation not in MEAN or spec.aggregation == "sequence_sum"
    return ["the policy's w counts groups that vary, the w of other terms all"] if further and not alone else []


def _cut_words(spec: PolicyGradientAlgorithm) -> list[str]:
    words = [
        "cut trajectories are left out" if spec.truncated == "mask" else "cut trajectories train with their reward"
    ]
    if isinstance(spec, DAPO) and spec.resample is not None:
        short = "trains on fewer" if spec.resample.when_short == "train" else "stops the stage"
        words.append(
            f"groups that do not vary are replaced in up to {spec.resample.max_rounds} rounds of a step; a short step {short}"
        )
    return words


def _correction(spec: Correction) -> str:
    low, high = spec.band
    rho = "pi / sampler of each token" if spec.ratio == "token" else "the product of pi / sampler of each trajectory"
    bounded = f"at most {high:g}" if spec.outside == "truncate" else f"0 outside [{low:g}, {high:g}]"
    words = f"c = {rho}, {bounded}" + (", divided by its mean" if spec.normalize else "")
    rules = [
        None
        if spec.reject_mean is None
        else f"a mean ratio outside [{spec.reject_mean[0]:g}, {spec.reject_mean[1]:g}]",
        None if spec.reject_below is None else f"a ratio below {spec.reject_below:g}",
        None if spec.reject_drifted is None else f"A < 0 and a mean drift above {spec.reject_drifted:g} nats",
    ]
    told = [r for r in rules if r]
    return words + (f"; trajectories with {' or '.join(told)} are left out" if told else "")
