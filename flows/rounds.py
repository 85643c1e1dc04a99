"""Rounds of the flywheel to nodes: start, mine, attribute, remedy, pools, stages, gates, publish; all unrolled. Pure.

A later round hangs on a `round.choose` that looks at what the rounds before it gained; each of its nodes is skipped
where that says no.
"""

from dataclasses import dataclass

from flows.gating import add_gates, candidates, deciding, paired_sets
from flows.graph import Graph, Part, dump, once
from flows.nodes import Json
from flows.unroll import add_stage
from specs.algorithms import SFT
from specs.data import PoolData
from specs.flywheel import POOLS, Flywheel, pools_read
from specs.implicit import flywheel_sets


@dataclass(frozen=True, slots=True)
class _Before:
    """What a round follows: the policies that the part before it offered, and the gate that judged them."""

    candidates: list[str]
    gate: str | None
    start: str | None = None
    """Where the round before began; None after the main part."""


def add_rounds(graph: Graph) -> list[Json]:
    """Add every round and return its stages for the report: id, type, from, policy."""
    said = graph.program.flywheel
    if said is None:
        return []
    apart, told = _apart(graph), list[Json]()
    name = deciding(graph.program)
    stages = [s.id for s in graph.program.stages]
    offered = stages[-1:] if name is None else candidates(graph, name, graph.program.gates[name], stages)
    before = _Before(offered, None if name is None else f"gate.{name}")
    for number in range(1, said.rounds + 1):
        choice = None if number == 1 else _choose(graph, said, number)
        when = None if choice is None else {"node": choice, "go": True}
        start = _start(graph, said, number, before, when)
        pools = {pool: f"round{number}.pool.{pool}" for pool in pools_read(said)}
        graph.part = Part(number, f"start@{number}", pools, apart, when)
        told += _round(graph, said, start)
        names = [graph.part.name(s.id) for s in said.round.stages]
        offered = names[-1:] if name is None else candidates(graph, name, graph.program.gates[name], names)
        before = _Before(offered, None if name is None else graph.part.name(f"gate.{name}"), start)
        _end(graph, said, before)
        graph.part = Part()
    return told


def _round(graph: Graph, said: Flywheel, start: str) -> list[Json]:
    """Add what lies between the start of a round and its end, and return its stages for the report."""
    _mine(graph, said, start)
    _cases(graph, said, start)
    _remedy(graph, said)
    for pool, node in graph.part.pools.items():
        before = f"round{graph.part.number - 1}.pool.{pool}"
        inputs = {"remedy": f"round{graph.part.number}.remedy"} | ({"earlier": before} if before in graph.nodes else {})
        graph.add(node, "data.pool", {"pool": pool}, inputs)
    told: list[Json] = []
    stages = said.round.stages
    for index, stage in enumerate(stages):
        add_stage(graph, stages, index)
        name = graph.part.name(stage.id)
        came = graph.part.name(stage.start or stages[index - 1].id) if index else graph.part.start
        told.append({"id": name, "type": stage.algorithm.type, "from": came, "policy": graph.policies[name]})
    add_gates(graph, [graph.part.name(s.id) for s in stages], start)
    return told


def _sets(graph: Graph, said: Flywheel) -> list[str]:
    """Return the sets on which a round must know the policy that it starts from."""
    paired = [s for g in graph.program.gates.values() for s in paired_sets(g)]
    gain = [_gain_on(graph, said)] if said.rounds > 1 else []
    pool = _pool_set(graph)
    return list(once([*paired, *said.causes_from, *gain, *([pool] if pool else [])]))


def _gain_on(graph: Graph, said: Flywheel) -> str:
    return said.stop.gain_on or graph.program.evaluation.sets[0]


def _pool_set(graph: Graph) -> str | None:
    """Return the evaluation set that is the regression pool."""
    asked = [*graph.program.evaluation.sets, *graph.program.evaluation.at_the_end]
    asked += [r.set for g in graph.program.gates.values() for r in g.require]
    return next((n for n in asked if isinstance(graph.program.data[n], PoolData)), None)


