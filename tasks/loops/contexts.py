"""What a privileged self is shown beside the problem: a success of its group, the verifiers' evidence, or the solution."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specs.records import Problem, Trajectory
from tasks.episodes.agents import ToolLoopAgent
from tasks.episodes.seeds import derive
from tasks.protocols import Environment
from tasks.tokens.template import Template
from tasks.tokens.text import compact_json

Shown = Literal["sibling", "feedback", "reference"]


@dataclass(slots=True)
class Prefixes:
    """The ids that stand before a trajectory's own, by trajectory, and what has none."""

    ids: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    shown: dict[str, int] = field(default_factory=dict[str, int])
    """How many are shown what."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> trajectories that have no such context: the teacher says nothing of them."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """Writes what a privileged self is shown. It stands before the conversation, whose tokens stay as they are."""

    template: Template
    shows: Sequence[Shown]
    """The first that there is; where empty, nothing is shown and every trajectory has an empty prefix."""
    max_tokens: int
    solve: Callable[[Trajectory], str | None] = lambda trajectory: None
    """Returns the reference solution of a trajectory's problem, as text."""

    def prefixes(self, trajectories: Sequence[Trajectory]) -> Prefixes:
        """Return the prefixes of a step's trajectories."""
        found = Prefixes()
        groups: dict[str, list[Trajectory]] = {}
        for t in trajectories:
            groups.setdefault(t.group, []).append(t)
        for t in trajectories:
            kind, text = self._text(t, groups[t.group])
            if kind == "":
                if self.shows:
                    _count(found.left_out, "there is nothing to show")
                else:
                    found.ids[t.id] = []
                continue
            ids = self.template.aside(text)
            if len(ids) > self.max_tokens:
                _count(found.left_out, f"what could be shown is longer than {self.max_tokens} tokens")
                continue
            found.ids[t.id] = ids
            _count(found.shown, kind)
        return found

    def _text(self, own: Trajectory, group: Sequence[Trajectory]) -> tuple[str, str]:
        for kind in self.shows:
            match kind:
                case "sibling":
                    text = _sibling(own, group)
                case "feedback":
                    text = _feedback(own)
                case "reference":
                    text = self.solve(own)
            if text:
                return kind, text
        return "", ""


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _sibling(own: Trajectory, group: Sequence[Trajectory]) -> str | None:
    """Return what the shortest success of the group said, not counting those that say just what this one does."""
    successes = [t for t in group if t.success is True and t.status == "finished" and t.ids != own.ids]
    if not successes:
        return None
    best = min(successes, key=lambda t: (t.policy_tokens, t.id))
    return "\n".join(turn.text for turn in best.turns)


def _feedback(own: Trajectory) -> str | None:
    """Return what the verifiers found."""
    found = {v.verifier: v.evidence | {"passed": v.passed} for v in own.verdicts if v.passed is not None}
    return compact_json(found) if found else None


def solver(
    environments: Mapping[str, Environment], problems: Mapping[str, Problem], agent: ToolLoopAgent, seed: int
) -> Callable[[Trajectory], str | None]:
    """Return what gives the environment's own solution of a problem, its calls as the agent writes them."""
    known: dict[str, str | None] = {}

    def solve(trajectory: Trajectory) -> str | None:
        problem = problems.get(trajectory.problem_id)
        if problem is None:
            return None
        if problem.id not in known:
            shown = environments[problem.environment].demonstrate(problem, derive(seed, "reference", problem.id))
            known[problem.id] = "\n".join(agent.write(call) for call, _ in shown.turns)
        return known[problem.id]

    return solve
