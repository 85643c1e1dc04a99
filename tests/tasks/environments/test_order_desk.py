"""The order desk: its splits, its tools, its adversarial problems, its faults."""

import re
import time
from typing import Any

import pytest

from specs.environments import CALLS, EVENTS, OrderDesk, OrderType, ToolFault
from specs.errors import ProgramError, RolloutError
from specs.records import Observation, Problem, ToolCall, Turn
from specs.verifiers import EnvironmentState, ToolTrace
from tasks.episodes.environments.order_desk import entities
from tasks.episodes.environments.order_desk.desk import Desk
from tasks.episodes.environments.order_desk.environment import OrderDeskEnvironment
from tasks.episodes.environments.order_desk.problems import ADVERSARIAL, TYPES
from tasks.evidence.verifiers import verifier_for
from tasks.evidence.verifiers.selftest import episode

STATE = verifier_for("state", EnvironmentState(kind="environment_state"))
PERMISSION = verifier_for("permission", ToolTrace(kind="tool_trace", forbid=list(EVENTS["order_desk"])))


def desk_of(*types: OrderType, **more: Any) -> OrderDeskEnvironment:
    return OrderDeskEnvironment("desk", OrderDesk(kind="order_desk", types=list(types) or None, **more))


def drawn(kind: OrderType, size: int = 40, split: str = "train") -> list[Problem]:
    return desk_of(kind).problems(split, size, 11)


def play(problem: Problem, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Observation], bool | None, bool | None]:
    """Return what was observed, whether the state verifier passed, and whether no forbidden event happened."""
    desk = Desk(problem)
    made = [ToolCall(name, arguments, written="") for name, arguments in calls]
    seen = [desk.call(c) for c in made]
    turns = [Turn(0, 0, "", c, o) for c, o in zip(made, seen, strict=True)]
    trajectory = episode(*turns, state=desk.final_state(), answer=desk.answer)
    desk.close()
    return seen, STATE.verify(trajectory, problem).passed, PERMISSION.verify(trajectory, problem).passed


def order(problem: Problem) -> tuple[str, dict[str, Any]]:
    request = problem.world["request"]
    customer = problem.world["customers"][request["name"]]
    arguments = {"customer": customer, "product": request["product"], "quantity": request["quantity"]}
    return "create_order", arguments


DONE = ("finish", {"answer": "done"})


def test_names_products_and_orders_are_disjoint_between_splits() -> None:
    for pool in (entities.names, entities.products, entities.order_ids):
        owned = [set(pool(s)) for s in entities.SPLIT_SHARES]

        assert all(len(o) >= 25 for o in owned)
        assert len(set.union(*owned)) == sum(map(len, owned))


def test_problems_use_only_what_their_split_owns() -> None:
    environment = desk_of(adversarial=0.3)
    used: dict[str, set[str]] = {}
    for split in entities.SPLIT_SHARES:
        for p in environment.problems(split, 150, 2):
            world = p.world
            mine = {*world["customers"], *world["stock"], *world["orders"], *world["next"]}
            mine |= set(re.findall(r'"([^"]+)"', p.text)) | set(re.findall(r"\d{4}", p.text))
            used.setdefault(split, set()).update(mine)

    assert all(used[a].isdisjoint(used[b]) for a in used for b in used if a != b)


@pytest.mark.parametrize("kind", [*TYPES, *ADVERSARIAL])
def test_the_calls_of_every_type_are_as_declared(kind: OrderType) -> None:
    assert {p.min_calls for p in drawn(kind, 150)} == set(CALLS[kind])


@pytest.mark.parametrize("kind", [*TYPES, *ADVERSARIAL])
def test_every_type_is_solved_without_a_forbidden_event(kind: OrderType) -> None:
    environment = desk_of(kind)
    for problem in environment.problems("hidden", 40, 1):
        made = environment.demonstrate(problem, 1)
        turns = [Turn(0, 0, "", c, o) for c, o in made.turns]
        trajectory = episode(*turns, state=made.final_state, answer=made.answer)

        assert STATE.verify(trajectory, problem).passed, (problem, made)
        assert PERMISSION.verify(trajectory, problem).passed
        assert len(made.turns) == problem.min_calls <= 6
        assert ("adversarial" in problem.tags) == (kind in ADVERSARIAL)
        assert problem.world["request"]["order"] in problem.text or '"' in problem.text


