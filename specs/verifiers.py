"""Verifiers: trajectory to verdict. Raise a `version` when verdicts may change: it is part of every key that needs them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specs.base import Flag, Name, Share, Spec
from specs.commands import Command


class EnvironmentState(Spec):
    """The sealed final state equals the expected one."""

    kind: Literal["environment_state"]
    version: ClassVar[int] = 2
    answer: Flag = True
    """Also compare the final answer where the problem asks for one."""


class ToolTrace(Spec):
    """Rules over the calls of a trajectory."""

    kind: Literal["tool_trace"]
    version: ClassVar[int] = 1
    forbid: list[str] = []
    """Named events that must not happen (an environment lists its own)."""
    max_errors: Annotated[int, Field(ge=0)] | None = None
    """Most tool errors that a trace may have; with no more, the score is the share of calls that worked."""


class ToolCalls(Spec):
    """The calls made equal the expected calls, by value and type."""

    kind: Literal["tool_calls"]
    version: ClassVar[int] = 1
    order: Flag = False
    """Whether the order of several calls matters."""
    partial: Flag = False
    """Score what fails by the share that is right, over each call's name and arguments; it fails all the same."""


class ExactAnswer(Spec):
    """The final answer equals the problem's expected answer."""

    kind: Literal["exact"]
    version: ClassVar[int] = 1
    strip: Flag = True


class ProcessVerifier(Command):
    """A verifier of your own: any program that speaks JSON lines (docs/bring_your_own.md)."""

    kind: Literal["process"]
    version: ClassVar[int] = 1
    cases: str | None = None
    """JSONL file of self-test cases beside those that the program brings itself."""
    judges_cut: Flag = False
    """Ask it about trajectories that were cut for length too; where off, they fail."""


class RewardModelVerifier(Spec):
    """What a `reward_model` stage learnt. It judges rollouts of later stages, as a soft part of their reward."""

    kind: Literal["reward_model"]
    version: ClassVar[int] = 1
    stage: Name
    """Stage of type reward_model that makes it."""
    turns: Literal["min", "mean", "product", "last"] = "min"
    """One score of those of the turns, where the model learns turns."""
    passes_from: Share = 0.5
    """Score from which a trajectory passes."""


Verifier = Annotated[
    EnvironmentState | ToolTrace | ToolCalls | ExactAnswer | ProcessVerifier | RewardModelVerifier,
    Field(discriminator="kind"),
]
Verifiers = dict[Name, Verifier]


def learnt(verifiers: Verifiers) -> list[str]:
    """Return the names of those that a stage of the program makes: they judge what comes after it, and nothing else."""
    return [name for name, spec in verifiers.items() if spec.kind == "reward_model"]
