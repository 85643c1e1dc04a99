"""Stages to nodes: rounds of rejection sampling, preflights and their `else_first` copies are unrolled. Pure."""

from flows.distilling import add_opd, open_teachers
from flows.graph import Graph, dump
from flows.nodes import Json, node_seed
from flows.taught import add_taught
from specs.compression import Prune, Quantize
from specs.distillation import OPD
from specs.errors import ProgramError
from specs.ladder import ActionDistill, FromTeacher, SoftLabel
from specs.policy_gradient import PolicyGradient
from specs.preference import PairAlgorithm
from specs.reward_models import RewardModel
from specs.self_teaching import Learner, SelfEvolve
from specs.stages import Needs, Stage
from specs.supervised import RFT, SFT, RewardWeighted

RESERVED = ("init", "champion", "previous", "last", "best", "report")
"""What no stage may be called."""
_ROLLED_OUT = ("train.policy_gradient", "train.best")
"""Kinds that leave the rollouts of a policy gradient."""


def add_stage(graph: Graph, stages: list[Stage], index: int) -> None:
    """Add a stage of the part that is being added, and its evaluations."""
    part, stage, last = graph.part, stages[index], index == len(stages) - 1
    before = part.name(stages[index - 1].id) if index else part.start
    start = before if stage.start is None else part.name(stage.start)
    name = part.name(stage.id)
    if stage.id in RESERVED or name in graph.policies:
        raise ProgramError(
            f"{graph.program.program}: a stage is called {stage.id!r}, which is taken; choose another id "
            f"({', '.join(RESERVED)} are reserved)"
        )
    if start not in graph.policies:
        raise ProgramError(
            f"{graph.program.program}: stage {stage.id} starts from {start!r}, which is no stage before it; "
            f"expected one of {', '.join(graph.policies)}"
        )
    graph.policies[name] = _stage_nodes(graph, stage, name, graph.policies[start])
    if isinstance(stage.algorithm, RewardModel) and not last:
        return  # the policy is that of the stage before, which has been evaluated
    graph.evaluate(name, [*graph.program.evaluation.sets, *(graph.program.evaluation.at_the_end if last else [])])


def _stage_nodes(graph: Graph, stage: Stage, name: str, policy: str) -> str:
    """Add what a stage consists of and return the node whose policy is its result."""
    match stage.algorithm:
        case SFT():
            return _sft(graph, stage, policy)
        case RFT():
            return _rft(graph, stage, name, stage.algorithm, policy)
        case RewardWeighted():
            return _weighted(graph, stage, policy)
        case PairAlgorithm():
            return _preference(graph, stage, stage.algorithm, policy)
        case PolicyGradient():
            return _policy_gradient(graph, stage, policy)
        case OPD():
            return add_opd(graph, stage, policy)
        case FromTeacher() | SoftLabel() | ActionDistill():
            return add_taught(graph, stage, stage.algorithm, policy)
        case Prune() | Quantize():
            return _compress(graph, stage, policy)
        case RewardModel():
            graph.learn(stage.id, _reward_model(graph, stage, stage.algorithm, policy))
            return policy


def _sft(graph: Graph, stage: Stage, policy: str) -> str:
    part = graph.part
    params = {**graph.common(stage), "algorithm": dump(stage.algorithm)}
    inputs = graph.stage_inputs(stage, policy, apart=part.apart)
    return graph.add(part.name(stage.id), "train.sft", params, inputs, passthrough="policy" if part.number else None)


def _compress(graph: Graph, stage: Stage, policy: str) -> str:
    """Add the node that makes the policy smaller."""
    part = graph.part
    params = {**graph.common(stage), "algorithm": dump(stage.algorithm)}
    inputs = graph.stage_inputs(stage, policy, apart=part.apart)
    return graph.add(part.name(stage.id), "compress", params, inputs, passthrough="policy" if part.number else None)


def _weighted(graph: Graph, stage: Stage, policy: str) -> str:
    """Add the rollouts, and the training that weighs them by reward."""
    part, name = graph.part, graph.part.name(stage.id)
    params = {**graph.judged(stage), "algorithm": dump(stage.algorithm), "round": 1}
    inputs = graph.stage_inputs(stage, policy, apart=part.apart)
    collected = graph.add(f"{name}.collect1", "collect", params, inputs)
    fit = {"algorithm": params["algorithm"], "policy": graph.policy, "data": params["data"]}
    return graph.add(
        name, "train.reward_weighted", fit, {"policy": policy, "collect": collected},
        passthrough="policy" if part.number else None,
    )  # fmt: skip


