"""Checks of teachers: whether those who are asked can give what is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specs.checks import Checks, kind_of
from specs.positions import KeyPath, listed
from specs.program import Program
from specs.routing import BLACK_BOX, LADDER, Signal, Taught
from specs.served_references import can_be_compared, served
from specs.teacher_choice import Choice, acting_name, choice, learners, named, usable, used_teachers

_FROZEN = ("init", "start", "champion", "previous")
_WHOLE: tuple[Signal, ...] = ("score", "rank", "sample")
"""Signals about whole trajectories."""
_USUAL_WEIGHT = (0.005, 0.5)
"""Of a teacher's term beside a policy gradient."""
_ANSWERS = ("model", "revision", "temperature", "top_p", "max_tokens", "max_tokens_limit", "json_mode")
"""What answers of a chat API are kept by, beside the question."""
_LONG = 6
"""Turns from which on a signal about a whole trajectory says little about each."""
_PLACES: dict[Signal, str] = {
    "logprobs": "tokens are scored problem by problem",
    "action": "calls are judged state by state",
    "critique": "whole attempts are judged",
    "score": "whole attempts are judged",
    "rank": "the attempts of a problem are put in order",
    "sample": "whole attempts are corrected",
}
"""What a teacher is asked about, by signal."""
_WHERE = (
    "problem.* is known everywhere, history.* where a teacher answers in words, state.* where it judges calls (action)"
)


def teachers(c: Checks) -> None:
    """Check the roster, the routing, and what stages want of both."""
    for name, teacher in c.program.teachers.items():
        _teacher(c, ("teachers", name), teacher)
    _told_apart(c)
    _routing(c)
    found = list(learners(c.program))
    for path, learner in found:
        _learner(c, path, learner)
    used = used_teachers(c.program)
    for name in c.program.teachers:
        if name not in used:
            c.odd(("teachers", name), "is asked by no stage; it is not looked at")
    _history(c, found)
    _known_where_asked(c, found)
    _members_alone(c, {name for _, learner in found for name in named(c.program, learner)})
    if c.program.routing and all(x.teachers is not None for _, x in found):
        c.odd(("routing",), "no stage asks by these rules")


def _teacher(c: Checks, path: KeyPath, teacher: Any) -> None:
    c.once((*path, "gives"), teacher.gives)
    for i, signal in enumerate(teacher.gives):
        if signal not in teacher.can:
            text = (
                f"found {signal}, which a teacher of kind {teacher.kind} cannot give; it can give {listed(teacher.can)}"
            )
            c.wrong((*path, "gives", i), text)
    match teacher.kind:
        case "openai":
            _openai(c, path, teacher)
        case "served_model":
            served(c, path, teacher)
        case "scripted":
            _scripted(c, path, teacher)
        case "ensemble":
            _ensemble(c, path, teacher)
        case "model":
            _measured(c, path, teacher)
        case "trained":
            _trained(c, path, teacher)
            _measured(c, path, teacher)
        case "earlier_self" | "privileged":
            rounds = [] if c.program.flywheel is None else [s.id for s in c.program.flywheel.round.stages]
            c.known((*path, "of"), teacher.of, [*c.stages, *rounds, *_FROZEN], "a stage, or a frozen policy")
        case _:
            pass


def _trained(c: Checks, path: KeyPath, teacher: Any) -> None:
    texts: KeyPath = (*path, "init", "tokenizer", "train_on")
    for name in teacher.reads:
        at: KeyPath = (*path, "data") if name in teacher.data else texts
        if c.known_set(at, name) and kind_of(c, name) != "demonstrations":
            c.wrong(at, f"found {name}, which holds {kind_of(c, name)}; expected demonstrations")


def _measured(c: Checks, path: KeyPath, teacher: Any) -> None:
    """Report a teacher that cannot be let act, or whose success nobody would see."""
    spec, name = c.program.evaluation, acting_name(str(path[-1]))
    at = (*path, "evaluate")
    c.once(at, teacher.evaluate)
    for i, asked in enumerate(teacher.evaluate):
        if c.known_set((*at, i), asked) and asked not in (*spec.sets, *spec.at_the_end):
            text = f"found {asked}, which is not evaluated; add it to evaluation.sets or evaluation.at_the_end"
            c.wrong((*at, i), text)
    if teacher.evaluate and teacher.template == "builtin/plain@1":
        text = "found sets, but its template is builtin/plain@1, which marks no call that an agent could read;"
        c.wrong(at, f"{text} expected policy, builtin/compact@1 or builtin/chatml@1, or no evaluate")
    if teacher.evaluate and name in c.stages:
        c.wrong(at, f"the evaluations are those of {name}, but a stage is called so; rename that stage, or the teacher")
    if teacher.max_new_tokens is not None and not teacher.evaluate:
        c.wrong((*path, "max_new_tokens"), "is read where its success is measured alone; write evaluate: [SET] too")


