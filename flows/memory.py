"""Whether a node fits into memory, and the cheapest change with which it would. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flows.estimates import Estimate, Sizes
from flows.nodes import NODE_KINDS, Json, Node
from specs.errors import ProgramError

_SHARE = 0.9
"""Share of the machine's memory that a node may plan to use where the program names no limit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Memory that one node may use on the device; `source` says who set it."""

    gb: float
    device: str
    source: str


def limit(run: Mapping[str, Any], machine: Mapping[str, float]) -> Limit | None:
    """Return the limit of `specs.run.Run` as JSON on a machine; None where nothing is known."""
    cuda = run["device"] == "cuda" or (run["device"] == "auto" and "gpu_memory_gb" in machine)
    device = "cuda" if cuda else "cpu"
    if run["max_memory_gb"] is not None:
        return Limit(run["max_memory_gb"], device, "run.max_memory_gb")
    found = machine.get("gpu_memory_gb" if cuda else "memory_gb")
    return None if found is None else Limit(_SHARE * found, device, f"{_SHARE:.0%} of the machine's {found:.1f} GB")


def must_fit(node: Node, sizes: Sizes, allowed: Limit | None) -> None:
    """Raise ProgramError where a node needs more memory than it may use."""
    if allowed is None or node.estimate.memory_gb <= allowed.gb:
        return
    parts = ", ".join(f"{name} {gb:.2f}" for name, gb in node.estimate.memory_parts.items())
    raise ProgramError(
        f"{node.id}: needs {node.estimate.memory_gb:.2f} GB on {allowed.device} ({parts}), but may use "
        f"{allowed.gb:.2f} GB ({allowed.source}); {_remedy(node, sizes, allowed)}"
    )


def _remedy(node: Node, sizes: Sizes, allowed: Limit) -> str:
    estimate = NODE_KINDS[node.kind].estimate
    for words, params, changed in _changes(node.params, sizes):
        found: Estimate = estimate(params, changed)
        if found.memory_gb <= allowed.gb:
            return f"with {words} it needs {found.memory_gb:.2f} GB"
    return "no setting makes it fit: use a smaller policy or a machine with more memory"


def _changes(params: Json, sizes: Sizes) -> Iterator[tuple[str, Json, Sizes]]:
    """Yield changes, cheapest first: what costs only speed, then what changes the training."""
    cost_speed = list(_slower(sizes))
    for words, changed in cost_speed:
        yield words, params, changed
    algorithm = params.get("algorithm")
    if algorithm is None or "optimizer" not in algorithm:
        return
    least_words, least = cost_speed[-1] if cost_speed else ("", sizes)
    if algorithm.get("kl_coef", 0.0) > 0:
        algorithm = {**algorithm, "kl_coef": 0.0}
        yield "algorithm.kl_coef: 0 (no reference)", {**params, "algorithm": algorithm}, sizes
        yield f"algorithm.kl_coef: 0 and {least_words}", {**params, "algorithm": algorithm}, least
    if algorithm["optimizer"]["kind"] == "adamw":
        algorithm = {**algorithm, "optimizer": {**algorithm["optimizer"], "kind": "muon"}}
        yield f"optimizer.kind: muon and {least_words}", {**params, "algorithm": algorithm}, least


def _slower(sizes: Sizes) -> Iterator[tuple[str, Sizes]]:
    yield from _smaller(sizes)
    if not sizes.checkpointing:
        words, again = "run.gradient_checkpointing: true", replace(sizes, checkpointing=True)
        yield words, again
        for more, changed in _smaller(again):
            yield f"{words} and {more}", changed


def _smaller(sizes: Sizes) -> Iterator[tuple[str, Sizes]]:
    tokens = [t for t in (4096, 2048, 1024) if t < sizes.micro_batch_tokens]
    batches = [b for b in (128, 64, 32, 16) if b < sizes.rollout_batch]
    for t in tokens:
        yield f"run.micro_batch_tokens: {t}", replace(sizes, micro_batch_tokens=t)
    for b in batches:
        yield f"run.rollout_batch: {b}", replace(sizes, rollout_batch=b)
    for t in tokens:
        for b in batches:
            words = f"run.micro_batch_tokens: {t} and run.rollout_batch: {b}"
            yield words, replace(sizes, micro_batch_tokens=t, rollout_batch=b)
