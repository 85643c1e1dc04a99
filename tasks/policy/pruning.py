"""Smaller copies of a Llama: without some layers, inner neurons or heads, and how much each of them matters.

B rows, T tokens, D width, I inner neurons, K key-value heads, N tokens that count.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.policy.llama import Block, Llama


@dataclass(frozen=True, slots=True)
class Importance:
    """By layer: how much it turns what it reads, and how much its neurons and heads write."""

    influence: list[float]
    neurons: list[list[float]]
    heads: list[list[float]]


Run = Callable[[], None]
"""Passes the calibration rows through the model."""


def blocks_of(model: Llama) -> list[Block]:
    """Return the decoder's layers."""
    return [b for b in model.blocks if isinstance(b, Block)]


@torch.no_grad()
def measure(model: Llama, run: Run) -> Importance:
    """Return what matters while `run` passes rows through the model. Padding counts too: give rows of like length."""
    sums = [_Sums() for _ in model.blocks]
    with _watched(model, sums):
        run()
    heads, neurons = [], []
    for block, seen in zip(blocks_of(model), sums, strict=True):
        group = block.heads // block.kv_heads * block.head_dim
        written_O = seen.attended / seen.count * block.o.weight.norm(dim=0)
        heads.append(written_O.view(block.kv_heads, group).sum(-1).tolist())
        neurons.append((seen.inner / seen.count * block.down.weight.norm(dim=0)).tolist())
    return Importance([float(s.turned / s.count) for s in sums], neurons, heads)


class _Sums:
    """What one layer did, summed over tokens."""

    def __init__(self) -> None:
        self.count = 0
        self.turned = self.inner = self.attended = torch.zeros(())


@contextmanager
def _watched(model: Llama, sums: Sequence[_Sums]) -> Iterator[None]:
    handles: list[Any] = []
    for block, seen in zip(blocks_of(model), sums, strict=True):

        def layer(module: nn.Module, given: tuple[Any, ...], out: Tensor, seen: _Sums = seen) -> None:
            turned = 1 - functional.cosine_similarity(given[0].float(), out.float(), dim=-1)
            seen.turned = seen.turned + turned.sum()
            seen.count += turned.numel()

        def inner(module: nn.Module, given: tuple[Any, ...], seen: _Sums = seen) -> None:
            seen.inner = seen.inner + given[0].float().abs().flatten(0, 1).sum(0)

        def attended(module: nn.Module, given: tuple[Any, ...], seen: _Sums = seen) -> None:
            seen.attended = seen.attended + given[0].float().abs().flatten(0, 1).sum(0)

        handles += [
            block.register_forward_hook(layer),
            block.down.register_forward_pre_hook(inner),
            block.o.register_forward_pre_hook(attended),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def without_layers(model: Llama, removed: Sequence[int]) -> Llama:
    """Return a copy without these layers."""
    kept = [i for i in range(model.config.layers) if i not in set(removed)]
    assert kept, "a model needs a layer"
    return _copied(model, replace(model.config, layers=len(kept)), kept, {})


@torch.no_grad()
def narrowed(model: Llama, neurons: Sequence[Sequence[int]], heads: Sequence[Sequence[int]]) -> Llama:
    """Return a copy that keeps, by layer, these inner neurons and key-value heads (with the queries that read them)."""
    c = model.config
    config = replace(
        c,
        intermediate_size=len(neurons[0]),
        kv_heads=len(heads[0]),
        heads=len(heads[0]) * (c.heads // c.kv_heads),
    )
    cuts = {i: _cut(block, neurons[i], heads[i]) for i, block in enumerate(blocks_of(model))}
    return _copied(model, config, list(range(c.layers)), cuts)


def _cut(block: Block, neurons: Sequence[int], heads: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights of a layer with what is kept."""
    group, width = block.heads // block.kv_heads, block.head_dim
    inner = block.down.weight.shape[1]
    kept_I = torch.tensor(list(neurons))
    queries = torch.cat([torch.arange(h * group * width, (h + 1) * group * width) for h in heads])
    keys = torch.cat([torch.arange(h * width, (h + 1) * width) for h in heads])
    start_k = block.heads * width
    start_v = start_k + block.kv_heads * width
    return {
        "qkv.weight": block.qkv.weight[torch.cat([queries, start_k + keys, start_v + keys])],
        "o.weight": block.o.weight[:, queries],
        "gate_up.weight": block.gate_up.weight[torch.cat([kept_I, inner + kept_I])],
        "down.weight": block.down.weight[:, kept_I],
    }


def _copied(model: Llama, config: Any, layers: Sequence[int], cuts: dict[int, dict[str, Tensor]]) -> Llama:
    """Return a model of this shape with the old one's weights, those in `cuts` replaced."""
    made = Llama(config)
    state = model.state_dict()
    new = {n: v for n, v in state.items() if not n.startswith("blocks.")}
    for at, i in enumerate(layers):
        own = {n.split(".", 2)[2]: v for n, v in state.items() if n.startswith(f"blocks.{i}.")} | cuts.get(i, {})
        new |= {f"blocks.{at}.{name}": value for name, value in own.items()}
    made.load_state_dict({n: v.detach().clone() for n, v in new.items()})
    return made.to(device=model.embed.weight.device, dtype=model.embed.weight.dtype)
