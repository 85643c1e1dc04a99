"""A policy as a folder that an inference server reads, and its weights anew after every update.

The output layer is written apart from the embedding even where the policy ties them: a server that reloads weights
in place keeps the output layer it began with when the configuration says that the two are one.
"""

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from tasks.files import write_quick
from tasks.policy.config import config_to_hf
from tasks.policy.llama import Llama
from tasks.policy.store import DTYPES, LoadedPolicy, Precision
from tasks.policy.weights import named_weights

SERVER_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def export_for_server(policy: LoadedPolicy, folder: Path, precision: Precision, *, max_length: int) -> None:
    """Write configuration, tokenizer and weights, the output layer on its own. Nothing of it outlives the server."""
    folder.mkdir(parents=True, exist_ok=True)
    template = policy.template
    config = config_to_hf(policy.config, pad_id=template.pad_id, stop_id=template.stop_ids[0])
    config |= {"tie_word_embeddings": False, "dtype": SERVER_DTYPES[precision]}
    config |= {"head_dtype": "float32"}  # vLLM's: rounded logits would be another policy than the trainer's
    decode = policy.tokenizer.decode
    words = {"eos_token": decode([template.stop_ids[0]]), "pad_token": decode([template.pad_id])}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **words}
    write_quick(folder / "config.json", json.dumps(config))
    write_quick(folder / "tokenizer.json", policy.tokenizer.to_json())
    write_quick(folder / "tokenizer_config.json", json.dumps(kind))
    write_served_weights(policy.model, folder, precision)


def write_served_weights(model: Llama, folder: Path, precision: Precision) -> None:
    """Replace the weights of a served folder."""
    weights = untied_weights(model, precision)
    write_quick(folder / "model.safetensors", lambda path: save_file(weights, path, {"format": "pt"}))


def untied_weights(model: Llama, precision: Precision) -> dict[str, Tensor]:
    """Return the weights by Hugging Face name with an output layer in any case."""
    weights = named_weights(model)
    if model.config.tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    return {name: weight.to(DTYPES[precision]).contiguous() for name, weight in weights.items()}
