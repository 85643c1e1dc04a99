from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from specs.records import Problem, Trajectory
from specs.replay import Curriculum
from tasks.loops.curriculum import CurriculumOrder, weight


def problem(name, kind="say"):
    return Problem(name, "toy", kind, "train", name, {}, {})


def tried(problem_id, *verdicts):
    made: list[Any] = [SimpleNamespace(problem_id=problem_id, success=v) for v in verdicts]
    return cast(list[Trajectory], made)


EASY, HARD, FIT = ([problem(f"{kind}{i}", kind) for i in range(8)] for kind in ("easy", "hard", "fit"))
ALL = [*EASY, *HARD, *FIT]


def order(spec=None, **more):
    return CurriculumOrder({"a": ALL}, 3, spec or Curriculum(**more))


def experienced(**more):
    made = order(**more)
    for _ in range(3):
        for p in ALL:
            solved = {"easy": [True] * 8, "hard": [False] * 8, "fit": [True, False] * 4}[p.type]
            made.learn(tried(p.id, *solved))
    return made


def test_the_weight_is_largest_where_success_is_a_coin_toss():
    spec = Curriculum()
    assert weight(0.5, spec) > weight(0.3, spec) > weight(0.1, spec) == weight(0.95, spec) == spec.floor


def test_problems_that_are_sometimes_solved_come_up_most():
    made = experienced(explore=0.1)
    counts = Counter(p.type for _ in range(60) for p in made.draw(4))
    assert counts["fit"] > 0.7 * counts.total()
    assert min(counts["easy"], counts["hard"]) > 0
    assert made.figures()["curriculum_seen"] == 1.0


def test_without_experience_all_are_alike_and_none_comes_twice_in_a_draw():
    made = order()
    first = made.draw(24)
    assert {p.id for p in first} == {p.id for p in ALL}
    assert len(made.draw(99)) == 24
    assert made.rate(ALL[0]) == 0.5


def test_a_problem_without_rollouts_has_the_rate_of_its_type():
    own, plain = order(), order(by_type="all")
    for made in (own, plain):
        made.learn(tried("hard0", *[False] * 8))
    assert own.rate(HARD[1]) == 0.1
    assert plain.rate(HARD[1]) == 0.5
    assert own.rate(HARD[0]) < own.rate(HARD[1])


def test_what_is_known_for_good_comes_up_by_exploration_alone_until_it_fails():
    made = experienced(retire_after=2, retire_above=0.9, explore=0.0)
    assert made.figures()["curriculum_retired"] == 8 / 24
    assert not any(p.type == "easy" for _ in range(40) for p in made.draw(4))
    made.learn(tried("easy0", *[False] * 8))
    assert made.figures()["curriculum_retired"] == 7 / 24


def test_a_rollout_without_a_verdict_counts_nowhere():
    made = order()
    made.learn(tried("hard0", None, None))
    assert made.figures()["curriculum_seen"] == 0.0


def test_sets_are_mixed_by_weight():
    made = CurriculumOrder({"a": EASY, "b": HARD}, 3, Curriculum(), {"a": 3.0, "b": 1.0})
    counts = Counter(p.type for _ in range(10) for p in made.draw(8))
    assert counts["easy"] == 3 * counts["hard"]


def test_a_restored_order_goes_on_with_the_same_draws():
    made = experienced()
    made.draw(5)
    other = order()
    other.load_state(made.state())
    for _ in range(3):
        assert [p.id for p in made.draw(5)] == [p.id for p in other.draw(5)]
