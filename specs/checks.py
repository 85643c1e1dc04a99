"""What checks across sections share: names that are known, and mistakes with their place in the file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specs.algorithms import POLICY_GRADIENTS
from specs.data import Demonstrations, PoolData, Problems
from specs.environments import ADVERSARIAL, OrderDesk, calls_of
from specs.implicit import SIZES
from specs.policy_gradient import PolicyGradient
from specs.positions import KeyPath, Mistake, Position, did_you_mean, listed, position_of
from specs.program import Program
from specs.stages import Stage
from specs.supervised import RFT
from specs.verifiers import RewardModelVerifier

COMPRESSED = ("prune", "quantize")
DEMONSTRATED = ("sft", *COMPRESSED)
"""Algorithms that read demonstrations; the others read problems."""
_NOT_TRAINED = ("golden", "hidden", "audit")


class Checks:
    """The program that is checked, and what was found."""

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
        """Report a mistake."""
        self.mistakes.append(Mistake(position_of(path, self.positions), path, text))

    def unknown(self, path: KeyPath, text: str) -> None:
        """Report a name that does not exist."""
        self.mistakes.append(Mistake(position_of(path, self.positions), path, text, "unknown_name"))

    def odd(self, path: KeyPath, text: str) -> None:
        """Report what is odd and no mistake."""
        self.warnings.append(Mistake(position_of(path, self.positions), path, text))

    def known(self, path: KeyPath, name: str, names: Iterable[str], what: str) -> bool:
        """Report a name that does not exist, with the nearest that does."""
        names = list(names)
        if name in names:
            return True
        self.unknown(path, f"found {name!r}, expected {what} ({listed(names)}){did_you_mean(name, names)}")
        return False

    def known_set(self, path: KeyPath, name: str) -> bool:
        """Report a data set that does not exist."""
        if name in self.sets:
            return True
        names = list(dict.fromkeys([*self.sets, *self.offered]))
        self.unknown(path, f"found {name!r}, expected a data set ({listed(names)}){did_you_mean(name, names)}")
        return False

    def once(self, path: KeyPath, names: Iterable[str]) -> None:
        """Report what a list names twice."""
        seen: set[str] = set()
        for i, name in enumerate(names):
            if name in seen:
                self.wrong((*path, i), f"{name} is named twice; remove one")
            seen.add(name)


def kind_of(c: Checks, name: str) -> str:
    """Return what a data set holds."""
    return "demonstrations" if isinstance(c.program.data[name], Demonstrations) else "problems"


def evaluated(c: Checks) -> dict[str, str]:
    """Return the sets that are asked, and what asks them."""
    asked = dict.fromkeys([*c.program.evaluation.sets, *c.program.evaluation.at_the_end], "evaluation")
    return asked | {r.set: f"gate {n}" for n, g in c.program.gates.items() for r in g.require}


def unread(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report settings that the stage's algorithm does not read."""
    if not isinstance(stage.algorithm, PolicyGradient):
        for key in ("needs", "preflight", "else_first", "tries"):
            if getattr(stage, key) != Stage.model_fields[key].default:
                c.wrong((*path, key), f"is not read by {stage.algorithm.type}; only policy gradients have a preflight")
    elif stage.else_first is None and stage.tries > 1:
        c.wrong(
            (*path, "tries"), "has no effect without else_first; write what to run first, for example else_first: rft"
        )


def may_train(c: Checks, here: KeyPath, name: str, by: str) -> bool:
    """Report a set that must not train, or must not be rolled out for what trains; `by` is who reads it."""
    source = c.program.data[name]
    if source.role != "train":
        c.wrong(here, f"found {name}, whose role is {source.role}: it judges policies and never trains them")
    elif isinstance(source, Problems) and source.split in _NOT_TRAINED:
        text = f"found {name}, drawn from the split {source.split}, which never trains; expected split: train"
        c.wrong(here, text)
    elif name in (asked := evaluated(c)):
        c.wrong(here, f"found {name}, which {asked[name]} asks as well; what {by} cannot judge")
    else:
        return True
    return False


def stage_set(c: Checks, here: KeyPath, name: str, stage: Stage) -> None:
    """Report a data set that a stage cannot train on."""
    if not c.known_set(here, name):
        return
    wanted = "demonstrations" if stage.algorithm.type in DEMONSTRATED else "problems"
    if kind_of(c, name) != wanted and not _takes_both(stage):
        c.wrong(here, f"found {name}, which holds {kind_of(c, name)}; {stage.algorithm.type} trains on {wanted}")
    else:
        may_train(c, here, name, "trains")


