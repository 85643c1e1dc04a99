"""The teachers of a stage whose probabilities are read: opened, sent their problems by the rules, and told of at the end."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from flows.context import NodeContext
from flows.work import inputs
from flows.work.keeping import Keeper
from flows.work.reading import environments
from specs.alignment import Alignment
from specs.distillation import Over, TopTokens
from specs.errors import ProgramError
from specs.records import Problem, Trajectory
from specs.routing import Route
from specs.teachers import PrivilegedTeacher
from specs.when import problem_values
from tasks.episodes.agents import agent_for
from tasks.episodes.token_signals import TokenSignal, write_signals
from tasks.files import write_json
from tasks.learning.opening import Scoring, open_token_teacher, tokens_apart
from tasks.learning.privileged import ShownTeacher
from tasks.loops.contexts import Contexts, solver
from tasks.loops.token_lessons import Panel
from tasks.policy.foreign import LoadedTeacher, load_teacher
from tasks.policy.store import LoadedPolicy
from tasks.protocols import Keeping, TokenTeacher
from tasks.teachers.routing import Routed, Rule, require_teachers, rule_for, rules_of, weights_of
from tasks.tokens.template import system_text

Json = dict[str, Any]
_DIGITS = 12
"""Of a digest, where a teacher is named."""


def settling(keeper: Keeper, asked: Panel | None) -> Callable[[int], None]:
    """Return what is done before a checkpoint of a step is written."""

    def settle(step: int) -> None:
        keeper.flush(step)
        if asked is not None:
            asked.settle()

    return settle


def panel(node: NodeContext, policy: LoadedPolicy, over: Over) -> Panel:
    """Return the stage's teachers, loaded, and what each weighs by problem. ProgramError where one cannot be compared."""
    names = list(node.params["teachers"])
    scoring = Scoring(
        inputs.precision(node, "precision"), inputs.execution(node).micro_batch_tokens, inputs.device(node)
    )
    teachers: list[TokenTeacher] = []
    revisions: dict[str, str] = {}
    system = _system(node)
    size = over.size if isinstance(over, TopTokens) else 0
    asking: list[Keeping] = []
    for name in names:
        who = node.params["teachers"][name]
        if who["kind"] == "served_model":
            from flows.work.served_teachers import served_teacher

            served, client = served_teacher(node, name, policy, who, over=over.kind, size=size, system=system)
            teachers.append(served)
            asking.append(client)
            revisions[name] = client.revision
            continue
        align = Alignment.model_validate(who.get("align") or {})
        loaded = load_teacher(node.inputs[f"teacher.{name}"] / "policy")
        if who["kind"] == "privileged":
            _need_the_same_tokens(name, who, loaded, policy)
        opened = open_token_teacher(name, loaded, policy, align, scoring=scoring, over=over.kind, system=system)
        teachers.append(_shown(node, policy, opened, who))
        revisions[name] = f"{who['kind']} {loaded.digest[:_DIGITS]}"
    return Panel(teachers, _weights(node, names), asking, inputs.execution(node).scoring_queue, revisions)


def _system(node: NodeContext) -> Callable[[Trajectory], str]:
    """Return what a template with a system turn says there of a trajectory's problem."""
    problems = {p.id: p for found in inputs.problem_sets(node).values() for p in found}
    agent, worlds = agent_for(inputs.agent_spec(node)), environments(node)

    def of(trajectory: Trajectory) -> str:
        problem = problems.get(trajectory.problem_id)
        return system_text(worlds[trajectory.environment].tools(problem), agent.instruction)

    return of


def _need_the_same_tokens(name: str, spec: Mapping[str, Any], teacher: LoadedTeacher, policy: LoadedPolicy) -> None:
    """Raise ProgramError where a privileged teacher has other tokens than the policy, whose own it reads behind a message."""
    if (apart := tokens_apart((teacher.tokenizer, teacher.frame), policy)) is not None:
        raise ProgramError(
            f"teachers.{name}.of: the tokens of {spec.get('of')} are not the policy's ({apart}), but a privileged teacher "
            "reads the policy's own behind what it is shown; write of: start, or kind: earlier_self and over: {kind: sampled}, "
            "which shows nothing and compares texts"
        )


