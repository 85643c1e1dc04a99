"""Records that rooms hand to one another: plain data without tensors.

Dataclasses with slots and not Pydantic models, because a stage makes tens of thousands of them;
what comes from outside is validated where it is read.
"""

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Literal

from specs.flywheel import Cause
from specs.routing import Signal

Status = Literal["finished", "truncated", "turn_limit", "tool_error", "infrastructure"]


NOT_TRAINED = "not_trained"
"""Tag of a trajectory that is judged and never trains."""


class Source(IntEnum):
    """Who wrote a token. Only POLICY tokens ever train."""

    TEMPLATE = 0
    USER = 1
    POLICY = 2
    TOOL = 3


@dataclass(slots=True)
class Problem:
    """One item of a data set. `world` and `expected` never reach the policy."""

    id: str
    environment: str
    type: str
    split: str
    text: str
    """What the user asks."""
    world: dict[str, Any]
    """Initial state of the environment, JSON."""
    expected: dict[str, Any]
    """What verifiers compare with, JSON."""
    tags: list[str] = field(default_factory=list[str])
    """For example `adversarial`."""
    min_calls: int = 1
    """Calls of the shortest solution."""
    tools: list[dict[str, Any]] | None = None
    """Tool schemas of this problem where they differ by problem."""


@dataclass(slots=True)
class ToolCall:
    """A tool call as parsed and as written. `error` names why it could not be used."""

    name: str
    arguments: dict[str, Any]
    written: str
    error: str | None = None
    """`malformed_json | not_an_object | missing_argument | unknown_argument | wrong_type | unknown_tool`."""


@dataclass(slots=True)
class Observation:
    """What the environment replied to a call."""

    data: dict[str, Any]
    is_error: bool = False
    done: bool = False
    changed: bool = False
    """The call changed the state."""
    informed: bool = False
    """The call brought information that was not yet seen in this episode."""
    event: str | None = None
    """Named event for `tool_trace` rules, for example `cancelled_shipped_order`."""
    injected: bool = False
    """A declared fault struck."""


@dataclass(slots=True)
class Turn:
    """One completion and the environment's reply. `start` and `end` index the policy's tokens in `ids`."""

    start: int
    end: int
    text: str
    call: ToolCall | None
    observation: Observation | None
    finish: Literal["stop", "length"] = "stop"
    reward: float = 0.0
    """Of the trajectory's reward, what the turn earned by itself; the rest belongs to the end."""


@dataclass(slots=True)
class Demonstration:
    """A solved problem without token ids: (call, observation) by turn; it is rendered with the policy's tokenizer."""

    problem: Problem
    turns: list[tuple[ToolCall, Observation]]
    by: str
    spoiled: bool = False
    final_state: dict[str, Any] | None = None
    answer: str | None = None


@dataclass(slots=True)
class Verdict:
    """A score in [0, 1] with evidence, or `invalid` with a reason; invalid is never a score."""

    verifier: str
    version: str
    score: float | None
    passed: bool | None
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])
    invalid: str | None = None


@dataclass(slots=True)
class Trajectory:
    """The record of an episode. `ids`, `sources` and `logprobs` have one entry per token."""

    id: str
    problem_id: str
    problem_type: str
    environment: str
    environment_version: str
    agent: str
    group: str
    sample: int
    seed: int
    ids: list[int]
    sources: list[int]
    logprobs: list[float]
    """Sampler logprobs after temperature; 0.0 where the policy did not write the token."""
    policy_versions: list[tuple[str, int]]
    """Run lengths over the policy's tokens: (node/attempt/step/weights digest, tokens)."""
    turns: list[Turn]
    status: Status
    sampling: dict[str, Any]
    final_state: dict[str, Any] | None = None
    answer: str | None = None
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    success: bool | None = None
    """None where no verdict could be reached."""
    reward: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict[str, float])
    error: str | None = None
    latency: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds by `model, tool, environment, processing`."""
    origin: str = "rollout"
    tags: list[str] = field(default_factory=list[str])

    @property
    def segments(self) -> list[int]:
        """Return where each context begins in `ids`: one, but for agents that hold several conversations."""
        return self.sampling.get("segments", [0])

    @property
    def policy_tokens(self) -> int:
        """Return how many tokens the policy wrote."""
        return sum(t.end - t.start for t in self.turns)


@dataclass(slots=True)
class Pair:
    """Two trajectories of one problem, one preferred to the other. The trajectories lie beside it, in shards."""

    id: str
    problem_id: str
    chosen: str
    """Trajectory id."""
    rejected: str
    margin: float
    """How much more the chosen one's reward or score is."""
    weight: float = 1.0
    """Share of its problem: the pairs of one problem weigh 1 together."""
    by: str = "reward"
    """Who preferred it."""


