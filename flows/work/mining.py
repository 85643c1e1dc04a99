"""Body of `mine`: the rollouts in which a round looks for failures."""

from flows.context import NodeContext, Outcome
from flows.work import inputs
from specs.flywheel import Mine
from tasks.episodes.seeds import derive
from tasks.episodes.shards import write_shards
from tasks.files import write_json
from tasks.loops.collect import Draw
from tasks.loops.collect import collect as collect_rollouts
from tasks.loops.order import ProblemOrder
from tasks.loops.rollout_ledger import RolloutLedger


def mine(node: NodeContext) -> Outcome:
    """Roll out the round's start policy on training problems and judge; writes `trajectories/` and `mine.json`."""
    spec = Mine.model_validate(node.params["mine"])
    arena, _ = inputs.arena(node, inputs.start_policy(node))
    sets = inputs.problem_sets(node)
    order = ProblemOrder(sets, node.seed)
    asked = order.draw(spec.problems)
    draw = Draw(spec.samples, spec.temperature, derive(node.seed, "rollouts"), node.id)
    store = RolloutLedger(node.checkpoints / "rollouts.jsonl")

    def tell(done: int, total: int) -> None:
        node.progress("rollouts", done / max(1, total), {"rollouts": float(done)})

    found = collect_rollouts(arena, asked, draw, stop=node.stop, store=store, progress=tell)
    write_shards(node.out / "trajectories", found.trajectories)
    names = {p.id: name for name, problems in reversed(sets.items()) for p in problems}
    by_set = {name: [p.id for p in asked if names[p.id] == name] for name in spec.sources}
    write_json(node.out / "mine.json", {"problems": by_set, "rollouts": len(found.trajectories), "lost": found.reasons})
    valid = [t for t in found.trajectories if t.success is not None]
    notes = [f"{n} rollouts have no verdict and are no failures: {reason}" for reason, n in found.reasons.items()]
    if spec.problems > order.size:
        notes.append(f"mine.problems is {spec.problems}, but there are only {order.size}; all were used")
    notes += store.notes()
    return Outcome(
        metrics={"success": sum(bool(t.success) for t in valid) / len(valid) if valid else None},
        cost={"rollouts": float(len(found.trajectories)), "tokens": float(found.policy_tokens)},
        notes=notes,
    )
