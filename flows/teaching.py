"""The node that asks black-box teachers about a node's rollouts: its params, and what it costs. Pure.

`access` says how teachers are reached and what may be spent, `downgrades` which finer signals were not to be had; like the
budget they are no part of any key.
"""

from collections.abc import Iterable
from typing import Any

from flows.graph import Graph, dump
from flows.nodes import Json
from specs.program import Program
from specs.prompting import version_for
from specs.routing import Signal
from specs.stages import Stage
from specs.teacher_choice import choice, named

ACCESS = (
    "base_url", "url", "unencrypted", "api_key", "stream", "top_k", "limits", "price", "cap_usd", "cap_calls", "failure_share",
)  # fmt: skip
"""Fields of a teacher that cannot change what it answers."""


def roster(program: Program, names: Iterable[str]) -> tuple[Json, Json]:
    """Return what teachers are, and how they are reached, by name; members of ensembles are added."""
    wanted = list(dict.fromkeys(names))
    for name in list(wanted):
        teacher = program.teachers[name]
        if teacher.kind == "ensemble":
            wanted += [m for m in teacher.members if m not in wanted]
    specs = {name: dump(program.teachers[name]) for name in wanted}
    who = {n: {k: v for k, v in s.items() if k not in ACCESS and k != "gives"} for n, s in specs.items()}
    return who, {n: {k: s[k] for k in ACCESS if k in s} for n, s in specs.items()}


def add_teach(
    graph: Graph, stage: Stage, node_id: str, rollouts: str, signal: Signal, asking: Json, drawn: Json
) -> str:  # fmt: skip
    """Add the node that asks a stage's teachers for a signal about the trajectories of the node `rollouts`.

    `drawn` says how many trajectories there are: `{"problems": n or None, "samples": m}`, for the estimate.
    """
    learner: Any = stage.algorithm
    program = graph.program
    names, found = named(program, learner), choice(program, learner)
    routes = [dump(r) for r in program.routing] if learner.teachers is None and program.routing else []
    own = [rule for rule in found.rules if rule.signal == signal]
    who, access = roster(program, [name for rule in own for name in rule.teachers])
    environments = graph.environments(stage.data)
    reached = {t["environment"] for t in who.values() if t["kind"] == "scripted"}
    environments |= {n: graph.environment(n) for n in program.environments if n in reached}
    params: Json = {
        "signal": signal,
        "asking": asking,
        "prompt": version_for(asking),
        "teachers": who,
        "versions": graph.versions(environments) | {f"teachers.{n}": _version(program, n) for n in who},
        "routing": routes or [{"when": None, "teachers": dict(names), "reject": False, "history": None}],
        "environments": environments,
        "data": list(stage.data),
        "drawn": drawn,
        "access": {"program": program.program, "teachers": access, "teacher_usd": program.budget.teacher_usd},
        "downgrades": found.downgrades(signal),
    }
    if len(found.signals) > 1:  # another node asks for what the other rules come to
        places = {rule.place for rule in own}
        params["rules"] = [i for i in range(len(routes)) if f"routing[{i}]" in places]
    if signal == "sample":  # corrections are tried in the world
        params |= {"verifiers": graph.verifiers, "reward": dump(graph.reward)}
        params["versions"] |= graph.versions((), graph.verifiers)
    inputs = {"rollouts": rollouts}
    inputs |= {f"data.{n}": graph.part.pools.get(n, f"data.{n}") for n in stage.data}
    if any(r["history"] for r in params["routing"]):
        beside = {n.id for n in graph.nodes.values() if n.inputs.get("rollouts") == rollouts}
        earlier = [n.id for n in graph.nodes.values() if n.kind == "teach" and n.id not in beside]
        inputs |= {f"history.{i}": node for i, node in enumerate(earlier)}
    return graph.add(node_id, "teach", params, inputs, seed=graph.program.seed)


def _version(program: Program, name: str) -> str:
    teacher = program.teachers[name]
    return f"{teacher.kind}@{teacher.version}"