def _start(graph: Graph, said: Flywheel, number: int, before: _Before, when: Json | None) -> str:
    """Add the choice of the policy that a round starts from, with its evaluations."""
    sets = _sets(graph, said)
    champion = number == 1 and graph.registered("champion")
    for policy in [*before.candidates, *(["champion"] if champion else [])]:
        graph.evaluate(policy, sets)
    inputs = {f"policy.{p}": graph.policies[p] for p in before.candidates}
    inputs |= {f"eval.{p}.{s}": f"eval.{p}.{s}" for p in before.candidates for s in sets}
    if before.gate is not None:
        inputs["gate"] = before.gate
    if champion:
        inputs |= {"policy.champion": graph.policies["champion"]}
        inputs |= {f"eval.champion.{s}": f"eval.champion.{s}" for s in sets}
    if before.start is not None:
        inputs["before"] = before.start
    gate = deciding(graph.program)
    params: Json = {
        "round": number,
        "start_from": said.round.start_from,
        "candidates": before.candidates,
        "champion": champion,
        "sets": sets,
        "promotes": gate is not None and graph.program.gates[gate].on_pass == "promote",
    }
    node = graph.add(f"round{number}.start", "round.start", params, inputs, when=when)
    graph.policies[f"start@{number}"] = node
    return node


def _choose(graph: Graph, said: Flywheel, number: int) -> str:
    """Add the decision whether a later round runs: not where as many rounds in a row as declared gained nothing."""
    window = range(max(1, number - said.stop.no_gain_rounds), number)
    gate, gain_on = deciding(graph.program), _gain_on(graph, said)
    inputs: dict[str, str] = {}
    offered: dict[str, list[str]] = {}
    for k in window:
        names = [f"{s.id}@{k}" for s in said.round.stages]
        graph.part = Part(k)
        offered[str(k)] = names[-1:] if gate is None else candidates(graph, gate, graph.program.gates[gate], names)
        inputs[f"start.{k}"] = f"round{k}.start"
        inputs |= {f"eval.{k}.{p}": f"eval.{p}.{gain_on}" for p in offered[str(k)]}
        inputs |= {} if gate is None else {f"gate.{k}": f"gate.{gate}@{k}"}
    graph.part = Part()
    previous = f"round{number - 1}.choose"
    when = {"node": previous, "go": True} if previous in graph.nodes else None
    params: Json = {
        "round": number, "gain_on": gain_on, "no_gain_rounds": said.stop.no_gain_rounds, "candidates": offered,
    }  # fmt: skip
    inputs |= {"previous": previous} if when is not None else {}
    passes = "previous" if when is not None else None
    return graph.add(f"round{number}.choose", "round.choose", params, inputs, when=when, passthrough=passes)


def _judged(graph: Graph, sets: list[str]) -> Json:
    """Return the params of nodes that roll out or verify on these data sets."""
    environments = graph.environments(sets)
    return {
        "environments": environments,
        "versions": graph.versions(environments, graph.verifiers),
        "verifiers": graph.verifiers,
        "reward": dump(graph.reward),
    }


def _mine(graph: Graph, said: Flywheel, start: str) -> None:
    sets = list(said.mine.sources)
    params: Json = {
        "mine": dump(said.mine),
        "policy": graph.policy,
        "agent": graph.agent,
        **_judged(graph, sets),
        "data": dict.fromkeys(sets),
    }
    inputs = {"policy": start, **{f"data.{s}": f"data.{s}" for s in sets}, "apart": graph.part.apart}
    graph.add(f"round{graph.part.number}.mine", "mine", params, inputs)


def _cases(graph: Graph, said: Flywheel, start: str) -> None:
    number, pool = graph.part.number, _pool_set(graph)
    sets = list(once([*said.mine.sources, *said.causes_from]))
    environments = graph.environments([*sets, *([pool] if pool else [])])
    params: Json = {
        "program": graph.program.program,
        "round": number,
        "reward": dump(graph.reward),
        "sources": {s: graph.program.data[s].role for s in sets},
        "causes_from": list(said.causes_from),
        "regression": pool,
        "environments": environments,
        "versions": graph.versions(environments),
    }
    inputs = {"start": start, "mined": f"round{number}.mine", **{f"data.{s}": f"data.{s}" for s in sets}}
    inputs |= {"regression": f"data.{pool}"} if pool else {}
    graph.add(f"round{number}.cases", "cases.attribute", params, inputs)


