"""Data sources: problems, demonstrations and files of records."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from specs.base import Count, Name, Seed, Share, Spec

Role = Literal["train", "golden", "hidden", "regression", "general", "ood"]
Split = Literal["train", "golden", "hidden", "audit"]


def readable(text: str, *, routing: bool = False) -> str:
    """Refuse a condition that `specs.when` cannot read: one on a problem, or a rule of the routing."""
    from specs import when
    from specs.errors import ProgramError

    try:
        when.parse(text, when.ROUTING_NAMES if routing else when.PROBLEM_NAMES)
    except ProgramError as e:
        raise ValueError(str(e)) from None
    return text


Where = Annotated[str, AfterValidator(readable)]


class Spoil(Spec):
    """Mistakes planted in demonstrations: what a real source has and a clean one lacks."""

    share: Share = 0.0
    """Share of demonstrations that are spoiled."""
    mistakes: Share = 0.6
    """Probability of a mistake at each decision of a spoiled demonstration."""
    types: list[str] | None = None
    """Problem types that may be spoiled; all where left out."""
    no_recovery: list[str] = []
    """Problem types in whose demonstrations the clerk gives up after a tool error instead of recovering; all of them,
    whatever `share` says. It needs an environment with declared faults."""


class Demonstrations(Spec):
    """Episodes solved by the environment's own clerk."""

    kind: Literal["demonstrations"]
    environment: Name
    by: Literal["clerk", "gold"] = "clerk"
    split: Split = "train"
    size: Count
    seed: Seed | None = None
    """Seed of the draw; the program's where left out."""
    spoil: Spoil = Spoil()
    role: Literal["train"] = "train"


class Problems(Spec):
    """Problems drawn from an environment's split."""

    kind: Literal["problems"]
    environment: Name
    split: Split = "train"
    size: Count
    seed: Seed | None = None
    """Seed of the draw; the program's where left out."""
    where: Where | None = None
    """Which of the drawn problems are kept, in the language of `specs.when` (names: `PROBLEM_NAMES`).

    For example `problem.type in ['mail', 'place'] and 'adversarial' not in problem.tags`. It is checked with
    the program; `flows.work.data` applies it: `keep = when.parse(where, when.PROBLEM_NAMES)`, then
    `keep.evaluate(when.problem_values(problem))`. `size` counts what is kept.
    """
    role: Role = "train"
    """What it may be used for; where left out it follows from the split (golden, hidden; audit is golden)."""


class ProblemFile(Spec):
    """Problems read from a JSONL file."""

    kind: Literal["file"]
    environment: Name
    path: Annotated[str, Field(min_length=1)]
    """Relative to the program file."""
    where: Where | None = None
    """Which of the file's problems are kept; see `Problems.where`."""
    role: Role = "train"


class PoolData(Spec):
    """The regression pool as an evaluation set: the cases that rounds confirmed, as last published; empty at first."""

    kind: Literal["pool"]
    pool: Literal["regression"] = "regression"
    role: Literal["regression"] = "regression"


DataSource = Annotated[Demonstrations | Problems | ProblemFile | PoolData, Field(discriminator="kind")]


class Apart(Spec):
    """How training data is kept apart from evaluation data."""

    near_duplicate: Share = 0.9
    """Jaccard similarity of word 3-grams from which two texts count as the same."""
    on_hit: Literal["stop", "drop"] = "stop"
