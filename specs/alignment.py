"""How a teacher's tokens are brought to the policy's where the two have different tokenizers."""

from typing import Annotated, Literal

from pydantic import Field

from specs.base import Count, Positive, Share, Spec

Strategy = Literal["byte_span", "text_span", "sequence_mapping", "vocabulary_projection"]
Drop = Literal[
    "masked", "special_token", "no_teacher_token", "unknown_token", "teacher_logprob_missing", "cut",
    "too_many_tokens", "gap_too_large", "normalised", "not_text",
]  # fmt: skip
"""Why a token of the policy got no score."""


class Alignment(Spec):
    """Read only where the tokenizers differ, which encoding probes decide."""

    strategies: Annotated[list[Strategy], Field(min_length=1)] = ["byte_span", "text_span"]
    """The first that fits a piece of text is taken. `byte_span`: the teacher's tokens have the policy's bytes. `text_span`: its
    normaliser changed the text, and its tokens are placed by the spans of the original that it reports, where these reach the end
    of the text. `sequence_mapping`: tokens are paired by least edit distance. `vocabulary_projection`: each token of the policy is
    written with the teacher's longest tokens, also where the bytes are no text. A piece that none fits is dropped."""
    score: Literal["canonical", "covers"] = "canonical"
    """`canonical`: the teacher's own writing of the text, by chunks. `covers`: the exact probability of every token's bytes, over
    all ways of writing them; it costs further passes of the teacher."""
    min_cover_mass: Share = 0.001
    """With `covers`: ways of writing less likely than this are left out; how much that was is reported."""
    max_cover_passes: Annotated[int, Field(ge=0)] = 64
    """With `covers`: most further passes of the teacher per trajectory; chunks beyond that keep their canonical score."""
    max_chunk_tokens: Count = 32
    """A chunk with more tokens on either side is dropped. One token for a piece of a call (`schema_tokens`) is easily twenty of a
    teacher's, and it is the one that names the tool."""
    max_gap: Positive = 20.0
    """A chunk on which teacher and policy differ by more nats is dropped, and teaches nothing: of a teacher that is sure of
    itself, raise it."""