def _remedy(graph: Graph, said: Flywheel) -> None:
    number, program = graph.part.number, graph.program
    params: Json = {
        "program": program.program,
        "round": number,
        "remedies": {cause: dump(r) for cause, r in said.remedies.items()},
        "default": said.default,
        "siblings": dump(said.siblings),
        "fills": list(pools_read(said)),
        "anchor": {"size": said.pools.anchor},
        "successes": {"size": said.pools.successes},
        "apart": dump(program.apart),
        "agent": graph.agent,
        **_judged(graph, [*said.mine.sources, *said.causes_from]),
    }
    inputs = {"cases": f"round{number}.cases", "mined": f"round{number}.mine", "apart": graph.part.apart}
    inputs |= {f"data.{s}": f"data.{s}" for s in once([*said.mine.sources, *said.causes_from])}
    inputs |= {f"train.{n}": f"data.{n}" for n in _training(graph)}
    inputs |= {f"eval.{n}": f"data.{n}" for n in _evaluating(graph)}
    if any(not isinstance(s.algorithm, SFT) for s in program.stages):
        main = [n for n in graph.nodes.values() if n.kind == "collect" and "@" not in n.id]
        inputs |= {f"collect.{n.id}": n.id for n in main}
    inputs |= {f"earlier.{k}": f"round{k}.remedy" for k in range(1, number)}
    graph.add(f"round{number}.remedy", "cases.remedy", params, inputs)


def _training(graph: Graph) -> list[str]:
    """Return every data set that trains, in the main part or in rounds, or is mined."""
    program = graph.program
    names = [n for s in program.stages for n in s.data]
    if program.policy.init.kind == "scratch":
        names.append(program.policy.init.tokenizer.train_on)
    names += [n for n in flywheel_sets(program) if n not in POOLS]
    return [n for n in once(names) if program.data[n].role == "train"]


def _evaluating(graph: Graph) -> list[str]:
    program = graph.program
    asked = [*program.evaluation.sets, *program.evaluation.at_the_end]
    asked += [r.set for g in program.gates.values() for r in g.require]
    return [n for n in once(asked) if n not in _training(graph)]


def _apart(graph: Graph) -> str:
    """Return the node that keeps what rounds train on apart from evaluation: the main part's where it saw all of it."""
    seen = {name.removeprefix("train.") for name in graph.nodes["data.apart"].inputs}
    if set(_training(graph)) <= seen:
        return "data.apart"
    inputs = {f"train.{n}": f"data.{n}" for n in _training(graph)}
    inputs |= {f"eval.{n}": f"data.{n}" for n in _evaluating(graph)}
    return graph.add("data.apart.rounds", "data.apart", {"apart": dump(graph.program.apart)}, inputs)


def _end(graph: Graph, said: Flywheel, done: _Before) -> None:
    """Add what closes a round: the causes that are left, and the publication of what it learnt."""
    number, pool = graph.part.number, _pool_set(graph)
    inputs = {"remedy": f"round{number}.remedy", "cases": f"round{number}.cases"}
    if said.causes_from:
        inputs["after"] = _after(graph, said, done.candidates[-1])
    if done.gate is not None:
        inputs["gate"] = done.gate
    if pool is not None:
        inputs["earlier"] = f"data.{pool}"
    if number > 1:
        inputs["previous"] = f"round{number - 1}.publish"
    params: Json = {"program": graph.program.program, "round": number}
    graph.add(f"round{number}.publish", "pools.publish", params, inputs)


def _after(graph: Graph, said: Flywheel, policy: str) -> str:
    """Add the attribution of what the round's candidate still fails, on the sets that causes were counted on."""
    sets = list(said.causes_from)
    graph.evaluate(policy, sets)
    environments = graph.environments(sets)
    params: Json = {
        "program": graph.program.program,
        "round": graph.part.number,
        "after": True,
        "reward": dump(graph.reward),
        "sources": {s: graph.program.data[s].role for s in sets},
        "causes_from": sets,
        "regression": None,
        "environments": environments,
        "versions": graph.versions(environments),
    }
    inputs = {f"evaluated.{s}": f"eval.{policy}.{s}" for s in sets} | {f"data.{s}": f"data.{s}" for s in sets}
    return graph.add(f"round{graph.part.number}.after", "cases.attribute", params, inputs)
