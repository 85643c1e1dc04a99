"""The order desk's clerk behind a real closed API: it reads what any model would read, and returns text alone.

`python -m tests.tasks.teachers.closed_clerk PROGRAM HOME [PORT]` serves until it is ended; it knows the problems that
the nodes below HOME have drawn. Its address is printed: give it to a program as `base_url`.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from specs.environments import OrderDesk
from specs.loader import load_program
from specs.records import Observation, Problem, ToolCall, Trajectory, Turn, problem_from
from tasks.episodes.agents import agent_for
from tasks.episodes.environments import environment_for
from tasks.teachers.asks import Ask
from tasks.teachers.clerk import answer
from tasks.teachers.reading import Unreadable
from tests.tasks.teachers.api import Body, Server, answers

Json = dict[str, Any]


class Clerk:
    """Finds the problem by its words, rebuilds what was tried, and says what the clerk says."""

    def __init__(self, program: Path, home: Path) -> None:
        spec = load_program(program).program
        self._agent = agent_for(spec.agent)
        desks = {n: e for n, e in spec.environments.items() if isinstance(e, OrderDesk)}
        self._worlds = {n: environment_for(n, e) for n, e in desks.items()}
        self._home = home
        self._problems: dict[str, Problem] = {}
        self._lock = threading.Lock()

    def think(self, body: Body) -> str:
        """Return the answer's text."""
        data = json.loads(body["messages"][-1]["content"])
        try:
            return json.dumps(self._answer(data))
        except Unreadable as e:
            return f"I cannot say: {e}"

    def _answer(self, data: Json) -> Json:
        problem = self._problem(data["request"])
        world = self._worlds[problem.environment]
        tools = tuple(world.tools(problem))
        tried = data.get("attempts") or {
            "A": data.get("attempt") or {"turns": data.get("so_far", []), "ended": "finished"}
        }
        candidates = tuple(self._trajectory(problem, n, t) for n, t in tried.items())
        calls = tuple(ToolCall(c["name"], c["arguments"], "") for c in data.get("candidates", {}).values())
        ask = Ask(
            _signal(data), problem, tools, candidates, turn=len(data["so_far"]) if "so_far" in data else None,
            actions=calls, form="score" if "scale" in data else "rank", dimensions=tuple(data.get("dimensions", ())),
            scale=data.get("scale", 10),
        )  # fmt: skip
        try:
            return answer(ask, world, lambda seed: seed)
        except Unreadable:  # a model would say something; beyond its own way the clerk finds nothing good
            if ask.signal != "action":
                raise
            alike = {"score": dict.fromkeys(ask.names, 0)} if ask.form == "score" else {"order": [ask.names]}
            return alike | {"best": None}

    def _problem(self, text: str) -> Problem:
        with self._lock:
            if text not in self._problems:
                for path in self._home.glob("nodes/*/out/records.jsonl"):
                    for line in path.read_text(encoding="utf-8").splitlines():
                        record = json.loads(line)
                        problem = problem_from(record.get("problem") or record)
                        self._problems.setdefault(problem.text, problem)
            return self._problems[text]

    def _trajectory(self, problem: Problem, name: str, tried: Json) -> Trajectory:
        tools = self._worlds[problem.environment].tools(problem)
        turns: list[Turn] = []
        for said in tried["turns"]:
            call = self._agent.parse(said["wrote"], tools)
            reply = said["reply"]
            seen = None if reply is None else Observation(reply, is_error="error" in reply)
            turns.append(Turn(0, 0, said["wrote"], call, seen))
        return Trajectory(
            id=name, problem_id=problem.id, problem_type=problem.type, environment=problem.environment,
            environment_version="", agent="", group="", sample=0, seed=0, ids=[], sources=[], logprobs=[],
            policy_versions=[], turns=turns, status=tried["ended"], sampling={},
        )  # fmt: skip


def _signal(data: Json) -> Any:
    if "attempts" in data:
        return "rank"
    if "so_far" in data:
        return "action"
    if "dimensions" in data:
        return "score"
    return "sample" if "succeeded" in data else "critique"


def serve(program: Path, home: Path, port: int = 0) -> Server:
    """Return the server, which answers in a thread of its own."""
    server = Server([answers(Clerk(program, home).think)], port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    started = serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    print(started.url, flush=True)
    threading.Event().wait()
