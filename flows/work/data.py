"""Bodies of the data nodes: draw, demonstrate, read, and keep training apart from evaluation."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows.context import NodeContext, Outcome
from flows.work.jsonl import read_problems
from specs.data import Apart, Demonstrations, ProblemFile, Problems
from specs.environments import Environment as EnvironmentSpec
from specs.errors import DataError, Interrupted, ProgramError
from specs.records import Demonstration, Problem
from tasks.episodes.environments import environment_for
from tasks.evidence.apart import Hit, find_overlaps
from tasks.protocols import Environment

_CLERK_TRIES = 16
_CHECK_EVERY = 500
_DRAWS_PER_PROBLEM = 64


def demonstrations(node: NodeContext) -> Outcome:
    """Draw problems and have the environment solve them; spoil as many as declared. Writes `records.jsonl`."""
    source = Demonstrations.model_validate(node.params["source"])
    environment = _environment(node, source.environment)
    seed = draw_seed(node, source.seed)
    drawn = environment.problems(source.split, source.size, seed)
    rng = random.Random(f"{seed}/spoil")
    made: list[Demonstration] = []
    for number, problem in enumerate(drawn):
        _stop_or_tell(node, number, len(drawn), "demonstrations")
        chosen = rng.random() < source.spoil.share
        may = source.spoil.types is None or problem.type in source.spoil.types
        mistakes = source.spoil.mistakes if chosen and may else 0.0
        if problem.type in source.spoil.no_recovery:
            made.append(environment.demonstrate(problem, seed, mistakes, recovers=False))
        elif mistakes > 0:
            made.append(environment.demonstrate(problem, seed, mistakes))
        else:
            made.append(_solved(environment, problem, seed))
        if made[-1].by != source.by:
            raise ProgramError(
                f"{node.id}: the demonstrations of environment {source.environment} are made by {made[-1].by!r}, "
                f"not by {source.by!r}; write by: {made[-1].by}"
            )
    _check_no_recovery(node.id, source, drawn)
    _write(node.out, made)
    spoiled, wrong = sum(d.spoiled for d in made), sum(not solves(d) for d in made)
    summary = {**_counts([d.problem for d in made]), "spoiled": spoiled, "wrong": wrong}
    return _outcome(node, summary, environment)


def problems(node: NodeContext) -> Outcome:
    """Draw problems; those that `where` rejects are replaced by others. Writes `records.jsonl`."""
    source = Problems.model_validate(node.params["source"])
    environment = _environment(node, source.environment)
    seed = draw_seed(node, source.seed)
    if source.where is None:
        drawn, rejected = environment.problems(source.split, source.size, seed), 0
    else:
        drawn, rejected = _draw_where(node.id, environment, source, source.where, seed)
    _write(node.out, drawn)
    return _outcome(node, {**_counts(drawn), "rejected": rejected}, environment)


def problem_file(node: NodeContext) -> Outcome:
    """Read problems from a JSONL file, strictly. Writes `records.jsonl`."""
    source = ProblemFile.model_validate(node.params["source"])
    path = Path(node.params.get("path") or source.path)
    environment = _environment(node, source.environment)
    read = read_problems(path, source.environment, digest=node.params.get("digest"))
    for line, problem in read:
        _openable(environment, problem, f"{path.name}:{line}")
    found = [p for _, p in read]
    kept = found if source.where is None else _kept(source.where, found)
    if not kept:
        raise DataError(f"{node.id}: `where` keeps none of the {len(found)} problems of {path.name}; loosen it")
    _write(node.out, kept)
    return _outcome(node, {**_counts(kept), "rejected": len(found) - len(kept)}, environment)


def apart(node: NodeContext) -> Outcome:
    """Compare every training set with every evaluation set. Writes `apart.json`; a hit stops or drops, as declared."""
    rule = Apart.model_validate(node.params["apart"])
    sides: dict[str, dict[str, list[tuple[str, str]]]] = {"train": {}, "eval": {}}
    for name, folder in node.inputs.items():
        side, _, data = name.partition(".")
        sides[side][data] = list(read_texts(folder / "records.jsonl"))
    hits = find_overlaps(sides["train"], sides["eval"], rule.near_duplicate)
    if hits and rule.on_hit == "stop":
        raise DataError(_overlap_text(hits))
    dropped = {name: _dropped(name, hits) for name in sides["train"]}
    for name, ids in dropped.items():
        if len(ids) == len({i for i, _ in sides["train"][name]}):
            raise DataError(f"data.{name}: every record gives an evaluation record away; nothing is left to train on")
    result = {"hits": [asdict(h) for h in hits], "dropped": {n: ids for n, ids in dropped.items() if ids}}
    (node.out / "apart.json").write_text(json.dumps(result, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    compared = {f"{side}_records": float(sum(map(len, sets.values()))) for side, sets in sides.items()}
    notes = [
        f"data.{n}: {len(ids)} records dropped that give evaluation records away" for n, ids in dropped.items() if ids
    ]
    return Outcome(metrics={**compared, "hits": float(len(hits))}, notes=notes)


def read_texts(path: Path) -> Iterable[tuple[str, str]]:
    """Yield (id, text) of each problem or demonstration of a `records.jsonl`."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            problem = record.get("problem", record)
            yield problem["id"], problem["text"]


