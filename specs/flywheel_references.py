"""Checks of the flywheel: pools that are filled and read, sets that may be mined, rounds that can begin and end."""

from collections.abc import Iterator
from typing import get_args

from specs.algorithms import PREFERENCES
from specs.checks import (
    DEMONSTRATED,
    Checks,
    credited,
    evaluated,
    experienced,
    grown,
    is_pool,
    kind_of,
    may_train,
    mixed,
    replayed,
    sharing,
    shortened,
    stage_set,
    tempted,
    unread,
    verified,
)
from specs.data import Demonstrations, PoolData
from specs.flywheel import POOLS, Flywheel, HardPool, Pool, Prefer, Repair, default_remedy, pools_read, remedies_in_use
from specs.positions import KeyPath, did_you_mean, listed
from specs.program import Program
from specs.stages import Stage
from specs.supervised import RFT, SFT, RewardWeighted
from specs.teacher_choice import learners, named, used_teachers
from specs.verifiers import RewardModelVerifier

_FILLS: dict[Pool, type[Repair | Prefer | HardPool]] = {"repaired": Repair, "pairs": Prefer, "hard": HardPool}
_READERS = {"repaired": "an sft stage", "pairs": "a stage on pairs (dpo, ipo, orpo, simpo or kto)"}
_DEMONSTRATED: tuple[Pool, ...] = ("repaired", "successes", "anchor")
_AT: KeyPath = ("flywheel",)
_ROUND: KeyPath = ("flywheel", "round", "stages")


def flywheel(c: Checks) -> None:
    """Check the whole section, and schedules that ask for its rounds alone."""
    said = c.program.flywheel
    for name in (n for n, s in c.program.schedule.items() if s.rounds_only):
        for text in without_main(c.program):
            c.wrong(("schedule", name, "rounds_only"), f"found yes, but {text}")
    if said is None:
        return
    _mined(c, said)
    _causes_from(c, said)
    for i, stage in enumerate(said.round.stages):
        _stage(c, said, i, stage)
    _remedies(c, said)
    _siblings(c, said)
    _stop(c, said)
    _looks(c, said)
    _one_promotes(c)


def without_main(program: Program) -> Iterator[str]:
    """Yield why rounds cannot run without the main part: there are none, or they need what its stages make."""
    said, main = program.flywheel, [s.id for s in program.stages]
    if said is None:
        yield "the program has no flywheel, so that there are no rounds; declare one, or run all of it"
        return
    yield from _made_by_main(program, main)
    for stage in said.round.stages:
        for name in getattr(stage.algorithm, "experience", ()):
            if name in main:
                yield f"stage {stage.id} has experience of {name}, a stage of the main part, which is left out"
    read = [program.data.get(n) for s in program.stages for n in s.reads]
    if "anchor" in pools_read(said) and not any(isinstance(d, Demonstrations) for d in read):
        yield "the pool anchor holds verified rollouts of the main part here, which is left out; read another pool"


def _made_by_main(program: Program, main: list[str]) -> Iterator[str]:
    """Yield what compares with, judges by or learns from what stages of the main part make."""
    for name, gate in program.gates.items():
        if gate.baseline.stage is not None:
            yield (
                f"gate {name} compares with {gate.baseline.stage}, a policy of the main part, which is left out; compare "
                "with {alias: champion}"
            )
    for name, spec in program.verifiers.items():
        if isinstance(spec, RewardModelVerifier) and spec.stage in main and name in program.reward.soft:
            yield f"the verifier {name} is made by {spec.stage}, a stage of the main part, which is left out"
    asked = {name for path, x in learners(program) if path[0] == "flywheel" for name in named(program, x)}
    asked |= {member for name in asked for member in getattr(program.teachers.get(name), "members", ())}
    for name in used_teachers(program):
        of = getattr(program.teachers[name], "of", None)
        if of in main and name in asked:
            yield f"the teacher {name} is the policy of {of}, a stage of the main part, which is left out"


