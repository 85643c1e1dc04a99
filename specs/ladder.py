"""What each signal of a black-box teacher trains: one stage that asks, and learns from the answers."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Name, Positive, Share, Spec
from specs.bounds import CutBound
from specs.distillation import FullVocabulary, Over
from specs.optimizer import Optimizer
from specs.routing import Signal, Taught

WordSignal = Literal["action", "critique", "score", "rank", "sample"]
"""What can be had in words; see `specs.routing.Signal`."""
Goal = Literal["imitate", "succeed"]
USABLE: dict[Goal, tuple[Signal, ...]] = {
    "imitate": ("logprobs", "action", "rank", "sample"),
    "succeed": ("critique", "score", "rank", "sample"),
}
"""What `signal: auto` may take, finest first: what the teacher would do, or what it says of what was done."""


class Rubric(Spec):
    """What a trajectory is scored for. Scores of a dimension lie between 0 and `scale`."""

    dimensions: Annotated[dict[Name, Positive], Field(min_length=1)] = {"result": 0.7, "care": 0.3}
    """Dimensions and their weights. The weights are applied to the answers: others need no new question."""
    about: dict[Name, Annotated[str, Field(min_length=1, max_length=2000)]] = {}
    """What is meant by a dimension, in words: the teacher is shown it. One without goes by its name."""
    scale: Annotated[int, Field(ge=1, le=100)] = 10

    @model_validator(mode="after")
    def _about_dimensions(self) -> Self:
        if strange := [name for name in self.about if name not in self.dimensions]:
            raise ValueError(
                f"about: found {', '.join(strange)}, expected names of dimensions: {', '.join(self.dimensions)}"
            )
        return self

    @property
    def asked(self) -> list[str] | dict[str, str]:
        """Return what a teacher is asked for: the dimensions' names, with what is meant by each where something is said.

        Then in the order of their names, whatever their order in the file: it is in no key, and a stored plan has none.
        """
        names = list(self.dimensions)
        return {name: self.about.get(name, "") for name in sorted(names)} if self.about else names


class Listwise(Spec):
    """A soft target over candidates, softmax(score / tau), and what of the policy is drawn to it."""

    tau: Positive = 0.2
    """Temperature of the target: small puts it all on the best."""
    utility: Literal["mean", "sum", "ratio"] = "mean"
    """Mean logprob of a candidate's tokens; their sum (short candidates win); or the mean log-ratio to the start."""
    kappa: Positive = 0.2
    """The policy's utilities are divided by it: mean logprobs differ little."""


class Preferring(Spec):
    """The loss on pairs that a teacher made."""

    loss: Literal["dpo", "ipo", "orpo"] = "dpo"
    strength: Positive = 0.5
    """`beta` of dpo, `tau` of ipo, `odds_coef` of orpo."""
    nll_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of the chosen side's likelihood, dpo only; orpo has it anyway."""

    @model_validator(mode="after")
    def _nll_is_read(self) -> Self:
        if self.nll_coef and self.loss != "dpo":
            raise ValueError(f"nll_coef is not read with loss: {self.loss}; only dpo has it")
        return self


class Corrections(Spec):
    """Corrected trajectories (signal `sample`): asked for failures, played in the same world, and verified."""

    learn: Literal["sft", "pairs", "both"] = "sft"
    """Imitate the correction; prefer it to the policy's own trajectory; or the one and then the other."""
    per_problem: Count = 1
    """Most failures of a problem that are corrected."""
    samples: Annotated[int, Field(ge=1, le=64)] = 1
    """Corrections of each failure that the teacher is asked for, every one a question of its own."""
    keep: Literal["all", "best"] = "all"
    """Of those of a failure that hold: all that differ; or the one with the highest reward, of equals the one with fewest turns."""
    kept_turns: Flag = False
    """Let the turns train too that the teacher left as they were; else only what it wrote does."""
    prefer: Preferring = Preferring()


class Ranking(Spec):
    """An order of a problem's trajectories (signal `rank`)."""

    choose: Literal["best_worst", "all"] = "all"
    """One pair of a problem, or every pair of the order, each problem counting the same."""
    swaps: Flag = True
    """Ask in both orders and keep the pairs on which both agree."""
    prefer: Preferring = Preferring()


class Practice(Spec):
    """A policy gradient on the answers: the rollouts of a round, compared within their problems."""

    scale_rewards: Literal["group_std", "none"] = "group_std"
    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    clip_high: Positive = 0.28
    kl_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of KL to the policy that the round started from."""


class Scoring(Spec):
    """Scores of whole trajectories (signal `score`) added to the verifiers' reward."""

    weight: Annotated[float, Field(gt=0.0)] = 0.4
    """Most that the score can add to the reward; less than what separates success from failure."""
    rubric: Rubric = Rubric()
    practice: Practice = Practice()


