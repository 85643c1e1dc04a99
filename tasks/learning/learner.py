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

from specs.algorithms import Optimizer
from specs.errors import StateError, TrainingError
from tasks.learning.head import selected_logprobs
from tasks.learning.microbatches import MicroBatch, micro_batches
from tasks.learning.optimizers import learning_rate_at, optimizers_for
from tasks.learning.rows import TrainingRow
from tasks.policy.llama import Llama
from tasks.tensors import Batch, Loss, token_weights

Aggregation = Literal["token", "sequence", "sequence_sum", "turn", "absolute_token", "absolute_sequence"]
"""Mean over tokens; over rows of their mean, or of their sum; over turns of their mean; over tokens or rows, the rows' own
weights taken as they are."""
Mean = Aggregation | int
"""How tokens become one number; a number of tokens is a fixed budget that each row is divided by."""


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
    logprobs: list[list[float]] = field(default_factory=list)
    """By row, before the update; 0.0 where nothing trains. Only where asked for."""


Guard = Callable[[StepReport], None]


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
    ) -> None:
        self.model = model.to(device)
        self.total_steps = total_steps
        self.step_index = 0
        """Steps asked for so far, those without an update included; the schedule follows it."""
        self.updates = 0
        self._spec = optimizer
        self._device = torch.device(device)
        self._bf16 = precision == "bf16"
        self._tokens = micro_batch_tokens
        self._entropy_gradient = False
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
    ) -> StepReport:
        """Take one optimiser step on all rows together.

        No update happens where nothing trains or the gradient is zero. `guard` sees the report before the update and
        may raise. `entropy_gradient`: the loss has a term in the entropies. Raises TrainingError, and leaves the weights
        alone, where loss or gradient is not finite.
        """
        report = StepReport(
            updated=False, learning_rate=learning_rate_at(self._spec, self.step_index, self.total_steps)
        )
        weights = row_weights(rows, aggregation)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        if float(weights.sum()) > 0:
            self._entropy_gradient = entropy_gradient
            self._accumulate(rows, weights, loss, report, keep_logprobs=keep_logprobs)
            self._entropy_gradient = False
            self._update(report, guard)
        self.step_index += 1
        self.model.zero_grad(set_to_none=True)
        return report

    def _accumulate(
        self, rows: Sequence[TrainingRow], weights: Tensor, loss: Loss, report: StepReport, *, keep_logprobs: bool
    ) -> None:
        total, whole = torch.zeros((), device=self._device), float(weights.sum())
        sums: dict[str, Tensor] = {}
        kept: dict[int, list[float]] = {}
        for micro in micro_batches(rows, self._tokens, share=True):
            logprobs_N, entropy_N = self._forward(self.model, rows, micro)
            batch = _batch(rows, micro, weights, logprobs_N, entropy_N)
            output = loss(batch)
            output.loss.backward()
            total += output.loss.detach().float()
            means = {name: value / whole for name, value in output.metrics.items()}
            for name, value in (means | _drift(batch)).items():
                sums[name] = sums.get(name, torch.zeros((), device=self._device)) + value
            report.tokens += micro.tokens
            report.trained_tokens += len(micro.targets_N)
            if keep_logprobs:
                kept |= _by_row(micro, batch.logprobs_BT.detach())
        report.loss = float(total)
        report.metrics = _finish({name: float(value) for name, value in sums.items()}, report.trained_tokens)
        report.logprobs = (
            [_padded(kept.get(i, []), len(row.ids)) for i, row in enumerate(rows)] if keep_logprobs else []
        )

    def _update(self, report: StepReport, guard: Guard | None) -> None:
        if not math.isfinite(report.loss):
            raise TrainingError(
                f"step {self.step_index}: the loss is {report.loss}, expected a number; the weights were left as they "
                f"were. Lower optimizer.learning_rate (now {self._spec.learning_rate:g}) or set precision to fp32"
            )
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._spec.grad_norm)
        report.grad_norm = float(norm)
        if not math.isfinite(report.grad_norm):
            raise TrainingError(
                f"step {self.step_index}: the gradient norm is {report.grad_norm}, expected a number; the weights were "
                f"left as they were. Lower optimizer.learning_rate (now {self._spec.learning_rate:g})"
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

    def _forward(self, model: Llama, rows: Sequence[TrainingRow], micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return logprobs and entropies of the trained tokens, at each row's temperature."""
        move = self._device
        states_ND = self._states(model, micro)
        with self._autocast():
            temperatures = torch.tensor([rows[i].temperature for i in micro.rows])
            if bool((temperatures != 1.0).any()):
                states_ND = states_ND.float() / temperatures[micro.cells_N // micro.shape[1]].to(move)[:, None]
            return selected_logprobs(
                states_ND, model.head_weight, micro.targets_N.to(move), entropy_gradient=self._entropy_gradient
            )

    def _states(self, model: Llama, micro: MicroBatch) -> Tensor:
        """Return the hidden states before the trained tokens."""
        move = self._device
        with self._autocast():
            hidden = model.hidden(
                micro.ids_RL.to(move),
                None if micro.positions_RL is None else micro.positions_RL.to(move),
                None if micro.attention_RLL is None else micro.attention_RLL.to(move),
            )
            return hidden.flatten(0, 1)[micro.states_N.to(move)]

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[TrainingRow], model: Llama | None = None) -> list[list[float]]:
        """Return by row the logprobs under the model (or another), 0.0 where nothing trains."""
        found: dict[int, list[float]] = {}
        asked = model or self.model
        for micro in micro_batches(rows, self._tokens, share=True):
            logprobs_N, _ = self._forward(asked, rows, micro)
            found |= _by_row(micro, _spread(logprobs_N, micro))
        return [_padded(found.get(i, []), len(row.ids)) for i, row in enumerate(rows)]

    def state(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """Return everything that the next step depends on: weights, optimisers, counts, torch's generator."""
        tensors = {f"model.{n}": p.detach() for n, p in self.model.named_parameters()}
        tensors |= {f"buffer.{n}": b for n, b in self.model.named_buffers() if n in self.model.state_dict()}
        for i, optimizer in enumerate(self._optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{i}.{index}.{k}": v for k, v in values.items() if isinstance(v, Tensor)}
        tensors["generator"] = torch.get_rng_state()
        return tensors, {"step": self.step_index, "updates": self.updates, "total_steps": self.total_steps}

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor], data: dict[str, object]) -> None:
        """Take over what `state` returned. StateError where it belongs to another model or schedule."""
        own = dict(self.model.named_parameters()) | {
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


def row_weights(rows: Sequence[TrainingRow], aggregation: Mean) -> Tensor:
    """Return per-token weights (rows, longest row); all zeros where nothing trains.

    Those of `token`, `sequence` and `turn` sum to 1 over the step. Elsewhere the rows' own weights stand in no denominator.
    Where rows are counted, those of one trajectory count as one together.
    """
    if not rows:
        return torch.zeros(0, 0)
    mask = torch.zeros(len(rows), max(len(r.ids) for r in rows), dtype=torch.bool)
    for i, row in enumerate(rows):
        mask[i, : len(row.mask)] = torch.tensor(row.mask)
    match aggregation:
        case "absolute_token":
            weights = token_weights(mask, "token")
        case "absolute_sequence":
            weights = token_weights(mask, "sequence")
        case _:
            weights = token_weights(mask, aggregation)
    if all(row.weight == 1.0 and row.contexts == 1 for row in rows):
        return weights
    weights = weights * torch.tensor([row.weight for row in rows])[:, None]
    if aggregation in ("sequence", "absolute_sequence"):
        weights = weights * torch.tensor([1 / row.contexts for row in rows])[:, None]
    if aggregation in ("sequence_sum", "absolute_sequence") or isinstance(aggregation, int):
        counted = [row for row in rows if isinstance(aggregation, int) or row.trained]
        weights = weights * len(counted) / max(1e-9, sum(1 / row.contexts for row in counted))
    if aggregation not in ("token", "sequence", "turn"):
        return weights
    return weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


def _batch(
    rows: Sequence[TrainingRow], micro: MicroBatch, weights: Tensor, logprobs_N: Tensor, entropy_N: Tensor
) -> Batch:
    device, columns = logprobs_N.device, micro.shape[1]
    chosen = [rows[i] for i in micro.rows]

    def column(values: list[list[float] | None]) -> Tensor | None:
        if any(v is None for v in values):
            return None
        padded = [_padded(v or [], columns) for v in values]
        return torch.tensor(padded, dtype=torch.float32, device=device)

    advantages = torch.tensor([r.advantage for r in chosen], device=device)[:, None].expand(micro.shape)
    by_token = column([r.advantages for r in chosen])
    paired = any(r.pair for r in chosen)
    return Batch(
        logprobs_BT=_spread(logprobs_N, micro),
        weights_BT=weights[micro.rows, :columns].to(device),
        sampler_logprobs_BT=column([r.sampler_logprobs for r in chosen]),
        old_logprobs_BT=column([r.old_logprobs for r in chosen]),
        reference_logprobs_BT=column([r.reference_logprobs for r in chosen]),
        advantages_BT=advantages if by_token is None else by_token,
        corrections_BT=column([r.corrections for r in chosen]),
        entropy_BT=_spread(entropy_N, micro),
        preferred_B=torch.tensor([r.preferred for r in chosen], device=device) if paired else None,
        pairs_P2=_pairs(chosen).to(device) if paired else None,
        baselines_B=torch.tensor([r.baseline for r in chosen], device=device) if paired else None,
    )


def _pairs(chosen: Sequence[TrainingRow]) -> Tensor:
    """Return (P, 2): the rows of the preferred and the rejected side of each pair."""
    sides: dict[str, list[int]] = {}
    for b, row in enumerate(chosen):
        sides.setdefault(row.pair, [-1, -1])[0 if row.preferred else 1] = b
    assert all(min(pair) >= 0 for pair in sides.values()), "a pair needs both its sides in one forward pass"
    return torch.tensor(list(sides.values()), dtype=torch.long).view(-1, 2)


def _spread(values_N: Tensor, micro: MicroBatch) -> Tensor:
    """Return (B, T) with the values in their cells and 0 elsewhere."""
    rows, columns = micro.shape
    flat = torch.zeros(rows * columns, dtype=values_N.dtype, device=values_N.device)
    return flat.index_put((micro.cells_N.to(values_N.device),), values_N).view(rows, columns)


def _padded(values: list[float], length: int) -> list[float]:
    return values[:length] + [0.0] * (length - len(values))


def _by_row(micro: MicroBatch, values_BT: Tensor) -> dict[int, list[float]]:
    return dict(zip(micro.rows, values_BT.tolist(), strict=True))


@torch.no_grad()
def _drift(batch: Batch) -> dict[str, Tensor]:
    """Return sums over trained tokens: entropy, and what separates the trainer's logprobs from the sampler's."""
    mask_BT = batch.weights_BT > 0
    sums: dict[str, Tensor] = {}
    if batch.entropy_BT is not None:
        sums["entropy"] = batch.entropy_BT.detach().sum()
    if batch.sampler_logprobs_BT is not None:
        d_BT = torch.where(mask_BT, batch.logprobs_BT - batch.sampler_logprobs_BT, 0.0).clamp(-20.0, 20.0)
        ratio_BT = torch.where(mask_BT, d_BT.exp(), 0.0)
        sums["logprob_gap"] = d_BT.abs().sum()
        sums["sampler_kl_k3"] = (torch.where(mask_BT, d_BT.exp() - 1, 0.0) - d_BT).sum()
        sums["_ratio"] = ratio_BT.sum()
        sums["_ratio_squared"] = (ratio_BT * ratio_BT).sum()
    return sums


def _finish(sums: dict[str, float], tokens: int) -> dict[str, float]:
    """Turn sums over tokens into means; `ess` is the effective share of tokens under the ratio to the sampler."""
    count = max(1, tokens)
    for name in ("entropy", "logprob_gap", "sampler_kl_k3"):
        if name in sums:
            sums[name] /= count
    ratio, squared = sums.pop("_ratio", None), sums.pop("_ratio_squared", None)
    if ratio is not None and squared:
        sums["ess"] = ratio * ratio / (squared * count)
    return sums
