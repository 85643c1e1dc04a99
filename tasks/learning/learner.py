"""The learner: rows and a loss to one optimiser step, exact however the rows are split over forward passes.

B rows of a micro-batch, T their padded length, N trained tokens.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor

from specs.errors import StateError, TrainingError
from specs.optimizer import Optimizer
from tasks.learning.batching import Mean, batch_of, by_row, cost, drift, finish, padded, row_weights, spread
from tasks.learning.head import selected_logprobs
from tasks.learning.microbatches import MicroBatch, micro_batches
from tasks.learning.optimizers import learning_rate_at, optimizers_for
from tasks.learning.rows import TrainingRow
from tasks.learning.teaching import Distiller
from tasks.policy.llama import Llama
from tasks.policy.lora import Merged, adapters
from tasks.tensors import Batch, Loss, LossOutput


@dataclass(frozen=True, slots=True)
class Chance:
    """What one who has learnt nothing would lose."""

    nats: float
    what: str
    """Of what it is the loss, in words."""
    by: str
    """Who that is."""


@dataclass(slots=True)
class StepReport:
    """What one step did. `metrics` are token means over the step."""

    updated: bool
    loss: float = 0.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    tokens: int = 0
    """Tokens of the forward passes."""
    trained_tokens: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    cost: float | None = None
    """Nats that a trained token costs, by its weight; of preferences one that is wanted. None where nothing weighs."""
    rejected_cost: float | None = None
    """Nats that a token costs which is not wanted; None where there is none."""
    logprobs: list[list[float]] = field(default_factory=list)
    """By row, before the update; 0.0 where nothing trains. Only where asked for."""


Guard = Callable[[StepReport], None]


@dataclass(frozen=True, slots=True)
class Component:
    """Further rows of a step: a loss and a mean of their own; their gradients join those of the step's main rows."""

    rows: Sequence[TrainingRow]
    loss: Loss
    mean: Mean = "token"
    name: str = "also"
    """First part of the names of its metrics."""
    distiller: Distiller | None = None
    """Compares its rows with teachers over the vocabulary, where the loss reads that."""


