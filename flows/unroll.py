"""Stages to nodes: rounds of rejection sampling, preflights and their `else_first` copies are unrolled. Pure."""

from flows.graph import Graph, dump
from flows.nodes import Json
from specs.algorithms import GRPO, RFT, SFT
from specs.errors import ProgramError
from specs.stages import Needs, Stage

RESERVED = ("init", "champion", "previous", "last", "best", "report")
"""What no stage may be called."""


def add_stage(graph: Graph, index: int, stage: Stage) -> None:
    """Add a stage and its evaluations."""
    before = graph.program.stages[index - 1].id if index else "init"
    start = stage.start or before
    if stage.id in RESERVED or stage.id in graph.policies:
        raise ProgramError(
            f"{graph.program.program}: a stage is called {stage.id!r}, which is taken; choose another id "
            f"({', '.join(RESERVED)} are reserved)"
        )
    if start not in graph.policies:
        raise ProgramError(
            f"{graph.program.program}: stage {stage.id} starts from {start!r}, which is no stage before it; "
            f"expected one of {', '.join(graph.policies)}"
        )
    policy = graph.policies[start]
    match stage.algorithm:
        case SFT():
            result = _sft(graph, stage, policy)
        case RFT():
            result = _rft(graph, stage, stage.id, stage.algorithm, policy)
        case GRPO():
            result = _grpo(graph, stage, policy)
    graph.policies[stage.id] = result
    last = index == len(graph.program.stages) - 1
    graph.evaluate(stage.id, [*graph.program.evaluation.sets, *(graph.program.evaluation.at_the_end if last else [])])


def _sft(graph: Graph, stage: Stage, policy: str) -> str:
    params = {**graph.common(stage), "algorithm": dump(stage.algorithm)}
    return graph.add(stage.id, "train.sft", params, graph.stage_inputs(stage, policy, apart="data.apart"))


def _rft(graph: Graph, stage: Stage, prefix: str, algorithm: RFT, policy: str, when: Json | None = None) -> str:
    """Add the rounds of rejection sampling; later rounds run while `collect` says to continue."""
    spec, previous = dump(algorithm), None
    for number in range(1, algorithm.rounds + 1):
        inputs = graph.stage_inputs(stage, policy, apart="data.apart")
        if previous is not None:
            inputs["previous"] = previous
            when = {"node": previous, "continue": True}
        params = {**graph.judged(stage), "algorithm": spec, "round": number}
        collected = graph.add(
            f"{prefix}.collect{number}", "collect", params, inputs,
            when=when, passthrough=None if previous is None else "previous",
        )  # fmt: skip
        fit = {"algorithm": spec, "policy": graph.policy, "data": params["data"]}
        policy = graph.add(
            f"{prefix}.fit{number}", "train.rft", fit, {"policy": policy, "collect": collected},
            when=when, passthrough=None if when is None else "policy",
        )  # fmt: skip
        previous = collected
    return policy


def _grpo(graph: Graph, stage: Stage, policy: str) -> str:
    """Add preflight and choice, `else_first` as often as it may be tried, and the stage itself."""
    first = RFT(type="rft") if stage.else_first == "rft" else stage.else_first
    tries = stage.tries if first is not None else 0
    decision: str | None = None
    probe: str | None = None
    for number in range(tries + 1):
        when = None if decision is None else {"node": decision, "go": False}
        if first is not None and when is not None:
            policy = _rft(graph, stage, f"{stage.id}.first{number}", first, policy, when)
        probe, decision = _ask(graph, stage, number + 1, policy, (probe, decision), last=number == tries)
    assert decision is not None, "a policy-gradient stage is asked at least once"
    params = {**graph.judged(stage), "algorithm": dump(stage.algorithm)}
    inputs = graph.stage_inputs(stage, policy, apart="data.apart", decision=decision)
    return graph.add(stage.id, "train.grpo", params, inputs)


def _ask(
    graph: Graph, stage: Stage, number: int, policy: str, before: tuple[str | None, str | None], *, last: bool
) -> tuple[str, str]:
    """Add one preflight and its choice; both stand for the ones before where those already said go."""
    needs = dump(stage.needs or Needs())
    probe, decision = before
    when = None if decision is None else {"node": decision, "go": False}
    through = None if decision is None else "previous"
    params = {
        **graph.judged(stage),
        "algorithm": dump(stage.algorithm),
        "needs": needs,
        "preflight": dump(stage.preflight),
    }
    inputs = graph.stage_inputs(stage, policy) | ({"previous": probe} if probe is not None else {})
    asked = graph.add(f"{stage.id}.preflight{number}", "preflight", params, inputs, when=when, passthrough=through)
    inputs = {"preflight": asked} | ({"previous": decision} if decision is not None else {})
    chosen = graph.add(
        f"{stage.id}.choose{number}", "choose", {"stage": stage.id, "needs": needs, "last": last}, inputs,
        when=when, passthrough=through,
    )  # fmt: skip
    return asked, chosen
