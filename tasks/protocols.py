"""The seams between rooms. Implementations are handed in; sibling rooms never import one another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from specs.records import Demonstration, Observation, Problem, ToolCall, Trajectory, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How the next tokens are drawn. `temperature` 0 is greedy; logprobs are those after temperature."""

    temperature: float = 1.0
    max_new_tokens: int = 40
    stop_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class SampleRequest:
    """Continue `ids`. A request of a known `session` extends what was sent and received in it before."""

    session: int
    ids: list[int]
    """The whole context, from its first token."""
    seed: int
    settings: SamplingSettings


@dataclass(slots=True)
class Completion:
    """Token ids drawn (the stop token included when it was drawn) and their exact behaviour logprobs."""

    ids: list[int]
    logprobs: list[float]
    finish: str
    """`stop` or `length`."""
    policy_version: str


class Sampler(Protocol):
    """What generates. The same request gives the same ids whatever else is in the batch."""

    @property
    def name(self) -> str:
        """Return what generates, as trajectories record it."""
        ...

    @property
    def policy_version(self) -> str:
        """Return the digest-bearing name of the weights in use."""
        ...

    @property
    def tokenizer_digest(self) -> str:
        """Return the digest of the tokenizer and template it serves."""
        ...

    @property
    def max_length(self) -> int:
        """Return how many tokens a context and its completion may have together."""
        ...

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order. Sessions that are not asked for are forgotten."""
        ...


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the policy may call it; `parameters` is a JSON schema object."""

    name: str
    description: str
    parameters: dict[str, Any]


class World(Protocol):
    """One episode of an environment; single use."""

    @property
    def done(self) -> bool:
        """Return whether the episode has ended."""
        ...

    @property
    def answer(self) -> str | None:
        """Return the answer given at the end, if any."""
        ...

    def call(self, call: ToolCall) -> Observation:
        """Carry out one call that has passed the schema. Never raises for what a policy wrote."""
        ...

    def final_state(self) -> dict[str, Any]:
        """Return the sealed state, JSON; no call is taken afterwards."""
        ...

    def close(self) -> None:
        """Give up what it holds."""
        ...


class Environment(Protocol):
    """Draws problems, opens worlds, solves its own problems."""

    @property
    def version(self) -> str:
        """Return the version that is part of every key and trajectory."""
        ...

    @property
    def max_turns(self) -> int:
        """Return after how many turns an episode ends unfinished."""
        ...

    def problems(self, split: str, size: int, seed: int) -> list[Problem]:
        """Return `size` problems of a split; DataError where it cannot give as many."""
        ...

    def tools(self, problem: Problem | None = None) -> list[ToolSchema]:
        """Return the tools (of one problem, where they differ)."""
        ...

    def open(self, problem: Problem, seed: int) -> World:
        """Return a fresh world in the problem's initial state."""
        ...

    def demonstrate(
        self, problem: Problem, seed: int, mistakes: float = 0.0, *, recovers: bool = True
    ) -> Demonstration:
        """Return the clerk's solution, found in the world that `open(problem, seed)` opens.

        With `mistakes` each decision goes wrong with that probability; without `recovers` the clerk gives up after
        an injected tool error.
        """
        ...

    def sibling(self, problem: Problem, seed: int) -> Problem:
        """Return another training problem of the same type: other entities, other wording, of any split's problem.

        DataError where there is none: the type is not its own, or the environment cannot make problems.
        """
        ...


class VerifierRun(Protocol):
    """A verifier: trajectory and problem to verdict. It never raises for what a policy wrote."""

    @property
    def version(self) -> str:
        """Return the version that is part of every verdict."""
        ...

    def verify(self, trajectory: Trajectory, problem: Problem) -> Verdict:
        """Return the verdict."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a trajectory that is read from its own beginning, and which of its tokens a teacher is asked about."""

    trajectory: Trajectory
    start: int
    """Where the span begins in `trajectory.ids`."""
    ids: list[int]
    mask: list[bool]
    """True where the policy wrote the token and it trains; never at the first one."""


@dataclass(slots=True)
class TokenScores:
    """What a teacher says of the tokens of one span; every list has one entry per token of it."""

    logprobs: list[float]
    """The teacher's logprob of the token; NaN where it says nothing. In a chunk of several tokens the sum alone counts."""
    chunks: list[int] | None = None
    """Number of the chunk that a token belongs to, -1 where it is in none: the finest piece of text that tokens of teacher
    and policy share. A chunk's tokens stand together. None: every token is a chunk, as with the policy's own tokenizer."""


@dataclass(frozen=True, slots=True)
class TokenLists:
    """What a teacher lists before the tokens asked about of one span: N tokens, K likeliest each, the likeliest first."""

    ids_NK: "NDArray[np.int64]"
    logprobs_NK: "NDArray[np.float32]"
    targets_N: "NDArray[np.float32]"
    """The teacher's logprobs of the tokens themselves; NaN where they are not listed and nothing is said of them."""


class TokenTeacher(Protocol):
    """Scores the policy's own tokens: the finest signal there is. Deterministic: the same span, the same scores."""

    @property
    def name(self) -> str:
        """Return the name in the program's roster."""
        ...

    def score(self, spans: Sequence[Span]) -> list[TokenScores]:
        """Return scores per span, in order; bounded in memory, spans of like length together."""
        ...


class VocabularyTeacher(TokenTeacher, Protocol):
    """A teacher in process whose token ids are the policy's: at each token it gives its whole distribution."""

    @property
    def head_weight(self) -> "Tensor":
        """Return the (vocabulary, width) weight that turns its hidden states into logits."""
        ...

    def states(self, spans: Sequence[Span]) -> "Tensor":
        """Return the hidden states before the tokens asked about, span after span: (tokens asked about, width)."""
        ...


class Feed(Protocol):
    """What waits for one teacher while the trajectories of a step still end."""

    def take(self, seconds: float = 0.0) -> Sequence[Span] | None:
        """Return the next batch, the longest first: empty where there is none within so long, None where none will come.

        Interrupted where the step is given up.
        """
        ...

    def done(self, count: int) -> None:
        """Note that nothing more is to be done for so many of the spans that were taken."""
        ...


@runtime_checkable
class EarlyTeacher(TokenTeacher, Protocol):
    """A teacher that scores a step's first trajectories while others are still sampled."""

    @property
    def elsewhere(self) -> bool:
        """Return whether another process does the work, so that it costs the sampler nothing."""
        ...

    def ahead(self, feed: Feed, size: int) -> None:
        """Score what comes until nothing will, and hold it for `score` of the whole step; with a `size` for its `lists`.

        It runs in a thread of its own; nothing else of the teacher is called meanwhile.
        """
        ...


@runtime_checkable
class Telling(Protocol):
    """A teacher that keeps count of what it said."""

    def take_figures(self) -> dict[str, float]:
        """Return figures since this was last called."""
        ...


class Keeping(Protocol):
    """A teacher that keeps what it said since the last checkpoint."""

    def settle(self) -> None:
        """Let go of what is needed no more once the checkpoint that is about to be written is there."""
        ...


@runtime_checkable
class ListingTeacher(TokenTeacher, Protocol):
    """A teacher whose token ids are the policy's and that shows the likeliest tokens alone, as one behind a server does."""

    @property
    def max_length(self) -> int:
        """Return how many tokens a span may have."""
        ...

    def lists(self, spans: Sequence[Span], size: int) -> list[TokenLists | None]:
        """Return by span its `size` likeliest tokens, None where it said nothing that can be used."""
        ...
