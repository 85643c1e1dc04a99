"""Divergence from teachers over the whole vocabulary, a chunk of tokens at a time: no (tokens, vocabulary) tensor exists.

The gradient is made on the way forward, where the logits of a chunk are at hand; nothing is projected twice. This can be
as the weights of the tokens in the loss are known before.

N chosen tokens, D width, V vocabulary, M teachers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from specs.distillation import Direction, Distillation, SampledTokens, TopTokens
from tasks.learning.divergences import (
    Kind,
    Listed,
    confidence_weights,
    divergence,
    entropy,
    given_divergence,
    listed_divergence,
    log_linear,
    mixture,
)
from tasks.learning.head import arithmetic

CHUNK_NUMBERS = 2_000_000
MOST_NUMBERS = 8_000_000
"""Logits of one model that exist at a time, and at most: a wide body takes more of them, see `_rows_at_a_time`."""


@dataclass(slots=True)
class Hidden:
    """A teacher whose whole distribution is at hand: hidden states of N tokens, and the head that makes logits of them."""

    states_ND: Tensor
    head_VD: Tensor

    def part(self, some: Tensor | slice) -> "Hidden":
        """Return what it makes of some of the tokens."""
        return Hidden(self.states_ND[some], self.head_VD)


@dataclass(slots=True)
class Lists:
    """A teacher that lists its K likeliest tokens: their ids and logprobs, and the logprobs of the targets."""

    ids_NK: Tensor
    logprobs_NK: Tensor
    targets_N: Tensor
    """NaN where it is not known."""

    def part(self, some: Tensor | slice) -> "Lists":
        """Return what it makes of some of the tokens."""
        return Lists(self.ids_NK[some], self.logprobs_NK[some], self.targets_N[some])


@dataclass(slots=True)
class Evidence:
    """What M teachers make of N tokens, and weights that sum to 1 over the teachers."""

    teachers: Sequence[Hidden | Lists]
    weights_MN: Tensor

    def part(self, some: Tensor | slice) -> "Evidence":
        """Return what they make of some of the tokens."""
        return Evidence([t.part(some) for t in self.teachers], self.weights_MN[:, some])


@dataclass(frozen=True, slots=True)
class Measure:
    """How distributions are compared: read off `Distillation` once for rows of one origin."""

    kind: Kind
    listed: Listed | None
    temperature: float
    combine: Literal["mixture", "log_linear", "sum"]
    by_confidence: bool
    most: float | None


@dataclass(slots=True)
class Distilled:
    """The weighted sum of the divergences, differentiable, and constants by token."""

    loss: Tensor
    divergence_N: Tensor
    logprobs_N: Tensor
    """Of the targets, at the sampling temperature."""
    entropy_N: Tensor
    figures: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """By name, weighted sums."""


def measure_of(spec: Distillation, *, own_tokens: bool) -> Measure:
    """Return how to compare; `own_tokens`: the policy wrote them, else they are demonstrations."""
    over = spec.over
    assert not isinstance(over, SampledTokens), "sampled tokens are compared without a distribution"
    direction: Direction = ("reverse" if own_tokens else "forward") if over.direction == "auto" else over.direction
    listed = None
    if isinstance(over, TopTokens):
        by_policy = direction != "forward" if over.support == "auto" else over.support == "policy"
        listed = Listed(over.size, by_policy, over.rest)
    kind = Kind(direction, over.beta, over.floor)
    return Measure(kind, listed, over.loss_temperature, spec.combine, spec.by_confidence, over.most)


@dataclass(slots=True)
class Question:
    """What of N tokens is compared, how, and what each weighs in the loss."""

    targets_N: Tensor
    weights_N: Tensor
    evidence: Evidence
    measure: Measure
    temperatures_N: Tensor | None = None
    """At which they were sampled; 1 where left out."""


def distill(states_ND: Tensor, weight_VD: Tensor, question: Question) -> Distilled:
    """Return the sum of weight x divergence, with gradients to states and head, and what a person watches."""
    nothing = states_ND.new_zeros(0)
    found = Distilled(nothing, nothing, nothing, nothing)
    found.loss = _Chunked.apply(states_ND, weight_VD, question, found)
    return found


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_ND: Tensor, weight_VD: Tensor, asked: Question, found: Distilled) -> Tensor:
        dtype, count = arithmetic(states_ND), len(states_ND)
        head = weight_VD.detach().to(dtype)
        heads = [t.head_VD.to(dtype) if isinstance(t, Hidden) else None for t in asked.evidence.teachers]
        wanted = any(ctx.needs_input_grad[:2])
        to_states = torch.zeros_like(states_ND) if wanted else states_ND.new_zeros(0)
        to_weight = torch.zeros(weight_VD.shape if wanted else (0,), device=weight_VD.device)
        found.divergence_N, found.logprobs_N, found.entropy_N = (
            torch.zeros(count, device=states_ND.device) for _ in range(3)
        )
        loss, size = torch.zeros((), device=states_ND.device), _rows_at_a_time(*weight_VD.shape)
        for i in range(0, count, size):
            part = slice(i, i + size)
            states, weights = states_ND[part].detach().to(dtype), asked.weights_N[part].float()
            slope = _chunk(states, head, heads, asked, found, part)
            loss += (weights * found.divergence_N[part]).sum()
            if wanted:
                slope = slope.mul_((weights / asked.measure.temperature)[:, None]).to(dtype)
                common = slope.shape[1]
                to_states[part] = (slope @ head[:common]).to(to_states.dtype)
                to_weight[:common] += (slope.t() @ states).float()
        ctx.made, ctx.head_type = (to_states, to_weight), weight_VD.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Scale in place what was made, once: a second table of the head's size would be the largest there is."""
        (to_states, to_weight), ctx.made = ctx.made, None
        return to_states.mul_(gradients[0]), to_weight.mul_(gradients[0]).to(ctx.head_type), None, None


