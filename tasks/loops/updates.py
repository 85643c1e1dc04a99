"""One batch of rollouts to its updates: missing logprobs, correction, reference, passes, and what a person is told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Protocol

from specs.algorithms import PolicyGradientAlgorithm
from specs.errors import TrainingError
from specs.group_relative import GSPO
from specs.value_based import PPO, SAO, TurnPPO, ValueBased
from tasks.learning.algorithms import loss_for
from tasks.learning.batching import Mean, row_weights
from tasks.learning.correction import correct
from tasks.learning.critic import CriticLearner, estimate
from tasks.learning.learner import Component, Guard, Learner, StepReport
from tasks.learning.rows import TrainingRow
from tasks.learning.shared_critic import ActorCritic
from tasks.policy.llama import Llama
from tasks.tensors import Loss

_OF_SELF = ("teacher_gap", "gate", "redistributed", "taught_loss", "taught_entropy")
"""Figures of self-teaching."""
_OF_TEACHERS = ("divergence", "teacher_mass", "policy_mass", "overlap", "bounded", "outside_band")
"""Figures of a teacher beside the reward."""


class Term(Protocol):
    """A loss that stands beside the algorithm's own."""

    def prepare(self, rows: Sequence[TrainingRow]) -> dict[str, float]:
        """Give the rows what the term needs, and return figures."""
        ...

    def join(self, learner: Learner, loss: Loss) -> Loss:
        """Return the loss with the term; what it sets up in the learner stays until the updates are done."""
        ...


@dataclass(slots=True)
class StepRows:
    """The rows of a batch that train, and what else a mean counts."""

    rows: list[TrainingRow]
    unmoved: int = 0
    """Further trajectories, with an advantage of 0: sums over tokens are divided by them too."""
    also: Sequence[Component] = ()
    """Further losses of the same update, on rows of their own."""
    term: "Term | None" = None
    """A further loss of the same rows, with a denominator of its own."""
    exact: bool = False
    """The sampler's logprobs are the trainer's up to rounding."""


@dataclass(slots=True)
class Updated:
    """What a batch led to."""

    updated: bool
    trained_tokens: int
    figures: dict[str, float]
    warm_up: bool = False
    """Only the critic was to learn."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Trajectories left out of the mean, by reason."""
    missing_logprobs: int = 0
    """Tokens without a sampler logprob; they do not train."""
    rows: Sequence[TrainingRow] = ()
    """The batch's, without those tokens."""


def update(
    learner: Learner,
    batch: StepRows,
    spec: PolicyGradientAlgorithm,
    reference: Llama | None,
    *,
    max_length: int,
    step: int,
    critic: CriticLearner | None = None,
) -> Updated:
    """Pass over the batch `updates_per_batch` times; from the second pass on, ratios are to the first pass.

    With a correction, ratios are to the trainer's logprobs before the first pass, and the sampler enters by its weights.
    Those of GSPO, whose clip is narrower than the noise of another engine or precision, are to the trainer's in any case.
    A critic gives the advantages and then learns; in its warm-up it learns alone.
    """
    rows, missing = without_missing(batch.rows, spec.max_missing_logprobs, step, whole_turns=whole_turns(spec))
    given, gone = rows, trajectories(batch.rows) - trajectories(rows)
    dropped, figures = {"missing_logprob": gone} if gone else {}, dict[str, float]()
    known = spec.correction is not None or (isinstance(spec, GSPO) and not batch.exact)
    if known and rows:
        rows, figures = _from_trainer(learner, rows, spec, step, dropped)
    weigh(rows)
    if isinstance(spec, GSPO):
        for row in rows:
            row.unit = row.trajectory if row.contexts > 1 else ""
    if rows and spec.kl_coef > 0:
        assert reference is not None, "kl_coef > 0 needs a reference"
        for row, values in zip(rows, learner.logprobs(rows, reference), strict=True):
            row.reference_logprobs = values
    _share(rows, spec, batch.unmoved)
    rows = _over_varying(rows, mean_of(spec, max_length))
    if batch.term is not None and rows:
        figures |= batch.term.prepare(rows)
    warm_up = isinstance(spec, ValueBased) and step < spec.critic.warmup_steps
    if isinstance(spec, ValueBased):
        judge = critic or learner
        assert isinstance(judge, CriticLearner | ActorCritic), "advantages come from a critic"
        figures |= _criticise(judge, rows, spec, alone=warm_up)
    idle = warm_up and not isinstance(learner, ActorCritic)
    guard = None if known else partial(_check_report, spec=spec, step=step)
    reports = [] if idle else _passes(learner, replace(batch, rows=rows), spec, mean_of(spec, max_length), guard)
    return Updated(
        updated=any(r.updated for r in reports),
        warm_up=warm_up,
        trained_tokens=sum(r.trained_tokens for r in reports),
        figures=_figures(reports) | figures,
        dropped=dropped,
        missing_logprobs=missing,
        rows=given,
    )