def _mined(c: Checks, said: Flywheel) -> None:
    path: KeyPath = (*_AT, "mine", "from")
    c.once(path, said.mine.sources)
    for i, name in enumerate(said.mine.sources):
        if name in POOLS:
            c.wrong((*path, i), f"found {name}, which is a pool; expected a data set whose role is train")
        elif c.known_set((*path, i), name):
            may_train(c, (*path, i), name, "gives siblings that train")


def _causes_from(c: Checks, said: Flywheel) -> None:
    path: KeyPath = (*_AT, "causes_from")
    c.once(path, said.causes_from)
    asked = [*c.program.evaluation.sets, *c.program.evaluation.at_the_end]
    for i, name in enumerate(said.causes_from):
        if not c.known_set((*path, i), name):
            continue
        if is_pool(c, name):
            c.wrong((*path, i), f"found {name}, whose cases have causes already; expected an evaluation set")
        elif kind_of(c, name) != "problems":
            c.wrong((*path, i), f"found {name}, which holds demonstrations; expected an evaluation set")
        elif name not in asked:
            text = f"found {name}, which is not evaluated; add it to evaluation.sets or evaluation.at_the_end"
            c.wrong((*path, i), text)


def _stage(c: Checks, said: Flywheel, i: int, stage: Stage) -> None:
    path: KeyPath = (*_ROUND, i)
    before = [s.id for s in said.round.stages[:i]]
    if stage.id in c.stages:
        c.wrong((*path, "id"), f"found {stage.id}, which is a stage of the main part; choose another name")
    if stage.id in before:
        c.wrong((*path, "id"), f"found {stage.id} a second time; every stage of the round needs its own name")
    if stage.start is not None and stage.start not in before:
        expected = (
            f"expected {listed(before)}" if before else "the first stage starts where the round does; leave it out"
        )
        c.unknown((*path, "from"), f"found {stage.start!r}, which is no earlier stage of the round; {expected}")
    unread(c, path, stage)
    replayed(c, path, stage)
    tempted(c, path, stage)
    credited(c, path, stage)
    verified(c, path, stage)
    mixed(c, path, stage)
    shortened(c, path, stage)
    experienced(c, path, stage, [*c.program.stages, *said.round.stages[:i]])
    grown(c, path, stage)
    sharing(c, path, stage)
    at, names = (*path, "data"), list(stage.data)
    if not names:
        c.wrong(at, "found no pool and no data set, expected at least one")
    if isinstance(stage.data, list):
        c.once(at, names)
    for k, name in enumerate(names):
        here = (*at, k if isinstance(stage.data, list) else name)
        if name in POOLS:
            _pool(c, said, here, name, stage)
        elif name not in c.sets and (near := did_you_mean(name, POOLS)):
            c.unknown(here, f"found {name!r}, expected a pool ({listed(POOLS[:-1])}) or a data set{near}")
        else:
            stage_set(c, here, name, stage)


def _pool(c: Checks, said: Flywheel, here: KeyPath, pool: Pool, stage: Stage) -> None:
    """Check a pool that a stage reads: it is of a kind that the algorithm trains on, and something fills it."""
    kind = stage.algorithm.type
    if pool == "regression":
        c.wrong(
            here, "found regression, which judges policies and never trains them; its siblings are in repaired and hard"
        )
    elif kind in DEMONSTRATED and pool not in _DEMONSTRATED:
        c.wrong(here, f"found {pool}, which holds problems; {kind} trains on {listed(_DEMONSTRATED)}")
    elif pool == "pairs" and kind not in PREFERENCES:
        c.wrong(here, f"found pairs, which is for stages on pairs (dpo, ipo, orpo, simpo or kto); {kind} is none")
    elif kind not in DEMONSTRATED and pool not in ("hard", "pairs"):
        c.wrong(here, f"found {pool}, which holds solutions; {kind} trains on problems: hard, or a data set")
    elif pool in _FILLS and not any(isinstance(r, _FILLS[pool]) for r in remedies_in_use(said)):
        does = get_args(_FILLS[pool].model_fields["do"].annotation)[0]
        c.wrong(
            here, f"found {pool}, which nothing fills; write a remedy for a cause, for example argument: {{do: {does}}}"
        )
    elif pool == "anchor" and not any(isinstance(s.algorithm, SFT | RFT | RewardWeighted) for s in c.program.stages):
        c.wrong(
            here, "found anchor, which nothing fills: no stage of the main part is of type sft, rft or reward_weighted"
        )