def _preference(graph: Graph, stage: Stage, algorithm: PairAlgorithm, policy: str) -> str:
    """Add the pairs and the training on them. Branches that start alike share their pairs: the seed is the part's."""
    part, name = graph.part, graph.part.name(stage.id)
    params = {**graph.judged(stage), "pairing": dump(algorithm.pairing)}
    inputs = graph.stage_inputs(stage, policy, apart=part.apart)
    seed = node_seed(graph.program.seed, part.name("pairs"))
    paired = graph.add(f"{name}.pairs", "pairs", params, inputs, seed=seed)
    fit = {"algorithm": dump(algorithm), "policy": graph.policy, "data": params["data"]}
    return graph.add(
        name, "train.preference", fit, {"policy": policy, "pairs": paired},
        passthrough="policy" if part.number else None,
    )  # fmt: skip


def _reward_model(graph: Graph, stage: Stage, algorithm: RewardModel, policy: str) -> str:
    """Add the rollouts with their pairs or labels, and the training on them; pairs are shared as in `_preference`."""
    part, name = graph.part, graph.part.name(stage.id)
    what = "pairs" if algorithm.learns == "pairs" else "turns"
    asked = {"pairing": dump(algorithm.pairing)} if what == "pairs" else {"turns": dump(algorithm.turns)}
    inputs = graph.stage_inputs(stage, policy, apart=part.apart)
    seed = node_seed(graph.program.seed, part.name(what))
    made = graph.add(f"{name}.{what}", what, {**graph.judged(stage), **asked}, inputs, seed=seed)
    fit = {"algorithm": dump(algorithm), "policy": graph.policy, "data": list(stage.data)}
    return graph.add(name, "train.reward_model", fit, {"policy": policy, what: made})


def _rft(graph: Graph, stage: Stage, prefix: str, algorithm: RFT, policy: str, when: Json | None = None) -> str:
    """Add the rounds of rejection sampling; later rounds run while `collect` says to continue.

    All draw the problems of the first, so that what they gain is told apart from which problems they met: one seed.
    """
    spec, previous = dump(algorithm), None
    seed = node_seed(graph.program.seed, f"{prefix}.collect1")
    for number in range(1, algorithm.rounds + 1):
        inputs = graph.stage_inputs(stage, policy, apart=graph.part.apart)
        if previous is not None:
            inputs["previous"] = previous
            when = {"node": previous, "continue": True}
        params = {**graph.judged(stage), "algorithm": spec, "round": number}
        collected = graph.add(
            f"{prefix}.collect{number}", "collect", params, inputs,
            when=when, passthrough=None if previous is None else "previous", seed=seed,
        )  # fmt: skip
        fit = {"algorithm": spec, "policy": graph.policy, "data": params["data"]}
        policy = graph.add(
            f"{prefix}.fit{number}", "train.rft", fit, {"policy": policy, "collect": collected},
            when=when, passthrough="policy" if when is not None or graph.part.number else None,
        )  # fmt: skip
        previous = collected
    return policy


def _policy_gradient(graph: Graph, stage: Stage, policy: str) -> str:
    """Add preflight and choice, `else_first` as often as it may be tried, and the stage itself."""
    part, name = graph.part, graph.part.name(stage.id)
    first = RFT(type="rft") if stage.else_first == "rft" else stage.else_first
    tries = stage.tries if first is not None else 0
    decision: str | None = None
    probe: str | None = None
    for number in range(tries + 1):
        when = None if decision is None else {"node": decision, "go": False}
        if first is not None and when is not None:
            policy = _rft(graph, stage, f"{name}.first{number}", first, policy, when)
        probe, decision = _ask(graph, stage, number + 1, policy, (probe, decision), last=number == tries)
    assert decision is not None, "a policy-gradient stage is asked at least once"
    params = {**graph.judged(stage), "algorithm": dump(stage.algorithm)}
    if shown := [n for n in stage.reads if n not in stage.data]:
        params["environments"] = graph.environments([*stage.data, *shown])
        params["versions"] = graph.versions(params["environments"], graph.verifiers)
    inputs = graph.stage_inputs(stage, policy, apart=part.apart, decision=decision)
    term = stage.algorithm.distill if isinstance(stage.algorithm, PolicyGradient) else None
    if term is not None:
        taught, weights = open_teachers(graph, stage, term, policy)
        params |= {**taught, "versions": params["versions"] | taught["versions"]}
        inputs |= weights
    inputs |= _experience(graph, stage)
    if isinstance(stage.algorithm, SelfEvolve) and stage.algorithm.growth is not None:
        params["apart"] = dump(graph.program.apart)
        inputs |= _judging(graph)
    inputs |= {f"data.{n}": f"data.{n}" for n in shown}
    if isinstance(stage.algorithm, SelfEvolve) and stage.algorithm.learners is not None:
        return _learners(graph, stage, stage.algorithm, params, inputs)
    return graph.add(name, "train.policy_gradient", params, inputs, passthrough="policy" if part.number else None)


