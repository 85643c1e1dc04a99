"""Bodies of policy-gradient nodes: the preflight and the stage itself; `choosing` stands between them."""

from functools import partial
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work import inputs, opd, panels, replaying, self_teaching, training
from flows.work.choosing import read_json
from flows.work.keeping import Keeper, load_weights
from specs.algorithms import PolicyGradientAlgorithm, policy_gradient_from
from specs.errors import StateError
from specs.stages import Needs, Preflight
from specs.value_based import ValueBased
from tasks.episodes.seeds import derive
from tasks.episodes.shards import write_shards
from tasks.files import write_json
from tasks.judging.needs import unmet
from tasks.learning.critic import CriticLearner
from tasks.learning.learner import Learner
from tasks.loops import teacher_terms
from tasks.loops.collect import Draw, collect, drift_notes
from tasks.loops.on_policy import OnPolicy, OnPolicyReport, train_policy_gradient
from tasks.loops.order import ProblemOrder
from tasks.loops.preflight import first_success, measure, review_sample
from tasks.loops.rollout_ledger import RolloutLedger
from tasks.loops.rollout_store import RolloutStore
from tasks.loops.stepping import probe_of
from tasks.loops.updates import policy_updates
from tasks.policy.store import LoadedPolicy

_LAST_STEPS = 5
"""Steps over which the receipt's figures are averaged."""


def preflight(node: NodeContext) -> Outcome:
    """Roll out before the stage and measure whether it can learn; writes `preflight.json` and `review/`."""
    spec = policy_gradient_from(node.params["algorithm"])
    asked = Preflight.model_validate(node.params["preflight"])
    arena, _ = inputs.arena(node, inputs.start_policy(node))
    order = ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node))
    draw = Draw(asked.samples, spec.temperature, derive(node.seed, "rollouts"), "preflight")
    store = RolloutLedger(node.checkpoints / "rollouts.jsonl")

    def tell(done: int, total: int) -> None:
        node.progress("rollouts", done / max(1, total), {"rollouts": float(done)})

    found = collect(arena, order.draw(asked.problems), draw, stop=node.stop, store=store, progress=tell)
    figures = measure(found.trajectories, spec)
    missing = unmet(Needs.model_validate(node.params["needs"]), figures)
    best, worst = review_sample(found.trajectories)
    write_shards(node.out / "review" / "best", best)
    write_shards(node.out / "review" / "worst", worst)
    write_json(node.out / "preflight.json", figures | {"unmet": missing})
    shown = ("success", "positive_problem_rate", "mixed_group_rate", "truncated", "tool_success")
    notes = [*inputs.empty_notes(node), *first_success(figures)]
    notes += [f"not met: {sentence}" for sentence in missing]
    if asked.problems > order.size:
        notes.append(f"preflight.problems is {asked.problems}, but there are only {order.size}; all were used")
    notes += store.notes()
    return Outcome(
        metrics={name: figures[name] for name in shown} | {"reward_mean": figures["reward"]["mean"]},
        cost={"rollouts": float(len(found.trajectories)), "tokens": float(found.policy_tokens)},
        notes=notes,
    )


