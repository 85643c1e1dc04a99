"""Models with one number per position, and their learner: critics and reward models.

Where the policy's learner has logprobs of the trained tokens, this one has the numbers of the states before them.
B rows, T tokens, N trained tokens, D width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specs.policy import LoRA
from tasks.learning.learner import Chance, Learner
from tasks.learning.microbatches import MicroBatch
from tasks.learning.rows import TrainingRow
from tasks.policy.llama import Llama
from tasks.policy.lora import adapted
from tasks.tensors import Batch, LossOutput


class ValueModel(Llama):
    """A policy's body with one number per position; it begins at 0 everywhere. `share`: with the policy's own weights."""

    def __init__(self, policy: Llama, *, share: bool = False) -> None:
        with torch.device("meta" if share else "cpu"):
            super().__init__(policy.config)
        if share:
            for name, module in policy.named_children():
                setattr(self, name, module)
        else:
            self.load_state_dict(policy.state_dict())
        self.checkpointing = policy.checkpointing
        self.value = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def numbers(self, states_ND: Tensor) -> Tensor:
        """Return the numbers (N) of hidden states, in fp32 whatever the arithmetic around it."""
        with torch.autocast(states_ND.device.type, enabled=False):
            return self.value(states_ND.float())[:, 0]


def value_model(policy: Llama, adapter: LoRA | None = None, seed: int = 0) -> ValueModel:
    """Return the model of a critic; with an adapter it holds but that and the head, over the policy's frozen weights."""
    if adapter is None:
        return ValueModel(policy)
    model = adapted(ValueModel(policy, share=True), adapter, seed)
    assert isinstance(model, ValueModel), "an adapted model is of the class of the plain one"
    model.value.requires_grad_()
    return model


class ValueLearner(Learner):
    """The learner of such a model."""

    def _forward(self, model: Llama, rows: Sequence[TrainingRow], micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return the value before each trained token, in the place of its logprob, and zeros for entropies."""
        assert isinstance(model, ValueModel), "a critic asks its own model"
        values_N = model.numbers(self._states(model, micro))
        return values_N, torch.zeros_like(values_N)

    @property
    def chance(self) -> Chance:
        """Return what a comparison costs one who has learnt nothing."""
        return Chance(math.log(2), "a judgement", "the toss of a coin")

    def _cost(self, batch: Batch, output: LossOutput) -> dict[str, Tensor]:
        """Return the loss itself: numbers are no logprobs."""
        return {"_cost": output.loss.detach(), "_cost_weight": batch.weights_BT.sum()}

    def values(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """Return by row the value before each trained token, 0.0 elsewhere."""
        return self.logprobs(rows)

    @property
    def own(self) -> ValueModel:
        """Return the model that learns."""
        assert isinstance(self.model, ValueModel), "a learner of values has such a model"
        return self.model

    def parts(self) -> tuple[Llama, Tensor, float]:
        """Return what makes up the model: a body without adapters, the head's weight (D) and its bias."""
        return self.plain(), self.own.value.weight.detach()[0], float(self.own.value.bias.detach())

    @torch.no_grad()
    def exact_numbers(self, ids: list[int], ends: list[int]) -> list[float]:
        """Return the number after each of these counts of tokens, in fp32 and with the adapters apart."""
        states_TD = self.own.hidden(torch.tensor([ids], device=self.own.value.weight.device))[0].float()
        return self.own.value(states_TD[[end - 1 for end in ends]])[:, 0].tolist()