def _openai(c: Checks, path: KeyPath, teacher: Any) -> None:
    if "${" in teacher.model:
        c.wrong((*path, "model"), "found a reference, but the model's name is part of every key; write the name")
    if teacher.cap_usd is not None and teacher.price is None:
        c.wrong(
            (*path, "cap_usd"),
            "needs price: {input: …, output: …} (dollars per million tokens); without it nothing is counted",
        )
    if teacher.max_tokens_limit < teacher.max_tokens:
        text = f"found {teacher.max_tokens_limit}, expected at least max_tokens ({teacher.max_tokens})"
        c.wrong((*path, "max_tokens_limit"), text)

    if "?" in teacher.base_url or "#" in teacher.base_url:
        c.wrong(
            (*path, "base_url"),
            "found ? or #, but /chat/completions is written behind it; write the address before that",
        )
    if teacher.price is None and c.program.budget.teacher_usd is not None:
        text = (
            "is needed, as budget.teacher_usd counts dollars; write {input: …, output: …}, with 0 for one that is free"
        )
        c.wrong((*path, "price"), text)


def _told_apart(c: Checks) -> None:
    """Report teachers whose answers would be taken for one another's: kept answers are found by what is asked of which model."""
    roster = {n: t for n, t in c.program.teachers.items() if t.kind == "openai"}
    together = [set(t.members) for t in c.program.teachers.values() if t.kind == "ensemble"]
    first: dict[Any, str] = {}
    for name, teacher in roster.items():
        other = first.setdefault(tuple(getattr(teacher, f) for f in _ANSWERS), name)
        if other == name:
            continue
        if teacher.base_url != roster[other].base_url or any({name, other} <= members for members in together):
            text = (
                f"asks the same model in the same way as {other}, so the answers of one would be taken for the other's;"
            )
            c.wrong(("teachers", name), f"{text} write another revision, or another temperature")


def _scripted(c: Checks, path: KeyPath, teacher: Any) -> None:
    if c.known((*path, "environment"), teacher.environment, c.program.environments, "an environment"):
        spec = c.program.environments[teacher.environment]
        if spec.kind == "process":
            text = f"found {teacher.environment}, whose program solves nothing; expected an environment of kind order_desk or bfcl"
            c.wrong((*path, "environment"), text)


def _ensemble(c: Checks, path: KeyPath, teacher: Any) -> None:
    for name in teacher.members:
        at = (*path, "members", name)
        if not c.known(at, name, c.program.teachers, "a teacher"):
            continue
        member = c.program.teachers[name]
        if member.kind not in ("openai", "scripted"):
            c.wrong(at, f"found {name}, which is of kind {member.kind}; expected openai or scripted")
            continue
        lacking = [s for s in teacher.gives if s not in member.gives]
        if lacking:
            c.wrong(
                at, f"{name} does not give {listed(lacking)}, which the ensemble gives; add it there, or remove it here"
            )
    if teacher.combine == "best" and list(teacher.gives) != ["sample"]:
        c.wrong((*path, "combine"), "found best, which chooses among corrections; expected gives: [sample]")


def _history(c: Checks, found: Sequence[tuple[KeyPath, Any]]) -> None:
    """Report weights that nothing can move: no question by these rules comes after another whose answers were compared."""
    rules = [i for i, rule in enumerate(c.program.routing) if rule.history is not None and len(rule.teachers) > 1]
    asking = [(path, x) for path, x in found if set(choice(c.program, x).signals) & set(BLACK_BOX)]
    rounds = 1 if c.program.flywheel is None else c.program.flywheel.rounds
    for before, (path, learner) in enumerate(asking):
        again = learner.rounds > 1 or (path[0] == "flywheel" and rounds > 1)
        if learner.teachers is None and (before or again):
            return
    if rules and any(x.teachers is None for _, x in found):
        text = "moves nothing: no stage asks by these rules, in words, after others were asked; write rounds: 2 for one, or leave it out"
        c.wrong(("routing", rules[0], "history"), text)


