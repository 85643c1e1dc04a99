"""Every policy gradient from a program to a plan: nodes, keys, estimates, the smallest form, and the loss in words."""

import pytest

from flows.describe import details, effective_loss
from flows.nodes import NODE_KINDS
from flows.smoke import smoke
from specs.algorithms import POLICY_GRADIENTS, policy_gradient_from
from specs.group_relative import Resample, SoftOverlong
from specs.policy_gradient import Correction
from tests.flows.programs import SMALL, changed, moved, nodes, plan, program

EQUATIONS = {
    "reinforce": "L = - sum w A log pi(token)",
    "rloo": "L = - sum w A log pi(token)",
    "grpo": "L = - sum w min(r A, clip(r, 0.8, 1.28) A)",
    "dr_grpo": "L = - sum w min(r A, clip(r, 0.8, 1.2) A)",
    "dapo": "L = - sum w min(r A, clip(r, 0.8, 1.28) A)",
    "gspo": "L = - sum w min(s A, clip(s, 0.9997, 1.0004) A)",
    "gigpo": "L = - sum w min(r A, clip(r, 0.8, 1.28) A)",
    "g2po": "L = - sum w min(r A, clip(r, 0.8, 1.28) A)",
    "ppo": "L = - sum w min(r A, clip(r, 0.8, 1.2) A)",
    "turn_ppo": "L = - sum w min(s A, clip(s, 0.8, 1.2) A)",
    "sao": "L = - sum w stop(r where 0.7 < r < 6, else 0) A log pi(token)",
    **dict.fromkeys(("rlsd", "self_distilled", "self_evolve"), "L = - sum w min(r A, clip(r, 0.8, 1.28) A) + 0.1 L_SD"),
    "cispo": "L = - sum w stop(clip(r, 0, 5)) A log pi(token)",
}


def with_algorithm(kind, **more):
    return changed(SMALL, "stages.2.algorithm", {"type": kind, "steps": 5, **more})


@pytest.mark.parametrize("kind", POLICY_GRADIENTS)
def test_each_is_planned_run_small_and_told(kind):
    data = with_algorithm(kind)
    made = nodes(plan(data))
    assert made["rl"].kind == "train.policy_gradient"
    assert made["rl"].params["algorithm"]["type"] == kind
    assert {"rl.preflight1", "rl.choose1"} <= set(made)
    assert NODE_KINDS["train.policy_gradient"].entry == "flows.work.policy_gradient:train"
    spec = program(data)
    assert smoke(spec).stages[2].algorithm.type == kind
    told = details(spec, spec.reward)["losses"]
    assert isinstance(told, dict)
    assert told["rl"]["equation"] == EQUATIONS[kind]


def words(kind, **more):
    return effective_loss(policy_gradient_from({"type": kind, **more}))


