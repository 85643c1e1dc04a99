"""Reward models as folders, and a frozen one that scores tokens.

A folder holds `policy/` (body, tokenizer, template), the head, and `reward.json` with the head's digest, the scale of the
numbers and what was measured. D width.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from specs.errors import StateError
from tasks.files import sha256_file, write_durable, write_json
from tasks.policy.llama import Llama
from tasks.policy.store import LoadedPolicy, load_policy, read_json, save_policy

_HEAD, _ABOUT = "head.safetensors", "reward.json"


@dataclass(frozen=True, slots=True)
class Scale:
    """Mean and standard deviation of the numbers on what was trained on: 0.5 is as good as what it saw on average."""

    centre: float = 0.0
    spread: float = 1.0

    def score(self, number: float) -> float:
        """Return a number as a score in [0, 1]."""
        return 1 / (1 + math.exp(-max(-50.0, min(50.0, (number - self.centre) / self.spread))))


@dataclass(slots=True)
class RewardScorer:
    """A frozen reward model."""

    body: Llama
    head_D: Tensor
    bias: float
    learns: Literal["pairs", "turns"]
    scale: Scale
    template_digest: str
    """Digest of the template and tokenizer whose ids it reads."""
    digest: str
    """Names its exact files."""
    held_out: dict[str, Any]
    """How often it was right on problems that it never saw."""
    least_accuracy: float
    """What its stage asked of it there."""

    @property
    def max_length(self) -> int:
        """Return how many tokens it can read."""
        return self.body.config.max_length

    @torch.inference_mode()
    def numbers(self, ids: list[int], ends: list[int]) -> list[float]:
        """Return the number after each of these counts of tokens."""
        assert ids, "there is nothing to score"
        states_TD = self.body.hidden(torch.tensor([ids], device=self.head_D.device))[0].float()
        found = states_TD[[end - 1 for end in ends]] @ self.head_D + self.bias
        return found.tolist()


def save_reward_model(
    policy: LoadedPolicy, head_D: Tensor, bias: float, about: dict[str, Any], scale: Scale, folder: Path
) -> None:
    """Write a folder: the body is `policy.model`, `about` says what it learns and how right it was on what was held out."""
    folder.mkdir(parents=True, exist_ok=True)
    body = save_policy(policy, folder / "policy")
    tensors = {"head": head_D.detach().to("cpu", torch.float32).clone(), "bias": torch.tensor([bias])}
    write_durable(folder / _HEAD, save(tensors, {"format": "pt"}))
    more = {"centre": scale.centre, "spread": scale.spread, "body": body, "head": sha256_file(folder / _HEAD)}
    write_json(folder / _ABOUT, about | more)


def load_reward_model(folder: Path, device: str = "cpu") -> RewardScorer:
    """Load a folder; StateError where a file is missing or damaged."""
    about = read_json(folder / _ABOUT)
    policy = load_policy(folder / "policy", device=device)
    path = folder / _HEAD
    if policy.digest != about.get("body") or not path.is_file() or sha256_file(path) != about.get("head"):
        raise StateError(f"{folder}: damaged: body or head are not those that {_ABOUT} names; run the node again")
    try:
        tensors = load_file(path, device=device)
    except (SafetensorError, OSError) as e:
        raise StateError(f"{path}: damaged or no safetensors ({e}); run the node again") from e
    return RewardScorer(
        body=policy.model,
        head_D=tensors["head"],
        bias=float(tensors["bias"]),
        learns=about["learns"],
        scale=Scale(about["centre"], about["spread"]),
        template_digest=policy.template.digest,
        digest=f"{policy.digest[:12]}-{about['head'][:12]}",
        held_out=about["held_out"],
        least_accuracy=about["least_accuracy"],
    )