def _known_where_asked(c: Checks, found: Sequence[tuple[KeyPath, Any]]) -> None:
    """Report rules that name what is not known where a stage asks by them."""
    if not any(r.when for r in c.program.routing):
        return
    from specs import when  # few programs have conditions

    read = [[] if r.when is None else when.mentioned(when.parse(r.when, when.ROUTING_NAMES)) for r in c.program.routing]
    for path, learner in found:
        signals = choice(c.program, learner).signals
        if learner.teachers is not None or not signals:
            continue
        signal = signals[-1]
        known = dict(when.PROBLEM_NAMES) | ({} if "logprobs" in signals else when.HISTORY_NAMES)
        known |= when.STATE_NAMES if signals == ("action",) else {}
        for i, names in enumerate(read):
            if strange := [name for name in names if name not in known]:
                text = f"names {listed(strange)}, but {_PLACES[signal]} in {_stage_of(c, path)}: {_WHERE}"
                c.wrong(("routing", i, "when"), f"{text}; leave it out, or give that stage teachers of its own")


def _stage_of(c: Checks, path: KeyPath) -> str:
    """Return the id of the stage that a path of the program lies in."""
    at = path.index("stages") + 1
    said = c.program.flywheel
    stages = c.program.stages if path[0] == "stages" or said is None else said.round.stages
    return stages[int(path[at])].id


def _members_alone(c: Checks, asked: set[str]) -> None:
    """Report a share of failures that is not read: of a teacher that is asked for an ensemble and never by itself."""
    for name, teacher in c.program.teachers.items():
        if teacher.kind != "ensemble" or name not in asked:
            continue
        for member in (m for m in teacher.members if m in c.program.teachers and m not in asked):
            spec = c.program.teachers[member]
            if getattr(spec, "failure_share", None) not in (None, type(spec).model_fields["failure_share"].default):
                text = f"is not read: {member} is asked as a member of {name} alone, where its failures count against the quorum;"
                c.odd(("teachers", member, "failure_share"), f"{text} write it for {name}")


def _routing(c: Checks) -> None:
    rules = c.program.routing
    for i, rule in enumerate(rules):
        path: KeyPath = ("routing", i)
        last = i == len(rules) - 1
        for name in rule.teachers:
            c.known((*path, "teachers", name), name, c.program.teachers, "a teacher")
        if bool(rule.teachers) == rule.reject:
            c.wrong(path, "expected either teachers, or reject: true")
        if rule.reject and not last:
            c.wrong((*path, "reject"), "only the last rule may reject")
        if last and rule.when is not None:
            text = "the last rule has a condition, so a problem may find no teacher; expected a last rule without when,"
            c.wrong((*path, "when"), f"{text} with teachers or with reject: true")
        if not last and rule.when is None:
            c.wrong(
                path,
                f"has no condition, so no later rule is ever reached; write when, or remove the {len(rules) - 1 - i} after it",
            )
        if rule.history is not None and len(rule.teachers) < 2:
            c.wrong((*path, "history"), "has no effect with one teacher")


def _learner(c: Checks, path: KeyPath, learner: Any) -> None:
    program = c.program
    if not program.teachers:
        c.wrong(path, "needs a teacher; write teachers: {NAME: {kind: …}}")
        return
    at = (*path, "teachers") if learner.teachers is not None else path
    asked = named(program, learner)
    for name in asked if learner.teachers is not None else ():
        c.known((*at, name), name, program.teachers, "a teacher")
    if not asked:
        c.wrong(path, f"which teacher is asked? Write routing, or teachers: {{{next(iter(program.teachers))}: 1.0}}")
        return
    _weight(c, path, learner)
    _come_before(c, path, asked)
    found = choice(program, learner)
    if found.signal == "logprobs" and learner.teachers is None and any(r.history for r in program.routing):
        c.odd(
            ("routing",),
            "history moves the weights of teachers that answer in words; probabilities are combined as written",
        )
    if found.signal == "logprobs":
        _own_tokens(c, path, learner, asked)
        can_be_compared(c, path, learner, asked)
    if found.teachers and (
        not found.signals or (isinstance(learner, Taught) and learner.apart(found.signals) is not None)
    ):
        _no_one_loss(c, at, learner, found)
    elif found.signal in _WHOLE and isinstance(learner, Taught) and _longest(program) >= _LONG:
        text = f"learns from {found.signal}, which says one thing about up to {_longest(program)} turns"
        c.odd(path, f"{text}; a teacher that gives critique or action says which turn it is about")


