"""Verifiers: trajectory to verdict. Raise a `version` when verdicts may change: it is part of every key that needs them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specs.base import Flag, Name, Spec


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


class ExactAnswer(Spec):
    """The final answer equals the problem's expected answer."""

    kind: Literal["exact"]
    version: ClassVar[int] = 1
    strip: Flag = True


Verifier = Annotated[EnvironmentState | ToolTrace | ToolCalls | ExactAnswer, Field(discriminator="kind")]
Verifiers = dict[Name, Verifier]
