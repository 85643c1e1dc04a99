"""Lists of candidates with a teacher's scores: a problem's trajectories, or the tool calls of one state."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specs.ladder import Actions, Listwise, Rubric
from specs.records import Problem, TeacherSignal, Trajectory
from tasks.learning.algorithms.soft_label import target
from tasks.learning.batching import Aggregation
from tasks.learning.rows import TrainingRow, rows_from
from tasks.loops.collect import Arena
from tasks.loops.judged_calls import judged
from tasks.loops.state_calls import call_rows, states_of
from tasks.loops.teacher_words import behind, said
from tasks.teachers.asking import empty

MEAN: Aggregation = "sequence"
"""How a step's rows become one number: with the weights of `weigh`, the mean over its lists."""


@dataclass(slots=True)
class Lists:
    """Rows of candidates, list after list; those of a list have the same `pair` and targets that sum to 1."""

    rows: list[TrainingRow] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)
    """By list, the indices of its rows."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> candidates, lists or signals."""
    pairs: Counter[str] = field(default_factory=Counter)
    """Pairs of calls that an order puts one above the other: `agreed` by all orders of a state, or `disagreed`."""
    used: set[str] = field(default_factory=set[str])
    """Signals of which a list came, by id."""

    def add(self, name: str, candidates: Sequence[tuple[TrainingRow, float]], tau: float) -> None:
        """Add a list, or count why it teaches nothing."""
        scores = [score for _, score in candidates]
        if len(candidates) < 2:
            self.left_out["one_candidate"] += 1
        elif max(scores) - min(scores) <= 0:
            self.left_out["tie"] += 1
        else:
            shares = target(torch.tensor(scores), tau).tolist()
            first = len(self.rows)
            for (row, _), share in zip(candidates, shares, strict=True):
                self.rows.append(replace(row, pair=name, group=name, target=share))
            self.spans.append(list(range(first, len(self.rows))))

    def weigh(self) -> None:
        """Let every list count the same, however many candidates it has."""
        mean = len(self.rows) / max(1, len(self.spans))
        for span in self.spans:
            for i in span:
                self.rows[i].weight = mean / len(span)

    def sentences(self) -> list[str]:
        """Return what a person should know."""
        lines = [f"{n} left out: {reason}" for reason, n in sorted((+self.left_out).items())]
        if apart := self.pairs["disagreed"]:
            whole = apart + self.pairs["agreed"]
            lines.append(
                f"the order of {apart} of {whole} pairs of calls depended on how they were shown: they count as even"
            )
        return lines


def score_of(content: Mapping[str, Any], rubric: Rubric) -> float:
    """Return the weighted mean of the dimensions' scores."""
    weights = rubric.dimensions
    return sum(w * content["dimensions"][name] for name, w in weights.items()) / sum(weights.values())


def scored(
    signals: Iterable[TeacherSignal], trajectories: Iterable[Trajectory], rubric: Rubric, left_out: Counter[str]
) -> dict[str, float]:
    """Return scores by trajectory. One that did nothing was not asked about, and scores 0; one without an answer has none."""
    found: dict[str, float] = {}
    for signal in said(signals, left_out):
        assert signal.content is not None, "it says something"
        found[signal.trajectories[0]] = score_of(signal.content, rubric)
    idle = [t.id for t in trajectories if t.success is not None and empty(t)]
    return found | {name: 0.0 for name in idle if name not in found}


def trajectory_lists(
    signals: Sequence[TeacherSignal],
    trajectories: Sequence[Trajectory],
    rubric: Rubric,
    spec: Listwise,
    max_length: int,
) -> Lists:
    """Return a list for each problem: its distinct trajectories with their scores."""
    made = Lists()
    scores = scored(signals, trajectories, rubric, made.left_out)
    problems: dict[str, dict[tuple[int, ...], tuple[TrainingRow, float]]] = {}
    for trajectory in trajectories:
        members = problems.setdefault(trajectory.problem_id, {})
        if trajectory.id not in scores:
            made.left_out["no_score"] += 1
            continue
        rows, _ = rows_from([trajectory], max_length=max_length, truncated="score")
        if len(rows) != 1:
            made.left_out["several_contexts" if rows else "nothing_trains"] += 1
        elif tuple(trajectory.ids) in members:
            made.left_out["repeated"] += 1
        else:
            members[tuple(trajectory.ids)] = (rows[0], scores[trajectory.id])
    for problem_id, members in problems.items():
        made.add(problem_id, list(members.values()), spec.tau)
    made.used = behind(made.rows, signals)
    made.weigh()
    return made


def action_lists(
    signals: Iterable[TeacherSignal],
    own: Mapping[str, Trajectory],
    problems: Mapping[str, Problem],
    arena: Arena,
    spec: Actions,
    max_length: int,
) -> Lists:
    """Return a list for each state: the calls that the policy made in it with their own tokens, and the teacher's best.

    With `learn: best` a list holds the call alone that is imitated (see `judged_calls`), where there is one.
    """
    made, state_of = Lists(), states_of(own, problems, arena)
    answers: dict[tuple[str, int], list[TeacherSignal]] = {}
    for signal in said(signals, made.left_out):
        assert signal.turn is not None, "an action is asked for in a state"
        answers.setdefault((signal.trajectories[0], signal.turn), []).append(signal)
    for (name, turn), about in answers.items():
        state = state_of(name, turn)
        found, before = judged(about, spec, made.pairs), len(made.spans)
        if not found.scores:
            made.left_out[found.why] += 1
        elif spec.learn == "listwise":
            made.add(f"{name}@{turn}", call_rows(state, found.scores, made.left_out, max_length), spec.listwise.tau)
        elif found.imitated is None:
            made.left_out[found.why] += 1
        else:
            rows = call_rows(state, [(found.imitated, 1.0)], made.left_out, max_length)
            made.rows += [row for row, _ in rows]
            made.spans += [[len(made.rows) - 1] for _ in rows]
        made.used |= {answer.id for answer in about if len(made.spans) > before}
    made.weigh()
    return made
