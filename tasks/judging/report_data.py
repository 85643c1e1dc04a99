"""What the report shows, as plain data."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StageResult:
    """A policy after a stage (`init` before the first) and the summaries of its evaluations by set."""

    id: str
    type: str
    start: str | None
    sets: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Curve:
    """Metric lines of one training node: (step, values)."""

    node: str
    lines: list[tuple[float, dict[str, float | None]]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Which share of a data set's tokens trained a stage."""

    node: str
    source: str
    rows: int
    tokens: int
    trained: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a node took; `seconds` None is left out of the page."""

    node: str
    kind: str
    seconds: float | None
    rollouts: float | None = None
    tokens: float | None = None
    steps: float | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """One turn: what the policy wrote and what came back."""

    text: str
    reply: str | None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Talk:
    """One policy's attempt at a problem."""

    policy: str
    success: bool | None
    status: str
    turns: list[Said]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The same problem tried by several policies."""

    problem: str
    type: str
    text: str
    talks: list[Talk]


@dataclass(slots=True)
class ReportData:
    """Everything on the page, plain."""

    program: str
    about: str
    gates: list[dict[str, Any]] = field(default_factory=list)
    """Gate records."""
    stages: list[StageResult] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)
    """`name, kind, role, records`."""
    apart: dict[str, Any] | None = None
    tokens: list[Tokens] = field(default_factory=list)
    preflights: list[dict[str, Any]] = field(default_factory=list)
    """`node` and its figures."""
    collects: list[dict[str, Any]] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    """(node, sentence)."""
    problems: list[str] = field(default_factory=list)
    """What could not be read for this page."""
