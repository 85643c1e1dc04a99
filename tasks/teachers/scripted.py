"""An environment's own solver as a teacher: deterministic, free, and read like any other."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from specs.errors import TutelageError
from specs.teachers import ScriptedTeacher
from tasks.protocols import Environment
from tasks.teachers.asks import Ask
from tasks.teachers.clerk import answer
from tasks.teachers.reading import Unreadable
from tasks.teachers.replies import Reply

Json = dict[str, Any]


class ScriptedClient:
    """Answers as the clerk would; `world_seed` turns an episode's seed into that of its world, `draw` spoils a share."""

    def __init__(
        self,
        spec: ScriptedTeacher,
        environment: Environment,
        world_seed: Callable[[int], int],
        draw: Callable[[str], float],
    ) -> None:
        self.spec = spec
        self._environment = environment
        self._world_seed = world_seed
        self._draw = draw

    @property
    def revision(self) -> str:
        """Return who answers."""
        return f"scripted {self._environment.version}{f' noise {self.spec.noise:g}' if self.spec.noise else ''}"

    def ask(self, asks: Sequence[Ask], prompt: str, *, dispensable: bool = False) -> list[Reply]:
        """Return one answer per question; it reads no instruction, and never fails as a whole."""
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Reply:
        if ask.problem.environment != self.spec.environment:
            return Reply(None, f"wrong_environment: it knows {self.spec.environment}, not {ask.problem.environment}")
        try:
            content = answer(ask, self._environment, self._world_seed)
        except Unreadable as e:
            return Reply(None, f"no_answer: {e}")
        except TutelageError as e:  # a problem that it cannot solve
            return Reply(None, f"no_solution: {e}")
        if self.spec.noise and self._draw(ask.id) < self.spec.noise:
            content = spoiled(ask, content)
        return Reply(json.dumps(content, ensure_ascii=False))


def spoiled(ask: Ask, content: Json) -> Json:
    """Return the opposite of an answer, in the same form; a correction loses its last call but one."""
    match ask.signal:
        case "action" if ask.form == "rank":
            return {"order": content["order"][::-1], "best": None}
        case "score" | "action":
            turned = {name: ask.scale - value for name, value in content["score"].items()}
            return {**content, "score": turned, **({"best": None} if ask.signal == "action" else {})}
        case "rank":
            return {"order": content["order"][::-1]}
        case "critique":
            other = {"good": "bad", "bad": "good", "neutral": "neutral", "first_error": "good"}
            return {"turns": [{**t, "label": other[t["label"]], "correction": None} for t in content["turns"]]}
        case _:
            calls = content["calls"]
            return {**content, "calls": calls[:-2] + calls[-1:] if len(calls) > 1 else calls}