def _from_trainer(
    learner: Learner, rows: list[TrainingRow], spec: PolicyGradientAlgorithm, step: int, dropped: dict[str, int]
) -> tuple[list[TrainingRow], dict[str, float]]:
    """Let ratios be to the trainer's logprobs before the update; return the rows that no correction rejects, and figures.

    Without a correction those of stale rows, which are of another policy, stay to the sampler's.
    """
    found = learner.logprobs(rows)
    _check_gap(logprob_gap(rows, found), spec, step)
    if spec.correction is not None:
        corrected = correct(rows, found, spec.correction)
        left_out(dropped, corrected.rejected)
        return corrected.rows, corrected.figures
    for row, values in zip(rows, found, strict=True):
        row.old_logprobs = row.sampler_logprobs if row.stale else values
    return rows, {}


def _over_varying(rows: list[TrainingRow], mean: Mean) -> list[TrainingRow]:
    """Return the rows with advantages by which the policy's term is a mean over the groups that vary alone.

    The other terms are means over all rows. Where the policy's is a sum by trajectories, it counts all of them.
    """
    if mean not in ("token", "sequence", "turn") or not any(row.silent for row in rows):
        return rows
    shares = row_weights(rows, mean).double().sum(-1)
    own = float(sum(share for row, share in zip(rows, shares, strict=True) if not row.silent))
    if own == 0:
        return rows
    factor = float(shares.sum()) / own
    return [
        replace(
            row,
            advantage=factor * row.advantage,
            advantages=None if row.advantages is None else [factor * a for a in row.advantages],
        )
        for row in rows
    ]


def _criticise(
    critic: CriticLearner | ActorCritic, rows: list[TrainingRow], spec: PPO | TurnPPO | SAO, *, alone: bool
) -> dict[str, float]:
    """Give the rows their advantages and let the critic learn; without rows its schedule alone goes on.

    One that is a head of the policy learns in the policy's passes; `alone` in them, in its warm-up.
    """
    if not rows:
        if isinstance(critic, CriticLearner):
            critic.skip(spec.critic)
        return {}
    values = critic.values(rows)
    found = estimate(rows, values, spec, by_turn=isinstance(spec, TurnPPO))
    if isinstance(critic, ActorCritic):
        return critic.expect(found, values, spec.critic, alone=alone)
    return critic.fit(found.rows, found.returns, values, spec.critic)


def trajectories(rows: Sequence[TrainingRow]) -> int:
    """Return of how many trajectories the rows are."""
    return len({row.trajectory or row.id for row in rows})


def weigh(rows: Sequence[TrainingRow]) -> None:
    """Multiply the corrections by the weights of unequal draws, where there are any."""
    if all(row.importance == 1.0 for row in rows):
        return
    for row in rows:
        row.corrections = [row.importance * c for c in row.corrections or [1.0] * len(row.ids)]


def _share(rows: Sequence[TrainingRow], spec: PolicyGradientAlgorithm, unmoved: int) -> None:
    """Let the mean over trajectories count those that have an advantage of 0 and are not among the rows."""
    if unmoved and spec.aggregation in ("constant", "sequence_sum"):
        count = trajectories(rows)
        for row in rows:
            row.weight *= count / (count + unmoved)


def _passes(
    learner: Learner, batch: StepRows, spec: PolicyGradientAlgorithm, mean: Mean, guard: Guard | None
) -> list[StepReport]:
    rows, reports = batch.rows, list[StepReport]()
    loss = loss_for(spec) if batch.term is None else batch.term.join(learner, loss_for(spec))
    for number in range(spec.updates_per_batch):
        first = number == 0
        done = learner.step(
            rows,
            loss,
            mean,
            guard=guard if first else None,
            keep_logprobs=first and spec.updates_per_batch > 1 and spec.correction is None,
            entropy_gradient=spec.entropy_coef != 0,
            also=batch.also,
        )
        for row, values in zip(rows, done.logprobs, strict=False):
            row.old_logprobs = row.sampler_logprobs if row.stale else values
        reports.append(done)
    learner.distiller = None
    return reports


def whole_turns(spec: PolicyGradientAlgorithm) -> bool:
    """Return whether a turn trains as a whole or not at all."""
    return isinstance(spec, TurnPPO) or spec.aggregation == "turn"


