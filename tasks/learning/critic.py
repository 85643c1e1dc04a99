"""The critic: a value model that learns beside the policy, and the advantages it gives.

It is a learner like the policy's, with the same micro-batches, guards and checkpoints; where the policy's has logprobs of
the trained tokens, this one has the values of the states before them. B trajectories, T tokens, N trained tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from specs.policy_gradient import Critic, ValueBased
from tasks.learning.gae import adaptive_lambda, gae, value_losses, whitened
from tasks.learning.learner import Learner
from tasks.learning.microbatches import MicroBatch
from tasks.learning.rows import TrainingRow
from tasks.policy.llama import Llama
from tasks.tensors import Batch, LossOutput


class ValueModel(Llama):
    """A policy's body with one number per position; it begins at 0 everywhere."""

    def __init__(self, policy: Llama) -> None:
        super().__init__(policy.config)
        self.load_state_dict(policy.state_dict())
        self.value = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)


class CriticLearner(Learner):
    """The learner of a value model."""

    def __init__(
        self,
        policy: Llama,
        spec: Critic,
        steps: int,
        *,
        precision: Literal["fp32", "bf16"] = "fp32",
        micro_batch_tokens: int = 8192,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            ValueModel(policy),
            spec.optimizer,
            steps * spec.updates_per_batch,
            precision=precision,
            micro_batch_tokens=micro_batch_tokens,
            device=device,
        )

    def _forward(self, model: Llama, rows: Sequence[TrainingRow], micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return the value before each trained token, in the place of its logprob, and zeros for entropies."""
        assert isinstance(model, ValueModel), "a critic asks its own model"
        states_ND = self._states(model, micro)
        with torch.autocast(states_ND.device.type, enabled=False):
            values_N = nn.functional.linear(states_ND.float(), model.value.weight.float(), model.value.bias.float())[
                :, 0
            ]
        return values_N, torch.zeros_like(values_N)

    def values(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """Return by row the value before each trained token, 0.0 elsewhere."""
        return self.logprobs(rows)

    def fit(
        self, rows: Sequence[TrainingRow], returns: Sequence[list[float]], old: Sequence[list[float]], spec: Critic
    ) -> dict[str, float]:
        """Learn the returns in `updates_per_batch` passes; return the figures of the first. `old`: the values so far."""
        own = [
            replace(row, advantages=target, old_logprobs=value, sampler_logprobs=None, reference_logprobs=None)
            for row, target, value in zip(rows, returns, old, strict=True)
        ]
        loss = partial(value_loss, clip=spec.clip)
        first, *_ = [self.step(own, loss) for _ in range(spec.updates_per_batch)]
        return {"value_loss": first.loss, "value_explained": _explained(rows, returns, old)}

    def skip(self, spec: Critic) -> None:
        """Let the schedule pass over a batch without a row."""
        for _ in range(spec.updates_per_batch):
            self.step([], partial(value_loss, clip=spec.clip))


def value_loss(batch: Batch, clip: float | None) -> LossOutput:
    """Return the weighted value loss; a critic's batch has values for logprobs and returns for advantages."""
    assert batch.advantages_BT is not None, "a critic needs returns"
    assert batch.old_logprobs_BT is not None, "a critic needs its values before the update"
    mask_BT = batch.weights_BT > 0
    zero = torch.zeros_like(batch.logprobs_BT)
    values_BT, old_BT, returns_BT = (
        torch.where(mask_BT, x, zero) for x in (batch.logprobs_BT, batch.old_logprobs_BT, batch.advantages_BT)
    )
    losses_BT = value_losses(values_BT, old_BT, returns_BT, clip)
    return LossOutput(loss=(batch.weights_BT * losses_BT).sum(), metrics={})


@dataclass(slots=True)
class Estimate:
    """What the critic is to learn: rows that train where a value is judged, and the returns there."""

    rows: list[TrainingRow]
    returns: list[list[float]]


def estimate(
    rows: Sequence[TrainingRow], values: Sequence[list[float]], spec: ValueBased, *, by_turn: bool = False
) -> Estimate:
    """Set the rows' advantages by token from their trajectories' rewards and these values.

    `by_turn`: one value and one advantage for each turn; the value is that before its first token.
    """
    judged = [_first_of_turns(row.mask) if by_turn else row.mask for row in rows]
    advantages, returns = _estimated(rows, values, judged, spec)
    for row, mask, own in zip(rows, judged, advantages, strict=True):
        row.advantages = _held(own, mask, row.mask) if by_turn else own
    return Estimate([replace(row, mask=mask) for row, mask in zip(rows, judged, strict=True)], returns)


def _estimated(
    rows: Sequence[TrainingRow], values: Sequence[list[float]], judged: Sequence[list[bool]], spec: ValueBased
) -> tuple[list[list[float]], list[list[float]]]:
    """Return advantages and returns by row, 0 where nothing is judged."""
    if not rows:
        return [], []
    columns = max(len(r.ids) for r in rows)
    mask_BT = torch.zeros(len(rows), columns, dtype=torch.bool)
    values_BT, rewards_BT = (torch.zeros(len(rows), columns, dtype=torch.float64) for _ in range(2))
    for b, (row, own, mask) in enumerate(zip(rows, values, judged, strict=True)):
        mask_BT[b, : len(mask)] = torch.tensor(mask)
        values_BT[b, : len(own)] = torch.tensor(own, dtype=torch.float64)
        last = max(t for t, inside in enumerate(mask) if inside)
        rewards_BT[b, last] = row.advantage  # the trajectory's reward, where it is last judged
    lambda_B = torch.full((len(rows),), spec.gae_lambda, dtype=torch.float64)
    if spec.length_adaptive is not None:
        lambda_B = adaptive_lambda(mask_BT, spec.length_adaptive)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, spec.discount, lambda_B)
    if spec.value_lambda is not None:
        other_B = torch.full_like(lambda_B, spec.value_lambda)
        returns_BT = gae(rewards_BT, values_BT, mask_BT, spec.discount, other_B)[1]
    if spec.whiten:
        advantages_BT = whitened(advantages_BT, mask_BT)
    lengths = [len(row.ids) for row in rows]
    by_row = ([own[:n] for n, own in zip(lengths, x.tolist(), strict=True)] for x in (advantages_BT, returns_BT))
    advantages, returns = by_row
    return advantages, returns


def _first_of_turns(mask: list[bool]) -> list[bool]:
    return [inside and not (t and mask[t - 1]) for t, inside in enumerate(mask)]


def _held(values: list[float], first: list[bool], mask: list[bool]) -> list[float]:
    """Return at each trained token the value that its turn began with."""
    held, current = [0.0] * len(mask), 0.0
    for t, inside in enumerate(mask):
        current = values[t] if first[t] else current
        held[t] = current if inside else 0.0
    return held


def _explained(rows: Sequence[TrainingRow], returns: Sequence[list[float]], values: Sequence[list[float]]) -> float:
    """Return the share of the returns' variance that the values explain; 0 where there is none to explain."""
    given = [
        (g, v)
        for r, gs, vs in zip(rows, returns, values, strict=True)
        for m, g, v in zip(r.mask, gs, vs, strict=True)
        if m
    ]
    if len(given) < 2:
        return 0.0
    target, guess = torch.tensor(given, dtype=torch.float64).unbind(-1)
    spread = float(target.var())
    return 1 - float((target - guess).var()) / spread if spread > 1e-12 else 0.0
