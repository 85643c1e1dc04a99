"""Shape of a Llama decoder, read from and written to the `config.json` that Hugging Face tools use."""

from dataclasses import dataclass
from typing import Any

from specs.errors import ProgramError


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a Llama decoder."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    rope_theta: float
    max_length: int
    """Positions in use; never more than `trained_length`."""
    rms_norm_eps: float = 1e-5
    head_dim: int = 0
    """0 means hidden_size / heads."""
    tied: bool = True
    """Whether the output layer is the embedding."""
    trained_length: int = 0
    """Positions that the weights were made for; 0 means max_length."""

    def __post_init__(self) -> None:
        given = self.head_dim > 0  # a pruned model has fewer heads than its width would hold
        for name, value in (
            ("head_dim", self.head_dim or self.hidden_size // self.heads),
            ("trained_length", self.trained_length or self.max_length),
        ):
            object.__setattr__(self, name, value)
        whole = given or self.hidden_size % self.heads == 0
        if not whole or self.heads % self.kv_heads or self.head_dim % 2:
            raise ProgramError(
                f"policy.init: hidden_size {self.hidden_size}, heads {self.heads}, kv_heads {self.kv_heads} do not fit; "
                "expected hidden_size = heads x an even number, and heads a multiple of kv_heads"
            )


def config_from(data: dict[str, Any], where: str, max_length: int | None = None) -> LlamaConfig:
    """Return the shape that a Hugging Face `config.json` describes.

    ProgramError, naming the key, for an architecture or a variant that is not a plain Llama.
    """
    _check_plain(data, where)
    rope: dict[str, Any] = data.get("rope_parameters") or data.get("rope_scaling") or {}
    try:
        trained = int(data["max_position_embeddings"])
        used = max_length or trained
        if used > trained:
            raise ProgramError(
                f"{where}: max_length {used} is more than the {trained} positions that the model has; "
                f"set policy.init.max_length to at most {trained}"
            )
        return LlamaConfig(
            vocab_size=int(data["vocab_size"]),
            hidden_size=int(data["hidden_size"]),
            layers=int(data["num_hidden_layers"]),
            heads=int(data["num_attention_heads"]),
            kv_heads=int(data.get("num_key_value_heads") or data["num_attention_heads"]),
            intermediate_size=int(data["intermediate_size"]),
            rope_theta=float(rope.get("rope_theta", data.get("rope_theta", 10000.0))),
            max_length=used,
            rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
            head_dim=int(data.get("head_dim") or 0),
            tied=bool(data.get("tie_word_embeddings", False)),
            trained_length=trained,
        )
    except (KeyError, TypeError, ValueError) as e:
        raise ProgramError(f"{where}: the key {e} is missing or no number; expected a Llama config.json") from e


def _check_plain(data: dict[str, Any], where: str) -> None:
    if data.get("model_type") != "llama":
        raise ProgramError(
            f"{where}: found model_type {data.get('model_type')!r}, expected 'llama'; supported are Llama decoders "
            "(Llama, SmolLM2, TinyLlama and others of that architecture)"
        )
    rope: dict[str, Any] = data.get("rope_scaling") or data.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    found = [
        f"{key} {data.get(key)!r}"
        for key, plain in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu"))
        if data.get(key, plain) != plain
    ]
    if kind != "default":
        found.append(f"rope_type {kind!r}")
    if data.get("quantization_config"):
        found.append("quantization_config")
    if found:
        raise ProgramError(
            f"{where}: found {', '.join(found)}, expected a plain Llama without it; choose another model"
        )


def config_to_hf(config: LlamaConfig, *, pad_id: int, stop_id: int) -> dict[str, Any]:
    """Return the `config.json` with which transformers and vLLM load the policy."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": stop_id,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.trained_length,
        "mlp_bias": False,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "pad_token_id": pad_id,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
        "vocab_size": config.vocab_size,
    }
