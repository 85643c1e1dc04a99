"""Body of the node that asks black-box teachers about another node's rollouts.

Writes `signals.jsonl` (one answer a line), `signals.json` (counts, scorecard), `notes/calls.jsonl` (what was paid for them)
and `notes/signal.json` (why it is this signal and no finer one).
"""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows.context import NodeContext, Outcome
from flows.work.lines import write_rows
from flows.work.reading import environments, problems
from specs.errors import DataError, Interrupted, StateError
from specs.ladder import TOGETHER
from specs.prompting import prompt as prompt_of
from specs.records import Problem, TeacherSignal, Trajectory
from specs.reward import Reward
from specs.routing import TEACHERS, Route
from specs.teachers import BlackBox, EnsembleTeacher, OpenAITeacher, ScriptedTeacher
from specs.verifiers import Verifier
from tasks.episodes.seeds import derive, world_seed
from tasks.episodes.shards import read_shards
from tasks.evidence.verifiers import verifier_for
from tasks.files import write_durable, write_json
from tasks.loops.annotate import Desk, annotate
from tasks.loops.trying import Trial
from tasks.protocols import Environment
from tasks.teachers.asking import Tools, asks_for
from tasks.teachers.asks import Ask
from tasks.teachers.budget import Caps, Spent
from tasks.teachers.client_openai import OpenAIClient, Setting
from tasks.teachers.ensemble import Judge
from tasks.teachers.ledger import CallLedger
from tasks.teachers.places import by_state, known_of, places
from tasks.teachers.replies import Teacher
from tasks.teachers.routing import Routed, Tally, none_refused, route, rule_for, rules_of
from tasks.teachers.scorecard import Evidence, scorecard, tallies
from tasks.teachers.scripted import ScriptedClient

Json = dict[str, Any]
_UNIT = 2**63
_SHOWN = 160
"""Characters of an example that a note has."""


def teach(node: NodeContext) -> Outcome:
    """Ask each problem's teacher; what the ledger knows is not asked, or paid for, again."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would write every address into the log
    trajectories = list(read_shards(node.inputs["rollouts"] / "trajectories"))
    worlds = environments(node)
    asked_of = _problems(node, trajectories)
    routes = [Route.model_validate(r) for r in node.params["routing"]]
    tools: Tools = lambda p: worlds[p.environment].tools(p)  # noqa: E731
    own = _of_its_rules(node, routes, trajectories, asked_of, tools)
    mine = [t for t in trajectories if own is None or t.problem_id in own]
    asks, skipped = asks_for(node.params["asking"], mine, asked_of, tools)
    if len(mine) < len(trajectories):
        skipped |= {"another_signal": len(trajectories) - len(mine)}
    tally, states = _history(node), by_state(routes)
    about = places(asks, trajectories, states=states)
    routed = route(about, routes, lambda text: _number(node.seed, "route", text), tally)
    teacher_of = {a.id: routed.teacher[a.id if states else a.problem.id] for a in asks}
    instruction = prompt_of(node.params["prompt"])
    ledger = CallLedger(node.teachers / "calls.jsonl", node.run_key)
    trial = _trial(node, worlds)
    desk = _desk(node, ledger, worlds, instruction.text, trial)
    signals = annotate(asks, teacher_of, desk, instruction.version)
    evidence = Evidence({t.id: t for t in trajectories}, _held(node, trial, asks, signals))
    write_rows(node.out / "signals.jsonl", signals)
    lines = list(ledger.lines(c for s in signals for c in s.calls))
    _write_calls(node.out / "notes" / "calls.jsonl", lines)
    lacking = node.params.get("downgrades", [])
    write_json(node.out / "notes" / "signal.json", {"signal": node.params["signal"], "no_finer": lacking})
    told = _summary(node, signals, skipped, routed, evidence) | ({} if own is None else {"problems": own})
    write_json(node.out / "signals.json", told)
    done = _outcome(signals, told, routed, desk, ledger.paid())
    if lacking:
        done.notes.append(f"signal {node.params['signal']}; no finer one: {', '.join(lacking)}")
    if any(r.history is not None for r in routes) and not tally:
        done.notes.append("routing: history counts nothing here, as no earlier answer was compared with verifiers")
    return done


def _problems(node: NodeContext, trajectories: list[Trajectory]) -> dict[str, Problem]:
    """Return the problems of the rollouts by id. DataError where one is in none of the node's data sets."""
    held = [name for name in node.params["data"] if f"data.{name}" in node.inputs]
    known = {p.id: p for name in held for p in problems(node, name)}
    missing = sorted({t.problem_id for t in trajectories} - set(known))
    if missing:
        raise DataError(
            f"{node.id}: {len(missing)} problems of the rollouts are in none of {', '.join(node.params['data'])}, for "
            f"example {missing[0]}; run the rollouts again"
        )
    return known