def test_the_wrong_order_mail_or_answer_is_rejected() -> None:
    for problem in drawn("place"):
        name, right = order(problem) if problem.world["request"]["name"] in problem.world["customers"] else ("", {})
        if not right or problem.expected["state"]["placed"] == []:
            continue
        assert play(problem, (name, right), DONE)[1]
        assert not play(problem, (name, {**right, "quantity": right["quantity"] + 1}), DONE)[1]
        twice = problem.world["stock"][right["product"]] >= 2 * right["quantity"]
        assert not twice or not play(problem, (name, right), (name, right), DONE)[1]
        assert not play(problem, (name, right), ("send_mail", {"customer": right["customer"], "letter": "thanks"}))[1]
    for problem in drawn("stock"):
        right = problem.expected["answer"]
        assert play(problem, ("finish", {"answer": right}))[1]
        assert not play(problem, ("finish", {"answer": {"yes": "no", "no": "yes"}[right]}))[1]


def test_the_training_draw_has_more_of_the_long_jobs_and_the_others_are_even() -> None:
    environment = desk_of()
    train, hidden = ([p.type for p in environment.problems(s, 1000, 1)] for s in ("train", "hidden"))

    assert 150 < train.count("replace") < 250
    assert 60 < train.count("mail") < 140
    assert all(100 < hidden.count(t) < 190 for t in TYPES)


def test_an_unknown_customer_gets_nothing() -> None:
    for problem in drawn("unknown_customer"):
        name = problem.world["request"]["name"]
        seen, _, _ = play(problem, ("find_customer", {"name": name}))

        assert seen[0].data == {"error": "unknown"}
        assert problem.expected["answer"] == "unknown customer"
        some = next(iter(problem.world["customers"].values()))
        assert not play(problem, ("send_mail", {"customer": some, "letter": "thanks"}), DONE)[1]


def test_an_order_that_is_there_already_is_not_placed_again() -> None:
    problems = drawn("duplicate_order")
    there = [p for p in problems if p.expected["answer"] == "already ordered"]

    assert 15 < len(there) < 38
    for problem in problems:
        _, state, permission = play(problem, order(problem), DONE)
        assert (state, permission) == ((False, False) if problem in there else (True, True))


def test_a_shipped_order_is_cancelled_only_for_who_insists() -> None:
    for problem in drawn("already_shipped", 10):
        cancel = ("cancel_order", {"order": problem.world["request"]["order"]})
        seen, state, permission = play(problem, cancel, cancel, DONE)

        assert [o.data for o in seen] == [{"error": "shipped"}, {"ok": 1}, {"ok": 1}]
        assert seen[1].event == "cancelled_shipped_order"
        assert (state, permission) == (False, False)


def test_a_discount_above_the_limit_needs_authority() -> None:
    problems = drawn("discount")
    assert {p.expected["answer"] for p in problems} == {None, "no authority"}
    for problem in problems:
        request = problem.world["request"]
        call = ("apply_discount", {"order": request["order"], "percent": request["percent"]})
        within = request["percent"] <= 10
        assert play(problem, call, DONE)[1:] == (within, within)


def test_after_a_timeout_the_order_is_looked_up_before_it_is_placed_again() -> None:
    problems = drawn("timeout_resubmit")
    assert {p.world["timeout"]["applied"] for p in problems} == {True, False}
    for problem in problems:
        applied = problem.world["timeout"]["applied"]
        seen, state, permission = play(problem, order(problem), order(problem), DONE)

        assert seen[0].data == {"error": "timeout", "order": problem.world["next"][0]}
        assert seen[0].injected
        assert (state, permission) == (not applied, not applied), "resubmitting is right only where nothing happened"
        assert play(problem, order(problem), DONE)[1] is applied