def _takes_both(stage: Stage) -> bool:
    """Return whether a stage rolls out problems and reads demonstrations beside them."""
    return _beside(stage) > 0


def _beside(stage: Stage) -> float:
    """Return the share of a step's trajectories that are demonstrations."""
    return float(getattr(stage.algorithm, "demonstrations", 0.0))


def mixed(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report demonstrations that a stage wants and does not have, and weights of sets that it does not weigh."""
    known = [name for name in stage.data if name in c.program.data]
    plain = [name for name in known if kind_of(c, name) != "demonstrations"]
    if _takes_both(stage) and known and len(plain) == len(stage.data):
        text = f"found {_beside(stage):g}, but no set of the stage's data ({listed(known)}) holds demonstrations"
        c.wrong((*path, "algorithm", "demonstrations"), f"{text}; add one that does, or leave this out")
    if stage.algorithm.type in COMPRESSED and isinstance(stage.data, dict):
        text = f"{stage.algorithm.type} measures on all of its demonstrations alike and reads no weights"
        c.wrong((*path, "data"), f"{text}; write data: [{', '.join(stage.data)}]")
    init, removed = c.program.policy.init, getattr(stage.algorithm, "layers", 0)
    if init.kind == "scratch" and removed >= init.layers:
        text = f"found {removed}, but the policy has {init.layers} layers; at least one must stay"
        c.wrong((*path, "algorithm", "layers"), text)


def shortened(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report lengths of which none is below the agent's own limit, and loops that no completion has room for."""
    spec: Any = stage.algorithm
    if spec.type != "short_opd":
        return
    length, limit, at = spec.length, c.program.agent.max_new_tokens, (*path, "algorithm", "length")
    loops = length.kind == "by_repetition"
    name, given = ("least", [length.least]) if loops else ("lengths", list(length.lengths))
    if min(given) >= limit:
        text = f"found {listed(map(str, given))}, but agent.max_new_tokens is {limit}, so that no rollout is shortened"
        if loops:
            c.odd((*at, name), f"{text}; loops still do not train")
        elif spec.select is None and spec.horizon == 1.0:
            c.wrong((*at, name), f"{text}; expected less than that; lower it, or write type: opd")
        else:
            c.odd((*at, name), f"{text}; what select and horizon say still holds")
    room = min(limit, length.most) if loops else limit
    for name in ("least_loop", "copies") if loops else ():
        if (tokens := getattr(length, name)) > room:
            text = f"found {tokens}, but the longest completion has {room} tokens (agent.max_new_tokens, length.most)"
            c.wrong((*at, name), f"{text}, so that no loop is ever found; lower it")


def experienced(c: Checks, path: KeyPath, stage: Stage, before: Iterable[Stage]) -> None:
    """Report stages whose rollouts a self-evolving one cannot learn from; `before`: those that come before it."""
    names: list[str] = getattr(stage.algorithm, "experience", [])
    at, known = (*path, "algorithm", "experience"), [s.id for s in before if s.algorithm.type in POLICY_GRADIENTS]
    c.once(at, names)
    for i, name in enumerate(names):
        c.known((*at, i), name, known, "a policy-gradient stage before it")


def sharing(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report a set on which several learners cannot be compared, and names that they take from other stages."""
    said = getattr(stage.algorithm, "learners", None)
    if said is None:
        return
    at, name = (*path, "algorithm", "learners", "choose_on"), said.choose_on
    if c.known_set(at, name):
        if name not in evaluated(c):
            c.wrong(at, f"found {name}, which is not evaluated; add it to evaluation.sets or evaluation.at_the_end")
        elif is_pool(c, name):
            c.wrong(at, f"found {name}, a pool of single cases; expected a set with a success rate")
        elif (by := _judges_by(c, name)) is not None:
            c.wrong(at, f"found {name}, which judges by {by}: what chooses a policy cannot judge it as well")
    flywheel = c.program.flywheel
    taken = {*c.stages, *(s.id for s in (flywheel.round.stages if flywheel is not None else ()))}
    for k in range(1, len(said.each) + 1):
        if f"{stage.id}_{k}" in taken:
            text = f"found {stage.id}, whose learner {k} is called {stage.id}_{k} as a stage is; choose another name"
            c.wrong((*path, "id"), text)


def _judges_by(c: Checks, name: str) -> str | None:
    """Return by what an evaluated set judges policies: a gate, its role, or the gain that later rounds hang on."""
    asked, flywheel = evaluated(c)[name], c.program.flywheel
    if asked != "evaluation":
        return asked
    if c.program.data[name].role == "hidden":
        return "its role (hidden)"
    if flywheel is None or flywheel.rounds == 1:
        return None
    first = next(iter(c.program.evaluation.sets), None)
    return "flywheel.stop.gain_on" if name == (flywheel.stop.gain_on or first) else None


def grown(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report problems that a self-evolving stage wants made, and that no environment of its data can make."""
    growth = getattr(stage.algorithm, "growth", None)
    if growth is None:
        return
    at = (*path, "algorithm", "growth")
    if c.program.flywheel is not None:
        text = "is not for programs with a flywheel: cases that it holds back to judge could be among what was made"
        c.wrong(at, f"{text}; leave one of the two out")
    count = getattr(stage.algorithm, "problems_per_step", 1)
    if round(growth.share * count) == 0:
        text = f"found {growth.share:g}, which of {count} problems a step is none; raise it, or problems_per_step"
        c.wrong((*at, "share"), text)
    sources = [s for name in stage.data if not isinstance(s := c.program.data.get(name), PoolData | None)]
    names = {s.environment for s in sources} & set(c.program.environments)
    specs = [c.program.environments[name] for name in sorted(names)]
    for spec in specs:
        if not spec.siblings:
            c.wrong(
                at, f"an environment of kind {spec.kind} makes no new problems; leave growth out, or use order_desk"
            )
            return
    possible = set[int]().union(*(calls_of(spec) for spec in specs))
    if missing := [str(n) for n in growth.calls if names and n not in possible]:
        text = f"found {', '.join(missing)}, but its problems take {', '.join(map(str, sorted(possible)))} calls"
        c.wrong((*at, "calls"), f"{text}; name some of these, or other environments.{min(names)}.types")


def verified(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report rejection sampling that would train on failures."""
    for name in ("algorithm", "else_first"):
        spec = getattr(stage, name)
        if isinstance(spec, RFT) and not spec.require_success:
            text = "found false, expected true: a failed trajectory is never an example"
            c.wrong(
                (*path, name, "require_success"),
                f"{text}; what went wrong teaches by pairs (dpo), labels (kto) or rewards",
            )


def tempted(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report a share of adversarial problems where the stage's environments make none."""
    if getattr(stage.algorithm, "adversarial", None) is None:
        return
    sources = [c.program.data[name] for name in stage.data if name in c.program.data]
    desks = [c.program.environments.get(s.environment) for s in sources if isinstance(s, Problems)]
    if not desks or len(desks) < len(stage.data):
        return  # a file or a pool may hold some
    plain = [
        isinstance(d, OrderDesk) and not d.adversarial and not set(d.types or ()) & set(ADVERSARIAL) for d in desks
    ]
    if all(plain):
        text = "asks for adversarial problems, but there are none: set environments.NAME.adversarial above 0"
        c.wrong((*path, "algorithm", "adversarial"), f"{text}, or leave this out")


def credited(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report rewards by turn where no turn earns anything by itself."""
    if not getattr(stage.algorithm, "turn_rewards", False):
        return
    makers = {s.id: s.algorithm for s in c.program.stages}
    asked = [c.program.verifiers.get(name) for name in c.program.reward.soft]
    by_turn = [
        v.kind == "process"
        or (
            isinstance(v, RewardModelVerifier)
            and v.turns == "mean"
            and getattr(makers.get(v.stage), "learns", "") == "turns"
        )
        for v in asked
        if v is not None
    ]
    if not c.program.reward.process_cap and not any(by_turn):
        text = "no turn earns anything by itself: give reward a process_cap with process_per_call or process_per_error, or "
        text += "name in reward.soft a reward model that learns turns, with turns: mean"
        c.wrong((*path, "algorithm", "turn_rewards"), f"{text}; or leave this out")


def replayed(c: Checks, path: KeyPath, stage: Stage) -> None:
    """Report data sets that a policy gradient cannot replay as demonstrations."""
    replay = getattr(stage.algorithm, "replay", None)
    if replay is None or replay.demonstrations is None:
        return
    at: KeyPath = (*path, "algorithm", "replay", "demonstrations", "sets")
    c.once(at, replay.demonstrations.sets)
    for i, name in enumerate(replay.demonstrations.sets):
        here = (*at, i)
        if not c.known_set(here, name):
            continue
        if kind_of(c, name) != "demonstrations":
            c.wrong(here, f"found {name}, which holds problems; replay.demonstrations takes demonstrations")
        else:
            may_train(c, here, name, "trains")


def is_pool(c: Checks, name: str) -> bool:
    """Return whether a data set is a pool that rounds fill."""
    return isinstance(c.program.data.get(name), PoolData)
