"""Data sources: problems, demonstrations and files of records."""

from typing import Annotated, Literal

from pydantic import Field

from specs.base import Count, Name, Share, Spec

Role = Literal["train", "golden", "hidden", "regression", "general", "ood"]
Split = Literal["train", "golden", "hidden", "audit"]


class Spoil(Spec):
    """Mistakes planted in demonstrations: what a real source has and a clean one lacks."""

    share: Share = 0.0
    """Share of demonstrations that are spoiled."""
    mistakes: Share = 0.6
    """Probability of a mistake at each decision of a spoiled demonstration."""
    types: list[str] | None = None
    """Problem types that may be spoiled; all where left out."""


class Demonstrations(Spec):
    """Episodes solved by the environment's own clerk."""

    kind: Literal["demonstrations"]
    environment: Name
    by: Literal["clerk", "gold"] = "clerk"
    split: Split = "train"
    size: Count
    seed: int | None = None
    """Seed of the draw; the program's where left out."""
    spoil: Spoil = Spoil()
    role: Literal["train"] = "train"


class Problems(Spec):
    """Problems drawn from an environment's split."""

    kind: Literal["problems"]
    environment: Name
    split: Split = "train"
    size: Count
    seed: int | None = None
    role: Role = "train"


class ProblemFile(Spec):
    """Problems read from a JSONL file."""

    kind: Literal["file"]
    environment: Name
    path: Annotated[str, Field(min_length=1)]
    """Relative to the program file."""
    role: Role = "train"


DataSource = Annotated[Demonstrations | Problems | ProblemFile, Field(discriminator="kind")]


class Apart(Spec):
    """How training data is kept apart from evaluation data."""

    near_duplicate: Share = 0.9
    """Jaccard similarity of word 3-grams from which two texts count as the same."""
    on_hit: Literal["stop", "drop"] = "stop"
