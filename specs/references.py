"""Checks across sections: names that must exist, sets that must not mix, settings that would not be read."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from specs.algorithms import GRPO, SFT
from specs.data import Demonstrations, ProblemFile, Problems
from specs.dominance import dominance
from specs.environments import BFCL, EVENTS, OrderDesk, OrderType
from specs.gates import Gate, Requirement
from specs.implicit import SIZES, expanded
from specs.policy import ScratchPolicy
from specs.positions import KeyPath, Mistake, Position, did_you_mean, listed, position_of
from specs.program import Program
from specs.redaction import REFERENCE
from specs.stages import Stage
from specs.verifiers import ToolTrace

__all__ = ["check", "expanded"]

_TAKEN = ("init", "last", "best", "champion", "previous", "report", "policy", "data", "eval", "gate", "promote")
"""Names that mean something else where a stage's name may stand."""
_NOT_TRAINED = ("golden", "hidden", "audit")


class _Checks:
    def __init__(self, program: Program, positions: Mapping[KeyPath, Position], folder: Path) -> None:
        self.program = program
        self.positions = positions
        self.folder = folder
        self.mistakes: list[Mistake] = []
        self.warnings: list[Mistake] = []
        self.stages = [s.id for s in program.stages]
        self.sets = list(program.data)
        self.offered = [f"{e}.{w}" for e, s in program.environments.items() for w in SIZES[s.kind]]

    def wrong(self, path: KeyPath, text: str) -> None:
        self.mistakes.append(Mistake(position_of(path, self.positions), path, text))

    def unknown(self, path: KeyPath, text: str) -> None:
        self.mistakes.append(Mistake(position_of(path, self.positions), path, text, "unknown_name"))

    def odd(self, path: KeyPath, text: str) -> None:
        self.warnings.append(Mistake(position_of(path, self.positions), path, text))

    def known(self, path: KeyPath, name: str, names: Iterable[str], what: str) -> bool:
        """Report a name that does not exist, with the nearest that does."""
        names = list(names)
        if name in names:
            return True
        self.unknown(path, f"found {name!r}, expected {what} ({listed(names)}){did_you_mean(name, names)}")
        return False

    def known_set(self, path: KeyPath, name: str) -> bool:
        if name in self.sets:
            return True
        near = did_you_mean(name, [*self.sets, *self.offered])
        self.unknown(path, f"found {name!r}, expected a data set ({listed([*self.sets, *self.offered])}){near}")
        return False

    def once(self, path: KeyPath, names: Iterable[str]) -> None:
        seen: set[str] = set()
        for i, name in enumerate(names):
            if name in seen:
                self.wrong((*path, i), f"{name} is named twice; remove one")
            seen.add(name)


def check(program: Program, positions: Mapping[KeyPath, Position], folder: Path) -> tuple[list[Mistake], list[Mistake]]:
    """Return mistakes and warnings of an expanded program; `folder` is where its relative paths start."""
    checks = _Checks(program, positions, folder)
    for part in _PARTS:
        part(checks)
    return checks.mistakes, checks.warnings