def test_every_knob_stands_in_the_loss():
    correction = Correction(
        outside="zero", normalize=True, reject_mean=(0.9, 1.1), reject_below=1e-4, reject_drifted=0.5
    )
    equation, text = words(
        "grpo", dual_clip=3.0, kl_coef=0.1, kl="k3", entropy_coef=0.01, correction=correction.model_dump()
    )
    assert equation == (
        "L = - sum w c max(min(r A, clip(r, 0.8, 1.28) A), 3 A where A < 0) + 0.1 sum w k3(pi || start)"
        " - 0.01 sum w entropy"
    )
    for said in (
        "r = pi / pi before the update",
        "c = pi / sampler of each token, 0 outside [0.5, 2], divided by its mean",
        "a mean ratio outside [0.9, 1.1] or a ratio below 0.0001 or A < 0 and a mean drift above 0.5 nats are left out",
        "k3, whose gradient is that of KL(start || pi)",
    ):
        assert said in text
    assert words("rloo", kl_coef=0.1)[0] == "L = - sum w (A - 0.1 k1) log pi(token)"
    truncated = words("cispo", correction=Correction(ratio="sequence").model_dump())[1]
    assert "c = the product of pi / sampler of each trajectory, at most 2" in truncated
    assert "no mean over a length" in words("dr_grpo")[1]
    assert "w = 1 / (trajectories x 99 tokens)" in words("dr_grpo", token_budget=99)[1]


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("reinforce", {}, "A = R - mean of the step"),
        ("reinforce", {"baseline": "running_mean"}, "of which a step keeps 0.95"),
        ("reinforce", {"baseline": "length_weighted"}, "mean weighted by tokens within a group of 8"),
        ("reinforce", {"baseline": "second_best"}, "for the best within a group of 8, 0 for the others"),
        ("rloo", {}, "R - mean of the others within a group of 8"),
        ("grpo", {"scale_rewards": "batch_std"}, "(R - mean) / std of the step"),
        ("gigpo", {}, "A of a turn = R - mean within a group of 8 + 1 x what followed (discount 0.95) less its mean"),
        ("g2po", {"anchor": "history"}, "the worth of the next state among turns after the same observations so far"),
        (
            "gigpo",
            {"turn_rewards": True},
            "after the same last observation, what a turn earned by itself standing there and the rest",
        ),
        (
            "turn_ppo",
            {"turn_rewards": True},
            "a variance of 1, what a turn earned by itself standing there and the rest at the end",
        ),
        ("ppo", {}, "A = GAE over the policy's tokens (discount 1, lambda 0.95) with a mean of 0 and a variance of 1"),
        ("ppo", {"critic": {"warmup_steps": 3}}, "in 1 updates a step, clipped at 0.2, alone in the first 3 steps"),
        ("turn_ppo", {}, "A = GAE over the policy's turns (discount 0.99, lambda 0.9)"),
        (
            "turn_ppo",
            {"ratio": "product"},
            "s = product over a turn of r, r = pi / sampler; w = 1 / (turns of the step",
        ),
        ("sao", {}, "lambda 1 - 1 / (1.5 x tokens)); the critic learns returns (lambda 1) in 2 updates a step"),
        ("dapo", {}, "replaced in up to 3 rounds of a step; a short step trains on fewer"),
        ("dapo", {"resample": Resample(when_short="stop").model_dump()}, "a short step stops the stage"),
        (
            "grpo",
            {"kl_coef": 0.1, "aggregation": "turn"},
            "the policy's w counts groups that vary, the w of other terms all",
        ),
        ("grpo", {"updates_per_batch": 2}, "r = pi / sampler, from the second pass on pi / pi of the first"),
        (
            "gspo",
            {"updates_per_batch": 2},
            "s = geometric mean over a trajectory of r, r = pi / pi before the update (the sampler's, where it is this process",
        ),
        (
            "dapo",
            {"truncated": "score", "overlong": SoftOverlong(limit=100, buffer=20).model_dump()},
            "R less up to 1 between 80 and 100 tokens",
        ),
    ],
)
def test_what_is_compared_is_told(kind, more, said):
    assert said in words(kind, **more)[1]


def test_estimates_count_all_rounds_of_dynamic_sampling():
    plain, rounds = (nodes(plan(with_algorithm("dapo", resample=r)))["rl"].estimate for r in (None, {"max_rounds": 3}))
    assert rounds.rollouts == 3 * plain.rollouts
    assert rounds.tokens == plain.tokens
    corrected = nodes(plan(with_algorithm("grpo", correction={})))["rl"].estimate
    grpo = nodes(plan(with_algorithm("grpo")))["rl"].estimate
    assert corrected.tokens > grpo.tokens
    reference = nodes(plan(with_algorithm("grpo", kl_coef=0.1, updates_per_batch=2)))["rl"].estimate
    assert reference.tokens == pytest.approx((2 + 1 / 3) * grpo.tokens, abs=1)
    assert reference.seconds > grpo.seconds


def test_a_critic_is_in_the_estimate():
    parts = [nodes(plan(with_algorithm(k)))["rl"].estimate.memory_parts for k in ("ppo", "grpo")]
    assert parts[0]["critic"] == pytest.approx(4 * parts[0]["weights"])
    assert "critic" not in parts[1]


def test_settings_of_the_update_alone_do_not_ask_the_preflight_again():
    before = plan(with_algorithm("cispo"))
    after = plan(with_algorithm("cispo", ratio_high=3.0, correction={"normalize": True}, kl_coef=0.1))
    changed_nodes = moved(before, after)
    assert "rl" in changed_nodes
    assert "rl.preflight1" not in changed_nodes
