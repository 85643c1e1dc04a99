"""Rounds of the flywheel to nodes: start, mine, attribute, remedy, pools, stages, gates, publish; all unrolled. Pure.

A later round hangs on a `round.choose` that looks at what the rounds before it gained; each of its nodes is skipped
where that says no. Where a remedy may stop for the reward, what follows the remedies hangs on a `round.proceed`.
"""

from dataclasses import dataclass, replace

from flows.gating import add_gates, candidates, deciding, paired_sets
from flows.graph import Graph, Part, dump, once
from flows.nodes import Json
from flows.pools import ANSWERED, REGRESSION, TRAINED
from flows.unroll import add_stage
from specs.data import PoolData
from specs.flywheel import POOLS, Flywheel, StopForRewardFix, pools_read, remedies_in_use
from specs.supervised import SFT
from specs.teacher_choice import teachers_data


@dataclass(frozen=True, slots=True)
class _Before:
    """What a round follows: the policies that the part before it offered, and the gate that judged them."""

    candidates: list[str]
    gate: str | None
    evidence: str | None = None
    """What was known as the round before began, its champion too; None after the main part."""


def add_rounds(graph: Graph) -> list[Json]:
    """Add every round and return its stages for the report: id, type, from, policy.

    The first follows the main part, or the champion where that part is left out.
    """
    said = graph.program.flywheel
    if said is None:
        return []
    apart, told = _apart(graph), list[Json]()
    name = deciding(graph.program)
    before = _main_part(graph, name)
    for number in range(1, said.rounds + 1):
        choice = None if number == 1 else _choose(graph, said, number)
        when = None if choice is None else {"node": choice, "go": True}
        evidence = _start(graph, said, number, before, when)
        pools = {pool: f"round{number}.pool.{pool}" for pool in pools_read(said)}
        graph.part = Part(number, f"start@{number}", pools, apart, when)
        told += _round(graph, said, evidence)
        names = [graph.part.name(s.id) for s in said.round.stages]
        offered = names[-1:] if name is None else candidates(graph, name, graph.program.gates[name], names)
        for policy in offered:
            graph.evaluate(policy, _sets(graph, said))
        before = _Before(offered, None if name is None else graph.part.name(f"gate.{name}"), evidence)
        _end(graph, said, before, when)
        graph.part = Part()
    return told


def _main_part(graph: Graph, name: str | None) -> _Before:
    """Return what the first round follows; `name` is the gate that decides where it starts."""
    if graph.resolution.rounds_only:
        graph.registered("champion")
        return _Before(["champion"], None)
    stages = [s.id for s in graph.program.stages]
    offered = stages[-1:] if name is None else candidates(graph, name, graph.program.gates[name], stages)
    return _Before(offered, None if name is None else f"gate.{name}")


def _round(graph: Graph, said: Flywheel, evidence: str) -> list[Json]:
    """Add what lies between the start of a round and its end, and return its stages for the report."""
    _mine(graph, said)
    _cases(graph, said, evidence)
    _remedy(graph, said)
    for pool, node in graph.part.pools.items():
        before = f"round{graph.part.number - 1}.pool.{pool}"
        inputs = {"remedy": f"round{graph.part.number}.remedy"}
        if before in graph.nodes and pool != "anchor":  # each round draws all of its anchors anew
            inputs["earlier"] = before
        sized: Json = {"size": getattr(said.pools, pool)} if pool in ("successes", "anchor") else {}
        graph.add(node, "data.pool", {"pool": pool, **sized}, inputs)
    _proceed(graph, said)
    told: list[Json] = []
    stages = said.round.stages
    for index, stage in enumerate(stages):
        add_stage(graph, stages, index)
        name = graph.part.name(stage.id)
        came = graph.part.name(stage.start or stages[index - 1].id) if index else graph.part.start
        told.append({"id": name, "type": stage.algorithm.type, "from": came, "policy": graph.policies[name]})
    add_gates(graph, [graph.part.name(s.id) for s in stages], evidence)
    return told