def _remedies(c: Checks, said: Flywheel) -> None:
    """Report remedies whose pool no stage of the round reads, and sizes of pools that none reads."""
    read = pools_read(said)
    places: list[tuple[KeyPath, object]] = [((*_AT, "remedies", cause), r) for cause, r in said.remedies.items()]
    places.append(((*_AT, "default"), default_remedy(said.default)))
    for path, remedy in places:
        for pool, kind in _FILLS.items():
            if isinstance(remedy, kind) and pool not in read:
                readers = _READERS.get(pool, "a stage that rolls out (rft, grpo, dpo and so on)")
                text = f"{remedy.do} fills the pool {pool}, which no stage of the round reads"
                c.wrong(path, f"{text}; name {pool} in the data of {readers}, or choose another remedy")
    for pool in type(said.pools).model_fields:
        if pool in said.pools.model_fields_set and pool not in read:
            c.odd((*_AT, "pools", pool), f"no stage of the round reads {pool}; nothing is kept in it")


def _siblings(c: Checks, said: Flywheel) -> None:
    """Report environments that cannot make the siblings which a remedy needs."""
    if not any(isinstance(r, Repair | Prefer | HardPool) for r in remedies_in_use(said)):
        if said.siblings.model_fields_set:
            c.odd((*_AT, "siblings"), "no remedy makes siblings; only repair, prefer and hard_pool do")
        return
    for part, names in (("mine", said.mine.sources), ("causes_from", said.causes_from)):
        for i, name in enumerate(names):
            source = c.program.data.get(name)
            if source is None or isinstance(source, PoolData) or source.environment not in c.program.environments:
                continue
            spec = c.program.environments[source.environment]
            if not spec.siblings:
                at: KeyPath = (*_AT, part, "from", i) if part == "mine" else (*_AT, part, i)
                text = f"found {name}, but an environment of kind {spec.kind} makes no siblings, which repair, prefer and hard_pool need"
                c.wrong(at, f"{text}; use ticket or ask_person, or another environment")


def _looks(c: Checks, said: Flywheel) -> None:
    for name, gate in c.program.gates.items():
        if gate.looks <= said.rounds:
            text = f"found {gate.looks}, but one run asks this gate's sets {1 + said.rounds} times: for the main part and for"
            more = "each round" if said.rounds > 1 else "the round"
            c.odd(("gates", name, "looks"), f"{text} {more}; expected at least as many")


def _one_promotes(c: Checks) -> None:
    """Report a second gate that promotes: a round would begin without what that one promoted."""
    first, *others = [n for n, gate in c.program.gates.items() if gate.on_pass == "promote"] or [""]
    for name in others:
        text = f"found promote, but {first} promotes already, and rounds start from and are compared with what one gate promotes"
        more = f"write on_pass: nothing, or move the requirements of {name} into {first}"
        c.wrong(("gates", name, "on_pass"), f"{text}; {more}")


def _stop(c: Checks, said: Flywheel) -> None:
    asked = list(evaluated(c))
    at: KeyPath = (*_AT, "stop")
    if said.rounds == 1:
        if said.stop.model_fields_set:
            c.odd(at, "is not read: there is one round, and it decides about further ones")
        return
    if said.stop.gain_on is None:
        if not c.program.evaluation.sets:
            c.wrong(
                _AT, "which set's success must rise for another round? Write stop: {gain_on: SET}, or evaluation.sets"
            )
    elif c.known_set((*at, "gain_on"), said.stop.gain_on):
        if said.stop.gain_on not in asked:
            text = f"found {said.stop.gain_on}, which is not evaluated; expected one of {listed(asked)}"
            c.wrong((*at, "gain_on"), text)
        elif is_pool(c, said.stop.gain_on):
            c.wrong(
                (*at, "gain_on"),
                f"found {said.stop.gain_on}, a pool of single cases; expected a set with a success rate",
            )