def _learners(graph: Graph, stage: Stage, algorithm: SelfEvolve, params: Json, inputs: dict[str, str]) -> str:
    """Add the turns of several learners, each from where its own last one ended, and the choice among them."""
    part, said = graph.part, algorithm.learners
    assert said is not None, "several learners are declared"
    name, passthrough = part.name(stage.id), "policy" if part.number else None
    policies = [inputs["policy"]] * len(said.each)
    for turn in range(1, said.turns + 1):
        shared = {f"shared.{k}": node for k, node in enumerate(policies, 1)} if turn > 1 else {}
        others = [f"{stage.id}_{k}" for k in range(1, len(policies) + 1)] if turn > 1 else []
        policies = [
            graph.add(
                f"{name}.turn{turn}.learner{k}", "train.policy_gradient",
                params | {"algorithm": dump(_of_learner(algorithm, learner, others))},
                inputs | {"policy": policies[k - 1]} | shared, passthrough=passthrough,
            )
            for k, learner in enumerate(said.each, 1)
        ]  # fmt: skip
    choice = {"policy": inputs["policy"]}
    for k, node in enumerate(policies, 1):
        learner = part.name(f"{stage.id}_{k}")
        if learner in graph.policies:
            raise ProgramError(
                f"{graph.program.program}: stage {stage.id}: its learner {k} is called {learner}, which is taken; choose "
                "another id for the stage"
            )
        graph.policies[learner] = node
        graph.evaluate(learner, [said.choose_on])
        choice |= {f"learner.{k}": node, f"eval.{k}": f"eval.{learner}.{said.choose_on}"}
    told = {"set": said.choose_on, "learners": len(policies)}
    return graph.add(name, "train.best", told, choice, passthrough=passthrough)


def _of_learner(algorithm: SelfEvolve, learner: Learner, others: list[str]) -> SelfEvolve:
    """Return what a learner does in a turn; `others` are those whose last turn is its experience."""
    assert algorithm.learners is not None, "several learners are declared"
    changes: Json = {"learners": None, "steps": algorithm.steps // algorithm.learners.turns}
    changes["experience"] = [*algorithm.experience, *others]
    if not changes["experience"]:
        changes["experience_per_step"] = SelfEvolve.model_fields["experience_per_step"].default
    if learner.temperature is not None:
        changes["temperature"] = learner.temperature
    if learner.learning_rate is not None:
        changes["optimizer"] = algorithm.optimizer.model_copy(update={"learning_rate": learner.learning_rate})
    if learner.exploration is not None:
        changes["success_distill"] = algorithm.success_distill.model_copy(update={"exploration": learner.exploration})
    return algorithm.model_copy(update=changes)


def _judging(graph: Graph) -> dict[str, str]:
    """Return the sets that problems which are made must not give away: those that `data.apart` compares with."""
    return {name: node for name, node in graph.nodes["data.apart"].inputs.items() if name.startswith("eval.")}


def _experience(graph: Graph, stage: Stage) -> dict[str, str]:
    """Return the stages whose verified rollouts teach beside a stage's own, by input. ProgramError for any other."""
    found: dict[str, str] = {}
    for name in stage.algorithm.experience if isinstance(stage.algorithm, SelfEvolve) else ():
        node = graph.policies.get(graph.part.name(name)) or graph.policies.get(name, "")
        if node not in graph.nodes or graph.nodes[node].kind not in _ROLLED_OUT:
            raise ProgramError(
                f"{graph.program.program}: stage {stage.id}: experience names {name!r}, which is no policy-gradient stage "
                f"before it; expected one of {', '.join(n for n, i in graph.policies.items() if graph.nodes[i].kind in _ROLLED_OUT) or 'none'}"
            )
        found[f"experience.{name}"] = node
    return found


def _ask(
    graph: Graph, stage: Stage, number: int, policy: str, before: tuple[str | None, str | None], *, last: bool
) -> tuple[str, str]:
    """Add one preflight and its choice; both stand for the ones before where those already said go."""
    needs, name = dump(stage.needs or Needs()), graph.part.name(stage.id)
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
    asked = graph.add(f"{name}.preflight{number}", "preflight", params, inputs, when=when, passthrough=through)
    inputs = {"preflight": asked} | ({"previous": decision} if decision is not None else {})
    chosen = graph.add(
        f"{name}.choose{number}", "choose", {"stage": name, "needs": needs, "last": last}, inputs,
        when=when, passthrough=through,
    )  # fmt: skip
    return asked, chosen