class Critique(Spec):
    """A judgement of each turn (signal `critique`): where in a trajectory credit belongs."""

    turn_coef: Annotated[float, Field(gt=0.0, le=2.0)] = 0.5
    """Added to a turn's advantage: this times its label less the mean label of the trajectory."""
    correction_coef: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Advantage of the call that the teacher names as right at the first error of a failure, learnt in that state as if the
    policy had made it, with the ratio to the start; each is one row more. 0: corrections are not used."""
    practice: Practice = Practice()


class Actions(Spec):
    """States of the policy's own trajectories in which the teacher judges tool calls (signal `action`)."""

    states: Count = 4
    """Most states of a problem; each state once, however many trajectories passed it."""
    choose: Literal["early", "disagreed"] = "disagreed"
    """The first ones; or those first in which the policy's samples did different things."""
    candidates: Annotated[int, Field(ge=1, le=16)] = 4
    """Most calls of the policy's samples that are judged in a state; the teacher may name a better one."""
    from_tools: Annotated[int, Field(ge=0, le=16)] = 0
    """Most further calls that are judged in a state: one of each tool, in the order of the tool list, whose arguments are all known
    there by their names, from calls and replies before or from the samples' calls, if no sample made it."""
    form: Literal["score", "rank"] = "score"
    """What the teacher says of them: a score of each; or an order, in which a call's score is the share of the others that it
    stands above (a tie counts half), and the teacher's own call stands above all."""
    swaps: Flag = True
    """With `form: rank`: ask in both orders of showing, and take the mean of both scores."""
    learn: Literal["listwise", "best"] = "listwise"
    """Draw the policy to the scores of all candidates, the teacher's own among them; or imitate the call that the teacher would
    make, in states in which it names one; of an order, where it names none, the call that stands first."""
    least_score: Share = 0.5
    """With `form: score`: a teacher that scored among the candidates the call that it would make counts from this share of the scale
    on; below it, it contradicts itself, and the state is left out."""
    listwise: Listwise = Listwise()


TOGETHER: tuple[tuple[WordSignal, WordSignal], ...] = (("critique", "score"), ("rank", "sample"))
"""Signals that one loss may train on both of: advantages, pairs."""


class Asking(Spec):
    """What a teacher is asked in a node: part of what is kept."""

    signal: WordSignal
    per_problem: Count = 1
    """Failures of a problem that a correction is asked for."""
    samples: Count = 1
    """How often the same question is asked."""
    swaps: Flag = True
    dimensions: list[Name] | dict[Name, str] = []
    """Names; or with what is meant by each, empty where nothing is said."""
    scale: Count = 10
    states: Count = 4
    choose: Literal["early", "disagreed"] = "disagreed"
    candidates: Count = 4
    from_tools: int = 0
    form: Literal["score", "rank"] = "score"


class Fit(Spec):
    """How the rows of a round become optimiser steps."""

    at_least: Annotated[int, Field(ge=0)] = 8
    """Rows, pairs or lists below which a round stops; with 0 it hands its policy on as it is."""
    epochs: Positive = 1.0
    per_step: Count = 16
    """Rows, pairs or lists of an optimiser step; of a policy gradient, problems."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)


class Draws(CutBound):
    """The rollouts of a round, which the teacher is asked about."""

    samples: Count = 4
    """Trajectories drawn for each problem."""
    problems: Count | None = None
    """Problems of a round; all where left out."""
    temperature: Positive = 1.0


class Lessons(Taught, Draws, Fit):
    """What every stage has that learns from a teacher's words."""

    rounds: Count = 1
    """Each round rolls out the policy of the one before."""

    @model_validator(mode="after")
    def _signal_is_used(self) -> Self:
        if self.uses and self.signal not in ("auto", *self.uses):
            raise ValueError(f"signal: found {self.signal}, expected {' or '.join(self.uses)}")
        return self


class FromTeacher(Lessons):
    """Learn from whatever a teacher can give."""

    version: ClassVar[int] = 1
    goals: ClassVar[dict[Goal, tuple[Signal, ...]]] = USABLE
    type: Literal["from_teacher"]
    goal: Goal = "imitate"
    """What `signal: auto` is after: to do as the teacher does, or what it thinks well of."""
    corrections: Corrections = Corrections()
    ranking: Ranking = Ranking()
    scoring: Scoring = Scoring()
    critique: Critique = Critique()
    actions: Actions = Actions()
    over: Over = FullVocabulary()
    """Signal `logprobs`: which tokens' probabilities are compared; the stage is then one of on-policy distillation."""

    @property
    def usable(self) -> tuple[Signal, ...]:
        """Return the signals that it can train on, finest first."""
        return USABLE[self.goal] if self.signal == "auto" else (self.signal,)

    def apart(self, signals: Sequence[Signal]) -> str | None:
        """Return None where one loss trains on all of these: advantages of critiques and scores, pairs of corrections and orders."""
        if set(signals) not in [set(pair) for pair in TOGETHER]:
            return super().apart(signals)
        if "critique" in signals:
            same = self.critique.practice == self.scoring.practice
            return None if same else "write the same practice for critique and scoring"
        same = self.corrections.learn == "pairs" and self.corrections.prefer == self.ranking.prefer
        return (
            None if same else "write corrections: {learn: pairs}, with the prefer of ranking, so that both make pairs"
        )


class SoftLabel(Lessons):
    """Draw the policy's own candidates of a problem to a teacher's scores of them, as a distribution over the list."""

    type: Literal["soft_label"]
    uses: ClassVar[tuple[Signal, ...]] = ("score",)
    samples: Annotated[int, Field(ge=2)] = 4
    rubric: Rubric = Rubric()
    listwise: Listwise = Listwise()


class ActionDistill(Lessons):
    """In states that the policy reaches, draw its choice of tool calls to a teacher's scores of them."""

    type: Literal["action_distill"]
    uses: ClassVar[tuple[Signal, ...]] = ("action",)
    actions: Actions = Actions()


TaughtAlgorithm = FromTeacher | SoftLabel | ActionDistill
