"""Checks across sections: names that must exist, sets that must not mix, settings that would not be read."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specs.checks import (
    COMPRESSED,
    credited,
    evaluated,
    experienced,
    grown,
    is_pool,
    kind_of,
    mixed,
    replayed,
    sharing,
    shortened,
    stage_set,
    tempted,
    unread,
    verified,
)
from specs.checks import Checks as _Checks
from specs.command_references import commands
from specs.data import Demonstrations, PoolData
from specs.data_references import data
from specs.environments import BFCL
from specs.flywheel_references import flywheel
from specs.gates import Gate, Requirement
from specs.implicit import expanded, flywheel_sets
from specs.policy import ScratchPolicy
from specs.positions import KeyPath, Mistake, Position
from specs.program import Program
from specs.reward_references import reward_models, verifiers
from specs.stages import Stage
from specs.teacher_choice import learners, measured, teachers_data
from specs.teacher_references import teachers

__all__ = ["check", "expanded"]

WORDS = ("from_teacher", "soft_label", "action_distill")
"""Types that learn from a teacher's words."""
_TAKEN = (
    "init", "start", "last", "best", "champion", "previous", "report", "policy", "data", "eval", "gate", "promote", "teacher",
)  # fmt: skip
"""Names that mean something else where a stage's name may stand."""


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
            c.wrong(at, f"found {name}, which holds {kind_of(c, name)}; expected demonstrations")
    _adapter(c)
    if c.program.agent.max_new_tokens >= init.max_length:
        text = f"found {c.program.agent.max_new_tokens}, expected less than policy.init.max_length ({init.max_length})"
        c.wrong(("agent", "max_new_tokens"), text)


def _adapter(c: _Checks) -> None:
    """Report stages that do not exist, and a first stage that would change random weights by an adapter alone."""
    adapter, path = c.program.policy.adapter, ("policy", "adapter")
    if adapter is None:
        return
    trained = {s.id: s.algorithm.type not in COMPRESSED for s in _all_stages(c)}
    if adapter.stages == []:
        c.wrong((*path, "stages"), "found no stage, so that none trains it; name some, or leave the adapter out")
    c.once((*path, "stages"), adapter.stages or ())
    for i, name in enumerate(adapter.stages or ()):
        if c.known((*path, "stages", i), name, trained, "a stage") and not trained[name]:
            c.wrong((*path, "stages", i), f"found {name}, which makes the policy smaller and trains no adapter")
    first = c.program.stages[0].id
    if isinstance(c.program.policy.init, ScratchPolicy) and (adapter.stages is None or first in adapter.stages):
        text = f"{first} would train an adapter over random weights; name the stages that should, as in stages: [rl]"
        c.odd(path, text)


def _all_stages(c: _Checks) -> list[Stage]:
    return [*c.program.stages, *(c.program.flywheel.round.stages if c.program.flywheel is not None else ())]


def _agent(c: _Checks) -> None:
    calls = [n for n, e in c.program.environments.items() if isinstance(e, BFCL)]
    if calls and c.program.agent.call_format == "flat":
        text = f"found flat, expected nested or react: functions of {calls[0]} (bfcl) may have an argument named `tool`"
        c.wrong(("agent", "call_format"), text)


def _stages(c: _Checks) -> None:
    for i, stage in enumerate(c.program.stages):
        path = ("stages", i)
        if stage.id in _TAKEN or re.fullmatch(r"round\d+", stage.id):
            c.wrong((*path, "id"), f"found {stage.id}, which has another meaning; choose another name")
        if stage.id in c.stages[:i]:
            c.wrong((*path, "id"), f"found {stage.id} a second time; every stage needs its own name")
        _start(c, path, i, stage)
        unread(c, path, stage)
        _stage_data(c, path, stage)
        replayed(c, path, stage)
        tempted(c, path, stage)
        credited(c, path, stage)
        verified(c, path, stage)
        mixed(c, path, stage)
        shortened(c, path, stage)
        experienced(c, path, stage, c.program.stages[:i])
        grown(c, path, stage)
        sharing(c, path, stage)


