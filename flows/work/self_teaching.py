"""What a self-taught stage needs beside its rollouts: the frozen self, what it is shown, and others' experience."""

from collections.abc import Mapping, Sequence
from functools import partial

from flows.context import NodeContext
from flows.work import inputs
from flows.work.serving import AnySampler
from specs.algorithms import PolicyGradientAlgorithm
from specs.errors import DataError
from specs.records import Problem, Trajectory
from specs.self_teaching import SelfTaught, SelfTaughtAlgorithm
from tasks.episodes.shards import read_shards, told_apart
from tasks.learning.checkpoints import tensor_digest
from tasks.loops.collect import Arena
from tasks.loops.contexts import Contexts, solver
from tasks.loops.self_teaching import SelfTeaching
from tasks.policy.llama import Llama


def teaching(
    node: NodeContext, spec: PolicyGradientAlgorithm, arena: Arena, sampler: AnySampler
) -> SelfTeaching | None:
    """Return the self that teaches, where the algorithm has one; at first it is the policy that the stage starts from."""
    if not isinstance(spec, SelfTaught):
        return None
    problems: dict[str, Problem] = {}
    contexts = Contexts(
        arena.template,
        spec.privileged.shows if spec.form != "success_distill" else (),
        spec.privileged.max_tokens,
        solver(arena.environments, problems, arena.agent, node.seed),
    )
    load = partial(_load_frozen, sampler, node.id)
    frozen = inputs.start_policy(node).model
    return SelfTeaching(spec, frozen, contexts, load, problems=problems, experience=_experience(node, spec))


def _load_frozen(sampler: AnySampler, node_id: str, model: Llama, version: int) -> None:
    digest = tensor_digest(dict(model.named_parameters()))
    sampler.load_weights(model, f"{node_id}/frozen{version}/{digest[:12]}")


def _experience(node: NodeContext, spec: SelfTaughtAlgorithm) -> list[Trajectory]:
    """Return the verified rollouts of other stages and learners, one of a problem from each.

    DataError where stages that are named hold none; learners that share may have verified nothing yet.
    """
    found: list[Trajectory] = []
    names = [n for n in node.inputs if n.startswith("experience.")]
    for name in (*names, *(n for n in node.inputs if n.startswith("shared."))):
        known: dict[str, Trajectory] = {}
        for t in read_shards(node.inputs[name] / "trajectories"):
            if t.success is True and t.status == "finished" and (t.reward or 0.0) > 0:
                best = known.get(t.problem_id)
                if best is None or t.policy_tokens < best.policy_tokens:
                    known[t.problem_id] = t
        found += known.values()
    if names and not found:
        raise DataError(
            f"{node.id}: {', '.join(names)} hold no verified success to teach; name other stages, or leave experience out"
        )
    return told_apart("experience", sorted(found, key=lambda t: (t.problem_id, t.id)))


def notes(curve: Sequence[Mapping[str, float]]) -> list[str]:
    """Return at which step the guard switched self-teaching off, where it did."""
    off = next((i for i, line in enumerate(curve, 1) if line.get("self_teaching") == 0.0), None)
    if off is None:
        return []
    return [
        f"success fell by more than guard.max_drop: self-teaching was switched off after step {off} of {len(curve)}"
    ]
