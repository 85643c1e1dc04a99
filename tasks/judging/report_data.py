"""What the report shows, as plain data."""

from collections.abc import Iterable
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
    scored: float | None = None
    """Tokens of which teachers said how likely they are, and of them those that trained."""
    trained: float | None = None


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


@dataclass(frozen=True, slots=True)
class RoundData:
    """What a round found and did. `before` and `after` are failures by set, as `causes.json` has them."""

    number: int
    start: str
    why: str
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    after: dict[str, dict[str, Any]] = field(default_factory=dict)
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    remedies: dict[str, int] = field(default_factory=dict)
    """What was done -> cases."""
    siblings: dict[str, Any] = field(default_factory=dict)
    asks: int = 0


def final_candidate(gates: Iterable[dict[str, Any]]) -> str | None:
    """Return the policy that a run came to: the last candidate whose gate did not fail, else the first candidate."""
    judged = [g for g in gates if g.get("candidate")]
    kept = [g for g in judged if g.get("answer") != "fail" and g.get("result") != "gate_failed"]
    return next((str(g["candidate"]) for g in [*reversed(kept), *judged]), None)


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
    pairs: list[dict[str, Any]] = field(default_factory=list)
    teachers: list[dict[str, Any]] = field(default_factory=list)
    """`node` and its `signals.json`."""
    used: list[dict[str, Any]] = field(default_factory=list)
    """`node` and its `notes/used.json`."""
    rounds: list[RoundData] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    """(node, sentence)."""
    problems: list[str] = field(default_factory=list)
    """What could not be read for this page."""