def _proceed(graph: Graph, said: Flywheel) -> None:
    """Let the rest of the round hang on the remedies where one of them may stop for the reward.

    Stages hang on a decision and not on the remedies' output, which would move their keys with every case.
    """
    if not any(isinstance(r, StopForRewardFix) for r in remedies_in_use(said)):
        return
    number = graph.part.number
    remedy = f"round{number}.remedy"
    node = graph.add(f"round{number}.proceed", "round.proceed", {"remedy": remedy}, {"remedy": remedy})
    graph.part = replace(graph.part, when={"node": node, "go": True})


def _sets(graph: Graph, said: Flywheel) -> list[str]:
    """Return the sets on which a round must know the policies that it may start from."""
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
    """Add the choice of the policy that a round starts from and, apart from it, what is known as it begins.

    Only `start` holds the policy, and nothing else: what trains is made anew where the policy is another one, not where
    a gate was answered or a set has new problems. Returns the node with the evidence.
    """
    sets = _sets(graph, said)
    champion = number == 1 and graph.registered("champion")
    known = list(once([*before.candidates, *(["champion"] if champion else [])]))
    if number == 1:  # what a round offers was evaluated in that round, and is skipped with it
        for policy in known:
            graph.evaluate(policy, sets)
    inputs = {f"policy.{p}": graph.policies[p] for p in known}
    if before.gate is not None:
        inputs["gate"] = before.gate
    if before.evidence is not None:
        inputs["before"] = before.evidence
    gate = deciding(graph.program)
    params: Json = {
        "round": number,
        "start_from": said.round.start_from,
        "candidates": before.candidates,
        "champion": champion,
        "promotes": gate is not None and graph.program.gates[gate].on_pass == "promote",
    }
    graph.policies[f"start@{number}"] = graph.add(f"round{number}.start", "round.start", params, inputs, when=when)
    inputs |= {f"eval.{p}.{s}": f"eval.{p}.{s}" for p in known for s in sets}
    return graph.add(f"round{number}.evidence", "round.evidence", params | {"sets": sets}, inputs, when=when)


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
        inputs[f"evidence.{k}"] = f"round{k}.evidence"
        inputs |= {f"eval.{k}.{p}": f"eval.{p}.{gain_on}" for p in offered[str(k)]}
        inputs |= {} if gate is None else {f"gate.{k}": f"gate.{gate}@{k}"}
    graph.part = Part()
    previous = f"round{number - 1}.choose"
    when = {"node": previous, "go": True} if previous in graph.nodes else None
    params: Json = {
        "round": number, "gain_on": gain_on, "no_gain_rounds": said.stop.no_gain_rounds, "candidates": offered,
    }  # fmt: skip
    inputs |= {"previous": previous} if when is not None else {}
    proceed = f"round{number - 1}.proceed"
    inputs |= {"proceed": proceed} if proceed in graph.nodes else {}
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


def _mine(graph: Graph, said: Flywheel) -> None:
    sets = list(said.mine.sources)
    params: Json = {
        "mine": dump(said.mine),
        "policy": graph.policy,
        "agent": graph.agent,
        **_judged(graph, sets),
        "data": dict.fromkeys(sets),
    }
    start = graph.policies[graph.part.start]
    inputs = {"policy": start, **{f"data.{s}": f"data.{s}" for s in sets}, "apart": graph.part.apart}
    graph.add(f"round{graph.part.number}.mine", "mine", params, inputs)


def _cases(graph: Graph, said: Flywheel, evidence: str) -> None:
    number, pool = graph.part.number, _pool_set(graph)
    sets = list(once([*said.mine.sources, *said.causes_from]))
    environments = graph.environments([*sets, *([pool] if pool else [])])
    params: Json = {
        "program": graph.program.program,
        "round": number,
        "reward": dump(graph.reward),
        "sources": _roles(graph, sets),
        "causes_from": list(said.causes_from),
        "regression": pool,
        "environments": environments,
        "versions": graph.versions(environments),
    }
    inputs = {"evidence": evidence, "mined": f"round{number}.mine", **{f"data.{s}": f"data.{s}" for s in sets}}
    inputs |= {"regression": f"data.{pool}"} if pool else {}
    if graph.resolution.pools.get(ANSWERED) is not None:  # a person has spoken
        inputs["answered"] = _published(graph, ANSWERED)
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
    inputs |= {f"published.{pool}": _published(graph, pool) for pool in (REGRESSION, TRAINED)}
    graph.add(f"round{number}.remedy", "cases.remedy", params, inputs)


