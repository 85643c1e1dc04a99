import json
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specs.environments import OrderDesk
from specs.errors import DataError
from specs.records import Trajectory
from specs.replay import Curriculum
from specs.self_teaching import Growth
from tasks.episodes.environments.order_desk.environment import OrderDeskEnvironment
from tasks.loops.curriculum import CurriculumOrder
from tasks.loops.growth import Growing

DESK = OrderDeskEnvironment("desk", OrderDesk(kind="order_desk"))
OLD = DESK.problems("train", 12, 99)
CURRICULUM = Curriculum(explore=0.0)


def make(seed):
    return DESK.problems("train", 64, seed)


def growing(refuse=lambda problem: False, **more):
    return Growing(Growth(**more), CURRICULUM, make, refuse, 5)


def order(**more):
    return CurriculumOrder({"a": OLD}, 5, CURRICULUM, growing=growing(**more))


def tried(problems, solved):
    made: list[Any] = [SimpleNamespace(problem_id=p.id, success=solved) for p in problems for _ in range(8)]
    return cast(list[Trajectory], made)


def test_a_harder_level_opens_as_the_hardest_is_solved_and_not_before():
    made = growing(least=32)
    seen = []
    for step in range(8):
        drawn = made.draw(4, ())
        made.learn(tried(drawn, step > 1))
        seen.append((max(p.min_calls for p in drawn), made.figures()["growth_calls"]))
    assert [hardest for hardest, _ in seen[:4]] == [2] * 4, "two steps failed, and their rate had to be forgotten"
    assert [level for _, level in seen] == sorted(level for _, level in seen)
    assert seen[-1][1] >= 3
    never = growing()
    for _ in range(8):
        never.learn(tried(never.draw(4, ()), False))
    assert never.figures()["growth_calls"] == 2


def test_levels_that_are_sometimes_solved_come_up_most():
    made = growing(calls=[2, 3], least=8)
    for _ in range(12):
        drawn = made.draw(8, ())
        made.learn(tried([p for p in drawn if p.min_calls == 2], True))
        hard = [p for p in drawn if p.min_calls == 3]
        made.learn(tried(hard[::2], True))
        made.learn(tried(hard[1::2], False))
    counts = Counter(p.min_calls for _ in range(10) for p in made.draw(8, ()))
    assert counts[3] > 3 * counts[2] > 0


def test_a_draw_has_its_share_of_new_problems_and_fills_up_what_the_sets_lack():
    known = {p.id for p in OLD}
    made = order(share=0.25)
    drawn = made.draw(16)
    assert len({p.id for p in drawn}) == 16
    assert sum(p.id in known for p in drawn) == 12
    assert {p.min_calls for p in drawn if p.id not in known} == {2}
    assert sum(p.id in known for p in made.draw(40)) == 12
    assert all(p.split == "train" for p in drawn)
    assert made.figures()["curriculum_seen"] == 0.0


def test_what_gives_an_evaluation_set_away_is_never_drawn_and_counted():
    first = [p.id for p in growing().draw(6, ())]
    held = set(first[::2])
    made = growing(lambda problem: problem.id in held)
    again = [p.id for p in made.draw(6, ())]
    assert not held & set(again)
    assert again[:3] == first[1::2], "the others come as before"
    assert made.figures()["growth_refused"] == 3
    with pytest.raises(DataError, match=r"no new problem of 2 calls.*growth\.calls"):
        growing(lambda problem: True).draw(1, ())


def test_none_comes_twice_in_a_draw():
    first = growing().draw(4, ())
    again = growing().draw(4, [first[0].id, first[2].id])
    assert not {first[0].id, first[2].id} & {p.id for p in again}


def test_a_restored_order_goes_on_with_the_same_draws():
    made = order(share=0.5, least=16)
    for step in range(5):
        drawn = made.draw(8)
        made.learn(tried(drawn, step > 0))
    other = order(share=0.5, least=16)
    other.load_state(json.loads(json.dumps(made.state())))
    for _ in range(4):
        drawn, again = made.draw(8), other.draw(8)
        assert [p.id for p in drawn] == [p.id for p in again]
        for one in (made, other):
            one.learn(tried(drawn, True))
        assert made.figures() == other.figures()
    assert made.figures()["growth_calls"] >= 3
