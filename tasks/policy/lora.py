"""Low-rank adapters: a model that shares its weights with a frozen one and learns a small change of its matrices.

The frozen model is the adapted one with the adapter off, so a reference costs no memory. I inputs, O outputs, R rank.
"""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from specs.policy import LoRA
from tasks.policy.llama import Block, Llama


class LoRALinear(nn.Module):
    """x W^T + scale (x A^T) B^T with W frozen. It has no `weight`, so that nobody takes W for the whole."""

    def __init__(self, base: nn.Linear, spec: LoRA, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.scale = spec.alpha / spec.rank
        like = base.weight
        drawn = torch.randn(spec.rank, base.in_features, generator=generator) / math.sqrt(base.in_features)
        self.a_RI = nn.Parameter(drawn.to(like.device))
        self.b_OR = nn.Parameter(torch.zeros(base.out_features, spec.rank, device=like.device))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        return self.base(x) + functional.linear(functional.linear(x, self.a_RI), self.b_OR) * self.scale

    def change(self) -> Tensor:
        """Return what is added to W."""
        return (self.b_OR @ self.a_RI) * self.scale


def adapted(model: Llama, spec: LoRA, seed: int) -> Llama:
    """Return a model with adapters over the very weights of `model`, which are frozen. It begins as the same function."""
    shared: dict[int, object] = {}
    for weight in model.parameters():
        weight.requires_grad_(False)
        shared[id(weight)] = weight
    shared |= {id(buffer): buffer for buffer in model.buffers()}
    result = copy.deepcopy(model, shared)
    generator = torch.Generator().manual_seed(seed)
    for block in result.blocks:
        for name in dict.fromkeys(spec.targets):
            setattr(block, name, LoRALinear(getattr(block, name), spec, generator))
    return result


def adapters(model: nn.Module) -> dict[str, LoRALinear]:
    """Return the adapted layers by name; none in a model without adapters."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LoRALinear)}


class Merged:
    """A plain model with the adapters added to its matrices; what no adapter touches is shared with the adapted one."""

    def __init__(self, model: Llama) -> None:
        self._source = model
        self._layers = adapters(model)
        shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
        for layer in self._layers.values():
            shared.pop(id(layer.base.weight))
        self.model = copy.deepcopy(model, dict(shared))
        """The plain model, as of the last `refresh`."""
        for block in self.model.blocks:
            assert isinstance(block, Block)
            for name, layer in list(block.named_children()):
                if isinstance(layer, LoRALinear):
                    setattr(block, name, layer.base)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> Llama:
        """Add the adapters as they are now, and return the plain model."""
        for name, layer in self._layers.items():
            self.model.get_submodule(name).get_parameter("weight").copy_(layer.base.weight + layer.change())
        return self.model


def merged(model: Llama) -> Llama:
    """Return a plain model that gives what the adapted one gives; a plain one is returned as it is."""
    return Merged(model).model if adapters(model) else model


@torch.no_grad()
def difference(one: Llama, other: Llama, ids: list[int]) -> float:
    """Return the largest difference of two models' logits on a sequence, in fp32."""
    seen = torch.tensor([ids], device=one.embed.weight.device)
    first, second = (m.head(m.hidden(seen)).float().log_softmax(-1) for m in (one, other))
    return float((first - second).abs().max())