def _of_its_rules(
    node: NodeContext,
    routes: Sequence[Route],
    trajectories: Sequence[Trajectory],
    problems: dict[str, Problem],
    tools: Tools,
) -> list[str] | None:
    """Return the problems that the node's rules are for; None where all rules are its own.

    TeacherError with every problem that no rule is for, and that a signal of the stage asks about: this node's, or another's.
    """
    if "rules" not in node.params:
        return None
    rules = rules_of(routes)
    found = {name: rule_for(values, rules) for name, values in known_of(trajectories, problems).items()}
    left = [t for t in trajectories if t.problem_id in found and found[t.problem_id].route.reject]
    of_stage = next(pair for pair in TOGETHER if node.params["signal"] in pair)
    asks = [ask for signal in of_stage for ask in asks_for({"signal": signal}, left, problems, tools)[0]]
    none_refused(list({a.problem.id: a.problem for a in asks}.values()), len(found))
    return sorted(name for name, rule in found.items() if rule.number in node.params["rules"])


def _number(seed: int, *parts: str) -> float:
    """Return a number in [0, 1) that depends on the seed and the parts alone."""
    return derive(seed, *parts) / _UNIT


def _history(node: NodeContext) -> Tally:
    """Return what verifiers said of earlier answers of the program."""
    cards: list[Json] = []
    for name, folder in node.inputs.items():
        if name.startswith("history."):
            try:
                cards.append(json.loads((folder / "signals.json").read_text(encoding="utf-8"))["scorecard"])
            except (OSError, ValueError, KeyError) as e:
                raise StateError(f"{folder}/signals.json: cannot be read ({e}); run {name} again") from e
    return tallies(cards)


def _desk(
    node: NodeContext, ledger: CallLedger, worlds: dict[str, Environment], prompt: str, trial: Trial | None
) -> Desk:  # fmt: skip
    access: Json = node.params["access"]
    specs: dict[str, BlackBox] = {}
    clients: dict[str, Teacher] = {}
    for name, who in node.params["teachers"].items():
        spec: Any = TEACHERS.validate({**who, **access["teachers"].get(name, {}), "gives": [node.params["signal"]]})
        specs[name] = spec
        match spec:
            case OpenAITeacher():
                clients[name] = OpenAIClient(name, spec, _setting(node, ledger, name, spec))
            case ScriptedTeacher():
                draw = lambda text, n=name: _number(node.seed, "noise", n, text)  # noqa: E731
                clients[name] = ScriptedClient(spec, worlds[spec.environment], world_seed, draw)
            case EnsembleTeacher():
                pass
            case _:
                raise StateError(f"{node.id}: teacher {name} is of kind {spec.kind}, which is not asked in words")
    judge: Judge | None = None
    if trial is not None:
        judge = lambda ask, content: trial.worth(ask.problem, ask.candidates[0], content)  # noqa: E731
    return Desk(specs, clients, prompt, judge)


def _trial(node: NodeContext, worlds: dict[str, Environment]) -> Trial | None:
    """Return where corrections are tried, if any are asked for."""
    if node.params["signal"] != "sample":
        return None
    adapter: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    specs = {name: adapter.validate_python(spec) for name, spec in node.params["verifiers"].items()}
    made = {name: verifier_for(name, spec) for name, spec in specs.items()}
    return Trial(worlds, made, Reward.model_validate(node.params["reward"]))