@dataclass(slots=True)
class Label:
    """A trajectory that is wanted or not, without a partner. It lies beside it, in shards."""

    trajectory: str
    """Trajectory id."""
    problem_id: str
    wanted: bool
    weight: float = 1.0
    """Share of its problem: the labels of one problem and one side weigh 1 together."""


@dataclass(slots=True)
class BadCase:
    """A failure of the policy. Only a confirmed one may give anything that trains, and never its own trajectory."""

    id: str
    """`<set>/<problem>/<digest of the policy and sample>`: the same failure has the same id."""
    program: str
    set: str
    """Data set that the problem is of."""
    role: str
    """What that set may be used for."""
    environment: str
    problem_id: str
    problem_type: str
    trajectory_id: str
    policy: str
    """Version of the policy that failed."""
    status: Literal["suspected", "confirmed"]
    """Confirmed by a deterministic verifier with evidence, or by a person."""
    confirmed_by: str | None
    """The verifier (`name kind@version`) or person; None where nobody has."""
    cause: Cause
    confidence: float
    evidence: dict[str, Any]
    """What the cause was read from, JSON."""
    first_wrong_turn: int | None
    """Number of the turn, from 0; None where no turn can be blamed."""
    round: int
    remedy: str | None = None
    """What was decided to do: `repair`, `hard_pool` and so on."""
    life: Literal["open", "in_training", "fixed", "regressed"] = "open"
    regression: str | None = None
    """Id of the problem that is held back for the regression pool in its place."""


@dataclass(slots=True)
class TeacherSignal:
    """What a teacher answered to one question, parsed. `content` by signal is described in docs/teachers.md."""

    id: str
    signal: Signal
    teacher: str
    """Name in the roster."""
    revision: str
    """Who answered: kind, model and revision."""
    prompt: str
    """Version of the instruction, for example `score@1`."""
    problem_id: str
    problem_type: str
    trajectories: list[str]
    """Ids of the trajectories that it saw, in the order in which it saw them."""
    turn: int | None = None
    """The turn before which it was asked, for `action`."""
    sample: int = 0
    """Number among answers to the same question."""
    weight: float = 1.0
    content: dict[str, Any] | None = None
    """None where there is none: `failure` says why."""
    failure: str | None = None
    """`unreadable: …` where it answered and nothing could be read from it, else why there is no answer."""
    absent: dict[str, str] = field(default_factory=dict[str, str])
    """By member of an ensemble that gave no answer, why."""
    again: int = 0
    """How often it was asked for anew, as it could not be read; of an ensemble, its members together."""
    calls: list[str] = field(default_factory=list[str])
    """Keys of the ledger's calls."""
    usd: float = 0.0


def signal_from(data: dict[str, Any]) -> TeacherSignal:
    """Return the signal that `to_dict` wrote."""
    return TeacherSignal(**data)


def pair_from(data: dict[str, Any]) -> Pair:
    """Return the pair that `to_dict` wrote."""
    return Pair(**data)


def label_from(data: dict[str, Any]) -> Label:
    """Return the label that `to_dict` wrote."""
    return Label(**data)


def case_from(data: dict[str, Any]) -> BadCase:
    """Return the case that `to_dict` wrote."""
    return BadCase(**data)


def to_dict(record: Any) -> dict[str, Any]:
    """Return a record as JSON-ready data."""
    return asdict(record)


def problem_from(data: dict[str, Any]) -> Problem:
    """Return the problem that `to_dict` wrote."""
    return Problem(**data)


def trajectory_from(data: dict[str, Any]) -> Trajectory:
    """Return the trajectory that `to_dict` wrote."""
    inner: dict[str, Any] = {
        "turns": [_turn_from(t) for t in data["turns"]],
        "verdicts": [Verdict(**v) for v in data["verdicts"]],
        "policy_versions": [(v, n) for v, n in data["policy_versions"]],
    }
    return Trajectory(**{**data, **inner})


def _turn_from(data: dict[str, Any]) -> Turn:
    inner: dict[str, Any] = {
        "call": ToolCall(**data["call"]) if data["call"] else None,
        "observation": Observation(**data["observation"]) if data["observation"] else None,
    }
    return Turn(**{**data, **inner})


def demonstration_from(data: dict[str, Any]) -> Demonstration:
    """Return the demonstration that `to_dict` wrote."""
    turns = [(ToolCall(**c), Observation(**o)) for c, o in data["turns"]]
    inner: dict[str, Any] = {"problem": problem_from(data["problem"]), "turns": turns}
    return Demonstration(**{**data, **inner})
