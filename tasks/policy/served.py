"""A policy as a folder that an inference server reads, and its weights anew after every update.

The output layer is written apart from the embedding even where the policy ties them: a server that reloads weights
in place keeps the output layer it began with when the configuration says that the two are one.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.files import write_quick
from tasks.policy.config import config_to_hf
from tasks.policy.llama import Llama
from tasks.policy.store import DTYPES, LoadedPolicy, Precision
from tasks.policy.weights import named_weights

SERVER_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_TOKENS = 256
"""After so many the policy is asked what it expects."""


def export_for_server(policy: LoadedPolicy, folder: Path, precision: Precision, *, max_length: int) -> None:
    """Write configuration, tokenizer and weights, the output layer on its own. Nothing of it outlives the server."""
    folder.mkdir(parents=True, exist_ok=True)
    template = policy.template
    config = config_to_hf(policy.config, pad_id=template.pad_id, stop_id=template.stop_ids[0])
    config |= {"tie_word_embeddings": False, "dtype": SERVER_DTYPES[precision]}
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
    """Return the weights by Hugging Face name with an output layer in any case.

    A bf16 server rounds its logits, by up to 0.06 where they are near 20. What all logits of a position share changes no
    probability, so the row that the policy expects is taken off every row: likely tokens then have small logits.
    """
    weights = named_weights(model)
    head_VD = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    weights["lm_head.weight"] = head_VD.clone() if precision == "fp32" else head_VD - _expected_row(model).cpu()
    return {name: weight.to(DTYPES[precision]).contiguous() for name, weight in weights.items()}


@torch.no_grad()
def _expected_row(model: Llama) -> Tensor:
    """Return the mean row of the output layer (width), by the probabilities after tokens from all over the vocabulary."""
    size = model.config.vocab_size
    ids = torch.linspace(0, size - 1, min(_TOKENS, model.config.max_length), device=model.embed.weight.device).long()
    with torch.autocast(ids.device.type, enabled=False):
        probabilities_TV = model.head(model.hidden(ids[None])[0]).float().softmax(-1)
        return probabilities_TV.mean(0) @ model.head_weight.float()
