"""Preference and reward-weighted stages in a plan: their nodes, keys, losses, and how they stand in a round."""

import pytest

from flows.conditions import skip_reason
from flows.describe import details, effective_loss
from flows.smoke import smoke
from specs.preference import DPO, IPO, KTO, ORPO, Pairing, SimPO
from specs.supervised import RewardWeighted
from tests.flows.programs import SMALL, changed, moved, nodes, plan, program

PREFER = {"id": "prefer", "algorithm": {"type": "dpo"}, "data": ["train"]}
WEIGH = {"id": "weigh", "algorithm": {"type": "reward_weighted"}, "data": ["train"]}


def stages(*more):
    return changed(SMALL, "stages", [SMALL["stages"][0], *more])


def test_a_preference_stage_is_its_pairs_and_their_training():
    made = nodes(plan(stages(PREFER)))
    assert made["prefer.pairs"].kind == "pairs"
    assert made["prefer.pairs"].inputs == {"policy": "teach", "data.train": "data.train", "apart": "data.apart"}
    assert made["prefer.pairs"].estimate.rollouts == 800
    assert made["prefer"].kind == "train.preference"
    assert made["prefer"].inputs == {"policy": "teach", "pairs": "prefer.pairs"}
    assert made["eval.prefer.golden"].inputs["policy"] == "prefer"
    assert made["report"].inputs["prefer.pairs"] == "prefer.pairs"


def told(data, stage):
    spec = program(data)
    losses = details(spec, spec.reward)["losses"]
    assert isinstance(losses, dict)
    return losses[stage]["words"]


def test_what_changes_the_objective_of_supervised_stages_is_told():
    plain = (
        "over the policy's tokens of demonstrations; w = 1 / trained tokens of the step (every token counts the same)"
    )
    more = changed(SMALL, "data.more", {"kind": "demonstrations", "environment": "desk", "size": 20})
    mixed = changed(more, "stages.0.data", {"demos": 3, "more": 1})
    assert told(SMALL, "teach") == told(changed(SMALL, "stages.0.data", {"demos": 3}), "teach") == plain
    assert told(mixed, "teach") == f"{plain}; of the rows of an epoch demos 75%, more 25%"
    shown = changed(SMALL, "stages.0.algorithm", {"type": "sft", "shown": 0.3})
    assert told(shown, "teach") == f"{plain}; before 30% of them stands their own solution"
    rft = {"type": "rft", "diversity": {"calls": True, "max_overlap": 0.8}}
    alike = "of those that make the same calls or share more than 80% of their 3-grams the better one"
    assert alike in told(changed(SMALL, "stages.1.algorithm", rft), "harvest")
    other = changed(SMALL, "data.hard", {"kind": "problems", "environment": "desk", "size": 20})
    weighed = changed(other, "stages.1.data", {"train": 1, "hard": 3})
    assert told(weighed, "harvest").endswith("; of the problems train 25%, hard 75%")


def test_a_reward_weighted_stage_collects_and_trains():
    made = nodes(plan(stages(WEIGH)))
    assert made["weigh.collect1"].kind == "collect"
    assert made["weigh"].kind == "train.reward_weighted"
    assert made["weigh"].inputs == {"policy": "teach", "collect": "weigh.collect1"}


@pytest.mark.parametrize(
    ("stage", "path", "value", "same"),
    [
        (PREFER, "beta", 0.5, "prefer.pairs"),
        (PREFER, "optimizer", {"learning_rate": 1e-5}, "prefer.pairs"),
        (WEIGH, "reward_temperature", 0.1, "weigh.collect1"),
        (WEIGH, "denominator", "tokens", "weigh.collect1"),
    ],
)
def test_what_only_training_reads_does_not_draw_rollouts_anew(stage, path, value, same):
    before, after = stages(stage), changed(stages(stage), f"stages.1.algorithm.{path}", value)
    gone = moved(plan(before), plan(after))
    assert stage["id"] in gone
    assert same not in gone


