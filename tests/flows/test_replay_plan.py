"""Replay, curriculum, single trajectories and the remedy `prefer` in a plan: inputs, keys, estimates, words."""

import pytest

from flows.describe import effective_loss
from flows.smoke import smoke
from specs.algorithms import policy_gradient_from
from specs.implicit import expanded
from specs.preference import KTO, Pairing
from tests.flows.programs import SMALL, changed, moved, nodes, plan, program

MIXED = {"history": {"per_step": 16}, "demonstrations": {"sets": ["demos"], "per_step": 8}}


def with_grpo(**more):
    return changed(SMALL, "stages.2.algorithm", {"type": "grpo", "steps": 5, **more})


def test_replayed_demonstrations_are_read_and_kept_apart():
    made = nodes(plan(with_grpo(replay=MIXED)))
    assert made["rl"].inputs["data.demos"] == "data.demos"
    assert "data.demos" not in made["rl.preflight1"].inputs
    assert made["rl"].params["data"] == {"train": None}
    alone = changed(with_grpo(replay={"demonstrations": {"sets": ["desk.demonstrations"]}}), "stages.0.data", ["demos"])
    found = expanded(program(alone))
    assert "desk.demonstrations" in found.data
    assert "train.desk.demonstrations" in nodes(plan(found.model_dump(mode="json", by_alias=True)))["data.apart"].inputs


def test_neither_moves_the_preflight_and_both_count_in_the_estimate():
    plain, mixed = plan(with_grpo()), plan(with_grpo(replay=MIXED, curriculum={"band": [0.1, 0.9]}))
    gone = moved(plain, mixed)
    assert "rl" in gone
    assert "rl.preflight1" not in gone
    a, b = (nodes(p)["rl"].estimate for p in (plain, mixed))
    assert (b.tokens - a.tokens) / 5 == pytest.approx(24 * a.tokens / a.rollouts, rel=0.01)
    assert a.rollouts == b.rollouts


def test_the_smallest_form_cuts_rewards_where_a_group_of_two_has_any():
    small = smoke(program(with_grpo(clip_rewards=2.0))).stages[2].algorithm.model_dump()
    assert (small["group_size"], small["clip_rewards"]) == (2, 0.5)


def test_the_loss_says_what_trains_beside_and_what_comes_up():
    _, words = effective_loss(
        policy_gradient_from(
            {"type": "grpo", "steps": 9, "replay": MIXED, "curriculum": {"band": [0.1, 0.9], "explore": 0.2}}
        )
    )
    for said in (
        "beside them the last 8 steps, 16 trajectories a step of a buffer of 512, each at most 2 times",
        "drawn by (|A| + 0.001)^0.6, their terms by (N P)^-b over its largest, b 0.4 to 1 in 9 steps",
        "8 demonstrations a step of demos, A 1, r from 1, weight 1",
        "problems by p (1 - p) + 0.02 where their success rate p is in [0.1, 0.9], else 0.02; 20% of the draws go to any",
    ):
        assert said in words
    only = {"history": {"alpha": 0, "admit": "successes", "fill": "silent"}}
    _, words = effective_loss(policy_gradient_from({"type": "grpo", "replay": only}))
    assert "beside them successes of the last 8 steps, up to 32 for silent groups" in words
    assert "drawn all alike" in words
    _, words = effective_loss(KTO(type="kto", pairing=Pairing(choose="alone", samples=4)))
    assert "4 rollouts of each problem, + those that succeeded, - those that failed, each side half" in words
    assert "every trajectory of a step by its weight" in words


def test_the_smallest_form_replays_less():
    small = smoke(program(with_grpo(replay=MIXED, best_of=4))).stages[2].algorithm.model_dump()
    assert (small["replay"]["history"]["per_step"], small["replay"]["demonstrations"]["per_step"]) == (2, 2)
    assert small["best_of"] == 2


def test_single_trajectories_cost_half_as_many_pairs():
    stage = {"id": "prefer", "data": ["train"], "algorithm": {"type": "kto", "pairing": {"choose": "alone"}}}
    data = changed(SMALL, "stages", [SMALL["stages"][0], stage])
    alone = nodes(plan(data))["prefer"].estimate
    stage["algorithm"]["pairing"] = {"choose": "best_worst"}
    assert alone.tokens == 4 * nodes(plan(changed(data, "stages.1", stage)))["prefer"].estimate.tokens


def test_a_round_prefers_on_the_pool_of_pairs():
    wheel = {
        "mine": {"from": ["train"], "problems": 8},
        "remedies": {"wrong_tool": {"do": "prefer", "quota": 30}},
        "round": {"stages": [{"id": "choose_right", "algorithm": {"type": "dpo"}, "data": ["pairs"]}]},
    }
    made = plan(changed(SMALL, "flywheel", wheel))
    found = nodes(made)
    assert found["round1.pool.pairs"].params == {"pool": "pairs"}
    assert found["choose_right@1.pairs"].inputs["data.pairs"] == "round1.pool.pairs"
    assert found["choose_right@1.pairs"].params["of_round"] == ["pairs"]
    assert found["round1.remedy"].params["fills"] == ["pairs"]
    assert made.rows["pairs"] == 30
    assert "wrong_tool: the clerk solves siblings, at most 30 of them, for the pool pairs" in str(made.details)


def test_a_search_draws_more_and_trains_on_the_same():
    plain, searched = (nodes(plan(with_grpo(best_of=n)))["rl"].estimate for n in (1, 3))
    assert searched.rollouts == 3 * plain.rollouts
    assert searched.tokens == plain.tokens
    _, words = effective_loss(policy_gradient_from({"type": "grpo", "best_of": 3, "adversarial": 0.25}))
    assert "each trajectory is the best of 3 by reward (off-policy: no samples of pi)" in words
    assert "25% of the problems are adversarial" in words
    for kind, said in (("rloo", "needs a bounded importance ratio"), ("ppo", "the worth of the search")):
        with pytest.raises(ValueError, match=said):
            policy_gradient_from({"type": kind, "best_of": 2})