def _policy(c: _Checks) -> None:
    init = c.program.policy.init
    path = ("policy", "init")
    if isinstance(init, ScratchPolicy):
        if init.hidden_size % init.heads or (init.hidden_size // init.heads) % 2:
            c.wrong(
                (*path, "hidden_size"), f"found {init.hidden_size} for {init.heads} heads, expected an even multiple"
            )
        if init.heads % init.kv_heads:
            c.wrong((*path, "kv_heads"), f"found {init.kv_heads}, expected a divisor of heads ({init.heads})")
        name, at = init.tokenizer.train_on, (*path, "tokenizer", "train_on")
        if c.known_set(at, name) and not isinstance(c.program.data[name], Demonstrations):
            c.wrong(at, f"found {name}, which holds {_kind(c, name)}; expected demonstrations")
    if c.program.agent.max_new_tokens >= init.max_length:
        text = f"found {c.program.agent.max_new_tokens}, expected less than policy.init.max_length ({init.max_length})"
        c.wrong(("agent", "max_new_tokens"), text)


def _agent(c: _Checks) -> None:
    calls = [n for n, e in c.program.environments.items() if isinstance(e, BFCL)]
    if calls and c.program.agent.call_format != "nested":
        text = f"found flat, expected nested: functions of {calls[0]} (bfcl) may have an argument named `tool`"
        c.wrong(("agent", "call_format"), text)


def _kind(c: _Checks, name: str) -> str:
    return "demonstrations" if isinstance(c.program.data[name], Demonstrations) else "problems"


def _data(c: _Checks) -> None:
    for name, source in c.program.data.items():
        path = ("data", name)
        if name == "apart":
            c.wrong(path, "this name is taken by the section `apart`; choose another")
        owner, dot, _ = name.partition(".")
        if dot and owner not in c.program.environments:
            c.wrong(path, f"a name with a dot belongs to an environment, but there is no {owner}; write it without")
        if not c.known((*path, "environment"), source.environment, c.program.environments, "an environment"):
            continue
        if isinstance(source, Demonstrations):
            _demonstrations(c, path, source)
        elif isinstance(source, ProblemFile):
            _file(c, path, source)


def _demonstrations(c: _Checks, path: KeyPath, source: Demonstrations) -> None:
    spec = c.program.environments[source.environment]
    by = "clerk" if isinstance(spec, OrderDesk) else "gold"
    if source.by != by:
        c.wrong(
            (*path, "by"), f"found {source.by}, but an environment of kind {spec.kind} has only {by}; write by: {by}"
        )
    if source.split != "train":
        text = f"found {source.split}, but demonstrations train; expected train, so that evaluation stays unseen"
        c.wrong((*path, "split"), text)
    types = get_args(OrderType) if isinstance(spec, OrderDesk) else spec.categories
    for i, name in enumerate(source.spoil.types or ()):
        c.known((*path, "spoil", "types", i), name, types, f"a problem type of {source.environment}")


def _file(c: _Checks, path: KeyPath, source: ProblemFile) -> None:
    if REFERENCE.search(source.path):
        return
    if "\0" in source.path or not (c.folder / source.path).is_file():
        c.wrong(
            (*path, "path"), f"no such file: {source.path} (looked in {c.folder}); expected a JSONL file of problems"
        )


def _verifiers(c: _Checks) -> None:
    reward, names = c.program.reward, c.program.verifiers
    for i, name in enumerate(reward.must):
        c.known(("reward", "must", i), name, names, "a verifier")
    for part, weights in (("outcome", reward.outcome), ("soft", reward.soft)):
        for name in weights:
            c.known(("reward", part, name), name, names, "a verifier")
    for name in reward.soft:
        if name in reward.outcome:
            c.wrong(("reward", "soft", name), f"{name} is also part of the outcome; a verifier counts once")
    c.once(("reward", "must"), reward.must)
    if not reward.outcome:
        text = f"outcome is missing: expected which of {listed(names)} decide success, with weights"
        c.wrong(("reward",), f"{text}, for example outcome: {{{next(iter(names))}: 1.0}}")
    for name in names:
        if name not in (*reward.must, *reward.outcome, *reward.soft):
            c.odd(("verifiers", name), "is no part of the reward, so nothing asks it; name it in outcome, soft or must")
    _dominance(c)
    _forbidden(c)
    if bool(reward.process_cap) != bool(reward.process_per_call):
        other = "process_per_call" if reward.process_cap else "process_cap"
        written = "process_cap" if reward.process_cap else "process_per_call"
        c.wrong(("reward", written), f"has no effect while {other} is 0; set both or neither")


def _dominance(c: _Checks) -> None:
    """Report a reward under which a failure can earn as much as a success."""
    if c.program.reward.outcome:
        proof = dominance(c.program.reward, max(e.max_turns for e in c.program.environments.values()))
        if not proof.holds:
            c.wrong(("reward",), f"{proof.text}; expected every success to earn more than every failure")


def _forbidden(c: _Checks) -> None:
    events = dict.fromkeys(event for e in c.program.environments.values() for event in EVENTS[e.kind])
    for name, verifier in c.program.verifiers.items():
        for i, event in enumerate(verifier.forbid if isinstance(verifier, ToolTrace) else ()):
            c.known(("verifiers", name, "forbid", i), event, events, "an event of an environment")


def _stages(c: _Checks) -> None:
    for i, stage in enumerate(c.program.stages):
        path = ("stages", i)
        if stage.id in _TAKEN:
            c.wrong((*path, "id"), f"found {stage.id}, which has another meaning; choose another name")
        if stage.id in c.stages[:i]:
            c.wrong((*path, "id"), f"found {stage.id} a second time; every stage needs its own name")
        _start(c, path, i, stage)
        _unread(c, path, stage)
        _stage_data(c, path, stage)


def _start(c: _Checks, path: KeyPath, i: int, stage: Stage) -> None:
    if stage.start is None or stage.start == "init" or stage.start in c.stages[:i]:
        return
    at = (*path, "from")
    if stage.start in c.stages:
        c.wrong(at, f"found {stage.start}, which does not come before {stage.id}; expected an earlier stage, or init")
    else:
        c.known(at, stage.start, [*c.stages[:i], "init"], "an earlier stage")


def _unread(c: _Checks, path: KeyPath, stage: Stage) -> None:
    """Report settings that the stage's algorithm does not read."""
    if not isinstance(stage.algorithm, GRPO):
        for key in ("needs", "preflight", "else_first", "tries"):
            if getattr(stage, key) != Stage.model_fields[key].default:
                c.wrong((*path, key), f"is not read by {stage.algorithm.type}; only grpo has a preflight")
    elif stage.else_first is None and stage.tries > 1:
        c.wrong(
            (*path, "tries"), "has no effect without else_first; write what to run first, for example else_first: rft"
        )


def _stage_data(c: _Checks, path: KeyPath, stage: Stage) -> None:
    names = list(stage.data)
    at = (*path, "data")
    if not names:
        c.wrong(at, "found no data set, expected at least one")
    if isinstance(stage.data, list):
        c.once(at, names)
    wanted = "demonstrations" if isinstance(stage.algorithm, SFT) else "problems"
    evaluated = _evaluated(c)
    for i, name in enumerate(names):
        here = (*at, i if isinstance(stage.data, list) else name)
        if not c.known_set(here, name):
            continue
        source = c.program.data[name]
        if _kind(c, name) != wanted:
            c.wrong(here, f"found {name}, which holds {_kind(c, name)}; {stage.algorithm.type} trains on {wanted}")
        elif source.role != "train":
            c.wrong(here, f"found {name}, whose role is {source.role}: it judges policies and never trains them")
        elif isinstance(source, Problems) and source.split in _NOT_TRAINED:
            c.wrong(
                here, f"found {name}, drawn from the split {source.split}, which never trains; expected split: train"
            )
        elif name in evaluated:
            c.wrong(here, f"found {name}, which {evaluated[name]} asks as well; what trains cannot judge")


def _evaluated(c: _Checks) -> dict[str, str]:
    asked = dict.fromkeys([*c.program.evaluation.sets, *c.program.evaluation.at_the_end], "evaluation")
    return asked | {r.set: f"gate {n}" for n, g in c.program.gates.items() for r in g.require}


def _evaluation(c: _Checks) -> None:
    spec = c.program.evaluation
    for part, names in (("sets", spec.sets), ("at_the_end", spec.at_the_end)):
        c.once(("evaluation", part), names)
        for i, name in enumerate(names):
            path = ("evaluation", part, i)
            if c.known_set(path, name) and _kind(c, name) != "problems":
                c.wrong(path, f"found {name}, which holds demonstrations; expected problems")
    if spec.temperature == 0 and spec.samples > 1:
        text = f"found {spec.samples} at temperature 0, where every sample is the same; expected 1"
        c.wrong(("evaluation", "samples"), text)


def _gates(c: _Checks) -> None:
    for name, gate in c.program.gates.items():
        path = ("gates", name)
        if gate.candidate not in ("last", "best"):
            c.known((*path, "candidate"), gate.candidate, [*c.stages, "last", "best"], "a stage, last or best")
        stage = gate.baseline.stage
        if stage is not None and c.known((*path, "baseline", "stage"), stage, [*c.stages, "init"], "a stage or init"):
            candidate = c.stages[-1] if gate.candidate == "last" else gate.candidate
            if stage == candidate:
                c.wrong((*path, "baseline", "stage"), f"found {stage}, which is the candidate itself")
        for i, requirement in enumerate(gate.require):
            _requirement(c, (*path, "require", i), requirement)
        _first_run(c, path, gate)


def _requirement(c: _Checks, path: KeyPath, requirement: Requirement) -> None:
    spec = c.program.evaluation
    name = requirement.set
    if not c.known_set((*path, "set"), name):
        return
    if name not in (*spec.sets, *spec.at_the_end):
        text = f"found {name}, which is not evaluated; add it to evaluation.sets or evaluation.at_the_end"
        c.wrong((*path, "set"), text)
    if requirement.metric == "success_greedy" and not spec.greedy:
        c.wrong((*path, "metric"), "found success_greedy, but evaluation.greedy is off; switch it on")
    if requirement.metric == "regressed_cases" and c.program.data[name].role != "regression":
        c.wrong((*path, "set"), f"found {name}, but regressed_cases counts in a set whose role is regression")


def _first_run(c: _Checks, path: KeyPath, gate: Gate) -> None:
    """A gate against an alias must hold one requirement that needs no baseline: at first there is none."""
    if gate.baseline.alias is None or gate.baseline.first != "absolute":
        return
    if all(r.at_least is None and r.at_most is None for r in gate.require):
        text = f"at first there is no {gate.baseline.alias}: expected one requirement with at_least or at_most,"
        c.wrong((*path, "require"), f"{text} or baseline: {{alias: {gate.baseline.alias}, first: init}}")


def _unused(c: _Checks) -> None:
    program = c.program
    used = {*_evaluated(c), *(n for s in program.stages for n in s.data)}
    if isinstance(program.policy.init, ScratchPolicy):
        used.add(program.policy.init.tokenizer.train_on)
    for name in program.data:
        if name not in used:
            c.odd(("data", name), "is used by no stage, evaluation or gate; it is not made")
    environments = {program.data[n].environment for n in used if n in program.data}
    for name in program.environments:
        if name not in environments:
            c.odd(("environments", name), "is used by no data set")


_PARTS: tuple[Callable[[Any], None], ...] = (
    _policy, _agent, _data, _verifiers, _stages, _evaluation, _gates, _unused,
)  # fmt: skip
