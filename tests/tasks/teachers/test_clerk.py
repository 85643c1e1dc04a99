"""The clerk as a teacher: what it says of attempts whose worth is known."""

import json

import pytest

from specs.environments import OrderDesk
from tasks.episodes.environments import environment_for
from tasks.episodes.seeds import world_seed
from tasks.teachers.asks import Ask, Unreadable
from tasks.teachers.clerk import answer
from tests.flows.asked_desk import attempt

DESK = environment_for("desk", OrderDesk(kind="order_desk", types=["place"]))


def attempts():
    """Return a problem, the clerk's own attempt, and one that differs from its second call on."""
    problem = DESK.problems("train", 1, 4)[0]
    right = attempt(problem, 0, DESK.demonstrate(problem, world_seed(0)))
    wrong = attempt(problem, 1, DESK.demonstrate(problem, world_seed(0)))
    wrong.turns = [wrong.turns[0], wrong.turns[-1]]
    wrong.final_state = None
    return problem, right, wrong


def made_call(trajectory, number):
    call = trajectory.turns[number].call
    assert call is not None
    return call


def said(signal, problem, *candidates, **more):
    ask = Ask(signal, problem, tuple(DESK.tools()), candidates, **more)
    return ask.read(json.dumps(answer(ask, DESK, world_seed)))


def test_a_right_attempt_is_worth_more_than_a_wrong_one():
    problem, right, wrong = attempts()
    dimensions = ("result", "care")
    assert said("score", problem, right, dimensions=dimensions)["dimensions"] == {"result": 1.0, "care": 1.0}
    assert said("score", problem, wrong, dimensions=dimensions)["dimensions"]["result"] < 0.6
    assert said("rank", problem, wrong, right)["tiers"] == [[right.id], [wrong.id]]
    assert said("rank", problem, right, wrong, right)["tiers"] == [[right.id, right.id], [wrong.id]]


def test_scores_go_by_name_and_other_names_have_none():
    problem, _, wrong = attempts()
    plain = said("score", problem, wrong, dimensions=("result", "care"))["dimensions"]
    assert plain["result"] < plain["care"] == 1.0
    described = {"care": "Was every call taken?", "result": ""}
    assert said("score", problem, wrong, dimensions=described)["dimensions"] == plain
    assert said("score", problem, wrong, dimensions=("care",))["dimensions"] == {"care": 1.0}
    with pytest.raises(Unreadable, match="a clerk scores result and care, not tone"):
        said("score", problem, wrong, dimensions=("result", "tone"))


def test_the_first_error_is_where_the_clerk_would_have_gone_on():
    problem, right, wrong = attempts()
    labels = [t["label"] for t in said("critique", problem, right)["turns"]]
    assert labels == ["good"] * len(right.turns)
    turns = said("critique", problem, wrong)["turns"]
    assert [t["label"] for t in turns] == ["good", "first_error"]
    assert turns[1]["correction"]["name"] == made_call(right, 1).name
    made = said("sample", problem, wrong)
    assert made["keep"] == 1
    assert [c["name"] for c in made["calls"]] == [made_call(right, i).name for i in range(1, len(right.turns))]


def test_beyond_the_first_error_the_clerk_does_not_know():
    problem, right, wrong = attempts()
    calls = (made_call(right, 1), made_call(wrong, 1))
    found = said("action", problem, wrong, turn=1, actions=calls)
    assert found["scores"] == [1.0, 0.0]
    assert found["best"]["name"] == made_call(right, 1).name
    with pytest.raises(Unreadable, match="left the clerk's way"):
        said("action", problem, wrong, turn=2, actions=())
