import math

import pytest

from specs.algorithms import policy_gradient_from
from specs.grpo import GRPO
from specs.records import Observation, ToolCall, Turn
from specs.stages import Needs
from tasks.judging.needs import unmet
from tasks.loops.groups import group_stats, overlong_figures, rollout_figures, walk_of
from tasks.loops.preflight import expected_mixed, first_success, measure, review_sample
from tests.tasks.learning.test_rows import A, U, trajectory

SCALED = GRPO(type="grpo")
CENTRED = GRPO(type="grpo", scale_rewards="none")


def group(name, rewards, success=lambda r: r >= 1.0, **more):
    made = []
    for i, reward in enumerate(rewards):
        t = trajectory([U, A, A], name=f"{name}{i}", **more)
        t.group = t.problem_id = name
        t.reward, t.success = reward, None if reward is None else success(reward)
        t.turns[0].start, t.turns[0].end = 1, 3
        made.append(t)
    return made


def test_groups_without_variance_are_split_into_right_and_wrong():
    made = group("r", [1.0] * 4) + group("w", [0.0] * 4) + group("m", [1.0, 0.0, 0.0, 1.0])
    stats = group_stats(made, SCALED)
    expected = {"m0": 0.866024, "m1": -0.866024, "m2": -0.866024, "m3": 0.866024}
    assert stats.advantages == pytest.approx(expected, abs=2e-6)
    figures = rollout_figures(made, stats)
    assert figures["zero_variance_groups"] == pytest.approx(0.6667, abs=1e-4)
    assert (figures["zero_variance_right"], figures["zero_variance_wrong"]) == (pytest.approx(1 / 3),) * 2
    assert (figures["mixed_groups"], figures["success"]) == (pytest.approx(1 / 3), 0.5)
    assert next(iter(figures)) == "success"
    assert (figures["repeated"], figures["identical_groups"]) == (0.75, 1.0)


def test_what_a_group_repeats_token_for_token_is_counted():
    made = group("a", [1.0] * 2) + group("b", [1.0, 0.0, 0.0]) + group("c", [1.0])
    made[2].ids = [9, 8, 7]
    made[4].status = "truncated"
    lost = group("d", [None, None], status="infrastructure")
    figures = rollout_figures([*made, *lost], group_stats([*made, *lost], CENTRED))
    assert figures["repeated"] == pytest.approx(2 / 8)
    assert figures["identical_groups"] == pytest.approx(1 / 4)
    assert figures["policy_tokens_finished"] == 2.0


def test_a_group_that_shrank_to_one_is_dropped_and_counted():
    made = group("g", [1.0, None, None, None])
    stats = group_stats(made, SCALED)
    assert (stats.advantages, stats.counts.too_few) == ({}, 1)
    assert rollout_figures(made, stats)["too_few_valid_groups"] == 1.0
    lost = group("h", [1.0, 0.0], status="infrastructure")
    assert group_stats(lost, CENTRED).counts.missing == 2


def test_partial_groups_use_those_that_are_left():
    stats = group_stats(group("g", [1.0, None, 0.0, 1.0]), SCALED)
    assert stats.advantages == pytest.approx({"g0": 0.57735, "g2": -1.154699, "g3": 0.57735}, abs=2e-6)


def test_graded_rewards_may_vary_without_a_success():
    stats = group_stats(group("g", [0.1, 0.2]), CENTRED)
    assert (stats.mixed, stats.flat_wrong) == (0, 0)
    assert stats.advantages == pytest.approx({"g0": -0.05, "g1": 0.05})


def test_expected_share_of_mixed_groups():
    assert expected_mixed([(0, 8), (8, 8), (4, 8)], 8) == pytest.approx(1 / 3)
    assert expected_mixed([(1, 2)], 2) == 1.0
    assert expected_mixed([(2, 4)], 2) == pytest.approx(2 / 3)
    assert expected_mixed([(1, 2)], 4) == pytest.approx(1 - 2 / 16)


def test_preflight_figures_and_needs():
    made = group("r", [1.0] * 4) + group("w", [0.0] * 4) + group("m", [1.0, 0.0, -1.0, 1.0]) + group("x", [None] * 2)
    figures = measure(made, SCALED)
    assert (figures["rollouts"], figures["problems"], figures["invalid"]) == (14, 3, 2)
    assert (figures["success"], figures["positive_problem_rate"]) == (0.5, pytest.approx(2 / 3))
    assert figures["mixed_group_rate"] == 0.25
    assert figures["samples_to_success"] == pytest.approx((1 + 5 + 5 / 3) / 3)
    assert first_success(figures) == [
        "the first success of a problem takes 2.6 samples on average (33% of the problems had none: it counts as the one "
        "after their last)"
    ]
    assert figures["reward"] == pytest.approx(
        {"mean": 5 / 12, "std": 0.6401, "min": -1.0, "max": 1.0, "positive_rate": 0.5, "zero_rate": 5 / 12}, abs=1e-4
    )
    assert unmet(Needs(), figures) == []
    assert unmet(Needs(success=0.6, mixed_group_rate=0.5), figures) == [
        "success is 0.500, needs 0.6",
        "mixed_group_rate is 0.250, needs 0.5",
    ]
    best, worst = review_sample(made)
    assert (len(best), len(worst)) == (6, 6)
    assert worst[0].reward == -1.0
    assert not {t.id for t in best} & {t.id for t in worst}