def _held(
    node: NodeContext, trial: Trial | None, asks: Sequence[Ask], signals: Sequence[TeacherSignal]
) -> dict[str, bool]:  # fmt: skip
    """Return by signal whether its correction is a success in the world, where that can be said."""
    found: dict[str, bool] = {}
    for done, (ask, signal) in enumerate(zip(asks, signals, strict=True)):
        if trial is None or signal.content is None:
            continue
        if node.stop():
            raise Interrupted(f"{node.id}: asked to stop; what was answered is kept")
        node.progress("trying corrections", done / len(asks), {})
        if (held := trial.holds(ask.problem, ask.candidates[0], signal.content)) is not None:
            found[signal.id] = held
    return found


def _setting(node: NodeContext, ledger: CallLedger, name: str, spec: OpenAITeacher) -> Setting:
    def tell(done: int, total: int, usd: float) -> None:
        node.progress(f"asking {name}", done / max(1, total), {"calls": float(done), "dollars": usd})

    caps = Caps(spec.cap_usd, spec.cap_calls, node.params["access"]["teacher_usd"])
    return Setting(ledger, node.id, os.environ, caps, node.stop, tell)


def _write_calls(path: Path, lines: list[Json]) -> None:
    """Write the ledger's lines of these answers, those of one call together; their times are no part of the result."""
    path.parent.mkdir(exist_ok=True)
    write_durable(path, "".join(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n" for line in lines))


def _summary(
    node: NodeContext,
    signals: list[TeacherSignal],
    skipped: dict[str, int],
    routed: Routed,
    evidence: Evidence,
) -> Json:
    return {
        "signal": node.params["signal"],
        "prompt": node.params["prompt"],
        "asked": len(signals),
        "answered": sum(s.content is not None for s in signals),
        "marked": sum(bool(s.content and s.content.get("marked")) for s in signals),
        "skipped": skipped,
        **routed.to_json(),
        "scorecard": scorecard(signals, evidence),
    }


def _outcome(signals: list[TeacherSignal], told: Json, routed: Routed, desk: Desk, paid: Spent) -> Outcome:
    notes = [_card_words(name, card) for name, card in told["scorecard"].items()]
    notes += [words for name, card in told["scorecard"].items() for words in _absent_words(name, card)]
    if told["skipped"]:
        notes.append("not asked about: " + ", ".join(f"{n} {why}" for why, n in told["skipped"].items()))
    if told["marked"]:
        notes.append(
            f"{told['marked']} answers are about trajectories that write like a verdict or an order to the teacher"
        )
    asked = {s.teacher for s in signals}
    members = {m for n in asked for m in getattr(desk.specs[n], "members", {})}
    idle = [n for n in desk.specs if n not in asked and n not in members]
    notes += routed.sentences(idle)
    metrics: dict[str, float | None] = {"asked": float(told["asked"]), "answered": float(told["answered"])}
    for name, card in told["scorecard"].items():
        metrics[f"agreement.{name}"] = card["agreement"]["rate"]
        if card["agreement"]["rate"] is None:
            notes.append(f"agreement.{name} is missing: the verifiers say nothing that can be compared")
    return Outcome(
        metrics=metrics,
        cost={"teacher_calls": float(paid.requests), "teacher_usd": round(paid.usd, 6)},
        notes=notes,
    )


def _absent_words(name: str, card: Json) -> list[str]:
    """Return a sentence for each member of an ensemble that answered less than it was asked."""
    return [
        f"{name}: its member {member} gave no answer to {sum(told['failures'].values())} of {card['asked']} questions "
        f"({_listed(told['failures'])}; for example {told['example'][:_SHOWN]})"
        for member, told in card["absent"].items()
    ]


def _listed(failures: Json) -> str:
    return ", ".join(f"{n} {why}" for why, n in failures.items())


def _card_words(name: str, card: Json) -> str:
    failed = _listed(card["failures"])
    words = f"{name} ({card['revision']}): {card['answered']} of {card['asked']} questions answered"
    words += f" ({failed})" if failed else ""
    words += f", {card['asked_again']} asked for anew as they could not be read" if card["asked_again"] else ""
    if (rate := card["agreement"]["rate"]) is not None:
        words += f", agrees with the verifiers in {rate:.0%} of {card['agreement']['judged']} comparisons"
    return words + (f", ${card['usd']:.4f}" if card["usd"] else "")
