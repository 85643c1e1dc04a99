"""A critic that is a further head of the policy: one body, one forward pass, one update for both.

L = L(policy) + coef x mean over judged tokens of the value loss. In its warm-up the head learns alone, on constant states.
B trajectories, T tokens, N trained tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specs.optimizer import Optimizer
from specs.value_based import Critic
from tasks.learning.batching import row_weights, spread
from tasks.learning.critic import Estimate, explained
from tasks.learning.gae import value_losses
from tasks.learning.learner import Learner, StepReport
from tasks.learning.microbatches import MicroBatch
from tasks.learning.rows import TrainingRow
from tasks.learning.values import ValueModel
from tasks.policy.llama import Llama
from tasks.policy.lora import Merged, adapters
from tasks.tensors import Batch, Loss, LossOutput


@dataclass(frozen=True, slots=True)
class _Targets:
    """What the values of a step's rows are to learn; (rows, longest row) each."""

    weights_BT: Tensor
    returns_BT: Tensor
    old_BT: Tensor
    spec: Critic
    alone: bool
    """The head learns, and nothing else."""


class ActorCritic(Learner):
    """The learner of a policy with a value head. `policy` may have adapters; its weights are trained in place."""

    def __init__(self, policy: Llama, optimizer: Optimizer, total_steps: int, **settings: Any) -> None:
        self._policy = policy
        self._own = ValueModel(policy, share=True)
        self._kept: tuple[MicroBatch, Tensor] | None = None
        self._targets: _Targets | None = None
        self._sum: Merged | None = None
        super().__init__(self._own, optimizer, total_steps, **settings)

    def plain(self) -> Llama:
        """Return the policy without head and adapters, for samplers and files."""
        if not adapters(self._policy):
            return self._policy
        if self._sum is None:
            self._sum = Merged(self._policy)
        return self._sum.refresh()

    @torch.no_grad()
    def values(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """Return by row the value before each trained token, 0.0 elsewhere."""
        return self._by_token(rows, lambda micro: self._own.numbers(self._states(self._own, micro)))

    def expect(self, found: Estimate, old: Sequence[list[float]], spec: Critic, *, alone: bool) -> dict[str, float]:
        """Let the values of the next steps, on these very rows, learn returns; return what the old ones explain."""
        weights_BT = row_weights(found.rows, "token")
        columns = weights_BT.shape[1] if weights_BT.dim() == 2 else 0
        returns_BT, old_BT = (
            torch.tensor([[*own, *[0.0] * (columns - len(own))] for own in given]) for given in (found.returns, old)
        )
        self._targets = _Targets(weights_BT, returns_BT, old_BT, spec, alone)
        return {"value_explained": explained(found.rows, found.returns, old)}

    def step(self, rows: Sequence[TrainingRow], loss: Loss, *args: Any, **more: Any) -> StepReport:
        """Take one step of the policy and of the values that `expect` has told."""
        return super().step(rows, self._both(loss) if rows and self._targets else loss, *args, **more)

    def _states(self, model: Llama, micro: MicroBatch) -> Tensor:
        """Return the hidden states before the trained tokens, and keep those of the model that learns."""
        states_ND = super()._states(model, micro)
        self._kept = (micro, states_ND) if model is self._own and torch.is_grad_enabled() else None
        return states_ND

    def _both(self, loss: Loss) -> Loss:
        """Return the policy's loss plus that of its values, which has a denominator of its own."""

        def both(batch: Batch) -> LossOutput:
            assert self._targets is not None, "values need something to learn"
            assert self._kept is not None, "values are read from the states of this forward pass"
            told, (micro, states_ND) = self._targets, self._kept
            first = loss(batch)
            values_BT = spread(self._own.numbers(states_ND.detach() if told.alone else states_ND), micro)
            weights_BT, returns_BT, old_BT = (
                x[micro.rows, : micro.shape[1]].to(values_BT.device)
                for x in (told.weights_BT, told.returns_BT, told.old_BT)
            )
            value = (weights_BT * value_losses(values_BT, old_BT, returns_BT, told.spec.clip)).sum()
            policy = first.loss.detach() * 0 if told.alone else first.loss
            figures = first.own | {"value_loss": value.detach()}
            return LossOutput(policy + told.spec.coef * value, first.metrics, figures)

        return both
