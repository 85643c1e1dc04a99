"""A learnt verifier: the score that a reward model gives a trajectory's tokens."""

import math
from collections.abc import Sequence
from pathlib import Path

from specs.errors import VerifierError
from specs.records import Problem, Trajectory, Verdict
from specs.verifiers import RewardModelVerifier
from tasks.evidence.verdicts import invalid, settled
from tasks.policy.reward_model import RewardScorer, load_reward_model


class LearntVerifier:
    """Scores by a reward model; one of turns gives each turn a score, which the spec makes one number."""

    def __init__(self, name: str, spec: RewardModelVerifier, model: Path) -> None:
        self._name = name
        self._spec = spec
        self._scorer: RewardScorer = load_reward_model(model)

    @property
    def version(self) -> str:
        """Return kind, version, and the exact model."""
        return f"{self._spec.kind}@{self._spec.version}/{self._scorer.digest}"

    @property
    def template_digest(self) -> str:
        """Return the digest of the template and tokenizer whose ids it reads."""
        return self._scorer.template_digest

    def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
        """Return the score; invalid where the tokens cannot be read as one conversation of the model's length."""
        found = settled(self._name, self.version, trajectory)
        if found is not None:
            return found
        ends = self._ends(trajectory)
        if len(trajectory.segments) > 1 or not ends or not 0 < ends[-1] <= self._scorer.max_length:
            return invalid(self._name, self.version, "no tokens, several conversations, or more tokens than it reads")
        numbers = self._scorer.numbers(trajectory.ids[: ends[-1]], ends)
        scores = [self._scorer.scale.score(n) for n in numbers]
        score = one_score(scores, self._spec.turns)
        by_turn = "turn_scores" if self._scorer.learns == "turns" and self._spec.turns == "mean" else "scores"
        evidence = {"stage": self._spec.stage, by_turn: [round(s, 6) for s in scores], "problem": problem.id}
        return Verdict(self._name, self.version, score, score >= self._spec.passes_from, evidence)

    def _ends(self, trajectory: Trajectory) -> list[int]:
        if self._scorer.learns == "pairs":
            return [len(trajectory.ids)]
        return [turn.end for turn in trajectory.turns if turn.end > 0]

    def failures(self) -> list[str]:
        """Return what is wrong with the model itself: it must have been right on what it never saw.

        A stage with `least_accuracy: 0` asks for nothing, as in the smallest form of a program.
        """
        found = self._scorer.held_out
        if found["accuracy"] > 0.5 or self._scorer.least_accuracy == 0:
            return []
        return [
            f"the model of stage {self._spec.stage} was right {found['accuracy']:.0%} of the time on {found['compared']} "
            "held-out comparisons, no better than a guess"
        ]


def one_score(scores: Sequence[float], how: str) -> float:
    """Return one number of those of the turns."""
    match how:
        case "min":
            return min(scores)
        case "mean":
            return sum(scores) / len(scores)
        case "product":
            return math.prod(scores)
        case "last":
            return scores[-1]
        case _:
            raise VerifierError(f"turns: found {how!r}, expected min, mean, product or last")