def _published(graph: Graph, pool: str) -> str:
    """Return the node that holds a pool as earlier executions published it; the first round adds it."""
    known = _pool_set(graph)
    if pool == REGRESSION and known is not None:
        return f"data.{known}"
    node = f"round1.published.{pool}"
    if node in graph.nodes:
        return node
    params: Json = {"name": pool, "pool": pool, "version": graph.resolution.pools.get(pool)}
    return graph.add(node, "data.published", params, {}, seed=0)


def _training(graph: Graph) -> list[str]:
    """Return every data set that trains, in the main part or in rounds, or is mined."""
    program, said = graph.program, graph.program.flywheel
    names = [n for s in program.stages for n in s.reads]
    if program.policy.init.kind == "scratch":
        names.append(program.policy.init.tokenizer.train_on)
    names += teachers_data(program)
    if said is not None:
        names += [*said.mine.sources, *(n for s in said.round.stages for n in s.reads if n not in POOLS)]
    return [n for n in once(names) if program.data[n].role == "train"]


def _evaluating(graph: Graph) -> list[str]:
    program = graph.program
    asked = [*program.evaluation.sets, *program.evaluation.at_the_end]
    asked += [r.set for g in program.gates.values() for r in g.require]
    return list(once(asked))


def _roles(graph: Graph, sets: list[str]) -> Json:
    """Return the roles of sets as cases have them: what is evaluated judges, whatever role it was declared with."""
    judging = _evaluating(graph)
    known = {s: graph.program.data[s].role for s in sets}
    return {s: "golden" if s in judging and role == "train" else role for s, role in known.items()}


def _apart(graph: Graph) -> str:
    """Return the node that keeps what rounds train on apart from evaluation: the main part's where it saw all of it."""
    seen = {name.removeprefix("train.") for name in graph.nodes["data.apart"].inputs}
    if set(_training(graph)) <= seen:
        return "data.apart"
    judging = _evaluating(graph)  # what judges may still have given the tokenizer its texts; no stage trains on it
    inputs = {f"train.{n}": f"data.{n}" for n in _training(graph) if n not in judging}
    inputs |= {f"eval.{n}": f"data.{n}" for n in judging}
    return graph.add("data.apart.rounds", "data.apart", {"apart": dump(graph.program.apart)}, inputs)


def _end(graph: Graph, said: Flywheel, done: _Before, when: Json | None) -> None:
    """Add what closes a round: the causes that are left, and the publication of what it learnt.

    The ledger of cases is published also where the remedies stopped for the reward: `when` is the round's own condition.
    """
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
    if (proceed := f"round{number}.proceed") in graph.nodes:
        inputs["proceed"] = proceed
    graph.part = replace(graph.part, when=when)
    stages, told = said.round.stages, list[Json]()
    inputs["start"] = f"round{number}.start"
    for index, stage in enumerate(stages):
        came = stage.start or stages[index - 1].id if index else None
        inputs[f"stage.{stage.id}"] = graph.policies[graph.part.name(stage.id)]
        told.append({
            "id": f"stage.{stage.id}", "from": "start" if came is None else f"stage.{came}",
            "pools": [n for n in stage.data if n in graph.part.pools],
        })  # fmt: skip
    params: Json = {"program": graph.program.program, "round": number, "stages": told}
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
        "sources": _roles(graph, sets),
        "causes_from": sets,
        "regression": None,
        "environments": environments,
        "versions": graph.versions(environments),
    }
    inputs = {f"evaluated.{s}": f"eval.{policy}.{s}" for s in sets} | {f"data.{s}": f"data.{s}" for s in sets}
    return graph.add(f"round{graph.part.number}.after", "cases.attribute", params, inputs)
