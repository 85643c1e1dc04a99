"""Verdicts to reward: the floor, the outcome, the extras and the proof that successes win."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specs.dominance import dominance
from specs.errors import ProgramError
from specs.records import Observation, Problem, Status, Trajectory, Verdict
from specs.reward import Repetition, Reward
from tasks.evidence.judge import judge
from tasks.evidence.verifiers.selftest import episode, turn

PROBLEM = Problem("p", "e", "t", "train", "text", {}, {}, min_calls=2)


@dataclass
class Says:
    """A verifier that has made up its mind; None is invalid."""

    name: str
    score: float | None
    passed: bool | None = None
    version: str = "says@1"

    def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
        if self.score is None:
            return Verdict(self.name, self.version, None, None, invalid="no verdict")
        return Verdict(self.name, self.version, self.score, self.score == 1.0 if self.passed is None else self.passed)


def says(**scores: float | None) -> dict[str, Says]:
    return {name: Says(name, score) for name, score in scores.items()}


def trajectory(
    calls: int = 2, changed: int = 0, status: Status = "finished", errors: int = 0, written: tuple[int, ...] = ()
) -> Trajectory:
    turns = [turn(Observation({}, changed=i < changed, is_error=i >= calls - errors)) for i in range(calls)]
    made = episode(*turns, state={}, status=status)
    made.ids, made.sources = [9, *written], [1, *[2] * len(written)]
    return made


FULL = Reward(
    floor=-1.0, must=["safe"], outcome={"right": 3.0, "polite": 1.0}, soft={"tools": 0.1}, process_cap=0.05,
    process_per_call=0.02, per_extra_call=-0.01, on_truncation=-0.2,
)  # fmt: skip


def judged(t: Trajectory, reward: Reward = FULL, /, **scores: float | None) -> Trajectory:
    judge(t, PROBLEM, says(**scores), reward)
    return t


def test_a_success_earns_the_outcome_and_its_extras() -> None:
    t = judged(trajectory(calls=5, changed=4), safe=1.0, right=1.0, polite=1.0, tools=0.5)

    assert t.success is True
    assert t.reward_parts == pytest.approx(
        {"task": 1.0, "soft": 0.05, "process": 0.05, "efficiency": -0.03, "truncation": 0.0}
    )
    assert t.reward == pytest.approx(1.07)
    assert [v.verifier for v in t.verdicts] == ["safe", "right", "polite", "tools"]


def test_a_broken_condition_is_the_floor_and_nothing_else() -> None:
    t = judged(trajectory(calls=9, changed=4, status="truncated"), safe=0.0, right=1.0, polite=1.0, tools=1.0)

    assert (t.success, t.reward, t.reward_parts) == (False, -1.0, {"floor": -1.0})


def test_outcome_weights_sum_to_one_and_count_in_full_or_not_at_all() -> None:
    t = judged(trajectory(), safe=1.0, right=1.0, polite=0.9, tools=0.0)

    assert t.success is False
    assert t.reward_parts["task"] == 0.75
    assert judged(trajectory(status="truncated"), safe=1.0, right=0.0, polite=0.0, tools=0.0).reward == -0.2


def test_process_and_efficiency_are_bounded() -> None:
    assert (
        judged(trajectory(calls=8, changed=8), safe=1.0, right=1.0, polite=1.0, tools=0).reward_parts["process"] == 0.05
    )
    assert judged(trajectory(calls=1), safe=1.0, right=1.0, polite=1.0, tools=0).reward_parts["efficiency"] == 0.0


def test_what_failed_costs_and_is_bounded_and_a_fault_that_was_declared_is_not_its_own() -> None:
    reward = Reward(outcome={"right": 1.0}, process_cap=0.1, process_per_call=0.02, process_per_error=-0.04)
    assert judged(trajectory(calls=3, changed=1, errors=1), reward, right=1.0).reward_parts["process"] == pytest.approx(
        -0.02
    )
    assert judged(trajectory(calls=8, errors=8), reward, right=1.0).reward_parts["process"] == -0.1
    struck = trajectory(calls=1, errors=1)
    observed = struck.turns[0].observation
    assert observed is not None
    observed.injected = True
    assert judged(struck, reward, right=1.0).reward_parts["process"] == 0.0
    assert dominance(reward, 8).worst_success == pytest.approx(0.9)


def earned(t: Trajectory) -> list[float]:
    return [own.reward for own in t.turns]


def test_a_turn_has_what_its_call_earned_and_smaller_where_the_cap_binds() -> None:
    reward = Reward(outcome={"right": 1.0}, process_cap=0.1, process_per_call=0.02, process_per_error=-0.03)
    t = judged(trajectory(calls=4, changed=2, errors=1), reward, right=1.0)
    assert earned(t) == pytest.approx([0.02, 0.02, 0.0, -0.03])
    assert sum(earned(t)) == pytest.approx(t.reward_parts["process"])
    t = judged(trajectory(calls=8, changed=8), reward, right=1.0)
    assert earned(t) == pytest.approx([0.1 / 8] * 8)
    assert earned(judged(trajectory(calls=3, changed=3), safe=0.0, right=1.0, polite=1.0, tools=1.0)) == [0.0] * 3
    judged(t, reward, right=None)
    assert earned(t) == [0.0] * 8
    assert earned(judged(trajectory(calls=2, changed=2), Reward(), state=1.0)) == [0.0, 0.0]


def test_a_turn_has_its_share_of_a_score_that_is_the_mean_of_the_turns() -> None:
    @dataclass
    class ByTurn(Says):
        scores: tuple[object, ...] = ()

        def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
            return Verdict(self.name, self.version, self.score, True, {"turn_scores": list(self.scores)})

    reward = Reward(outcome={"right": 1.0}, soft={"steps": 0.2}, process_cap=0.1, process_per_call=0.01)

    def by(score: float, *scores: object) -> list[float]:
        t = trajectory(calls=2, changed=1)
        judge(t, PROBLEM, {"right": Says("right", 1.0), "steps": ByTurn("steps", score, None, "s@1", scores)}, reward)
        return earned(t)

    assert by(0.5, 0.2, 0.8) == pytest.approx([0.01 + 0.02, 0.08])
    assert by(0.2, 0.2, 0.8) == by(0.5, 0.5) == by(0.5, "0.2", 0.8) == pytest.approx([0.01, 0.0])


def test_repeated_tokens_of_the_policy_cost_their_share() -> None:
    reward = Reward(outcome={"right": 1.0}, repetition=Repetition(ngram=2, coef=0.2))
    again = judged(trajectory(written=(1, 2, 1, 2, 1)), reward, right=1.0)  # 12 21 12 21: two of four stood before
    assert again.reward_parts["repetition"] == pytest.approx(-0.1)
    assert judged(trajectory(written=(1,)), reward, right=1.0).reward_parts["repetition"] == 0.0
    told = dominance(reward, 8)
    assert told.worst_success == pytest.approx(0.8)
    assert "-0.2 for repetition" in told.text


# KP-ADV-03, KP-EVAL-03
def test_a_verdict_that_was_not_given_is_never_zero() -> None:
    for missing in ("safe", "right"):
        scores: dict[str, float | None] = {"safe": 1.0, "right": 1.0, "polite": 1.0, "tools": 1.0, missing: None}
        t = judged(trajectory(), **scores)
        assert (t.success, t.reward, t.reward_parts) == (None, None, {})

    soft = judged(trajectory(), safe=1.0, right=1.0, polite=1.0, tools=None)
    assert (soft.success, soft.reward, soft.tags) == (True, 1.0, ["left_out:tools"])


def test_a_score_that_is_no_share_is_invalid() -> None:
    for score in (math.nan, math.inf, -0.1, 1.1):
        t = judged(trajectory(), safe=1.0, right=score, polite=1.0, tools=0.0)
        assert t.reward is None
        assert "the verifier gave score" in (t.verdicts[1].invalid or "")


def test_judging_again_replaces_what_was_judged() -> None:
    t = judged(trajectory(), safe=1.0, right=1.0, polite=1.0, tools=None)
    judged(t, safe=1.0, right=None, polite=1.0, tools=None)

    assert (t.success, t.reward, len(t.verdicts)) == (None, None, 4)


def test_the_only_verifier_is_the_outcome() -> None:
    t = judged(trajectory(), Reward(), state=1.0)
    assert (t.success, t.reward) == (True, 1.0)
    with pytest.raises(ProgramError, match=r"2 verifiers could decide success \(a, b\)"):
        judged(trajectory(), Reward(), a=1.0, b=1.0)
    with pytest.raises(ProgramError, match=r"reward\.must: there is no verifier 'c'; expected one of a"):
        judged(trajectory(), Reward(must=["c"]), a=1.0)


SMALL = st.floats(0.0, 0.3)
REWARDS = st.builds(
    Reward,
    floor=st.floats(-3.0, 0.0),
    must=st.just(["m"]),
    outcome=st.dictionaries(st.sampled_from(["a", "b"]), st.floats(0.1, 3.0), min_size=1),
    soft=st.dictionaries(st.sampled_from(["x", "y"]), st.floats(0.01, 0.3)),
    process_cap=SMALL,
    process_per_call=SMALL,
    process_per_error=SMALL.map(lambda x: -x),
    repetition=st.none() | st.builds(Repetition, ngram=st.integers(2, 3), coef=st.floats(0.01, 0.3)),
    per_extra_call=SMALL.map(lambda x: -x / 5),
    on_truncation=SMALL.map(lambda x: -x),
)
SCORES = st.fixed_dictionaries({n: st.sampled_from([0.0, 0.4, 1.0]) for n in "mabxy"})
EPISODES = st.tuples(
    st.integers(1, 8),
    st.integers(0, 8),
    st.sampled_from(("finished", "turn_limit", "truncated")),
    st.integers(0, 8),
    st.lists(st.integers(0, 2), max_size=8).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(reward=REWARDS, runs=st.lists(st.tuples(SCORES, EPISODES), min_size=2, max_size=8))
def test_where_dominance_holds_every_success_beats_every_failure(
    reward: Reward, runs: list[tuple[dict[str, float], tuple[int, int, Status, int, tuple[int, ...]]]]
) -> None:
    report = dominance(reward, 8)
    assume(report.holds)
    won, lost, broken = [], [], []
    for scores, (calls, changed, status, errors, written) in runs:
        verifiers = says(**scores)
        if status == "truncated":
            for name in reward.outcome:
                verifiers[name].score = 0.0
        t = trajectory(calls, changed, status, errors, written)
        judge(t, Problem("p", "e", "t", "train", "", {}, {}, min_calls=1), verifiers, reward)
        assert t.reward is not None
        assert t.reward == pytest.approx(sum(t.reward_parts.values()))
        (won if t.success else broken if "floor" in t.reward_parts else lost).append(t.reward)

    assert all(w >= report.worst_success - 1e-9 for w in won)
    assert all(report.lowest_failure - 1e-9 <= x <= report.best_failure + 1e-9 for x in lost)
    assert all(w > x for w in won for x in lost + broken)
    assert all(x > b for x in lost for b in broken)


def test_dominance_says_the_numbers_and_what_to_change() -> None:
    good = dominance(FULL.model_copy(update={"outcome": {"right": 1.0}}), 8)
    assert good.holds
    assert good.worst_success == pytest.approx(0.93)
    assert good.best_failure == pytest.approx(0.15)

    bad = dominance(Reward(outcome={"a": 1.0}, soft={"b": 0.9}, per_extra_call=-0.05), 4)
    assert not bad.holds
    assert "lower soft, process_cap or per_extra_call by more than 0.05 in sum" in bad.text

    low = dominance(Reward(must=["m"], outcome={"a": 1.0}, floor=-0.1, on_truncation=-0.3), 1)
    assert not low.holds
    assert "set reward.floor below -0.3" in low.text
    assert dominance(Reward(outcome={"a": 1.0}), 100).holds

    cut = Reward(outcome={"a": 1.0}, soft={"b": 0.3}, on_truncation=-0.9)
    assert dominance(cut, 4).holds, "where no cut trajectory succeeds, none of them is a worst success"
    assert dominance(cut, 4, cut_may_succeed=True).worst_success == pytest.approx(0.1)
