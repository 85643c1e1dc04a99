"""A policy gradient that ruins its policy ends as one that stops learning does; one whose success is noisy does not."""

import pytest

from specs.errors import TrainingError
from specs.optimizer import Optimizer
from tasks.loops.ruin import SURE, check_fall, fall
from tests.tasks.loops.test_on_policy import PROBLEMS, SPEC, stage, taught

__all__ = ["taught"]


def staged(taught, kind, learning_rate, steps):
    wild = Optimizer(kind=kind, learning_rate=learning_rate)
    return stage(taught, SPEC.model_copy(update={"optimizer": wild, "steps": steps}), problems=PROBLEMS)[1]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_last_update_that_unlearns_what_it_rewards_stops_the_stage(taught, kind):
    told = (
        r"step 1: training has diverged: a token that is to become likelier costs \d+\.\d\d nats after the last update, "
        r"0\.34 before it and 5\.61 by a uniform guess among 274\. The policy was not handed on\. .* \(now 30\)"
    )
    with pytest.raises(TrainingError, match=told):
        staged(taught, kind, 30.0, 1)()
    assert staged(taught, kind, 1e-2, 1)().notes == []


def test_success_that_has_fallen_to_nothing_stops_the_stage(taught):
    told = (
        r"success has fallen to nothing after updates: 0\.50 before step 1 \(4 of 4 problems solved\), 0\.0\d\d since "
        r"\(\d of 16\); reward .* not handed on: lower optimizer\.learning_rate \(now 0\.1\)"
    )
    with pytest.raises(TrainingError, match=told):
        staged(taught, "muon", 0.1, 5)()
    for kind in ("adamw", "muon"):
        assert staged(taught, kind, 1e-2, 5)().notes == []


def curve(*rewards, updated=True):
    return [{"reward_mean": r, "updated": float(updated)} for r in rewards]


HALF, NONE = [0.5] * 4, [0.0] * 4
DOWN = curve(0.5, 0.0, 0.0, 0.0, 0.0)


def test_what_may_be_chance_or_has_another_cause_is_told():
    ruined = fall([HALF, NONE, NONE, NONE, NONE], DOWN)
    assert ruined is not None
    assert ruined.chance < SURE
    with pytest.raises(TrainingError, match="fallen to nothing"):
        check_fall(ruined, 0.1, chosen=False)
    (note,) = check_fall(ruined, 0.1, chosen=True)
    assert note.endswith("either the curriculum draws harder problems, or lower optimizer.learning_rate (now 0.1)")
    rising = fall([HALF, NONE, NONE, NONE, NONE], curve(0.5, 0.9, 0.9, 0.9, 0.9))
    (note,) = check_fall(rising, 0.1, chosen=False)
    assert "reward 0.50, then 0.90: the reward pays for something else than success" in note
    short = fall([HALF, NONE], DOWN[:2])
    assert short is not None
    assert short.chance == pytest.approx(1 / 70)
    (note,) = check_fall(short, 0.1, chosen=False)
    assert "problems drawn give that by chance in one stage of 70" in note


def test_a_fall_in_the_last_steps_of_a_long_stage_is_found():
    found = fall([HALF] * 97 + [NONE] * 3, curve(*[0.5] * 97, *[0.0] * 3))
    assert found is not None
    assert found.step >= 96
    assert found.chance < SURE


@pytest.mark.parametrize(
    "shares",
    [
        [[0.125, 0.125, 0.0, 0.125], [0.0, 0.125, 0.0, 0.0], [0.125, 0.0, 0.0, 0.0], [0.0] * 4],
        [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
        [HALF, NONE, NONE, HALF],
        [NONE] * 5,
        [[], [], NONE],
        [HALF],
    ],
    ids=["noise", "few problems", "a bad batch", "nothing ever", "nothing valid", "one step"],
)
def test_honest_stages_are_let_alone(shares):
    assert fall(shares, DOWN[: len(shares)]) is None


def test_what_fell_before_any_update_is_not_the_updates_doing():
    assert fall([HALF, NONE, NONE, NONE, NONE], curve(0.5, 0, 0, 0, 0, updated=False)) is None
