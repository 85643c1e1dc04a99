"""Bodies of policy-gradient nodes: the preflight and the stage itself; `choosing` stands between them."""

from functools import partial
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work import inputs
from flows.work.choosing import read_json
from flows.work.serving import AnySampler
from specs.errors import StateError
from specs.policy_gradient import PolicyGradientAlgorithm, ValueBased, policy_gradient_from
from specs.records import Trajectory
from specs.stages import Needs, Preflight
from tasks.episodes.seeds import derive
from tasks.episodes.shards import write_shards
from tasks.files import write_json
from tasks.judging.needs import unmet
from tasks.learning.checkpoints import tensor_digest
from tasks.learning.critic import CriticLearner
from tasks.learning.learner import Learner
from tasks.loops.collect import Draw, collect, drift_notes
from tasks.loops.on_policy import OnPolicy, OnPolicyReport, train_policy_gradient
from tasks.loops.order import ProblemOrder
from tasks.loops.preflight import measure, review_sample
from tasks.loops.rollout_store import RolloutStore
from tasks.loops.updates import policy_updates
from tasks.policy.llama import Llama

_LAST_STEPS = 5
"""Steps over which the receipt's figures are averaged."""


def preflight(node: NodeContext) -> Outcome:
    """Roll out before the stage and measure whether it can learn; writes `preflight.json` and `review/`."""
    spec = policy_gradient_from(node.params["algorithm"])
    asked = Preflight.model_validate(node.params["preflight"])
    arena, _ = inputs.arena(node, inputs.start_policy(node))
    order = ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node))
    draw = Draw(asked.samples, spec.temperature, derive(node.seed, "rollouts"), "preflight")
    store = RolloutStore(node.checkpoints / "rollouts")

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
    notes = inputs.empty_notes(node)
    notes += [f"not met: {sentence}" for sentence in missing]
    if asked.problems > order.size:
        notes.append(f"preflight.problems is {asked.problems}, but there are only {order.size}; all were used")
    return Outcome(
        metrics={name: figures[name] for name in shown} | {"reward_mean": figures["reward"]["mean"]},
        cost={"rollouts": float(len(found.trajectories)), "tokens": float(found.policy_tokens)},
        notes=notes,
    )


def train(node: NodeContext) -> Outcome:
    """Train by a policy gradient; writes `policy/`, `curve.json` and, where they are kept, `trajectories/`."""
    if not read_json(node, "decision", "decision.json")["go"]:
        raise StateError(f"{node.id}: its preflight did not say go, so it should not have been started")
    spec = policy_gradient_from(node.params["algorithm"])
    run, policy = inputs.execution(node), inputs.start_policy(node)
    learner = Learner(
        policy.model,
        spec.optimizer,
        policy_updates(spec),
        precision=inputs.precision(node, "precision"),
        micro_batch_tokens=run.micro_batch_tokens,
        device=inputs.device(node),
    )
    arena, sampler = inputs.arena(node, policy)
    keeper = _Keeper(RolloutStore(node.checkpoints / "rollouts"))
    stage = OnPolicy(
        spec=spec,
        problems=ProblemOrder(inputs.problem_sets(node), node.seed, inputs.weights(node)),
        seed=node.seed,
        max_length=policy.config.max_length,
        load_weights=partial(_load_weights, sampler, policy.model, node.id),
        reference=inputs.start_policy(node).model if spec.kl_coef > 0 else None,
        critic=_critic(node, spec),
        keep=keeper.keep,
        before_save=keeper.flush,
    )
    report = train_policy_gradient(learner, arena, stage, inputs.hooks(node))
    inputs.save_result(node, policy, learner, report.probe)
    kept = keeper.all(spec.steps)
    write_shards(node.out / "trajectories", kept)
    write_json(node.out / "curve.json", _curve(report))
    return Outcome(
        metrics=_metrics(report),
        cost=_cost(report, learner),
        notes=[*inputs.precision_notes(node), *inputs.empty_notes(node), *_notes(report, spec), *drift_notes(kept)],
    )


def _critic(node: NodeContext, spec: PolicyGradientAlgorithm) -> CriticLearner | None:
    """Return the critic, a copy of the policy the stage starts from, where the algorithm has one."""
    if not isinstance(spec, ValueBased):
        return None
    return CriticLearner(
        inputs.start_policy(node).model,
        spec.critic,
        spec.steps,
        precision=inputs.precision(node, "precision"),
        micro_batch_tokens=inputs.execution(node).micro_batch_tokens,
        device=inputs.device(node),
    )


class _Keeper:
    """Holds rollouts until the next checkpoint, then stores them; gives them back in order of steps."""

    def __init__(self, store: RolloutStore) -> None:
        self._store = store
        self._pending: dict[int, list[Trajectory]] = {}

    def keep(self, step: int, trajectories: list[Trajectory]) -> None:
        self._pending[step] = trajectories

    def flush(self, steps: int) -> None:
        """Store what belongs to finished steps."""
        for step in [s for s in self._pending if s < steps]:
            self._store.write(f"step-{step:06d}", self._pending.pop(step))

    def all(self, steps: int) -> list[Trajectory]:
        """Return the rollouts of all steps. StateError where a stored step is damaged."""
        found: list[Trajectory] = []
        for step in range(steps):
            part = self._pending.get(step) or self._store.read(f"step-{step:06d}")
            if part is None:
                raise StateError(
                    f"the kept rollouts of step {step} are damaged or gone; remove the node's ckpt folder to train the "
                    "stage anew"
                )
            found += part
        return found


def _load_weights(sampler: AnySampler, model: Llama, node_id: str, step: int) -> None:
    digest = tensor_digest(dict(model.named_parameters()))
    sampler.load_weights(model, f"{node_id}/{step}/{digest[:12]}")


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
    return metrics | {"first_success": first["success"], "skipped_steps": float(report.skipped_steps)}


def _cost(report: OnPolicyReport, learner: Learner) -> dict[str, float]:
    return {
        "rollouts": float(report.rollouts),
        "tokens": float(report.policy_tokens),
        "steps": float(learner.updates),
    }


def _notes(report: OnPolicyReport, spec: PolicyGradientAlgorithm) -> list[str]:
    notes = list(report.notes)
    if report.skipped_steps:
        notes.append(
            f"{report.skipped_steps} of {spec.steps} steps made no update: there was nothing to compare, or what there was was left out"
        )
    alike = sum(line["identical_groups"] for line in report.curve) / len(report.curve)
    if alike > 0:
        notes.append(
            f"in {100 * alike:.0f} % of the groups all trajectories were the same, token for token; they teach nothing"
        )
    if report.missing_logprobs:
        notes.append(f"{report.missing_logprobs} tokens have no logprob of the sampler and did not train")
    notes += [f"{n} trajectories left out of the loss: {reason}" for reason, n in sorted(report.dropped.items())]
    return notes