def draw_seed(node: NodeContext, declared: int | None) -> int:
    """Return the declared seed, else one of the node's own: sets of one split are different draws by their names."""
    if declared is not None:
        return declared
    return int.from_bytes(hashlib.sha256(f"{node.seed}/{node.kind}".encode()).digest()[:4], "big") >> 1


def solves(demonstration: Demonstration) -> bool:
    """Return whether a demonstration ends as its problem expects."""
    expected = demonstration.problem.expected
    if "state" in expected:
        free = expected.get("answer") is None
        return demonstration.final_state == expected["state"] and (free or demonstration.answer == expected["answer"])
    return not demonstration.spoiled


def _environment(node: NodeContext, name: str) -> Environment:
    spec: EnvironmentSpec = TypeAdapter(EnvironmentSpec).validate_python(node.params["environment"])
    return environment_for(name, spec)


def _check_no_recovery(name: str, source: Demonstrations, drawn: Sequence[Problem]) -> None:
    types = {p.type for p in drawn}
    for kind in source.spoil.no_recovery:
        if kind not in types:
            raise ProgramError(
                f"{name}: spoil.no_recovery names the type {kind!r}, of which no problem was drawn; expected some of "
                f"{', '.join(sorted(types))}"
            )


def _solved(environment: Environment, problem: Problem, seed: int) -> Demonstration:
    """Return a demonstration without mistakes that ends as expected; declared faults may take several tries."""
    for attempt in range(_CLERK_TRIES):
        made = environment.demonstrate(problem, seed + attempt)
        if solves(made):
            return made
    raise DataError(
        f"{problem.environment}: problem {problem.id} ({problem.type}) was not solved in {_CLERK_TRIES} tries under "
        "the declared faults; lower their probability or raise max_turns"
    )


def _stop_or_tell(node: NodeContext, done: int, total: int, what: str) -> None:
    if done % _CHECK_EVERY == 0:
        node.progress(what, done / total, {"records": float(done)})
        if node.stop():
            raise Interrupted(f"{node.id}: stopped after {done} of {total} {what}; run the same command to go on")


def _kept(where: str, drawn: Sequence[Problem]) -> list[Problem]:
    from specs import when

    condition = when.parse(where, when.PROBLEM_NAMES)
    return [p for p in drawn if condition.evaluate(when.problem_values(p))]


def _draw_where(
    name: str, environment: Environment, source: Problems, where: str, seed: int
) -> tuple[list[Problem], int]:
    """Draw more and more until `size` problems satisfy the condition; a longer draw begins with the shorter one."""
    capacity = getattr(environment, "capacity", None)
    most = capacity(source.split) if capacity else source.size * _DRAWS_PER_PROBLEM
    count = min(source.size, most)
    while True:
        drawn = environment.problems(source.split, count, seed)
        kept = _kept(where, drawn)
        if len(kept) >= source.size:
            last = drawn.index(kept[source.size - 1])
            return kept[: source.size], last + 1 - source.size
        if count >= most:
            raise DataError(
                f"{name}: of {count} problems of split {source.split} only {len(kept)} satisfy where: {where}; "
                f"{source.size} were asked for; lower `size` or loosen `where`"
            )
        count = min(2 * count, most)


def _openable(environment: Environment, problem: Problem, where: str) -> None:
    """Refuse a problem whose world or tools the environment cannot use."""
    try:
        environment.open(problem, 0).close()
        environment.tools(problem)
    except DataError as e:
        raise DataError(f"{where}: {e}") from e


def _fields(record: Any) -> dict[str, Any]:
    """Return a record's fields as they are: what `to_dict` gives, without the copies."""
    return {f.name: getattr(record, f.name) for f in fields(record)}


def _write(out: Path, records: Iterable[Problem | Demonstration]) -> None:
    with (out / "records.jsonl").open("w", encoding="utf-8") as f:
        for record in records:
            f.write(json.dumps(record, default=_fields, allow_nan=False, separators=(",", ":")) + "\n")


def _counts(drawn: Sequence[Problem]) -> dict[str, Any]:
    """Return how many problems there are of each type and tag."""
    return {
        "records": len(drawn),
        "by_type": dict(sorted(Counter(p.type for p in drawn).items())),
        "by_tag": dict(sorted(Counter(t for p in drawn for t in p.tags).items())),
    }


def _outcome(node: NodeContext, summary: dict[str, Any], environment: Environment) -> Outcome:
    dropped: dict[str, int] = getattr(environment, "dropped", {})
    summary = {**summary, "dropped": dropped}
    (node.out / "summary.json").write_text(json.dumps(summary, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    notes = [f"{count} problems left out: {reason}" for reason, count in dropped.items()]
    if summary.get("rejected"):
        notes.append(f"{summary['rejected']} problems rejected by `where`")
    metrics: dict[str, float | None] = {k: float(v) for k, v in summary.items() if isinstance(v, int)}
    return Outcome(metrics=metrics, notes=notes)


def _dropped(name: str, hits: Sequence[Hit]) -> list[str]:
    return sorted({h.train_id for h in hits if h.train_set == name})


def _overlap_text(hits: Sequence[Hit]) -> str:
    shown = "; ".join(
        f"{h.train_set}:{h.train_id} and {h.evaluation_set}:{h.evaluation_id} ({h.reason}, {h.span[:80]!r})"
        for h in hits[:3]
    )
    return (
        f"data.apart: {len(hits)} training records give evaluation records away, for example {shown}; "
        "take them out, or write apart: {on_hit: drop} to train without them"
    )
