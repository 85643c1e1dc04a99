"""Gates to nodes: the evaluations that they need, the decision, and the promotion; of the main part and of rounds. Pure."""

from typing import Any

from flows.graph import Graph, dump, once
from flows.nodes import Json
from flows.resolution import gate_aliases
from specs.errors import ProgramError
from specs.gates import Gate
from specs.program import Program
from specs.reward_models import RewardModel

_PAIRED = ("no_worse_by", "better_by")


def add_gates(graph: Graph, stages: list[str], evidence: str | None = None) -> None:
    """Add every gate about the policies of `stages`; in a round, `evidence` is what was known as it began."""
    for name, gate in graph.program.gates.items():
        _gate(graph, name, gate, candidates(graph, name, gate, stages), evidence)


def candidates(graph: Graph, name: str, gate: Gate, stages: list[str]) -> list[str]:
    """Return the policies that a gate may choose: in a round, a gate that names a stage asks about the last one.

    A stage that learns a reward hands its policy on as it was, and is no candidate to be the best.
    """
    if gate.candidate == "best":
        judges = [s.id for s in graph.program.stages if isinstance(s.algorithm, RewardModel)]
        return [s for s in stages if s not in judges] or stages
    chosen = stages[-1] if gate.candidate == "last" or graph.part.number else gate.candidate
    if chosen not in stages:
        raise ProgramError(
            f"{graph.program.program}: gate {name} has the candidate {chosen!r}; "
            f"expected last, best or one of {', '.join(stages)}"
        )
    return [chosen]


def deciding(program: Program) -> str | None:
    """Return the gate that decides where a round starts: the one that promotes, else the first; None without gates."""
    return next((n for n, g in program.gates.items() if g.on_pass == "promote"), next(iter(program.gates), None))


def paired_sets(gate: Gate) -> list[str]:
    """Return the sets on which a gate compares with a baseline."""
    return list(once(r.set for r in gate.require if _needs_baseline(r)))


def _gate(graph: Graph, name: str, gate: Gate, chosen: list[str], evidence: str | None) -> None:
    sets = list(once(r.set for r in gate.require))
    baseline = _baseline(graph, name, gate)
    paired = paired_sets(gate)
    inputs: dict[str, str] = {}
    for stage in chosen:
        graph.evaluate(stage, sets)
        inputs |= {f"candidate.{stage}.{s}": f"eval.{stage}.{s}" for s in sets}
    if baseline is not None:
        graph.evaluate(baseline, paired)
        inputs |= {f"baseline.{s}": f"eval.{baseline}.{s}" for s in paired}
    if evidence is not None:
        inputs |= _round_inputs(graph, name, gate, evidence)
    promotable = "champion" in gate_aliases(graph.program)
    champion = graph.resolution.aliases.get("champion") if promotable else None
    known = None if champion is None else {k: champion[k] for k in ("version", "digest")}
    known = None if known is None or champion is None else known | {"former": champion.get("former") or []}
    params: Json = {
        "gate": dump(gate), "name": graph.part.name(name), "candidates": chosen, "sets": sets,
        "baseline": baseline, "champion": known, "program": graph.program.program,
        "others": [n for n in graph.program.gates if n != name],
    }  # fmt: skip
    inputs |= {f"data.{s}": f"data.{s}" for s in sets}
    decided = graph.add(graph.part.name(f"gate.{name}"), "gate", params, inputs)
    if gate.on_pass == "promote":
        given = {"gate": decided} | {f"policy.{s}": graph.policies[s] for s in chosen}
        before = [n for n in graph.nodes if n.startswith("promote.")]
        given |= {"before": before[-1]} if before else {}
        through = "before" if before else None  # what this run has promoted stays known where one is left out
        promoted: Json = {"program": graph.program.program, "gate": graph.part.name(name), "candidates": chosen}
        graph.add(graph.part.name(f"promote.{name}"), "promote", promoted, given, passthrough=through)


def _round_inputs(graph: Graph, name: str, gate: Gate, evidence: str) -> dict[str, str]:
    """Return what a round's gate needs beside: the champion of that moment, and that its earlier looks are taken."""
    inputs = {"evidence": evidence} if gate.baseline.alias == "champion" else {}
    earlier = [n for n in graph.nodes.values() if n.kind == "gate" and n.params["name"].partition("@")[0] == name]
    return inputs | {f"earlier.{n.params['name']}": n.id for n in earlier}


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


def _needs_baseline(requirement: Any) -> bool:
    return requirement.metric == "regressed_cases" or any(getattr(requirement, k) is not None for k in _PAIRED)