def train(node: NodeContext) -> Outcome:
    """Train by a policy gradient; writes `policy/`, `curve.json`, `trajectories/` and, with teachers, `signals.json`."""
    if not read_json(node, "decision", "decision.json")["go"]:
        raise StateError(f"{node.id}: its preflight did not say go, so it should not have been started")
    spec = policy_gradient_from(node.params["algorithm"])
    policy = inputs.start_policy(node)
    shared = isinstance(spec, ValueBased) and spec.critic.backbone == "shared"
    learner = training.learner_for(node, policy, spec.optimizer, policy_updates(spec), values=shared)
    arena, sampler = inputs.arena(node, policy)
    keeper = Keeper(RolloutStore(node.checkpoints / "rollouts"))
    mixture, shown = replaying.mixture(node, spec, policy)
    asked = panels.panel(node, policy, spec.distill.over) if spec.distill is not None else None
    stage = OnPolicy(
        spec=spec,
        problems=replaying.problem_order(node, spec),
        seed=node.seed,
        max_length=policy.config.max_length,
        load_weights=partial(load_weights, sampler, learner, node.id),
        reference=training.reference(node, policy) if spec.kl_coef > 0 else None,
        exact=inputs.exact(node),
        critic=_critic(node, spec, policy),
        mixture=mixture,
        teaching=self_teaching.teaching(node, spec, arena, sampler),
        panel=asked,
        keep=keeper.keep,
        keep_signals=keeper.keep_signals,
        before_save=panels.settling(keeper, asked),
    )
    report = train_policy_gradient(learner, arena, stage, inputs.hooks(node))
    kept = keeper.all(spec.steps)
    inputs.save_result(node, policy, learner, report.probe or probe_of(kept, policy.config.max_length))
    write_shards(node.out / "trajectories", kept)
    taught = panels.write_taught(node, asked, kept, keeper.signals(spec.steps)) if asked is not None else []
    write_json(node.out / "curve.json", _curve(report))
    return Outcome(
        metrics=_metrics(report),
        cost=_cost(report, learner) | opd.server_cost(report.curve),
        notes=[
            *inputs.precision_notes(node),
            *inputs.empty_notes(node),
            *taught,
            *shown,
            *_notes(report, spec),
            *drift_notes(kept),
            *opd.server_notes(report.curve),
        ],
    )


def _critic(node: NodeContext, spec: PolicyGradientAlgorithm, policy: LoadedPolicy) -> CriticLearner | None:
    """Return the critic, over the weights of the policy the stage starts from, where it is a model of its own."""
    if not isinstance(spec, ValueBased) or spec.critic.backbone == "shared":
        return None
    return CriticLearner(
        training.critic_model(node, policy),
        spec.critic,
        spec.steps,
        precision=inputs.precision(node, "precision"),
        micro_batch_tokens=inputs.execution(node).micro_batch_tokens,
        device=inputs.device(node),
    )


def _curve(report: OnPolicyReport) -> dict[str, Any]:
    steps = [{"step": i + 1} | line for i, line in enumerate(report.curve)]
    return {"steps": steps, "skipped_steps": report.skipped_steps, "dropped": report.dropped} | (
        {"missing_logprobs": report.missing_logprobs} if report.missing_logprobs else {}
    )


def _metrics(report: OnPolicyReport) -> dict[str, float | None]:
    """Return figures of the last steps; those of the first as `first_…`."""
    first, last = report.curve[0], report.curve[-_LAST_STEPS:]
    names = ("success", "reward_mean", "mixed_groups", "truncated", "policy_tokens")
    metrics: dict[str, float | None] = {n: sum(line[n] for line in last) / len(last) for n in names}
    for name in ("entropy", "logprob_gap", "clip_fraction"):
        given = [line[name] for line in last if name in line]
        metrics[name] = sum(given) / len(given) if given else None
    for name in (n for n in last[-1] if n.startswith(("growth_", "made_"))):
        metrics[name] = sum(line[name] for line in last) / len(last)
    return metrics | {"first_success": first["success"], "skipped_steps": float(report.skipped_steps)}


def _cost(report: OnPolicyReport, learner: Learner) -> dict[str, float]:
    return {
        "rollouts": float(report.rollouts),
        "tokens": float(report.policy_tokens),
        "steps": float(learner.updates),
    }


def _notes(report: OnPolicyReport, spec: PolicyGradientAlgorithm) -> list[str]:
    why = "there was nothing to compare, or what there was was left out"
    notes = report.sentences(spec.steps, why)
    alike = sum(line["identical_groups"] for line in report.curve) / len(report.curve)
    if alike > 0:
        notes.append(
            f"in {100 * alike:.0f} % of the groups all trajectories were the same, token for token; they teach nothing"
        )
    notes += self_teaching.notes(report.curve)
    return [*notes, *replaying.notes(report, spec), *teacher_terms.sentences(report.curve)]
