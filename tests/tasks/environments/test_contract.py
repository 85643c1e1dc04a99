"""What every environment owes, whatever it is about."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.data import Split
from specs.environments import BFCL, OrderDesk, ToolFault
from specs.environments import Environment as EnvironmentSpec
from specs.errors import DataError
from specs.records import Problem, Status, ToolCall, Trajectory, Turn, demonstration_from, problem_from, to_dict
from specs.verifiers import EnvironmentState, ToolCalls
from tasks.episodes.environments import environment_for
from tasks.evidence.verifiers import verifier_for
from tasks.evidence.verifiers.selftest import episode
from tasks.protocols import Environment, VerifierRun, World

SPECS: dict[str, EnvironmentSpec] = {
    "order_desk": OrderDesk(kind="order_desk"),
    "adversarial": OrderDesk(kind="order_desk", adversarial=1.0),
    "faulty": OrderDesk(
        kind="order_desk", max_turns=30, adversarial=0.3, faults=[ToolFault(probability=0.2, applied=0.5)]
    ),
    "bfcl": BFCL(kind="bfcl", categories=["simple_python", "multiple", "live_simple"], distractors=2),
}
SPLITS: tuple[Split, ...] = ("train", "golden", "hidden", "audit")


@pytest.fixture(scope="module", params=SPECS)
def environment(request: pytest.FixtureRequest) -> Environment:
    return environment_for(request.param, SPECS[request.param])


def outcome_verifier(environment: Environment) -> VerifierRun:
    if environment.version.startswith("bfcl"):
        return verifier_for("calls", ToolCalls(kind="tool_calls"))
    return verifier_for("state", EnvironmentState(kind="environment_state"))


def sealed(world: World, turns: list[Turn], status: Status = "finished") -> Trajectory:
    found = episode(*turns, state=world.final_state(), answer=world.answer, status=status)
    world.close()
    return found


def babble(world: World, environment: Environment, problem: Problem, seed: int, turns: int) -> list[Turn]:
    rng = random.Random(seed)
    tools = environment.tools(problem)
    found: list[Turn] = []
    while not world.done and len(found) < turns:
        tool = rng.choice(tools)
        words = ["10", "7", "done", *problem.text.split('"'), *problem.text.split()]
        arguments = {
            k: rng.choice([1, 3, True, None, [], {}]) if rng.random() < 0.3 else rng.choice(words)
            for k in tool.parameters["properties"]
        }
        call = ToolCall(tool.name, arguments, written="")
        found.append(Turn(0, 0, "", call, world.call(call)))
    return found


def test_the_same_draw_twice_is_the_same_and_another_seed_is_another(environment: Environment) -> None:
    first, again, other = (environment.problems("train", 40, seed) for seed in (3, 3, 4))

    assert first == again
    assert [p.id for p in first] != [p.id for p in other]
    assert environment.problems("train", 10, 3) == first[:10], "a longer draw begins with the shorter one"
    assert len({p.id for p in first}) == 40
    assert all(problem_from(json.loads(json.dumps(to_dict(p)))) == p for p in first)


@pytest.mark.parametrize("split", SPLITS)
def test_the_clerk_solves_every_problem_and_passes_the_verifier(
    environment: Environment, split: str, request: pytest.FixtureRequest
) -> None:
    verifier = outcome_verifier(environment)
    for problem in environment.problems(split, 12 if split == "audit" else 20, 5):
        solved = [environment.demonstrate(problem, seed) for seed in range(4)]
        verdicts = [verifier.verify(episode(state=d.final_state, answer=d.answer), problem) for d in solved]

        # where tools are declared to fail one try may not be enough
        assert any(v.passed for v in verdicts), (problem, verdicts)
        assert request.node.callspec.params["environment"] == "faulty" or all(v.passed for v in verdicts)
        assert not any(d.spoiled for d in solved)
        assert demonstration_from(json.loads(json.dumps(to_dict(solved[0])))) == solved[0]


def test_doing_nothing_never_passes(environment: Environment) -> None:
    verifier = outcome_verifier(environment)
    for problem in environment.problems("train", 60, 6):
        verdict = verifier.verify(sealed(environment.open(problem, 0), []), problem)

        assert verdict.passed is False, problem


def test_a_mistaken_demonstration_says_so_and_mostly_fails(environment: Environment) -> None:
    verifier = outcome_verifier(environment)
    drawn = environment.problems("train", 60, 7)
    made = [environment.demonstrate(p, 1, mistakes=1.0) for p in drawn]
    passes = [verifier.verify(episode(state=d.final_state, answer=d.answer), d.problem).passed for d in made]

    assert sum(d.spoiled for d in made) >= 50
    assert passes.count(True) < 15


def test_same_seed_same_observations_and_an_end_within_max_turns(environment: Environment) -> None:
    for seed, problem in enumerate(environment.problems("train", 10, 8)):
        twice = []
        for _ in range(2):
            world = environment.open(problem, seed)
            turns = babble(world, environment, problem, seed, 12)
            twice.append((turns, world.final_state(), world.answer))
            world.close()

        assert twice[0] == twice[1]


def test_a_world_is_single_use_and_sealed(environment: Environment) -> None:
    problem = environment.problems("train", 1, 9)[0]
    first, second = environment.open(problem, 0), environment.open(problem, 0)
    untouched = second.final_state()
    for call, _ in environment.demonstrate(problem, 0).turns:
        first.call(call)
    state = json.dumps(first.final_state())
    call = environment.demonstrate(problem, 0).turns[0][0]

    assert first.call(call).is_error
    assert json.dumps(first.final_state()) == state
    assert second.final_state() == untouched, "worlds of one problem share nothing"
    first.close()
    first.close()
    second.close()
    reopened = environment.open(problem, 0)
    assert reopened.final_state() == untouched
    reopened.close()


def test_a_sibling_is_another_training_problem_of_the_type_that_the_clerk_solves(environment: Environment) -> None:
    verifier = outcome_verifier(environment)
    for problem in environment.problems("hidden", 8, 5):
        if not SPECS[problem.environment].siblings:
            with pytest.raises(DataError, match="no sibling of problem"):
                environment.sibling(problem, 1)
            continue
        sibling = environment.sibling(problem, 1)
        assert (sibling.type, sibling.split) == (problem.type, "train")
        assert sibling.text != problem.text
        assert sibling == environment.sibling(problem, 1)
        solved = [environment.demonstrate(sibling, seed) for seed in range(8)]
        assert any(verifier.verify(episode(state=d.final_state, answer=d.answer), sibling).passed for d in solved)


def test_a_solution_goes_the_same_way_in_a_world_of_the_same_seed(environment: Environment) -> None:
    for problem in environment.problems("train", 20, 5):
        made = environment.demonstrate(problem, 3)
        world = environment.open(problem, 3)
        assert [(c, world.call(c)) for c, _ in made.turns] == made.turns
        assert (world.final_state(), world.answer) == (made.final_state, made.answer)
        world.close()


def test_a_split_that_is_not_there_is_a_data_error(environment: Environment) -> None:
    with pytest.raises(DataError, match="there is no split 'test'; expected one of train"):
        environment.problems("test", 1, 0)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("find_customer", "find_order", "check_stock", "create_order", "cancel_order", "send_mail", "finish", "x", "")
KEYS = ("name", "order", "product", "quantity", "customer", "letter", "answer", "percent")


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(KEYS), JUNK)), max_size=6))
def test_nothing_that_a_policy_writes_raises(calls: list[tuple[str, dict[str, object]]]) -> None:
    for name in ("adversarial", "bfcl"):
        environment = environment_for(name, SPECS[name])
        world = environment.open(environment.problems("train", 1, 1)[0], 0)
        for tool, arguments in calls:
            world.call(ToolCall(tool, arguments, written=""))
        world.final_state()
        world.close()
