"""What a program leaves out, made explicit: data sets, the outcome, evaluation, needs. Adds, never changes."""

from typing import Any

from specs.data import DataSource, Demonstrations, Problems
from specs.environments import BFCL, Environment
from specs.flywheel import POOLS
from specs.gates import Evaluation
from specs.policy import ScratchPolicy
from specs.policy_gradient import PolicyGradient
from specs.program import Program
from specs.stages import Needs, Stage
from specs.supervised import SFT
from specs.verifiers import learnt

SIZES: dict[str, dict[str, int]] = {
    "order_desk": {"demonstrations": 6000, "train": 4000, "golden": 450, "hidden": 800},
    "bfcl": {"demonstrations": 280, "train": 280, "golden": 100, "hidden": 300},
    "process": {"demonstrations": 200, "train": 200, "golden": 100, "hidden": 100},
}
"""Sizes of the data sets that an environment has without their being declared."""
_ROLES = {"golden": "golden", "hidden": "hidden", "audit": "golden"}


def expanded(program: Program) -> Program:
    """Return the program with everything implicit written out; the same for an expanded program.

    `<environment>.demonstrations|train|golden|hidden` become data sets where they are used; a set's role follows its
    split; the tokenizer of a program without `demos` is trained on the first sft stage's demonstrations, that of a
    trained teacher on its own; a single
    verifier is the outcome; without evaluation the gates' sets are asked; a policy-gradient stage has `needs`.
    """
    init = _init(program)
    evaluation = _evaluation(program)
    used = [*(n for s in program.stages for n in s.reads), *evaluation.sets, *evaluation.at_the_end]
    used += [r.set for g in program.gates.values() for r in g.require]
    used += flywheel_sets(program)
    teachers = {name: _trained(program, teacher) for name, teacher in program.teachers.items()}
    used += [name for t in teachers.values() if t.kind == "trained" for name in t.reads]
    if isinstance(init, ScratchPolicy):
        used.append(init.tokenizer.train_on)
    data = {name: _with_role(source) for name, source in program.data.items()}
    for name in dict.fromkeys(used):
        source = None if name in data else implicit_source(name, program.environments)
        if source is not None:
            data[name] = source
    fixed = [n for n in program.verifiers if n not in learnt(program.verifiers)]
    outcome = program.reward.outcome or (dict.fromkeys(fixed, 1.0) if len(fixed) == 1 else {})
    changes: dict[str, Any] = {
        "policy": program.policy.model_copy(update={"init": init}),
        "teachers": teachers,
        "data": data,
        "reward": program.reward.model_copy(update={"outcome": outcome}),
        "stages": _with_needs(program.stages),
        "evaluation": evaluation,
    }
    if (said := program.flywheel) is not None:
        rounds = said.round.model_copy(update={"stages": _with_needs(said.round.stages)})
        changes["flywheel"] = said.model_copy(update={"round": rounds})
    return program.model_copy(update=changes)


def flywheel_sets(program: Program) -> list[str]:
    """Return the data sets that the flywheel reads, pools left out."""
    said = program.flywheel
    if said is None:
        return []
    read = [*said.mine.sources, *said.causes_from, *(n for s in said.round.stages for n in s.reads if n not in POOLS)]
    return list(dict.fromkeys([*read, *([said.stop.gain_on] if said.stop.gain_on else [])]))


def _with_needs(stages: list[Stage]) -> list[Stage]:
    return [
        s.model_copy(update={"needs": Needs()}) if isinstance(s.algorithm, PolicyGradient) and s.needs is None else s
        for s in stages
    ]


def implicit_source(name: str, environments: dict[str, Environment]) -> DataSource | None:
    """Return the data set that `<environment>.<what>` stands for, or None where it is no such name."""
    environment, _, what = name.partition(".")
    spec = environments.get(environment)
    if spec is None or what not in SIZES[spec.kind]:
        return None
    size = SIZES[spec.kind][what]
    if what == "demonstrations":
        by = "gold" if isinstance(spec, BFCL) else "clerk"
        return Demonstrations(kind="demonstrations", environment=environment, by=by, size=size)
    source = {"kind": "problems", "environment": environment, "split": what, "size": size}
    return Problems.model_validate({**source, "role": _ROLES.get(what, "train")})


def _with_role(source: DataSource) -> DataSource:
    if not isinstance(source, Problems) or "role" in source.model_fields_set or source.split not in _ROLES:
        return source
    return source.model_copy(update={"role": _ROLES[source.split]})


def _init(program: Program) -> Any:
    init = program.policy.init
    if not isinstance(init, ScratchPolicy) or "train_on" in init.tokenizer.model_fields_set:
        return init
    if init.tokenizer.train_on in program.data:
        return init
    taught = [n for s in program.stages if isinstance(s.algorithm, SFT) for n in s.data if _demonstrates(program, n)]
    name = taught[0] if taught else f"{next(iter(program.environments))}.demonstrations"
    return init.model_copy(update={"tokenizer": init.tokenizer.model_copy(update={"train_on": name})})


def _trained(program: Program, teacher: Any) -> Any:
    """Return the teacher with its tokenizer trained on the first of its own demonstrations, where nothing is said."""
    if teacher.kind != "trained" or teacher.init.kind != "scratch":
        return teacher
    tokenizer = teacher.init.tokenizer
    if "train_on" in tokenizer.model_fields_set or tokenizer.train_on in program.data:
        return teacher
    tokenizer = tokenizer.model_copy(update={"train_on": next(iter(teacher.data))})
    return teacher.model_copy(update={"init": teacher.init.model_copy(update={"tokenizer": tokenizer})})


def _demonstrates(program: Program, name: str) -> bool:
    source = program.data.get(name) or implicit_source(name, program.environments)
    return isinstance(source, Demonstrations)


def _evaluation(program: Program) -> Evaluation:
    """Ask the gates' sets where nothing is said: golden ones after every stage, all of them at the end."""
    said = program.evaluation
    if said.sets or said.at_the_end:
        return said
    asked = list(dict.fromkeys(r.set for g in program.gates.values() for r in g.require))
    golden = [n for n in asked if _role(program, n) == "golden"]
    return said.model_copy(update={"sets": golden, "at_the_end": asked})


def _role(program: Program, name: str) -> str | None:
    source = program.data.get(name) or implicit_source(name, program.environments)
    return _with_role(source).role if source is not None else None