def _shown(node: NodeContext, policy: LoadedPolicy, teacher: Any, spec: dict[str, Any]) -> TokenTeacher:
    """Return the teacher, with what it is shown where it is a privileged one."""
    if spec["kind"] != "privileged":
        return teacher
    told = PrivilegedTeacher.model_validate(spec)
    problems = {p.id: p for found in inputs.problem_sets(node).values() for p in found}
    solve = solver(environments(node), problems, agent_for(inputs.agent_spec(node)), node.seed)
    contexts = Contexts(policy.template, told.shows, policy.config.max_length, solve)
    return ShownTeacher(teacher, lambda trajectories: contexts.prefixes(trajectories).ids)


def _rules(node: NodeContext) -> tuple[list[Rule], dict[str, Problem]]:
    """Return the rules that the stage asks by, and its problems by id."""
    adapter: TypeAdapter[list[Route]] = TypeAdapter(list[Route])
    problems = {p.id: p for found in inputs.problem_sets(node).values() for p in found}
    return rules_of(adapter.validate_python(node.params["routing"])), problems


def _weights(node: NodeContext, names: Sequence[str]) -> Callable[[Trajectory], list[float]]:
    """Return what gives each teacher its weight for a trajectory. TeacherError where the rules refuse a problem."""
    rules, problems = _rules(node)
    require_teachers(list(problems.values()), rules)

    def of(trajectory: Trajectory) -> list[float]:
        rule = rule_for(problem_values(problems[trajectory.problem_id]), rules)
        found = weights_of(rule.route, trajectory.problem_type, {})
        return [found.get(name, 0.0) for name in names]

    return of


def write_taught(
    node: NodeContext, asked: Panel, trajectories: Sequence[Trajectory], signals: Sequence[TokenSignal]
) -> list[str]:
    """Write `trajectories/teachers.parquet` and `signals.json`; return what a person should know of the stage's teachers.

    `trajectories`: the rollouts of all steps. `signals`: what was said of them.
    """
    write_signals(node.out / "trajectories", signals)
    rules, problems = _rules(node)
    routed, sent = Routed(), Counter[str]()
    for name in dict.fromkeys(t.problem_id for t in trajectories):
        rule = rule_for(problem_values(problems[name]), rules)
        routed.count(rule, problems[name].type)
        sent.update(list(rule.route.teachers))
    cards = {
        t.name: _card([s for s in signals if s.teacher == t.name], asked.revisions[t.name]) for t in asked.teachers
    }
    write_json(node.out / "signals.json", {"signal": "logprobs", **routed.to_json(), "scorecard": cards})
    asked_of = [name for name, card in cards.items() if sent[name] or card["trajectories"]]
    idle = [name for name in cards if name not in asked_of]
    return [*routed.sentences(idle), *(_card_words(name, cards[name], sent[name]) for name in asked_of)]


def _card(signals: Sequence[TokenSignal], revision: str) -> Json:
    """Return who a teacher is and what it scored: trajectories, tokens, and trajectories by problem type."""
    kinds = Counter({s.id: s.problem_type for s in signals}.values())
    return {
        "revision": revision,
        "trajectories": kinds.total(),
        "tokens": sum(s.tokens for s in signals),
        "by_type": dict(sorted(kinds.items())),
    }


def _card_words(name: str, card: Json, sent: int) -> str:
    words = f"{name} ({card['revision']}): scored {card['tokens']} tokens of {card['trajectories']} trajectories"
    if not card["trajectories"]:
        return f"{words}, though {sent} problems went to it"
    return f"{words} ({', '.join(f'{n} {kind}' for kind, n in card['by_type'].items())})"
