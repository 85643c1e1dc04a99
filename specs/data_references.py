"""Checks of data sets: names, files, conditions and declared mistakes."""

from typing import get_args

from specs.checks import Checks
from specs.data import Demonstrations, PoolData, ProblemFile, Problems
from specs.environments import BFCL, Environment, OrderDesk, OrderType, ProcessEnvironment
from specs.flywheel import POOLS
from specs.positions import KeyPath, listed
from specs.redaction import REFERENCE

_OTHER_NAMES = {"regression": "regress", "anchor": "kept", "hard": "difficult"}


def data(c: Checks) -> None:
    """Report data sets that cannot be made, and settings of theirs that nothing reads."""
    for name, source in c.program.data.items():
        path = ("data", name)
        if name == "apart":
            c.wrong(path, "this name is taken by the section `apart`; choose another")
        if name in POOLS:
            c.wrong(
                path,
                f"this name is a pool's ({listed(POOLS)}); choose another, for example {_OTHER_NAMES.get(name, f'my_{name}')}",
            )
        owner, dot, _ = name.partition(".")
        if dot and owner not in c.program.environments:
            c.wrong(path, f"a name with a dot belongs to an environment, but there is no {owner}; write it without")
        if isinstance(source, PoolData):
            if c.program.flywheel is None:
                c.odd(
                    path,
                    "this pool grows by rounds, and the program has no flywheel; it holds what earlier ones published",
                )
            continue
        if c.known((*path, "environment"), source.environment, c.program.environments, "an environment"):
            _source(c, path, source)


def _source(c: Checks, path: KeyPath, source: Demonstrations | Problems | ProblemFile) -> None:
    if isinstance(source, Problems | ProblemFile) and source.where is not None:
        _types(c, (*path, "where"), source.where, source.environment)
    if isinstance(source, Demonstrations):
        _demonstrations(c, path, source)
    elif isinstance(source, ProblemFile):
        _file(c, path, source)


def _types(c: Checks, path: KeyPath, where: str, environment: str) -> None:
    """Report problem types that a condition compares with and the environment does not have."""
    from specs import when  # few programs have conditions

    types = _problem_types(c.program.environments[environment])
    for name in when.compared(when.parse(where, when.PROBLEM_NAMES), "problem.type") if types else ():
        c.known(path, name, types, f"a problem type of {environment}")


def _problem_types(spec: Environment) -> tuple[str, ...]:
    """Return the types of an environment's problems; none of a program of one's own, which alone knows them."""
    if isinstance(spec, ProcessEnvironment):
        return ()
    return get_args(OrderType) if isinstance(spec, OrderDesk) else tuple(spec.categories)


def _demonstrations(c: Checks, path: KeyPath, source: Demonstrations) -> None:
    spec = c.program.environments[source.environment]
    by = "gold" if isinstance(spec, BFCL) else "clerk"
    if source.by != by:
        c.wrong(
            (*path, "by"), f"found {source.by}, but an environment of kind {spec.kind} has only {by}; write by: {by}"
        )
    if source.split != "train":
        text = f"found {source.split}, but demonstrations train; expected train, so that evaluation stays unseen"
        c.wrong((*path, "split"), text)
    types = _problem_types(spec)
    if not types:
        return
    for i, name in enumerate(source.spoil.types or ()):
        c.known((*path, "spoil", "types", i), name, types, f"a problem type of {source.environment}")
    for i, name in enumerate(source.spoil.no_recovery):
        c.known((*path, "spoil", "no_recovery", i), name, types, f"a problem type of {source.environment}")
    if source.spoil.no_recovery and not (isinstance(spec, OrderDesk) and any(f.probability for f in spec.faults)):
        text = f"has no effect: no tool of {source.environment} fails; declare environments.{source.environment}.faults"
        c.wrong((*path, "spoil", "no_recovery"), text)


def _file(c: Checks, path: KeyPath, source: ProblemFile) -> None:
    if REFERENCE.search(source.path):
        if not REFERENCE.match(source.path):
            c.wrong((*path, "path"), f"found {source.path}; a path with a reference must begin with it and be absolute")
        return
    if "\0" in source.path or not (c.folder / source.path).is_file():
        c.wrong(
            (*path, "path"), f"no such file: {source.path} (looked in {c.folder}); expected a JSONL file of problems"
        )