def _weight(c: Checks, path: KeyPath, learner: Any) -> None:
    """Report a weight of a teacher's term at which it hardly counts, or hardly anything else does."""
    low, high = _USUAL_WEIGHT
    for name in ("coef", "coef_end"):
        value = getattr(learner, name, None)
        if value and not low <= value <= high:
            text = "hardly counts beside the reward" if value < low else "leaves the reward little to say"
            c.odd((*path, name), f"found {value:g}, at which the teacher {text}; usual is {low:g} to {high:g}")


def _own_tokens(c: Checks, path: KeyPath, learner: Any, asked: Iterable[str]) -> None:
    """Report distributions that cannot be compared, as far as the file says: of a teacher with another template or tokens."""
    own: Any = c.program.policy.init
    over = getattr(learner, "over", None)
    if over is None or over.kind == "sampled":
        return
    for name in asked:
        teacher: Any = c.program.teachers.get(name)
        if teacher is None or teacher.kind not in ("model", "trained"):
            continue
        if teacher.template not in ("policy", c.program.policy.template):
            text = f"found {over.kind}, but the template of {name} is {teacher.template}, the policy's {c.program.policy.template}"
            c.wrong(
                (*path, "over"),
                f"{text}; write over: {{kind: sampled}}, which compares texts, or template: policy for {name}",
            )
        if own.kind != "scratch" or teacher.kind != "trained" or teacher.init.kind != "scratch":
            continue
        if teacher.init.tokenizer != own.tokenizer:
            text = (
                f"{name} has a tokenizer of its own, so that over: {{kind: {over.kind}}} is refused as the stage starts"
            )
            c.odd(path, f"{text}; write over: {{kind: sampled}}, which compares texts")


def _come_before(c: Checks, path: KeyPath, asked: Iterable[str]) -> None:
    """Report a teacher that is the policy of a stage which does not come before the one that it teaches."""
    at = path.index("stages") + 1
    index, said = int(path[at]), c.program.flywheel
    rounds = [] if said is None else [s.id for s in said.round.stages]
    before = [*c.stages, *rounds[:index]] if path[0] == "flywheel" else c.stages[:index]
    taught = rounds[index] if path[0] == "flywheel" else c.stages[index]
    for name in asked:
        of = getattr(c.program.teachers.get(name), "of", "init")
        if of in (*c.stages, *rounds) and of not in before:
            text = f"found {of}, which does not come before {taught}, which it teaches; expected one of"
            c.wrong(("teachers", name, "of"), f"{text} {listed([*before, *_FROZEN])}")


def _no_one_loss(c: Checks, at: KeyPath, learner: Any, found: Choice) -> None:
    """Report rules whose teachers give nothing that the stage can use, or different things, which are no one loss."""
    gives: Mapping[str, Any] = {t: list(c.program.teachers[t].gives) for t in found.teachers}
    silent = [rule for rule in found.rules if rule.signal is None and rule.teachers]
    for rule in silent:
        own = {t: gives[t] for t in rule.teachers}
        words = "; ".join(f"{t} gives {', '.join(g)}" for t, g in own.items())
        where = f"{rule.place}: " if len(found.rules) > 1 else ""
        c.wrong(at, f"{where}needs {listed(usable(learner))}, but {words}; {_way_out(learner, own)}")
    if silent or not all(rule.teachers for rule in found.rules):
        return  # told above, or elsewhere
    told = ", ".join(f"{r.place} gives {r.signal} (of {listed(r.teachers)})" for r in found.rules if r.teachers)
    shared = [s for s in sorted(usable(learner), key=LADDER.index) if all(s in given for given in gives.values())]
    ways = [learner.apart(found.signals)] if learner.apart(found.signals) else []
    ways += [f"write signal: {shared[0]}, which all of them give"] if shared else []
    ways.append("write a stage for each, with teachers and problems (data, where) of its own")
    c.wrong(at, f"would train on different signals, which are no one loss: {told}; {', or '.join(ways)}")


def _way_out(learner: Any, gives: Mapping[str, Any]) -> str:
    """Return what to do: another goal or signal that its teachers can serve, or other teachers."""
    if not isinstance(learner, Taught):
        return "ask others, or another algorithm"
    common = [s for s in LADDER if all(s in given for given in gives.values())]
    goals: Mapping[str, tuple[Signal, ...]] = getattr(learner, "goals", {})
    for goal, used in goals.items():
        if fits := [s for s in used if s in common]:
            if learner.signal != "auto":
                return f"ask others, or write signal: {fits[0]}"
            return f"ask others, or write goal: {goal}, which learns from {listed(fits)}"
    return "ask others, or another algorithm"


def _longest(program: Program) -> int:
    return max(e.max_turns for e in program.environments.values())