def test_branches_from_one_policy_share_their_pairs_and_others_do_not():
    made = nodes(
        plan(
            stages(
                PREFER,
                {**PREFER, "id": "other", "from": "teach", "algorithm": {"type": "ipo"}},
                {**PREFER, "id": "wide", "from": "teach", "algorithm": {"type": "dpo", "pairing": {"choose": "all"}}},
                {**PREFER, "id": "next", "from": "prefer"},
            )
        )
    )
    keys = [made[f"{name}.pairs"].plan_key for name in ("prefer", "other", "wide", "next")]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_a_round_may_prefer_on_hard_problems(tmp_path):
    wheel = {
        "mine": {"from": ["train"], "problems": 8},
        "default": "hard_pool",
        "round": {
            "stages": [{"id": "choose_right", "algorithm": {"type": "dpo"}, "data": {"hard": 0.5, "train": 0.5}}]
        },
    }
    made = nodes(plan(changed(stages(), "flywheel", wheel)))
    pairs, train = made["choose_right@1.pairs"], made["choose_right@1"]
    assert pairs.inputs["data.hard"] == "round1.pool.hard"
    assert (train.kind, train.passthrough) == ("train.preference", "policy")
    assert skip_reason(train, {"policy": tmp_path}, {}) == "choose_right@1.pairs was skipped"


def test_the_plan_prints_the_effective_loss():
    told = plan(stages(PREFER, WEIGH)).details["losses"]
    assert told["prefer"]["equation"] == "L = mean [- log sigmoid(0.1 (h+ - h-))]"
    assert "start = the policy that the stage started from" in told["prefer"]["words"]
    assert told["weigh"]["equation"] == "L = - sum w log pi(token) / sum w n"


@pytest.mark.parametrize(
    ("spec", "equation", "words"),
    [
        (
            DPO(type="dpo", beta=2, label_smoothing=0.1, nll_coef=0.5, lengths="mean"),
            "L = mean [- 0.9 log sigmoid(2 (h+ - h-)) - 0.1 log sigmoid(2 (h- - h+)) - 0.5 mean log pi(token+)]",
            "length-normalised",
        ),
        (IPO(type="ipo", tau=0.25), "L = mean (h+ - h- - 2)^2", "h = mean of"),
        (ORPO(type="orpo"), "L = mean [- m+ - 0.1 log sigmoid(log odds+ - log odds-)]", "no reference"),
        (SimPO(type="simpo"), "L = - mean log sigmoid(2.5 (m+ - m- - 0.55))", "no reference"),
        (
            KTO(type="kto", desirable_weight=1.5),
            "L = mean [1.5 sigmoid(0.1 (z - h+))] + mean [1 sigmoid(0.1 (h- - z))]",
            "at least 0",
        ),
        (
            DPO(type="dpo", pairing=Pairing(choose="all", rejected="lower", margin=0.1)),
            "L = mean [- log sigmoid(0.1 (h+ - h-))]",
            "a success and one of lower reward, all, each problem counting the same, rewards more than 0.1 apart",
        ),
        (
            RewardWeighted(type="reward_weighted", denominator="sequences"),
            "L = - sum w log pi(token) / sum w",
            "solved",
        ),
    ],
    ids=lambda v: getattr(v, "type", ""),
)
def test_losses_in_words(spec, equation, words):
    found = effective_loss(spec)
    assert found[0] == equation
    assert words in found[1]


def test_the_smallest_form_goes_on_without_a_pair():
    small = smoke(program(stages(PREFER, WEIGH)))
    assert [s.algorithm.type for s in small.stages] == ["sft", "dpo", "reward_weighted"]
    prefer = small.stages[1].algorithm
    assert isinstance(prefer, DPO)
    assert (prefer.pairing.at_least, prefer.pairing.samples) == (0, 4)


def test_estimates_grow_with_the_pairs():
    few = nodes(plan(stages(PREFER)))["prefer"].estimate
    every = {**PREFER, "algorithm": {"type": "dpo", "pairing": {"choose": "all"}}}
    many = nodes(plan(stages(every)))["prefer"].estimate
    assert many.tokens == 16 * few.tokens
    assert many.seconds > few.seconds
