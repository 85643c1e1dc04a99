"""Adapters as files that PEFT reads, and such files added to a model. A file that does not fit in every part is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from specs.errors import StateError
from specs.policy import LoRA
from tasks.files import sha256_file, write_durable, write_json
from tasks.policy.config import LlamaConfig
from tasks.policy.llama import Llama
from tasks.policy.lora import LoRALinear, adapters, difference
from tasks.policy.store import read_json, refuse_unsafe
from tasks.policy.weights import model_from, named_weights, shapes_of

_PREFIX = "base_model.model."
_CONFIG, _WEIGHTS, _ABOUT = "adapter_config.json", "adapter_model.safetensors", "about.json"
_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_UNSUPPORTED = (
    "use_dora",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "layers_to_transform",
    "fan_in_fan_out",
)
_PROBE = 24
"""Tokens of the sequence on which base and adapted model must differ."""


def save_adapter(model: Llama, spec: LoRA, base_digest: str, folder: Path) -> None:
    """Write the adapters of a model; a fused matrix becomes its parts, which share their A."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, layer in adapters(model).items():
        _, index, own = name.split(".")
        for part, rows in _split(own, layer, model.config):
            place = f"{_PREFIX}model.layers.{index}.{part}"
            tensors[f"{place}.lora_A.weight"] = _plain(layer.a_RI)
            tensors[f"{place}.lora_B.weight"] = _plain(rows)
    modules = [part.rpartition(".")[2] for target in dict.fromkeys(spec.targets) for part in _PARTS[target]]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
        "base_model_name_or_path": None,
        "inference_mode": True,
    }
    write_json(folder / _CONFIG, config)
    write_durable(folder / _WEIGHTS, save(tensors, {"format": "pt"}))
    write_json(folder / _ABOUT, {"base": base_digest, "sha256": sha256_file(folder / _WEIGHTS)})


def _plain(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.float32).contiguous().clone()


def _split(own: str, layer: LoRALinear, config: LlamaConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a matrix and their rows of B."""
    parts = _PARTS[own]
    keys = config.kv_heads * config.head_dim
    sizes = (
        (config.heads * config.head_dim, keys, keys) if own == "qkv" else [len(layer.b_OR) // len(parts)] * len(parts)
    )
    yield from zip(parts, layer.b_OR.split(list(sizes)), strict=True)


@torch.no_grad()
def with_adapter(base: Llama, folder: Path, base_digest: str = "") -> Llama:
    """Return a plain model: the base with the adapter of a folder added. The base stays as it is.

    StateError where the adapter was made for another base, a part of it fits nothing, or it changes nothing though its
    weights are not zero.
    """
    refuse_unsafe(folder)
    config, tensors = read_json(folder / _CONFIG), _read(folder / _WEIGHTS)
    _check_about(folder, base_digest)
    scale = _scale(folder, config)
    weights = named_weights(base)
    changed = 0.0
    for place, (a_RI, b_OR) in _pairs(folder, tensors, shapes_of(base.config)).items():
        change = (b_OR @ a_RI) * scale
        changed = max(changed, float(change.abs().max()))
        weights[f"{place}.weight"] = weights[f"{place}.weight"] + change
    made = model_from(base.config, weights.__getitem__, str(folder)).to(base.embed.weight.device)
    probe = [i % base.config.vocab_size for i in range(1, _PROBE + 1)][: base.config.max_length]
    if changed > 0 and difference(base, made, probe) == 0.0:
        raise StateError(
            f"{folder}: its weights are not zero (largest change {changed:g}), but the model with it answers as the one "
            "without; the adapter was not applied. Expected other outputs: make the adapter again"
        )
    return made


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).to(torch.float32) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as e:
        raise StateError(f"{path}: damaged or no safetensors ({e}); nothing else is tried: restore the file") from e


def _check_about(folder: Path, base_digest: str) -> None:
    """Compare with what `save_adapter` noted, where it did: adapters of other tools come without."""
    if not (folder / _ABOUT).is_file():
        return
    about = read_json(folder / _ABOUT)
    if about.get("sha256") != sha256_file(folder / _WEIGHTS):
        raise StateError(f"{folder / _WEIGHTS}: damaged: its sha256 is not the one in {_ABOUT}; restore the file")
    if base_digest and about.get("base") not in ("", base_digest):
        raise StateError(
            f"{folder}: made for the policy {str(about.get('base'))[:12]}, found {base_digest[:12]}; "
            "an adapter fits its own base alone"
        )


def _scale(folder: Path, config: dict[str, Any]) -> float:
    found = [name for name in _UNSUPPORTED if config.get(name)]
    if config.get("peft_type") != "LORA" or config.get("bias", "none") != "none" or found:
        raise StateError(
            f"{folder / _CONFIG}: found {config.get('peft_type')!r}, bias {config.get('bias')!r}, {', '.join(found) or 'nothing else'}; "
            "expected a plain LORA without bias"
        )
    try:
        return float(config["lora_alpha"]) / int(config["r"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as e:
        raise StateError(f"{folder / _CONFIG}: no usable r and lora_alpha ({json.dumps(config)[:120]})") from e


def _pairs(
    folder: Path, tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and B by matrix. StateError where one fits no matrix of the model, or there is none at all."""
    found: dict[str, dict[str, Tensor]] = {}
    strange: list[str] = []
    for name, tensor in tensors.items():
        place, _, side = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if not name.startswith(_PREFIX) or side not in ("lora_A", "lora_B") or f"{place}.weight" not in shapes:
            strange.append(name)
        else:
            found.setdefault(place, {})[side] = tensor
    for place, sides in found.items():
        rows, columns = shapes[f"{place}.weight"][0], shapes[f"{place}.weight"][-1]
        a, b = sides.get("lora_A"), sides.get("lora_B")
        if a is None or b is None or a.shape[1] != columns or b.shape != (rows, a.shape[0]):
            strange.append(f"{place} (A {a is not None and tuple(a.shape)}, B {b is not None and tuple(b.shape)})")
    if strange or not found:
        raise StateError(
            f"{folder / _WEIGHTS}: {len(strange)} of {len(tensors)} parts fit no matrix of the model "
            f"({', '.join(strange[:3]) or 'it is empty'}); expected names such as "
            f"{_PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight. The adapter is of another model"
        )
    return {place: (sides["lora_A"], sides["lora_B"]) for place, sides in found.items()}