def _rows_at_a_time(vocabulary: int, width: int) -> int:
    """Return the tokens of a chunk: each chunk passes over the head's whole gradient, (V, D), beside its own (N, V)."""
    return max(16, CHUNK_NUMBERS // vocabulary, min(width // 2, MOST_NUMBERS // vocabulary))


def _chunk(
    states: Tensor, head: Tensor, heads: Sequence[Tensor | None], asked: Question, found: Distilled, part: slice
) -> Tensor:
    """Compare some tokens, note what was found, and return the slope of their divergences in the policy's logits."""
    measure, targets = asked.measure, asked.targets_N[part]
    temperature = None if asked.temperatures_N is None else asked.temperatures_N[part, None]
    logits = (states @ head.t()).float()
    found.logprobs_N[part], found.entropy_N[part], policy = _policy(logits, targets, temperature, measure)
    del logits
    common = min([len(head), *(len(h) for h in heads if h is not None)])
    evidence = asked.evidence.part(part)
    teachers: list[Tensor | Lists] = []
    for teacher, h in zip(evidence.teachers, heads, strict=True):
        if isinstance(teacher, Hidden):
            assert h is not None, "a head of its own"
            teachers.append(_logprobs(teacher.states_ND.to(states.dtype), h, common, measure))
        else:
            teachers.append(teacher)
    value, slope, figures = _compare(policy, teachers, evidence.weights_MN.float(), targets, measure)
    found.divergence_N[part] = value
    for name, figure in figures.items():
        weighted = (asked.weights_N[part] * figure).sum()
        found.figures[name] = found.figures[name] + weighted if name in found.figures else weighted
    return slope


def _policy(
    logits: Tensor, targets_N: Tensor, temperature: Tensor | None, measure: Measure
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logprobs of the targets and entropies at the sampling temperature, and all logprobs at the loss's own."""
    policy = (logits / measure.temperature).log_softmax(-1) if measure.temperature != 1 else logits.log_softmax(-1)
    asked = torch.ones(1, 1) if temperature is None else temperature
    same = bool((asked == measure.temperature).all())
    acting = policy if same else (logits / asked.to(logits.device)).log_softmax(-1)
    return acting.gather(1, targets_N[:, None])[:, 0], entropy(acting), policy


def _logprobs(states: Tensor, head: Tensor, common: int, measure: Measure) -> Tensor:
    """Return a teacher's logprobs over the ids that all have."""
    logits = (states @ head[:common].t()).float()
    return (logits / measure.temperature if measure.temperature != 1 else logits).log_softmax(-1)


def _compare(
    policy: Tensor, teachers: Sequence[Tensor | Lists], weights_MN: Tensor, targets_N: Tensor, measure: Measure
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return divergences, their slopes in the policy's logits, and figures by token."""
    whole = [t for t in teachers if isinstance(t, Tensor)]
    common = min((t.shape[1] for t in whole), default=policy.shape[1])
    if common < policy.shape[1]:  # a padded vocabulary: only ids that all have
        policy = policy[:, :common].log_softmax(-1)
    targets = targets_N.clamp(max=common - 1)[:, None]
    # nobody is asked about a token that weighs nothing: any weights there, so that all stays a number
    weights_MN = torch.where(weights_MN.sum(0) > 0, weights_MN, 1 / len(teachers))
    assert len(whole) == len(teachers) or _lists_do(measure, len(teachers)), (
        "of lists one target each, at temperature 1"
    )
    if measure.by_confidence:
        weights_MN = confidence_weights(torch.stack(whole), weights_MN)
    parts: list[tuple[Tensor | Lists, Tensor]]
    match measure.combine:
        case _ if len(teachers) == 1:
            parts = [(teachers[0], torch.ones_like(weights_MN[0]))]
        case "mixture":
            parts = [(mixture(torch.stack(whole), weights_MN), torch.ones_like(weights_MN[0]))]
        case "log_linear":
            parts = [(log_linear(torch.stack(whole), weights_MN)[0], torch.ones_like(weights_MN[0]))]
        case "sum":
            parts = list(zip(teachers, weights_MN, strict=True))
    value, slope, figures = _weighed(policy, parts, measure)
    own = policy.gather(1, targets)[:, 0]
    figures["teacher_gap"] = own - sum((w * _said(t, targets, own) for t, w in parts), torch.zeros_like(value))
    if measure.most is not None:
        bounded = value > measure.most
        value = value.clamp(max=measure.most)
        slope = slope.masked_fill_(bounded[:, None], 0.0)
        figures["bounded"] = bounded.float()
    figures["divergence"] = value
    return value, slope, figures


def _lists_do(measure: Measure, teachers: int) -> bool:
    """Return whether lists of likeliest tokens are all that is needed."""
    alone = teachers == 1 or measure.combine == "sum"
    own = measure.listed is not None and not measure.listed.by_policy
    return alone and own and measure.temperature == 1 and not measure.by_confidence


def _said(teacher: Tensor | Lists, targets: Tensor, own: Tensor) -> Tensor:
    """Return a teacher's logprobs of the targets; the policy's own where they are not known."""
    if isinstance(teacher, Lists):
        return torch.where(teacher.targets_N.isfinite(), teacher.targets_N, own)
    return teacher.gather(1, targets)[:, 0]


def _weighed(
    policy: Tensor, parts: Sequence[tuple[Tensor | Lists, Tensor]], measure: Measure
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the weighted sum of the divergences from each target."""
    value, slope, figures = torch.zeros(len(policy), device=policy.device), None, dict[str, Tensor]()
    for target, weight in parts:
        one, by_logit, more = _from(policy, target, measure)
        value = value + weight * one
        if len(parts) > 1:
            by_logit = by_logit.mul_(weight[:, None])
        slope = by_logit if slope is None else slope.add_(by_logit)
        for name, figure in more.items():
            figures[name] = figures.get(name, torch.zeros_like(value)) + weight * figure
    assert slope is not None, "at least one teacher"
    return value, slope, figures


def _from(policy: Tensor, target: Tensor | Lists, measure: Measure) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the divergences from one target, their slopes, and figures by token."""
    listed = measure.listed
    if isinstance(target, Lists):
        assert listed is not None, "a list is compared as a list"
        unknown = (~target.targets_N.isfinite()).float()
        found = given_divergence(policy, target.ids_NK, target.logprobs_NK, measure.kind, listed.rest)
        return found[0], found[1], found[2] | {"unknown": unknown}
    if listed is None:
        return *divergence(policy, target, measure.kind), {}
    return listed_divergence(policy, target, measure.kind, listed)
