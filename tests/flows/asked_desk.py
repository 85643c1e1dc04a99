"""Rollouts of an order desk without a policy: the clerk's own attempts, some spoiled, with verdicts; and who judges them."""

import json
from pathlib import Path
from typing import Any

from specs.environments import OrderDesk
from specs.records import Demonstration, Problem, ToolCall, Trajectory, Turn
from specs.reward import Reward
from specs.verifiers import EnvironmentState
from tasks.episodes.environments import environment_for
from tasks.episodes.seeds import derive, world_seed
from tasks.episodes.shards import write_shards
from tasks.evidence.judge import judge
from tasks.evidence.verifiers import verifier_for
from tasks.teachers.asks import Ask
from tasks.teachers.clerk import answer
from tasks.tokens.text import compact_json
from tests.tasks.teachers.api import Act, Body, answers

DESK = OrderDesk(kind="order_desk", types=["stock", "place", "mail"], max_turns=6)
REWARD = Reward(outcome={"state": 1.0})
STATE = EnvironmentState(kind="environment_state")


def attempt(problem: Problem, sample: int, made: Demonstration) -> Trajectory:
    """Return a demonstration as if a policy had acted it."""
    seed = derive(3, problem.id, sample)
    turns = [
        Turn(i, i + 1, compact_json({"tool": c.name, **c.arguments}), ToolCall(c.name, c.arguments, c.written), o)
        for i, (c, o) in enumerate(made.turns)
    ]
    n = len(turns)
    return Trajectory(
        id=f"{problem.id}-{sample}", problem_id=problem.id, problem_type=problem.type, environment="desk",
        environment_version="order_desk@1", agent="tool_loop", group=problem.id, sample=sample, seed=seed,
        ids=list(range(n)), sources=[2] * n, logprobs=[-0.1] * n, policy_versions=[("v", n)], turns=turns,
        status="finished", sampling={}, final_state=made.final_state, answer=made.answer,
    )  # fmt: skip


def rollouts(folder: Path, size: int = 8, samples: int = 3) -> tuple[dict[str, Path], list[Trajectory]]:
    """Write problems and judged rollouts as their nodes do; return the folders by input, and the rollouts."""
    desk = environment_for("desk", DESK)
    problems = desk.problems("train", size, 5)
    judges = {"state": verifier_for("state", STATE)}
    made: list[Trajectory] = []
    for problem in problems:
        for sample in range(samples):
            seed = world_seed(derive(3, problem.id, sample))
            one = attempt(problem, sample, desk.demonstrate(problem, seed, mistakes=0.5 if sample else 0.0))
            judge(one, problem, judges, REWARD)
            made.append(one)
    train, own = folder / "train", folder / "rollouts"
    train.mkdir()
    lines = [json.dumps(vars_of(p)) for p in problems]
    (train / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_shards(own / "trajectories", made)
    return {"data.train": train, "rollouts": own}, made


def vars_of(problem: Problem) -> dict[str, Any]:
    from specs.records import to_dict

    return to_dict(problem)


def thinking(asks: list[Ask], instruction: str) -> Act:
    """Return a server's act: it answers each of these questions, known by its words, as the clerk would."""
    desk = environment_for("desk", DESK)
    known = {json.dumps(a.messages(instruction)): a for a in asks}

    def think(body: Body) -> str:
        assert "logprobs" not in body
        return json.dumps(answer(known[json.dumps(body["messages"])], desk, world_seed))

    return answers(think)