def test_an_empty_preflight_does_not_divide_by_zero():
    figures = measure([], SCALED)
    assert (figures["success"], figures["tool_success"]) == (0.0, None)
    assert first_success(figures) == []
    assert unmet(Needs(), figures) == ["success is 0.000, needs 0.01"]


def test_a_reward_that_is_no_number_is_missing_and_never_a_mean():
    made = group("g", [1.0, math.nan, 0.0, 1.0])
    stats = group_stats(made, SCALED)
    assert stats.advantages == pytest.approx({"g0": 0.57735, "g2": -1.154699, "g3": 0.57735}, abs=2e-6)
    figures = rollout_figures(made, stats)
    assert (figures["reward_mean"], figures["invalid"]) == (pytest.approx(2 / 3), 0.25)


def test_a_group_of_one_value_is_kept_where_the_step_or_a_critic_judges():
    made = group("a", [1.0, 1.0]) + group("b", [0.0, 0.0])
    against_step = group_stats(made, policy_gradient_from({"type": "reinforce"}))
    assert against_step.advantages == {"a0": 0.5, "a1": 0.5, "b0": -0.5, "b1": -0.5}
    critic = group_stats(made, policy_gradient_from({"type": "ppo"}))
    assert critic.advantages == {"a0": 1.0, "a1": 1.0, "b0": 0.0, "b1": 0.0}
    assert (against_step.teaching, critic.teaching, group_stats(made, SCALED).teaching) == (2, 2, 0)


@pytest.mark.parametrize("kind", ["gigpo", "g2po"])
def test_a_group_of_equal_rewards_is_flat_also_where_turns_are_compared(kind):
    made = group("g", [1.0, 1.0])
    made[1].turns = [Turn(1, 2, "", ToolCall("find", {}, ""), Observation({"a": 1})), Turn(2, 3, "", None, None)]
    stats = group_stats(made, policy_gradient_from({"type": kind}))
    assert (stats.flat, stats.silent, stats.advantages, stats.unmoved) == (True, 1, {}, ["g0", "g1"])
    made[1].reward = 0.0
    stats = group_stats(made, policy_gradient_from({"type": kind}))
    assert (stats.flat, stats.unmoved, len(stats.turn_advantages["g1"])) == (False, [], 2)


def test_what_a_turn_earned_by_itself_counts_there_where_that_is_asked_for():
    made = group("g", [1.1, 0.0])
    for one, earned in zip(made, (0.1, 0.0), strict=True):
        one.turns = [Turn(1, 2, "", None, Observation({"a": 1}), reward=earned), Turn(2, 3, "", None, None)]
    plain, by_turn = (
        group_stats(
            made, policy_gradient_from({"type": "gigpo", "discount": 0.5, "turn_rewards": asked})
        ).turn_advantages
        for asked in (False, True)
    )
    assert plain["g0"] == pytest.approx([0.55 + 0.275, 0.55 + 0.55])
    assert by_turn["g0"] == pytest.approx([0.55 + (0.1 + 0.5) / 2, 0.55 + 0.5])


def test_turns_stand_in_the_same_state_by_observation_or_by_history():
    (made,) = group("g", [1.0])
    first = ToolCall("find", {"x": 1}, "")
    made.turns = [
        Turn(1, 2, "", first, Observation({"a": 1})),
        Turn(2, 2, "", ToolCall("find", {}, "", error="missing_argument"), Observation({"e": 1}, is_error=True)),
        Turn(2, 3, "", first, Observation({"a": 1})),
        Turn(3, 3, "", None, None, reward=0.1),
    ]
    walk = walk_of(made, "observation")
    assert walk.anchors[0] == ""
    assert walk.anchors[1] == walk.anchors[3] != walk.anchors[2]
    assert walk.valid == [True, False, True, True]
    assert walk.rewards == [0.0, 0.0, 0.0, 0.1]
    assert len(set(walk_of(made, "history").anchors)) == 4


def test_the_penalty_for_length_stands_beside_the_reward():
    made = group("g", [1.0, 1.0])
    spec = policy_gradient_from({"type": "dapo", "truncated": "score", "overlong": {"limit": 2, "buffer": 2}})
    assert overlong_figures(made, spec) == {"overlong_penalty": -1.0}
    assert overlong_figures(made, SCALED) == {}


def test_an_outlier_of_a_group_is_cut_to_where_its_own_statistics_say():
    spec = GRPO(type="grpo", scale_rewards="none", clip_rewards=1.0)
    made = group("g", [1.484, 0.376, -1.0, 0.968], lambda r: r > 1) + group("h", [0.5] * 4)
    found = group_stats(made, spec).advantages
    plain = group_stats(made, CENTRED).advantages
    assert found["g2"] - found["g1"] == pytest.approx(-0.614644 - 0.376, abs=2e-6)
    assert plain["g2"] < found["g2"]
    assert set(found) == set(plain)
    with pytest.raises(ValueError, match=r"never cuts: in a group of 4 no reward is further than 1\.5 standard"):
        GRPO(type="grpo", group_size=4, clip_rewards=2.0)
    with pytest.raises(ValueError, match="never cuts"):
        policy_gradient_from({"type": "reinforce", "group_size": 1, "clip_rewards": 2.0})
