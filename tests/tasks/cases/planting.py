"""Failures made on purpose: the clerk's solution with one thing wrong, whose cause is therefore known."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from specs.environments import OrderDesk, ToolFault
from specs.flywheel import Cause
from specs.records import Observation, Problem, Status, ToolCall, Trajectory, Turn
from specs.reward import Reward
from specs.verifiers import EnvironmentState
from tasks.episodes.environments.order_desk.environment import OrderDeskEnvironment
from tasks.episodes.seeds import world_seed
from tasks.evidence.judge import judge
from tasks.evidence.verifiers import verifier_for
from tasks.tokens.text import call_text

REWARD = Reward(outcome={"state": 1.0})
VERIFIERS = {"state": verifier_for("state", EnvironmentState(kind="environment_state"))}
CALM = OrderDeskEnvironment("desk", OrderDesk(kind="order_desk"))
FAULTY = OrderDeskEnvironment(
    "desk", OrderDesk(kind="order_desk", max_turns=12, faults=[ToolFault(probability=0.25, applied=0.3)])
)
DONE = ToolCall("finish", {"answer": "done"}, "")
Calls = list[ToolCall]


def written(call: ToolCall) -> ToolCall:
    return replace(call, written=call.written or call_text(call.name, call.arguments, "flat"))


def episode(
    environment: OrderDeskEnvironment, problem: Problem, calls: Calls, seed: int, status: Status | None = None
) -> Trajectory:
    """Return the judged episode in which a policy made these calls; a call with an `error` never reached the world."""
    world = environment.open(problem, world_seed(seed))
    turns: list[Turn] = []
    for call in map(written, calls):
        seen = Observation({"error": call.error}, is_error=True) if call.error else world.call(call)
        turns.append(Turn(0, 0, call.written, call, seen))
        if seen.done or len(turns) == environment.max_turns:
            break
    ended: Status = "finished" if world.done else "turn_limit"
    made = Trajectory(
        id=f"planted/{problem.id}#{seed}", problem_id=problem.id, problem_type=problem.type, environment="desk",
        environment_version=environment.version, agent="", group=problem.id, sample=0, seed=seed, ids=[], sources=[],
        logprobs=[], policy_versions=[("policy/0", 1)], turns=turns, status=status or ended, sampling={},
        final_state=world.final_state(), answer=world.answer,
    )  # fmt: skip
    world.close()
    judge(made, problem, VERIFIERS, REWARD)
    return made


def clerks_calls(environment: OrderDeskEnvironment, problem: Problem, seed: int) -> Calls:
    return [call for call, _ in environment.demonstrate(problem, world_seed(seed)).turns]


# -- one function a cause: (rng, the clerk's calls) -> (calls, status), or None where this problem does not suit ------

Plant = Callable[[random.Random, Calls], tuple[Calls, Status | None] | None]


def wrong_argument(rng: random.Random, calls: Calls) -> tuple[Calls, Status | None]:
    at = rng.randrange(len(calls) - 1)
    key = rng.choice(sorted(calls[at].arguments))
    old = calls[at].arguments[key]
    other = old + 1 if isinstance(old, int) else f"{old}x"
    return [*calls[:at], replace(calls[at], arguments={**calls[at].arguments, key: other}), *calls[at + 1 :]], None


def bad_shape(error: str, text: str) -> Plant:
    def plant(rng: random.Random, calls: Calls) -> tuple[Calls, Status | None]:
        at = rng.randrange(len(calls) - 1)
        return [*calls[:at], ToolCall("find_x", {}, text, error), DONE], None

    return plant


def wrong_tool(rng: random.Random, calls: Calls) -> tuple[Calls, Status | None] | None:
    ways = {"find_order": "cancel_order", "check_stock": "create_order", "create_order": "send_mail"}
    at = next((i for i, c in enumerate(calls) if c.name in ways), None)
    if at is None:
        return None
    have = {"letter": "invoice", "customer": "10", "product": "oak lamp", "quantity": 1, "order": "1010"}
    name = ways[calls[at].name]
    needs = {"cancel_order": ("order",), "create_order": ("customer", "product", "quantity")}
    keys = needs.get(name, ("customer", "letter"))
    return [*calls[:at], ToolCall(name, {k: calls[at].arguments.get(k, have[k]) for k in keys}, ""), DONE], None


def premature_stop(rng: random.Random, calls: Calls) -> tuple[Calls, Status | None]:
    return [*calls[: rng.randrange(len(calls) - 1)], DONE], None


def loop(rng: random.Random, calls: Calls) -> tuple[Calls, Status | None]:
    return [*calls[:1], *calls[:1] * 20], None


def cut(rng: random.Random, calls: Calls) -> tuple[Calls, Status | None]:
    return calls[: 1 + rng.randrange(len(calls) - 1)], "truncated"


def misread(rng: random.Random, calls: Calls) -> tuple[Calls, Status | None] | None:
    answer = calls[-1].arguments["answer"]
    if answer == "done" or answer == "unknown customer":
        return None
    return [*calls[:-1], ToolCall("finish", {"answer": {"yes": "no", "no": "yes"}.get(answer, "later")}, "")], None


def slip_then_stop(rng: random.Random, calls: Calls) -> tuple[Calls, Status | None] | None:
    """A slip of the pen that is put right; what fails is the early end."""
    if len(calls) < 3:
        return None
    return [ToolCall("", {}, "{oops", "malformed_json"), calls[0], DONE], None


PLANTS: list[tuple[Cause, str, Plant]] = [
    ("argument", "a wrong value", wrong_argument),
    ("argument", "a missing argument", bad_shape("missing_argument", '{"tool":"find_order"}')),
    ("unknown_tool", "a tool that is not there", bad_shape("unknown_tool", '{"tool":"find_x"}')),
    ("format", "no JSON", bad_shape("malformed_json", '{"tool":')),
    ("wrong_tool", "another tool", wrong_tool),
    ("premature_stop", "an early end", premature_stop),
    ("premature_stop", "an early end after a slip", slip_then_stop),
    ("loop", "the same look-up again and again", loop),
    ("long_horizon", "no room for the rest", cut),
    ("observation_misread", "another answer than was read", misread),
]


def planted(environment: OrderDeskEnvironment, each: int) -> Iterator[tuple[Cause, str, Problem, Trajectory]]:
    """Yield `each` failures of every plant in a world without faults; what happens to succeed is no failure."""
    for number, (cause, what, plant) in enumerate(PLANTS):
        rng = random.Random(number)
        found = 0
        for seed, problem in enumerate(environment.problems("train", 12 * each, 100 + number)):
            made = plant(rng, clerks_calls(environment, problem, seed))
            if made is None or found == each:
                continue
            trajectory = episode(environment, problem, made[0], seed, made[1])
            if trajectory.success is False:
                found += 1
                yield cause, what, problem, trajectory
        assert found == each, what


def after_faults(each: int) -> Iterator[tuple[Cause, str, Problem, Trajectory]]:
    """Yield failures in a world with faults: given up after one, and faults mastered before something else failed."""
    given_up, later = 0, 0
    for seed, problem in enumerate(FAULTY.problems("train", 30 * each, 300)):
        calls = clerks_calls(FAULTY, problem, seed)
        whole = episode(FAULTY, problem, calls, seed)
        struck = [i for i, t in enumerate(whole.turns) if t.observation is not None and t.observation.injected]
        if not struck:
            continue
        stopped = episode(FAULTY, problem, [*calls[: struck[0] + 1], DONE], seed)
        if given_up < each and stopped.success is False:
            given_up += 1
            yield "error_recovery", "given up after a fault", problem, stopped
        mastered = struck[-1] + 2
        if later < each and mastered < len(calls) - 1:
            early = episode(FAULTY, problem, [*calls[:mastered], DONE], seed)
            if early.success is False:
                later += 1
                yield "premature_stop", "an early end after a fault was mastered", problem, early
    assert (given_up, later) == (each, each)


def as_data(trajectory: Trajectory) -> dict[str, Any]:
    """Return what of a trajectory says how it went."""
    return {"status": trajectory.status, "turns": [t.text for t in trajectory.turns]}
