"""Program and resolution to plan. Pure: the same two give the same bytes.

Everything is unrolled: rounds, copies of `else_first`, evaluations. Of rounds only, the main part's stages are left out. What is decided while running is a `when` of the
nodes it concerns; the deciding node is their input `condition`, so that it is part of their keys.
"""

from flows.describe import details
from flows.gating import add_gates
from flows.graph import Graph, dump, once
from flows.nodes import NODE_KINDS, Json, Plan
from flows.resolution import Resolution
from flows.rounds import add_rounds
from flows.unroll import add_stage
from specs.data import PoolData, ProblemFile
from specs.program import Program
from specs.teacher_choice import teachers_data


def compile(program: Program, resolution: Resolution) -> Plan:
    """Return the plan. ProgramError where a node cannot fit into memory, with the cheapest change that would."""
    graph = Graph(program, resolution)
    _data_sets(graph)
    _first_policy(graph)
    stages = [] if resolution.rounds_only else program.stages
    for index in range(len(stages)):
        add_stage(graph, stages, index)
    main = [s.id for s in stages]
    if main:
        add_gates(graph, main)
    rounds = add_rounds(graph)
    _report(graph, main, rounds)
    graph.check_memory()
    return Plan(
        program=program.program,
        about=program.about,
        seed=program.seed,
        program_digest=resolution.program_digest,
        resolution=resolution.to_dict(),
        nodes=tuple(graph.nodes.values()),
        policies=graph.policies,
        stages=(*main, *(s["id"] for s in rounds)),
        execution=dump(program.run) | {"threads": graph.threads},
        budget=dump(program.budget),
        tags=dict(program.tags),
        rows=dict(graph.sizes.rows),
        details=details(program, graph.whole_reward, rounds_only=resolution.rounds_only),
    )


def _data_sets(graph: Graph) -> None:
    """Add every data set that something reads, and the node that keeps training and evaluation apart."""
    program = graph.program
    for name in graph.used:
        source = program.data[name]
        if isinstance(source, PoolData):
            published = {"name": name, "pool": source.pool, "version": graph.resolution.pools.get(source.pool)}
            graph.add(f"data.{name}", "data.published", published, {}, seed=0)
            continue
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
    training = [n for s in program.stages for n in s.reads]
    if program.policy.init.kind == "scratch":
        training.append(program.policy.init.tokenizer.train_on)
    training += teachers_data(program)
    asked = [*program.evaluation.sets, *program.evaluation.at_the_end]
    asked += [r.set for g in program.gates.values() for r in g.require]
    train_only = {n for n in training if program.data[n].role == "train"}
    inputs = {f"train.{n}": f"data.{n}" for n in once(training)}
    inputs |= {f"eval.{n}": f"data.{n}" for n in once(asked) if n not in train_only}
    graph.add("data.apart", "data.apart", {"apart": dump(program.apart)}, inputs)


def _first_policy(graph: Graph) -> None:
    """Add the untouched policy and its evaluations."""
    init = graph.program.policy.init
    environments = graph.environments(graph.main)
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
        params |= {
            n: graph.resolution.weights[n] for n in ("digest", "path", "adapter") if n in graph.resolution.weights
        }
    graph.policies["init"] = graph.add("policy.init", "policy.init", params, inputs)
    if not graph.resolution.rounds_only:
        graph.evaluate("init", graph.program.evaluation.at_the_end)


def _report(graph: Graph, main: list[str], rounds: list[Json]) -> None:
    """Add the report over everything that has figures; `main` and `rounds` are the stages that there are."""
    kinds = ("data.demonstrations", "data.problems", "data.file", "data.apart")
    kinds += ("evaluate", "gate", "collect", "pairs", "preflight", "teach", "cases.attribute", "cases.remedy")
    kinds += ("round.start", "round.evidence", "lessons")
    inputs = {n.id: n.id for n in graph.nodes.values() if n.kind in kinds or NODE_KINDS[n.kind].trains}
    stages = [
        {"id": s.id, "type": s.algorithm.type, "from": s.start, "policy": graph.policies[s.id]}
        for s in graph.program.stages
        if s.id in main
    ]
    params: Json = {
        "program": graph.program.program, "about": graph.program.about,
        "stages": [*stages, *rounds], "gates": list(graph.program.gates),
        "sets": {f"data.{name}": {"kind": d.kind, "role": d.role} for name, d in graph.program.data.items()},
    }  # fmt: skip
    graph.add("report", "report", params, inputs)
