"""Evaluation and gates: what decides promotion."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Name, SetName, Share, Spec

Metric = Literal[
    "success", "success_greedy", "tool_success", "invalid_call_rate", "reward", "truncated_rate", "regressed_cases"
]


class Evaluation(Spec):
    """Which policies are asked which problems."""

    sets: list[SetName] = []
    """Sets asked after every stage."""
    at_the_end: list[SetName] = []
    """Sets asked of the untouched policy, of the last stage and of a baseline."""
    samples: Count = 1
    temperature: Annotated[float, Field(ge=0.0)] = 1.0
    greedy: Flag = True
    """Also ask greedily, once, for `success_greedy`."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95


class Requirement(Spec):
    """One condition of a gate; exactly one bound is given."""

    metric: Metric = "success"
    set: SetName
    at_least: float | None = None
    """The lower bound of the candidate's interval must reach it."""
    at_most: float | None = None
    """The upper bound of the candidate's interval must not exceed it."""
    no_worse_by: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """The candidate must not be worse than the baseline by this much (paired, exact)."""
    better_by: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """The candidate must beat the baseline by more than this (paired, exact)."""

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        bounds = [self.at_least, self.at_most, self.no_worse_by, self.better_by]
        if sum(b is not None for b in bounds) != 1:
            raise ValueError("expected exactly one of at_least, at_most, no_worse_by, better_by")
        return self

    @model_validator(mode="after")
    def _bound_in_reach(self) -> Self:
        name = "at_least" if self.at_least is not None else "at_most"
        bound = getattr(self, name)
        if self.metric == "regressed_cases":
            if self.at_most is None or self.at_most < 0:
                raise ValueError("regressed_cases is a count: expected at_most with 0 or more, and no other bound")
        elif bound is not None and self.metric != "reward" and not 0.0 <= bound <= 1.0:
            near = f"; for {bound:g} % write {bound / 100:g}" if 1.0 < bound <= 100.0 else ""
            raise ValueError(f"{name}: found {bound:g}, expected a share from 0 to 1{near}")
        return self


class Baseline(Spec):
    """What the candidate is compared with."""

    alias: Literal["champion", "previous"] | None = None
    stage: Name | None = None
    """A stage of this program, `init` for the untouched policy, or `teacher-NAME` for a teacher that is evaluated."""
    first: Literal["absolute", "init"] = "absolute"
    """Where no such alias exists yet: test what needs no baseline, or compare with the untouched policy."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.alias is None) == (self.stage is None):
            raise ValueError("expected exactly one of alias and stage")
        return self


class Gate(Spec):
    """Conditions under which a candidate is promoted."""

    candidate: Literal["last", "best"] | Name = "last"
    """`last` stage, a stage's name, or `best`: the stage that wins on the first requirement's set."""
    baseline: Baseline = Baseline(alias="champion")
    looks: Count = 1
    """How often these sets may be asked before they must be refreshed; each look spends alpha."""
    alpha: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    require: Annotated[list[Requirement], Field(min_length=1)]
    max_invalid: Share = 0.05
    """Share of invalid verdicts from which evidence is refused."""
    on_pass: Literal["promote", "nothing"] = "promote"
    on_inconclusive: Literal["hold", "fail", "pass_on"] = "hold"
