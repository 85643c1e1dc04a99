"""Program and resolution to plan. Pure: the same two give the same bytes.

Everything is unrolled: rounds, copies of `else_first`, evaluations. What is decided while running is a `when` of the
nodes it concerns; the deciding node is their input `condition`, so that it is part of their keys.
"""

from typing import Any

from flows.describe import details
from flows.graph import Graph, dump, once
from flows.nodes import NODE_KINDS, Json, Plan
from flows.resolution import Resolution
from flows.unroll import add_stage
from specs.data import ProblemFile
from specs.errors import ProgramError
from specs.gates import Gate
from specs.program import Program

_PAIRED = ("no_worse_by", "better_by")


def compile(program: Program, resolution: Resolution) -> Plan:
    """Return the plan. ProgramError where a node cannot fit into memory, with the cheapest change that would."""
    graph = Graph(program, resolution)
    _data_sets(graph)
    _first_policy(graph)
    for i, stage in enumerate(program.stages):
        add_stage(graph, i, stage)
    _gates(graph)
    _report(graph)
    graph.check_memory()
    return Plan(
        program=program.program,
        about=program.about,
        seed=program.seed,
        program_digest=resolution.program_digest,
        resolution=resolution.to_dict(),
        nodes=tuple(graph.nodes.values()),
        policies=graph.policies,
        stages=tuple(s.id for s in program.stages),
        execution=dump(program.run) | {"threads": graph.threads},
        budget=dump(program.budget),
        tags=dict(program.tags),
        rows=dict(graph.sizes.rows),
        details=details(program, graph.reward),
    )


def _data_sets(graph: Graph) -> None:
    """Add every data set that something reads, and the node that keeps training and evaluation apart."""
    program = graph.program
    for name in graph.used:
        source = program.data[name]
        params: Json = {
            "name": name,
            "source": dump(source),
            "environment": graph.environment(source.environment),
            "versions": graph.versions([source.environment]),
        }
        if params["environment"]["kind"] == "bfcl":
            params["package"] = graph.resolution.packages.get("bfcl-eval")
        seed = None if isinstance(source, ProblemFile) else source.seed
        if isinstance(source, ProblemFile):
            found = graph.resolution.files[name]
            params |= {"path": found["path"], "digest": found["digest"]}
        kind = f"data.{source.kind}"
        graph.add(f"data.{name}", kind, params, {}, seed=seed)
    training = [n for s in program.stages for n in s.data]
    if program.policy.init.kind == "scratch":
        training.append(program.policy.init.tokenizer.train_on)
    asked = [*program.evaluation.sets, *program.evaluation.at_the_end]
    asked += [r.set for g in program.gates.values() for r in g.require]
    train_only = {n for n in training if program.data[n].role == "train"}
    inputs = {f"train.{n}": f"data.{n}" for n in once(training)}
    inputs |= {f"eval.{n}": f"data.{n}" for n in once(asked) if n not in train_only}
    graph.add("data.apart", "data.apart", {"apart": dump(program.apart)}, inputs)


def _first_policy(graph: Graph) -> None:
    """Add the untouched policy and its evaluations."""
    init = graph.program.policy.init
    environments = graph.environments(graph.used)
    params: Json = {
        "policy": graph.policy,
        "environments": environments,
        "versions": graph.versions(environments),
        "agent": graph.agent,
    }
    inputs: dict[str, str] = {}
    if init.kind == "scratch":
        inputs["texts"] = f"data.{init.tokenizer.train_on}"
    elif graph.resolution.weights is not None:
        params |= {"digest": graph.resolution.weights["digest"], "path": graph.resolution.weights["path"]}
    graph.policies["init"] = graph.add("policy.init", "policy.init", params, inputs)
    graph.evaluate("init", graph.program.evaluation.at_the_end)


def _gates(graph: Graph) -> None:
    """Add every gate, the evaluations it needs, and its promotion."""
    for name, gate in graph.program.gates.items():
        _gate(graph, name, gate)


def _gate(graph: Graph, name: str, gate: Gate) -> None:
    candidates = _candidates(graph, name, gate)
    sets = list(once(r.set for r in gate.require))
    baseline = _baseline(graph, name, gate)
    paired = [s for s in sets if any(r.set == s and _needs_baseline(r) for r in gate.require)]
    inputs: dict[str, str] = {}
    for stage in candidates:
        graph.evaluate(stage, sets)
        inputs |= {f"candidate.{stage}.{s}": f"eval.{stage}.{s}" for s in sets}
    if baseline is not None:
        graph.evaluate(baseline, paired)
        inputs |= {f"baseline.{s}": f"eval.{baseline}.{s}" for s in paired}
    champion = graph.resolution.aliases.get("champion")
    known = None if champion is None else {k: champion[k] for k in ("version", "digest")}
    params: Json = {
        "gate": dump(gate), "name": name, "candidates": candidates, "sets": sets,
        "baseline": baseline, "champion": known, "asked": _asked(graph, sets),
    }  # fmt: skip
    decided = graph.add(f"gate.{name}", "gate", params, inputs)
    if gate.on_pass == "promote":
        given = {"gate": decided} | {f"policy.{s}": graph.policies[s] for s in candidates}
        promoted: Json = {"program": graph.program.program, "gate": name, "candidates": candidates}
        graph.add(f"promote.{name}", "promote", promoted, given)


def _asked(graph: Graph, sets: list[str]) -> list[str]:
    """Return the digests of the policies that gates already asked one of these sets about: the looks that are spent."""
    keys = [graph.nodes[f"data.{s}"].plan_key for s in sets]
    return list(once(digest for key in keys for digest in graph.resolution.asked.get(key, [])))


def _candidates(graph: Graph, name: str, gate: Gate) -> list[str]:
    stages = [s.id for s in graph.program.stages]
    if gate.candidate == "best":
        return stages
    chosen = stages[-1] if gate.candidate == "last" else gate.candidate
    if chosen not in stages:
        raise ProgramError(
            f"{graph.program.program}: gate {name} has the candidate {chosen!r}; "
            f"expected last, best or one of {', '.join(stages)}"
        )
    return [chosen]


def _baseline(graph: Graph, name: str, gate: Gate) -> str | None:
    """Return the policy to compare with; None where there is no such alias yet and `first` is absolute."""
    alias, stage = gate.baseline.alias, gate.baseline.stage
    if alias is not None:
        if graph.registered(alias):
            return alias
        return "init" if gate.baseline.first == "init" else None
    if stage not in graph.policies:
        raise ProgramError(
            f"{graph.program.program}: gate {name} has the baseline {stage!r}; "
            f"expected one of {', '.join(graph.policies)}"
        )
    return stage


def _report(graph: Graph) -> None:
    """Add the report over everything that has figures."""
    kinds = ("data.demonstrations", "data.problems", "data.file", "data.apart")
    kinds += ("evaluate", "gate", "collect", "preflight")
    inputs = {n.id: n.id for n in graph.nodes.values() if n.kind in kinds or NODE_KINDS[n.kind].trains}
    stages = [
        {"id": s.id, "type": s.algorithm.type, "from": s.start, "policy": graph.policies[s.id]}
        for s in graph.program.stages
    ]
    params: Json = {
        "program": graph.program.program, "about": graph.program.about,
        "stages": stages, "gates": list(graph.program.gates),
    }  # fmt: skip
    graph.add("report", "report", params, inputs)


def _needs_baseline(requirement: Any) -> bool:
    return requirement.metric == "regressed_cases" or any(getattr(requirement, k) is not None for k in _PAIRED)
