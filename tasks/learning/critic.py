"""The critic: a value model that learns beside the policy, and the advantages it gives.

It is a learner like the policy's, with the same micro-batches, guards and checkpoints; where the policy's has logprobs of
the trained tokens, this one has the values of the states before them. B trajectories, T tokens, N trained tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from specs.value_based import Critic, ValueBased
from tasks.learning.correction import places
from tasks.learning.gae import adaptive_lambda, gae, value_losses, whitened
from tasks.learning.rows import TrainingRow
from tasks.learning.values import ValueLearner, ValueModel
from tasks.policy.llama import Llama
from tasks.tensors import Batch, LossOutput


class CriticLearner(ValueLearner):
    """The learner of a value model: of the one given, or of a new one on a copy of the policy."""

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
            policy if isinstance(policy, ValueModel) else ValueModel(policy),
            spec.optimizer,
            steps * spec.updates_per_batch,
            precision=precision,
            micro_batch_tokens=micro_batch_tokens,
            device=device,
        )

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
        return {"value_loss": first.loss, "value_explained": explained(rows, returns, old)}

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
    """Return advantages and returns by row, 0 where nothing is judged.

    The contexts of a trajectory stand one behind another, and its reward where it is last judged. With `turn_rewards` what a
    turn earned by itself stands where that turn is last judged, and there the rest, that of turns without a token included.
    """
    if not rows:
        return [], []
    at, (lines, columns) = places(rows)
    mask_BT = torch.zeros(lines, columns, dtype=torch.bool)
    values_BT, rewards_BT = (torch.zeros(lines, columns, dtype=torch.float64) for _ in range(2))
    reward_B = torch.zeros(lines, dtype=torch.float64)
    for row, own, mask, (b, start) in zip(rows, values, judged, at, strict=True):
        mask_BT[b, start : start + len(mask)] = torch.tensor(mask)
        values_BT[b, start : start + len(own)] = torch.tensor(own, dtype=torch.float64)
        reward_B[b] = row.advantage
        if spec.turn_rewards and row.rewards is not None:
            for t in _last_of_turns(mask, row.mask):
                rewards_BT[b, start + t] = row.rewards[t]
    last_B = (mask_BT * torch.arange(columns)).argmax(-1)
    rewards_BT[torch.arange(lines), last_B] += reward_B - rewards_BT.sum(-1)
    lambda_B = torch.full((lines,), spec.gae_lambda, dtype=torch.float64)
    if spec.length_adaptive is not None:
        lambda_B = adaptive_lambda(mask_BT, spec.length_adaptive)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, spec.discount, lambda_B)
    if spec.value_lambda is not None:
        other_B = torch.full_like(lambda_B, spec.value_lambda)
        returns_BT = gae(rewards_BT, values_BT, mask_BT, spec.discount, other_B)[1]
    if spec.whiten:
        advantages_BT = whitened(advantages_BT, mask_BT)
    by_line = [x.tolist() for x in (advantages_BT, returns_BT)]
    advantages, returns = (
        [x[b][start : start + len(row.ids)] for row, (b, start) in zip(rows, at, strict=True)] for x in by_line
    )
    return advantages, returns


def _first_of_turns(mask: list[bool]) -> list[bool]:
    return [inside and not (t and mask[t - 1]) for t, inside in enumerate(mask)]


def _last_of_turns(judged: list[bool], trained: list[bool]) -> list[int]:
    """Return where each turn (a run of trained tokens) is last judged."""
    found: list[int] = []
    for t, inside in enumerate(judged):
        if inside:
            same = bool(found) and all(trained[found[-1] : t + 1])
            found = [*found[:-1], t] if same else [*found, t]
    return found


def _held(values: list[float], first: list[bool], mask: list[bool]) -> list[float]:
    """Return at each trained token the value that its turn began with."""
    held, current = [0.0] * len(mask), 0.0
    for t, inside in enumerate(mask):
        current = values[t] if first[t] else current
        held[t] = current if inside else 0.0
    return held


def explained(rows: Sequence[TrainingRow], returns: Sequence[list[float]], values: Sequence[list[float]]) -> float:
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
