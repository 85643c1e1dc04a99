from collections import Counter
from typing import Any

import pytest

from specs.environments import BFCL, OrderDesk
from specs.errors import DataError, TrainingError
from specs.flywheel import Siblings
from specs.records import Demonstration, Problem
from tasks.cases.siblings import Apartness, Bench, SiblingMaker, shows
from tasks.episodes.environments.bfcl import BFCLEnvironment
from tasks.episodes.environments.order_desk import problems as types
from tasks.episodes.environments.order_desk.environment import OrderDeskEnvironment
from tasks.evidence.apart import normalised
from tests.tasks.cases.planting import CALM, FAULTY, REWARD, VERIFIERS

ALL = OrderDeskEnvironment("desk", OrderDesk(kind="order_desk", types=[*types.TYPES, *types.ADVERSARIAL]))


def texts(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(p.id, p.text) for p in problems]


def maker(environment: Any = CALM, evaluation: Any = None, training: Any = (), **spec: Any) -> SiblingMaker:
    apart = Apartness(evaluation or {}, training, 0.9)
    return SiblingMaker(Bench({"desk": environment}, VERIFIERS, REWARD), apart, Siblings(**spec), 3)


def test_siblings_share_the_type_and_nothing_that_the_text_speaks_of() -> None:
    for split in ("golden", "hidden", "train"):
        for problem in ALL.problems(split, 60, 4):
            sibling = ALL.sibling(problem, 1)
            assert (sibling.type, sibling.split, sibling.tags) == (problem.type, "train", problem.tags)
            assert types.phrase(sibling.text) != types.phrase(problem.text)
            assert types.entities(sibling.text).isdisjoint(types.entities(problem.text))
            assert sibling == ALL.sibling(problem, 1) != ALL.sibling(problem, 2)


def test_siblings_are_solved_and_unlike_every_evaluation_and_training_record_and_each_other() -> None:
    training, golden = CALM.problems("train", 2000, 2), CALM.problems("golden", 300, 1)
    make = maker(evaluation={"golden": texts(golden)}, training=texts(training))
    made = [make.make(p, "argument") for p in [*training[:60], *golden[:60]] for _ in range(2)]

    solved = [m for m in made if m is not None]
    assert len(solved) == make.report.made == 240
    known = {p.id for p in (*training, *golden)} | {normalised(p.text) for p in (*training, *golden)}
    new = Counter(x for m in solved for x in (m.problem.id, normalised(m.problem.text)))
    assert known.isdisjoint(new)
    assert max(new.values()) == 1


def test_a_sibling_that_an_evaluation_set_holds_is_drawn_again_and_counted() -> None:
    problem = CALM.problems("train", 1, 2)[0]
    first = maker().make(problem, "argument")
    assert first is not None
    again = maker(evaluation={"regress": texts([first.problem])})
    other = again.make(problem, "argument")
    assert other is not None
    assert other.problem.id != first.problem.id
    assert again.report.refused == {"evaluation_id": 1}
    assert maker(training=texts([first.problem]), tries=1).make(problem, "argument") is None


def test_what_is_held_back_is_no_near_duplicate_of_what_trains_nor_the_other_way_round() -> None:
    words = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(60)]
    trained, near, nearer = (" ".join([*words[:30], w, *words[31:]]) for w in ("one", "two", "three"))

    def problem(name: str, text: str) -> Problem:
        return Problem(name, "desk", "mail", "train", text, {}, {})

    apart = Apartness({}, [("t", trained)], 0.9)
    assert apart.admit(problem("p", near), held=True) == "training_near_duplicate"
    assert apart.admit(problem("p", near)) is None, "two that train may be alike"
    assert apart.admit(problem("h", nearer), held=True) == "training_near_duplicate"
    held = Apartness({}, [], 0.9)
    assert held.admit(problem("h", near), held=True) is None
    assert held.admit(problem("p", nearer)) == "held_back_near_duplicate"
    assert held.admit(problem("g", nearer), held=True) == "training_near_duplicate", "nor of another that is held back"


def test_a_solution_of_error_recovery_shows_a_recovery() -> None:
    make = maker(FAULTY)
    made = [make.make(p, "error_recovery") for p in FAULTY.problems("train", 30, 2)]
    assert sum(shows("error_recovery", m) for m in made if m is not None) >= 28
    for m in made:
        assert m is not None
        assert not m.spoiled
        assert m.turns[-1][1].done


class Liar(OrderDeskEnvironment):
    """Its clerk claims to have solved what it did not."""

    def demonstrate(
        self, problem: Problem, seed: int, mistakes: float = 0.0, *, recovers: bool = True
    ) -> Demonstration:
        made = super().demonstrate(problem, seed, mistakes, recovers=recovers)
        if problem.type == "cancel":
            made.turns = made.turns[-1:]
        return made


def test_a_generator_that_cannot_solve_its_own_problem_is_counted_named_and_stops() -> None:
    liar = Liar("desk", OrderDesk(kind="order_desk"))
    make = maker(liar, tries=2, max_unsolved=0.5)
    for problem in liar.problems("train", 40, 2):
        made = make.make(problem, "argument")
        assert (made is None) == (problem.type == "cancel")
    lost = make.report.unsolved["desk/cancel"]
    assert lost > 0
    assert set(make.report.unsolved) == {"desk/cancel"}
    make.check()
    strict = maker(liar, tries=99, max_unsolved=0.05)
    cancel = next(p for p in liar.problems("train", 40, 2) if p.type == "cancel")
    with pytest.raises(TrainingError, match=r"25 of desk/cancel.*siblings.max_unsolved \(0.05\)"):
        strict.make(cancel, "argument")


def test_an_environment_that_makes_no_siblings_says_so() -> None:
    bfcl = BFCLEnvironment("calls", BFCL(kind="bfcl"))
    problem = bfcl.problems("train", 1, 0)[0]
    with pytest.raises(DataError, match="fixed collection"):
        bfcl.sibling(problem, 0)
    foreign = Problem("x", "desk", "juggle", "file", "Juggle.", {}, {})
    make = maker()
    assert make.make(foreign, "argument") is None
    assert make.make(Problem("y", "gone", "mail", "train", "", {}, {}), "argument") is None
    assert sorted(make.report.impossible) == [
        "desk: no sibling of problem 'x' can be made, for 'juggle' is no type of the order desk; expected one of "
        + ", ".join(types.PHRASES),
        "environment 'gone' is not declared",
    ]
