"""Compression of a policy: what is removed or rounded, decided on calibration rows, and what it cost.

B rows, T tokens, N trained tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, assert_never

import torch

from specs.compression import Compression, Prune, Quantize
from specs.errors import TrainingError
from tasks.learning.head import selected_logprobs
from tasks.learning.microbatches import micro_batches
from tasks.learning.rows import TrainingRow
from tasks.policy import pruning
from tasks.policy.llama import Llama
from tasks.policy.quantization import Grid, quantize, size_mb

Tell = Callable[[str, float], None]


@dataclass(slots=True)
class Compressed:
    """A smaller model and how it came about."""

    model: Llama
    parameters_before: int
    parameters: int
    loss_before: float
    """Mean negative log-likelihood of the calibration tokens."""
    loss: float
    packed_mb: float
    """What the weights would take packed: 16 bits each, or the bits of their grid."""
    details: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the model."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}


def compress(
    model: Llama, rows: Sequence[TrainingRow], spec: Compression, tell: Tell = lambda what, share: None
) -> Compressed:
    """Return a smaller model. TrainingError where nothing would be left of it."""
    before, count = mean_loss(model, rows), _count(model)
    match spec:
        case Prune():
            made, details = _prune(model, rows, spec, tell)
            packed = _count(made) * 2 / 1e6
        case Quantize():
            grid = Grid(spec.bits, spec.group, spec.scale == "least_error")
            errors = quantize(model, grid, embedding=spec.embedding)
            made, details = model, {"relative_error": errors, "bits": spec.bits}
            packed = size_mb(made, grid, embedding=spec.embedding)
        case _:
            assert_never(spec)
    return Compressed(made, count, _count(made), before, mean_loss(made, rows), packed, details)


def _count(model: Llama) -> int:
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def mean_loss(model: Llama, rows: Sequence[TrainingRow], max_tokens: int = 4096) -> float:
    """Return the mean negative log-likelihood of the tokens that train."""
    total = count = 0.0
    for micro in micro_batches(rows, max_tokens, share=False):
        device = model.embed.weight.device
        hidden = model.hidden(micro.ids_RL.to(device), at_N=micro.states_N.to(device))
        logprobs_N, _ = selected_logprobs(hidden, model.head_weight, micro.targets_N.to(device))
        total, count = total - float(logprobs_N.sum()), count + len(logprobs_N)
    return total / max(1.0, count)


def _prune(model: Llama, rows: Sequence[TrainingRow], spec: Prune, tell: Tell) -> tuple[Llama, dict[str, Any]]:
    """Remove layers, then neurons and heads of those that are left."""
    details: dict[str, Any] = {}
    if spec.layers:
        if spec.layers >= model.config.layers:
            raise TrainingError(
                f"prune: layers is {spec.layers}, but the policy has {model.config.layers}; at least one must stay"
            )
        tell("choosing layers", 0.0)
        model, details["layers_removed"] = _fewer_layers(model, rows, spec)
    if spec.neurons or spec.heads:
        tell("measuring neurons and heads", 0.5)
        found = pruning.measure(model, lambda: _pass(model, rows))
        config = model.config
        neurons = _most(config.intermediate_size, spec.neurons)
        heads = _most(config.kv_heads, spec.heads)
        model = pruning.narrowed(
            model, [_best(v, neurons) for v in found.neurons], [_best(v, heads) for v in found.heads]
        )
        details |= {"neurons_kept": neurons, "heads_kept": heads}
    return model, details


def _most(size: int, removed: float) -> int:
    return max(1, round(size * (1 - removed)))


def _best(values: Sequence[float], count: int) -> list[int]:
    """Return the places of the largest values, in order."""
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    return sorted(order[:count])


@torch.no_grad()
def _pass(model: Llama, rows: Sequence[TrainingRow]) -> None:
    """Pass rows through the model one at a time: padding would be measured too."""
    for row in rows:
        model.hidden(torch.tensor([row.ids[: row.length]], device=model.embed.weight.device))


def _fewer_layers(model: Llama, rows: Sequence[TrainingRow], spec: Prune) -> tuple[Llama, list[int]]:
    """Return the model without some layers, and which they were in the one that was given."""
    count = model.config.layers
    match spec.layers_by:
        case "last":
            removed = list(range(count))[-1 - spec.layers : -1]
        case "influence":
            influence = pruning.measure(model, lambda: _pass(model, rows)).influence
            removed = sorted(range(count), key=lambda i: (influence[i], i))[: spec.layers]
        case "loss":
            removed = []
            for _ in range(spec.layers):
                left = [i for i in range(count) if i not in removed]
                removed.append(min(left, key=lambda i: mean_loss(pruning.without_layers(model, [*removed, i]), rows)))
    return pruning.without_layers(model, removed), sorted(removed)
