"""What a teacher is asked: one question about trajectories of the policy, in words, and how its answer is read.

Everything that the policy or a tool wrote stands in one JSON text, where it cannot close its own part; `<` is written
as an escape, so that it opens no tag either. The instruction comes before it, in a message of its own.
"""

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specs.records import Problem, ToolCall, Trajectory, Turn
from specs.teachers import Signal
from tasks.protocols import ToolSchema
from tasks.teachers import reading
from tasks.teachers.reading import Unreadable

__all__ = ["Ask", "Unreadable"]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One question about a problem and what the policy did with it."""

    signal: Signal
    problem: Problem
    tools: tuple[ToolSchema, ...]
    candidates: tuple[Trajectory, ...]
    """One trajectory; for `rank` several, in the order in which they are shown."""
    turn: int | None = None
    """For `action`: the state before this turn."""
    actions: tuple[ToolCall, ...] = ()
    """For `action`: calls that are to be judged, in the order in which they are shown."""
    form: Literal["score", "rank"] = "score"
    """For `action`: whether they are scored or put in order."""
    swapped: bool = False
    """For `action`: whether it is the same question once more, with the calls in the other order."""
    dimensions: tuple[str, ...] | Mapping[str, str] = ()
    """For `score`: names, or with what is meant by each."""
    scale: int = 10
    sample: int = 0
    """Number among equal questions."""
    again: int = 0
    """How often it was asked before, without an answer that can be read."""

    @property
    def id(self) -> str:
        """Return a name that no other question of a node has."""
        about = ",".join(t.id for t in self.candidates)
        at = "" if self.turn is None else f"@{self.turn}"
        turned = "/swapped" if self.swapped else ""
        return f"{self.signal}/{about}{at}{turned}#{self.sample}"

    @property
    def names(self) -> list[str]:
        """Return the labels under which candidates are shown."""
        count = len(self.actions) if self.signal == "action" else len(self.candidates)
        return [string.ascii_uppercase[i] if i < 26 else f"Z{i}" for i in range(count)]

    def messages(self, instruction: str) -> list[dict[str, str]]:
        """Return the conversation that asks it."""
        shown = json.dumps(self.data(), ensure_ascii=False).replace("<", "\\u003c")
        return [
            {"role": "system", "content": instruction},
            {"role": "user", "content": shown.encode("utf-8", "backslashreplace").decode()},  # half characters
        ]

    def data(self) -> Json:
        """Return what the question is about, as it is shown."""
        shown: Json = {
            "request": self.problem.text,
            "tools": [{"name": t.name, "about": t.description, "arguments": t.parameters} for t in self.tools],
        }
        described = self.dimensions
        match self.signal:
            case "rank":
                attempts = zip(self.names, self.candidates, strict=True)
                return shown | {"attempts": {name: attempt(t) for name, t in attempts}}
            case "action":
                calls = {n: call_data(c) for n, c in zip(self.names, self.actions, strict=True)}
                so_far = [turn_data(i, t) for i, t in enumerate(self.candidates[0].turns[: self.turn], 1)]
                scale = {"scale": self.scale} if self.form == "score" else {}
                return shown | {"so_far": so_far, "candidates": calls, **scale}
            case "score":
                return shown | {
                    "attempt": attempt(self.candidates[0]),
                    "dimensions": dict(described) if isinstance(described, Mapping) else list(described),
                    "scale": self.scale,
                }
            case "sample":
                return shown | {"attempt": attempt(self.candidates[0]), "succeeded": self.candidates[0].success}
            case _:
                return shown | {"attempt": attempt(self.candidates[0])}

    def read(self, text: str) -> Json:
        """Return the content of an answer; Unreadable where the teacher did not say what was asked."""
        first, written = self.candidates[0], self._written()
        match self.signal:
            case "score":
                return reading.scores(text, tuple(self.dimensions), self.scale, written) | self._marked()
            case "rank":
                tiers = reading.order(text, self.names, written)["tiers"]
                return {"tiers": [[self.candidates[i].id for i in tier] for tier in tiers]} | self._marked()
            case "critique":
                return reading.critique(text, len(first.turns), written) | self._marked()
            case "sample":
                return reading.correction(text, len(first.turns), written)
            case "action":
                calls = {"candidates": [call_data(c) for c in self.actions]}
                if self.form == "rank":
                    return reading.ranked_actions(text, self.names, written) | calls
                return reading.actions(text, self.names, self.scale, written) | calls
            case "logprobs":
                raise Unreadable("logprobs are not had in words")

    def _written(self) -> list[str]:
        """Return the texts that a teacher may quote: the request, what the policy wrote, what tools replied."""
        turns = [turn for t in self.candidates for turn in t.turns]
        replies = [json.dumps(t.observation.data, ensure_ascii=False) for t in turns if t.observation is not None]
        return [self.problem.text, *(t.text for t in turns), *replies]

    def _marked(self) -> Json:
        texts = [turn.text for t in self.candidates for turn in t.turns]
        return {"marked": True} if reading.marked(self.signal, texts) else {}


def attempt(trajectory: Trajectory) -> Json:
    """Return a trajectory as a teacher sees it: nothing of what is expected, and no name of who wrote it."""
    return {"turns": [turn_data(i, t) for i, t in enumerate(trajectory.turns, 1)], "ended": trajectory.status}


def turn_data(number: int, turn: Turn) -> Json:
    """Return one turn: what was written, and what the world replied."""
    reply = None if turn.observation is None else turn.observation.data
    return {"turn": number, "wrote": turn.text, "reply": reply}


def call_data(call: ToolCall) -> Json:
    """Return a call without how it was written."""
    return {"name": call.name, "arguments": call.arguments}
