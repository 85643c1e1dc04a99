"""Weights by their Hugging Face names, and back into the fused layers of our decoder."""

from collections.abc import Callable

import torch
from torch import Tensor

from specs.errors import StateError
from tasks.policy.config import LlamaConfig
from tasks.policy.llama import Block, Llama


def shapes_of(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of a model folder."""
    size, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, size),
        "model.norm.weight": (size,),
    }
    for i in range(config.layers):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.self_attn.q_proj.weight": (queries, size),
            f"{layer}.self_attn.k_proj.weight": (keys, size),
            f"{layer}.self_attn.v_proj.weight": (keys, size),
            f"{layer}.self_attn.o_proj.weight": (size, queries),
            f"{layer}.mlp.gate_proj.weight": (inner, size),
            f"{layer}.mlp.up_proj.weight": (inner, size),
            f"{layer}.mlp.down_proj.weight": (size, inner),
            f"{layer}.input_layernorm.weight": (size,),
            f"{layer}.post_attention_layernorm.weight": (size,),
        }
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, size)
    return shapes


def named_weights(model: Llama) -> dict[str, Tensor]:
    """Return the model's weights by Hugging Face name: fp32, on the CPU, contiguous."""
    config = model.config
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    found = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.weight}
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        layer = f"model.layers.{i}"
        q, k, v = block.qkv.weight.split((queries, keys, keys))
        gate, up = block.gate_up.weight.chunk(2)
        found |= {
            f"{layer}.self_attn.q_proj.weight": q,
            f"{layer}.self_attn.k_proj.weight": k,
            f"{layer}.self_attn.v_proj.weight": v,
            f"{layer}.self_attn.o_proj.weight": block.o.weight,
            f"{layer}.mlp.gate_proj.weight": gate,
            f"{layer}.mlp.up_proj.weight": up,
            f"{layer}.mlp.down_proj.weight": block.down.weight,
            f"{layer}.input_layernorm.weight": block.norm_attention.weight,
            f"{layer}.post_attention_layernorm.weight": block.norm_mlp.weight,
        }
    if not config.tied:
        found["lm_head.weight"] = model.lm_head.weight
    return {name: w.detach().to("cpu", torch.float32).contiguous() for name, w in found.items()}


@torch.no_grad()
def model_from(config: LlamaConfig, read: Callable[[str], Tensor], where: str) -> Llama:
    """Build a model from tensors that `read` returns by Hugging Face name, one at a time.

    StateError, naming the tensor, for a wrong shape or a number that is not finite.
    """
    shapes = shapes_of(config)

    def get(name: str) -> Tensor:
        value = read(name)
        if tuple(value.shape) != shapes[name]:
            raise StateError(
                f"{where}: {name} has shape {tuple(value.shape)}, expected {shapes[name]} from config.json; "
                "the two files belong to different models"
            )
        value = value.to(torch.float32)
        if not bool(torch.isfinite(value.sum())):  # a sum keeps what is not finite, in one pass
            raise StateError(f"{where}: {name} holds a number that is not finite; the weights are damaged")
        return value

    with torch.device("meta"):
        model = Llama(config)
    model = model.to_empty(device="cpu")
    model.reset_rope()
    model.embed.weight.copy_(get("model.embed_tokens.weight"))
    model.norm.weight.copy_(get("model.norm.weight"))
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        layer = f"model.layers.{i}"
        block.qkv.weight.copy_(torch.cat([get(f"{layer}.self_attn.{n}_proj.weight") for n in "qkv"]))
        block.o.weight.copy_(get(f"{layer}.self_attn.o_proj.weight"))
        block.gate_up.weight.copy_(torch.cat([get(f"{layer}.mlp.{n}_proj.weight") for n in ("gate", "up")]))
        block.down.weight.copy_(get(f"{layer}.mlp.down_proj.weight"))
        block.norm_attention.weight.copy_(get(f"{layer}.input_layernorm.weight"))
        block.norm_mlp.weight.copy_(get(f"{layer}.post_attention_layernorm.weight"))
    if not config.tied:
        model.lm_head.weight.copy_(get("lm_head.weight"))
    return model
