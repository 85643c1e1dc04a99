"""Conversations with tool calls of a small policy, as its tokens."""

from collections.abc import Sequence

from specs.records import Observation, Problem, Source, Trajectory, Turn
from tasks.protocols import Span, ToolSchema
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.frames import Frame, frame_for
from tasks.tokens.template import Template, template_for
from tasks.tokens.tokenizer import Tokenizer
from tests.tasks.tokens.kinds import CHATML, SPECIALS, byte_level, tokenizer

STOCK = ToolSchema("check_stock", "Look up.", {"type": "object", "properties": {"product": {"type": "string"}}})
CALLS = ['{"tool":"check_stock","product":"red lamp 🗼"}', '{"tool":"finish","answer":"naïve café"}']


def template(name: str = "builtin/compact@1", size: int = 400) -> Template:
    return template_for(name, Tokenizer(byte_level(size, SPECIALS if name == "builtin/compact@1" else CHATML)))


def side(name: str, made: Template) -> tuple[AnyTokenizer, Frame]:
    any_tokenizer = AnyTokenizer.from_json(made.tokenizer.to_json())
    return any_tokenizer, frame_for(name, any_tokenizer, "here")  # pyright: ignore[reportArgumentType]


def plain(kind: str) -> tuple[AnyTokenizer, Frame]:
    return tokenizer(kind), frame_for("builtin/plain@1", tokenizer(kind), "here")


def conversation(made: Template, calls: Sequence[str | list[int]] = CALLS, *, cut: bool = False) -> Trajectory:
    """Return a problem and the policy's calls, each but the last answered; `cut`: the last lacks its stop token."""
    problem = Problem("p", "desk", "stock", "train", "Is the red lamp at the Tokyo tower there?", {}, {})
    segments = made.prompt(problem, [STOCK])
    turns: list[Turn] = []
    for number, call in enumerate(calls):
        ids = call if isinstance(call, list) else made.completion(call)
        if cut and number + 1 == len(calls):
            ids = ids[:-1]
        start = sum(len(i) for _, i in segments)
        segments.append((Source.POLICY, ids))
        observed = Observation({"in stock": number, "note": "über"})
        turns.append(Turn(start, start + len(ids), "", None, observed))
        if number + 1 < len(calls):
            segments += made.observation(observed, cut=False)
    sources = [int(source) for source, ids in segments for _ in ids]
    return Trajectory(
        "t", "p", "stock", "desk", "1", "tool_loop", "g", 0, 0,
        [i for _, ids in segments for i in ids], sources, [-0.5 if s == Source.POLICY else 0.0 for s in sources],
        [], turns, "truncated" if cut else "finished", {"temperature": 1.0},
    )  # fmt: skip


def span(trajectory: Trajectory) -> Span:
    return Span(trajectory, 0, trajectory.ids, [s == Source.POLICY for s in trajectory.sources])