def policy_updates(spec: PolicyGradientAlgorithm) -> int:
    """Return how many updates of the policy a stage asks for."""
    apart = isinstance(spec, ValueBased) and spec.critic.backbone == "own"
    alone = spec.critic.warmup_steps if isinstance(spec, ValueBased) and apart else 0
    return (spec.steps - alone) * spec.updates_per_batch


def mean_of(spec: PolicyGradientAlgorithm, max_length: int) -> Mean:
    """Return how tokens become one number: the aggregation, or the number of tokens that a constant one divides by."""
    if spec.aggregation == "constant":
        return spec.token_budget or max_length
    return spec.aggregation


def without_missing(
    rows: Sequence[TrainingRow], most: float, step: int, *, whole_turns: bool = False
) -> tuple[list[TrainingRow], int]:
    """Return the rows without the tokens whose sampler logprob is missing, and how many those are.

    A row of which nothing is left goes. `whole_turns`: a turn with such a token does not train at all, as what is left of
    it would count as turns of its own. TrainingError where more than `most` of the tokens are missing.
    """
    kept: list[TrainingRow] = []
    missing = total = 0
    for row in rows:
        given = row.sampler_logprobs or []
        mask = [m and math.isfinite(p) for m, p in zip(row.mask, given, strict=True)]
        gone = row.trained - sum(mask)
        missing, total = missing + gone, total + row.trained
        if gone and whole_turns:
            mask = _whole_turns(row.mask, mask)
        if any(mask):
            kept.append(replace(row, mask=mask) if gone else row)
    if total and missing / total > most:
        raise TrainingError(
            f"step {step}: {missing} of {total} tokens have no sampler logprob (missing or infinite), max_missing_logprobs "
            f"is {most:g}. The sampler cuts its distribution (top-p, top-k) or loses them; set it to record them all"
        )
    return kept, missing


def _whole_turns(mask: list[bool], given: list[bool]) -> list[bool]:
    """Return the mask without the turns (runs of trained tokens) of which a token is not given."""
    kept: list[bool] = []
    for inside, run in groupby(range(len(mask)), key=lambda t: mask[t]):
        turn = list(run)
        kept += [inside and all(given[t] for t in turn)] * len(turn)
    return kept


def left_out(total: dict[str, int], *more: dict[str, int]) -> None:
    """Add counts by reason."""
    for counts in more:
        for reason, count in counts.items():
            total[reason] = total.get(reason, 0) + count


def logprob_gap(rows: Sequence[TrainingRow], found: Sequence[Sequence[float]]) -> float:
    """Return the mean distance of the trainer's logprobs from the sampler's, over the tokens of fresh rows that train."""
    gaps = [
        abs(a - b)
        for row, values in zip(rows, found, strict=True)
        if not row.stale
        for a, b, m in zip(values, row.sampler_logprobs or [], row.mask, strict=True)
        if m
    ]
    return fmean(gaps) if gaps else 0.0


def _check_report(report: StepReport, *, spec: PolicyGradientAlgorithm, step: int) -> None:
    _check_gap(report.metrics.get("logprob_gap", 0.0), spec, step)


def _check_gap(gap: float, spec: PolicyGradientAlgorithm, step: int) -> None:
    """Before the first update of a batch, trainer and sampler hold the same weights and must agree on fresh rows."""
    if gap > spec.max_logprob_gap:
        raise TrainingError(
            f"step {step}: the trainer's and the sampler's logprobs of a fresh batch differ by {gap:.4f} nats a token, "
            f"max_logprob_gap is {spec.max_logprob_gap:g}: weights, tokenizer, temperature or precision differ between "
            "them. Set policy.precision and policy.sampler_precision to fp32 to see which"
        )


def _figures(updates: list[StepReport]) -> dict[str, float]:
    if not updates:
        return {"updated": 0.0}
    first, last = updates[0], updates[-1]
    figures = {
        "updated": float(any(u.updated for u in updates)),
        "loss": first.loss,
        "grad_norm": first.grad_norm,
        "learning_rate": last.learning_rate,
        "trained_tokens": float(first.trained_tokens),
    }
    for name in (
        "entropy",
        "logprob_gap",
        "sampler_kl_k3",
        "ess",
        "reference_kl_k3",
        "value_loss",
        *_OF_SELF,
        *_OF_TEACHERS,
    ):
        if name in first.metrics:
            figures[name] = first.metrics[name]
    if "clip_fraction" in last.metrics:
        figures["clip_fraction"] = last.metrics["clip_fraction"]
    return figures