class Learner:
    """Owns the optimisers of a model. Deterministic: the same rows in the same order give the same weights."""

    def __init__(
        self,
        model: Llama,
        optimizer: Optimizer,
        total_steps: int,
        *,
        precision: Literal["fp32", "bf16"] = "fp32",
        micro_batch_tokens: int = 8192,
        device: str = "cpu",
        rounded_logits: bool = False,
    ) -> None:
        """`rounded_logits`: the loss takes no ratio of two policies, so that bf16 may round its logits too."""
        self.model = model.to(device)
        self.total_steps = total_steps
        self.step_index = 0
        """Steps asked for so far, those without an update included; the schedule follows it."""
        self.updates = 0
        self.distiller: Distiller | None = None
        """Compares the rows with teachers over the whole vocabulary, where a stage does."""
        self.optimizer = optimizer
        self._device = torch.device(device)
        self._bf16 = precision == "bf16"
        self._rounded_logits = rounded_logits
        self._tokens = micro_batch_tokens
        self._entropy_gradient = False
        self._merged: Merged | None = None
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._parameters = [p for _, p in named]
        self._optimizers = optimizers_for(optimizer, named)

    def step(
        self,
        rows: Sequence[TrainingRow],
        loss: Loss,
        aggregation: Mean = "token",
        *,
        guard: Guard | None = None,
        keep_logprobs: bool = False,
        entropy_gradient: bool = False,
        also: Sequence[Component] = (),
    ) -> StepReport:
        """Take one optimiser step on all rows together, and on those of further components.

        No update happens where nothing trains or the gradient is zero. `guard` sees the report before the update and
        may raise. `entropy_gradient`: the loss has a term in the entropies. Raises TrainingError, and leaves the weights
        alone, where loss or gradient is not finite.
        """
        report = StepReport(
            updated=False, learning_rate=learning_rate_at(self.optimizer, self.step_index, self.total_steps)
        )
        weights = row_weights(rows, aggregation)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        if float(weights.sum()) > 0:
            self._entropy_gradient = entropy_gradient
            self._accumulate(rows, weights, loss, report, keep_logprobs=keep_logprobs)
            self._entropy_gradient = False
        found = [self._add(component, report) for component in also]
        if float(weights.sum()) > 0 or any(found):
            self._update(report, guard)
        self.step_index += 1
        self.model.zero_grad(set_to_none=True)
        return report

    @torch.no_grad()
    def measure(self, rows: Sequence[TrainingRow], loss: Loss, aggregation: Mean = "token") -> StepReport:
        """Return what a step on the rows would find, without one; of further components nothing."""
        report, weights = StepReport(updated=False), row_weights(rows, aggregation)
        if float(weights.sum()) > 0:
            self._accumulate(rows, weights, loss, report, keep_logprobs=False)
        return report

    def _add(self, component: Component, report: StepReport) -> bool:
        """Add a component's gradients and figures; return whether anything of it trains."""
        weights = row_weights(component.rows, component.mean)
        if float(weights.sum()) <= 0:
            return False
        own, kept = StepReport(updated=False), self.distiller
        self.distiller = component.distiller
        self._accumulate(component.rows, weights, component.loss, own, keep_logprobs=False)
        self.distiller = kept
        report.loss += own.loss
        report.tokens += own.tokens
        report.trained_tokens += own.trained_tokens
        report.metrics |= {f"{component.name}_{n}": v for n, v in own.metrics.items()}
        report.metrics[f"{component.name}_loss"] = own.loss
        return True

    def _accumulate(
        self, rows: Sequence[TrainingRow], weights: Tensor, loss: Loss, report: StepReport, *, keep_logprobs: bool
    ) -> None:
        total, whole = torch.zeros((), device=self._device), float(weights.sum())
        sums: dict[str, Tensor] = {}
        kept: dict[int, list[float]] = {}
        for micro in micro_batches(rows, self._tokens, share=True):
            batch = self._read(rows, micro, weights)
            output = loss(batch)
            if torch.is_grad_enabled():
                output.loss.backward()
            total += output.loss.detach().float()
            means = {name: value / whole for name, value in output.metrics.items()}
            for name, value in (means | output.own | drift(batch) | self._cost(batch, output)).items():
                sums[name] = sums.get(name, torch.zeros((), device=self._device)) + value
            report.tokens += micro.tokens
            report.trained_tokens += len(micro.targets_N)
            if keep_logprobs:
                kept |= by_row(micro, batch.logprobs_BT.detach())
        report.loss = float(total)
        report.cost, report.rejected_cost = _mean(sums, "_cost"), _mean(sums, "_rejected_cost")
        report.metrics = finish({name: float(value) for name, value in sums.items()}, report.trained_tokens)
        report.logprobs = [padded(kept.get(i, []), len(row.ids)) for i, row in enumerate(rows)] if keep_logprobs else []

    @property
    def chance(self) -> Chance:
        """Return what a token costs one who has learnt nothing."""
        size = self.model.config.vocab_size
        return Chance(math.log(size), "a token that is to become likelier", f"a uniform guess among {size}")

    def _cost(self, batch: Batch, output: LossOutput) -> dict[str, Tensor]:
        """Return the sums that `StepReport.cost` is made of."""
        return cost(batch)

    def _update(self, report: StepReport, guard: Guard | None) -> None:
        if not math.isfinite(report.loss):
            raise TrainingError(
                f"step {self.step_index}: the loss is {report.loss}, expected a number; the weights were left as they "
                f"were. Lower optimizer.learning_rate (now {self.optimizer.learning_rate:g}) or set precision to fp32"
            )
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.optimizer.grad_norm)
        report.grad_norm = float(norm)
        if not math.isfinite(report.grad_norm):
            raise TrainingError(
                f"step {self.step_index}: the gradient norm is {report.grad_norm}, expected a number; the weights were "
                f"left as they were. Lower optimizer.learning_rate (now {self.optimizer.learning_rate:g})"
            )
        if guard is not None:
            guard(report)
        if report.grad_norm == 0.0:
            return
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = report.learning_rate
            optimizer.step()
        report.updated = True
        self.updates += 1

    def _read(self, rows: Sequence[TrainingRow], micro: MicroBatch, weights: Tensor) -> Batch:
        """Return the batch of a forward pass; where there is a distiller, with what it found."""
        if self.distiller is None or all(rows[i].distill is None for i in micro.rows):
            return batch_of(rows, micro, weights, *self._forward(self.model, rows, micro))
        states_ND = self._states(self.model, micro)
        with self._autocast():
            found = self.distiller(rows, micro, states_ND, self.model.head_weight)
        alone = self.distiller.alone
        read = (found.logprobs_N, found.entropy_N) if alone else self._heads(self.model, states_ND, rows, micro)
        batch = batch_of(rows, micro, weights, *read)
        batch.distilled, batch.distill_figures = found.loss, found.figures
        return batch

    def _forward(self, model: Llama, rows: Sequence[TrainingRow], micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return logprobs and entropies of the trained tokens, at each row's temperature."""
        return self._heads(model, self._states(model, micro), rows, micro)

    def _heads(
        self, model: Llama, states_ND: Tensor, rows: Sequence[TrainingRow], micro: MicroBatch
    ) -> tuple[Tensor, Tensor]:
        move = self._device
        with self._autocast():
            temperatures = torch.tensor([rows[i].temperature for i in micro.rows])
            if bool((temperatures != 1.0).any()):
                states_ND = states_ND.float() / temperatures[micro.cells_N // micro.shape[1]].to(move)[:, None]
            return selected_logprobs(
                states_ND,
                model.head_weight,
                micro.targets_N.to(move),
                entropy_gradient=self._entropy_gradient,
                rounded_logits=self._rounded_logits,
            )

    def _states(self, model: Llama, micro: MicroBatch) -> Tensor:
        """Return the hidden states before the trained tokens."""
        move = self._device
        with self._autocast():
            return model.hidden(
                micro.ids_RL.to(move),
                None if micro.positions_RL is None else micro.positions_RL.to(move),
                None if micro.attention_RLL is None else micro.attention_RLL.to(move),
                micro.states_N.to(move),
            )

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16)

    @torch.no_grad()
    def divergences(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """Return by row what the distiller finds at each token, 0.0 where nothing trains."""
        distiller = self.distiller
        assert distiller is not None, "a divergence needs teachers"

        def found(micro: MicroBatch) -> Tensor:
            with self._autocast():
                return distiller(rows, micro, self._states(self.model, micro), self.model.head_weight).divergence_N

        return self._by_token(rows, found)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[TrainingRow], model: Llama | None = None) -> list[list[float]]:
        """Return by row the logprobs under the model (or another), 0.0 where nothing trains."""
        asked = model or self.model
        return self._by_token(rows, lambda micro: self._forward(asked, rows, micro)[0])

    @torch.no_grad()
    def entropies(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """Return by row the entropies of the model's distributions, 0.0 where nothing trains."""
        return self._by_token(rows, lambda micro: self._forward(self.model, rows, micro)[1])

    def _by_token(self, rows: Sequence[TrainingRow], found: Callable[[MicroBatch], Tensor]) -> list[list[float]]:
        """Return by row what is found at the trained tokens of each forward pass, 0.0 elsewhere."""
        gathered: dict[int, list[float]] = {}
        for micro in micro_batches(rows, self._tokens, share=True):
            gathered |= by_row(micro, spread(found(micro), micro))
        return [padded(gathered.get(i, []), len(row.ids)) for i, row in enumerate(rows)]

    def plain(self) -> Llama:
        """Return a model without adapters that gives what this one gives now: for samplers and files."""
        if not adapters(self.model):
            return self.model
        if self._merged is None:
            self._merged = Merged(self.model)
        return self._merged.refresh()

    def state(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """Return everything that the next step depends on: weights that train, optimisers, counts, torch's generator."""
        tensors = {f"model.{n}": p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        tensors |= {f"buffer.{n}": b for n, b in self.model.named_buffers() if n in self.model.state_dict()}
        for i, optimizer in enumerate(self._optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{i}.{index}.{k}": v for k, v in values.items() if isinstance(v, Tensor)}
        tensors["generator"] = torch.get_rng_state()
        return tensors, {"step": self.step_index, "updates": self.updates, "total_steps": self.total_steps}

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor], data: dict[str, object]) -> None:
        """Take over what `state` returned. StateError where it belongs to another model or schedule."""
        own = {n: p for n, p in self.model.named_parameters() if p.requires_grad} | {
            n: b for n, b in self.model.named_buffers() if n in self.model.state_dict()
        }
        saved = {n.split(".", 1)[1]: t for n, t in tensors.items() if n.startswith(("model.", "buffer."))}
        wrong = sorted(n for n in own.keys() | saved.keys() if n not in own or n not in saved)
        wrong += [n for n in own.keys() & saved.keys() if own[n].shape != saved[n].shape]
        if wrong or data.get("total_steps") != self.total_steps:
            raise StateError(
                f"checkpoint: made for another stage ({', '.join(wrong[:3]) or data.get('total_steps')}; expected "
                f"{len(own)} tensors and {self.total_steps} steps); remove the node's ckpt folder to start it anew"
            )
        for name, value in saved.items():
            own[name].copy_(value)
        for i, optimizer in enumerate(self._optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                if name.startswith(f"optimizer.{i}."):
                    _, _, index, key = name.split(".", 3)
                    state.setdefault(int(index), {})[key] = value
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        torch.set_rng_state(tensors["generator"].to(torch.uint8).cpu())
        self.step_index = cast(int, data["step"])
        self.updates = cast(int, data["updates"])


def _mean(sums: dict[str, Tensor], name: str) -> float | None:
    """Take a sum and its weight out of the sums and return their quotient; None where there is no weight."""
    total, weight = sums.pop(name, None), sums.pop(f"{name}_weight", None)
    return None if total is None or weight is None or float(weight) <= 0 else float(total) / float(weight)