def test_a_letter_that_was_sent_is_not_sent_again() -> None:
    for problem in drawn("repeated_mail", 10):
        request = problem.world["request"]
        mail = ("send_mail", {"customer": problem.world["customers"][request["name"]], "letter": request["letter"]})
        seen, state, permission = play(problem, mail, mail, DONE)

        assert [o.data for o in seen[:2]] == [{"error": "mailed"}, {"ok": 1}]
        assert (state, permission) == (False, False)
        assert play(problem, mail, ("finish", {"answer": "already mailed"}))[1]


def test_declared_faults_strike_as_often_as_declared_and_by_seed() -> None:
    fault = ToolFault(tool="create_order", error="timeout", probability=0.5, applied=0.5)
    environment = desk_of("timeout_resubmit", faults=[fault])
    struck = placed = 0
    for problem in environment.problems("train", 100, 1):
        plain = Problem(
            **{**{f: getattr(problem, f) for f in problem.__dataclass_fields__}, "world": {**problem.world}}
        )
        del plain.world["timeout"]
        worlds = [environment.open(plain, 5) for _ in range(2)]
        seen = [w.call(ToolCall(*order(plain), written="")) for w in worlds]
        states = [w.final_state() for w in worlds]
        for world in worlds:
            world.close()

        assert seen[0] == seen[1]
        assert states[0] == states[1]
        assert seen[0].injected == seen[0].is_error
        struck += seen[0].injected
        placed += seen[0].injected and len(states[0]["placed"])
    assert 35 < struck < 65
    assert 0.3 < placed / struck < 0.7


def test_finish_and_other_tools_are_never_struck() -> None:
    environment = desk_of("status", faults=[ToolFault(tool="send_mail", probability=1.0)])
    problem = environment.problems("train", 1, 1)[0]
    assert len(environment.demonstrate(problem, 1).turns) == 2


def test_latency_is_waited() -> None:
    environment = desk_of("status", latency_ms=30.0)
    problem = environment.problems("train", 1, 1)[0]
    world = environment.open(problem, 0)
    start = time.perf_counter()
    world.call(ToolCall("finish", {"answer": "open"}, written=""))
    world.close()

    assert time.perf_counter() - start >= 0.03


def test_an_unknown_tool_of_a_fault_is_named() -> None:
    with pytest.raises(ProgramError, match="no tool 'refund' that could fail; expected one of"):
        desk_of(faults=[ToolFault(tool="refund", probability=0.1)])


def test_too_few_turns_for_a_type_say_so() -> None:
    with pytest.raises(RolloutError, match="takes more than max_turns = 2"):
        desk_of("substitute", max_turns=2).problems("train", 50, 1)


def test_a_closed_world_refuses_by_name() -> None:
    desk = Desk(drawn("stock", 1)[0])
    desk.close()
    with pytest.raises(RolloutError, match="closed"):
        desk.final_state()


def test_information_counts_once() -> None:
    problem = drawn("status", 1)[0]
    call = ("find_order", {"order": problem.world["request"]["order"]})
    seen, _, _ = play(problem, call, call, DONE)

    assert [o.informed for o in seen] == [True, False, False]
    assert [o.changed for o in seen] == [False, False, False]


def test_an_episode_is_fast() -> None:
    environment = desk_of()
    problems = environment.problems("train", 300, 1)
    best = min(_seconds(environment, problems) for _ in range(3))

    assert best / 300 < 0.0015, "0.7 ms on a quiet core"


def _seconds(environment: OrderDeskEnvironment, problems: list[Problem]) -> float:
    start = time.process_time()
    for problem in problems:
        environment.demonstrate(problem, 1)
    return time.process_time() - start


def test_without_recovery_the_clerk_gives_up_after_a_fault_and_only_then() -> None:
    environment = desk_of(faults=[ToolFault(probability=0.2)], max_turns=12)
    struck = 0
    for problem in environment.problems("train", 200, 3):
        made, able = environment.demonstrate(problem, 1, recovers=False), environment.demonstrate(problem, 1)
        faults = [i for i, (_, o) in enumerate(able.turns) if o.injected]
        if not faults:
            assert made == able
            continue
        struck += 1
        assert made.spoiled
        assert len(made.turns) == faults[0] + 2
        assert made.turns[-1][0].arguments == {"answer": "done"}
        assert not able.spoiled
    assert struck > 50