def _start(c: _Checks, path: KeyPath, i: int, stage: Stage) -> None:
    if stage.start is None or stage.start == "init" or stage.start in c.stages[:i]:
        return
    at = (*path, "from")
    if stage.start in c.stages:
        c.wrong(at, f"found {stage.start}, which does not come before {stage.id}; expected an earlier stage, or init")
    else:
        c.known(at, stage.start, [*c.stages[:i], "init"], "an earlier stage")


def _stage_data(c: _Checks, path: KeyPath, stage: Stage) -> None:
    names = list(stage.data)
    at = (*path, "data")
    if not names:
        c.wrong(at, "found no data set, expected at least one")
    if isinstance(stage.data, list):
        c.once(at, names)
    for i, name in enumerate(names):
        stage_set(c, (*at, i if isinstance(stage.data, list) else name), name, stage)


def _evaluation(c: _Checks) -> None:
    spec = c.program.evaluation
    for part, names in (("sets", spec.sets), ("at_the_end", spec.at_the_end)):
        c.once(("evaluation", part), names)
        for i, name in enumerate(names):
            path = ("evaluation", part, i)
            if c.known_set(path, name) and kind_of(c, name) != "problems":
                c.wrong(path, f"found {name}, which holds demonstrations; expected problems")
    if spec.temperature == 0 and spec.samples > 1:
        text = f"found {spec.samples} at temperature 0, where every sample is the same; expected 1"
        c.wrong(("evaluation", "samples"), text)


def _gates(c: _Checks) -> None:
    for name, gate in c.program.gates.items():
        path = ("gates", name)
        if gate.candidate not in ("last", "best"):
            c.known((*path, "candidate"), gate.candidate, [*c.stages, "last", "best"], "a stage, last or best")
        stage, acting = gate.baseline.stage, measured(c.program)
        known = [*c.stages, "init", *acting]
        if stage is not None and c.known((*path, "baseline", "stage"), stage, known, "a stage or init"):
            candidate = c.stages[-1] if gate.candidate == "last" else gate.candidate
            if stage == candidate:
                c.wrong((*path, "baseline", "stage"), f"found {stage}, which is the candidate itself")
        for i, requirement in enumerate(gate.require):
            _requirement(c, (*path, "require", i), requirement)
            if _reads_baseline(requirement) and stage in acting and requirement.set not in acting[stage]:
                text = (
                    f"found {requirement.set}, but the baseline {stage} is measured on {', '.join(acting[stage])} alone"
                )
                c.wrong((*path, "require", i, "set"), f"{text}; add it to the teacher's evaluate")
        _first_run(c, path, gate)


def _reads_baseline(requirement: Requirement) -> bool:
    bounds = (requirement.better_by, requirement.no_worse_by)
    return requirement.metric == "regressed_cases" or bounds != (None, None)


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
    if requirement.metric != "regressed_cases" and is_pool(c, name):
        text = f"found {requirement.metric}, but {name} is a pool of single cases, judged by count: regressed_cases"
        c.wrong((*path, "metric"), text)
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
    used = {*evaluated(c), *(n for s in program.stages for n in s.reads), *flywheel_sets(program)}
    used |= set(teachers_data(program))
    if isinstance(program.policy.init, ScratchPolicy):
        used.add(program.policy.init.tokenizer.train_on)
    for name in program.data:
        if name not in used:
            c.odd(("data", name), "is used by no stage, evaluation or gate; it is not made")
    sources = [program.data[n] for n in used if n in program.data]
    environments = {s.environment for s in sources if not isinstance(s, PoolData)}
    for name in program.environments:
        if name not in environments:
            c.odd(("environments", name), "is used by no data set")


def _ladder(c: _Checks) -> None:
    if any(learner.type in WORDS for _, learner in learners(c.program) if hasattr(learner, "type")):
        from specs.ladder_references import ladder  # few programs need it

        ladder(c)


_PARTS: tuple[Callable[[Any], None], ...] = (
    _policy, _agent, commands, data, verifiers, reward_models, _stages, teachers, _ladder, _evaluation, _gates, flywheel, _unused,
)  # fmt: skip
