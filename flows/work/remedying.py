"""Bodies of a round's second half: apply remedies to cases, hand on the pools, publish what outlives the run."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from flows import confirming
from flows import pools as published_pools
from flows.context import NodeContext, Outcome
from flows.work.choosing import read_json
from flows.work.data import read_texts
from flows.work.lines import read_rows, write_rows
from flows.work.promotion import home_of
from flows.work.reading import dropped_ids, environments
from flows.work.reading import problems as problems_of
from specs.data import Apart
from specs.errors import StateError
from specs.flywheel import Remedy, Siblings, default_remedy
from specs.records import BadCase, Demonstration, Problem, Trajectory, case_from, demonstration_from, to_dict
from specs.reward import Reward
from specs.verifiers import Verifier
from tasks.cases.remedies import Remedied, Rules, apply, successes
from tasks.cases.siblings import Apartness, Bench, SiblingMaker
from tasks.episodes.seeds import derive
from tasks.episodes.shards import read_shards, write_shards
from tasks.evidence.verifiers import verifier_for
from tasks.files import write_json

_GIVEN = ("repaired", "pairs", "hard")
"""Pools of siblings: all of them train."""


def remedy(node: NodeContext) -> Outcome:
    """Apply the remedies to confirmed cases and fill the pools; writes `pools/`, `pools.json`, `asks.jsonl`, `cases.jsonl`.

    Ends `held` where a cause's remedy is to stop for a person who mends the reward.
    """
    cases = [case_from(d) for d in read_rows(node.inputs["cases"] / "cases.jsonl")]
    spec = Siblings.model_validate(node.params["siblings"])
    bench = _bench(node)
    maker = SiblingMaker(bench, _apartness(node), spec, _draws(node))
    problems = _case_problems(node, {c.problem_id for c in cases})
    done = apply(cases, problems, _rules(node, spec), maker)
    maker.check()
    pools = _write_pools(node, done, bench)
    write_rows(node.out / "asks.jsonl", done.asks)
    write_rows(node.out / "cases.jsonl", cases)
    write_json(node.out / "given.json", done.given)
    report = maker.report
    write_json(
        node.out / "pools.json",
        {
            "pools": pools,
            "remedies": dict(sorted(done.counts.items())),
            "asks": len(done.asks),
            "siblings": {
                "made": report.made, "refused": dict(report.refused),
                "unsolved": dict(report.unsolved), "impossible": dict(report.impossible),
            },
        },
    )  # fmt: skip
    stops = [a for a in done.asks if a.do == "stop_for_reward_fix"]
    metrics: dict[str, float | None] = {f"pool_{name}": float(p["records"]) for name, p in pools.items()}
    metrics |= {"siblings": float(report.made), "asks": float(len(done.asks))}
    notes = _remedy_notes(done, maker, pools)
    if stops:
        text = f"{len(stops)} cases say that the reward pays for the wrong thing, the first is {stops[0].case}"
        notes.insert(0, f"{text}: mend the reward or its verifiers, then run the same command")
    return Outcome("held" if stops else "completed", metrics, notes=notes)


def _bench(node: NodeContext) -> Bench:
    adapter: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    specs = {name: adapter.validate_python(spec) for name, spec in node.params["verifiers"].items()}
    verifiers = {name: verifier_for(name, spec) for name, spec in specs.items()}
    return Bench(environments(node), verifiers, Reward.model_validate(node.params["reward"]))


def _rules(node: NodeContext, spec: Siblings) -> Rules:
    adapter: TypeAdapter[Remedy] = TypeAdapter(Remedy)
    remedies = {cause: adapter.validate_python(r) for cause, r in node.params["remedies"].items()}
    return Rules(remedies, default_remedy(node.params["default"]), spec.per_case)


def _inputs_of(node: NodeContext, prefix: str) -> dict[str, Path]:
    """Return the inputs whose names begin so, by the rest of the name."""
    start = f"{prefix}."
    return {n.removeprefix(start): folder for n, folder in node.inputs.items() if n.startswith(start)}


def _apartness(node: NodeContext) -> Apartness:
    """Return what siblings are kept apart from: evaluation and regression sets, training sets, earlier siblings.

    Earlier ones are those of the rounds before, and those that executions before this one published.
    """
    rule = Apart.model_validate(node.params["apart"])
    evaluation = {n: list(read_texts(f / "records.jsonl")) for n, f in _inputs_of(node, "eval").items()}
    training = [t for f in _inputs_of(node, "train").values() for t in read_texts(f / "records.jsonl")]
    for number, folder in _inputs_of(node, "earlier").items():
        evaluation[f"earlier.{number}"] = list(read_texts(folder / "pools" / "regression" / "records.jsonl"))
        for pool in _GIVEN:
            training += read_texts(folder / "pools" / pool / "records.jsonl")
    for pool, folder in _inputs_of(node, "published").items():
        known = list(read_texts(folder / "records.jsonl"))
        if pool == published_pools.TRAINED:
            training += known
        else:
            evaluation[f"published.{pool}"] = known
    return Apartness(evaluation, training, rule.near_duplicate)


def _draws(node: NodeContext) -> int:
    """Return the seed of the siblings: another one after each publication, so that draws are not used up again."""
    trained = f"published.{published_pools.TRAINED}"
    version = read_json(node, trained, "summary.json")["version"] if trained in node.inputs else None
    return node.seed if version is None else derive(node.seed, "after", version)


def _case_problems(node: NodeContext, wanted: set[str]) -> dict[str, Problem]:
    """Return the problems of the cases, as far as their data sets still hold them."""
    names = _inputs_of(node, "data")
    return {p.id: p for name in names for p in problems_of(node, name) if p.id in wanted}


def _write_pools(node: NodeContext, done: Remedied, bench: Bench) -> dict[str, dict[str, Any]]:
    """Write every pool's folder and return what each holds."""
    root = node.out / "pools"
    pools = {
        "repaired": _write_pool(root / "repaired", done.repaired, None, {}),
        "pairs": _write_pool(root / "pairs", done.pairs, None, {}),
        "hard": _write_pool(root / "hard", done.hard, None, {}),
        "regression": _write_pool(root / "regression", done.regression, None, {}),
    }
    read: list[str] = node.params["fills"]
    if "successes" in read:
        mined = read_shards(node.inputs["mined"] / "trajectories")
        kept, dropped = successes(mined, int(node.params["successes"]["size"]))
        pools["successes"] = _write_pool(root / "successes", [], kept, dropped)
    if "anchor" in read:
        rows, kept, dropped = _anchors(node, bench, int(node.params["anchor"]["size"]))
        pools["anchor"] = _write_pool(root / "anchor", rows, kept, dropped)
    return pools


def _write_pool(
    folder: Path,
    records: Sequence[Demonstration | Problem],
    trajectories: Sequence[Trajectory] | None,
    dropped: dict[str, int],
) -> dict[str, Any]:
    """Write a pool: `records.jsonl`, `trajectories/` where it may hold some, and `summary.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "records.jsonl", records)
    if trajectories is not None:
        write_shards(folder / "trajectories", trajectories)
    count = len(records) + len(trajectories or ())
    summary = {"records": count, "trajectories": len(trajectories or ()), "dropped": dict(sorted(dropped.items()))}
    write_json(folder / "summary.json", summary)
    return summary


def _anchors(
    node: NodeContext, bench: Bench, size: int
) -> tuple[list[Demonstration], list[Trajectory], dict[str, int]]:
    """Return verified, unspoiled demonstrations of the main part, and its verified trajectories where these are few."""
    dropped = {"spoiled": 0, "not_verified": 0}
    lines = [d for name, folder in _inputs_of(node, "train").items() for d in _demonstrations(node, name, folder)]
    random.Random(f"{node.seed}/anchor").shuffle(lines)
    kept: list[Demonstration] = []
    for line in lines:
        if len(kept) == size:
            break
        if line["spoiled"]:
            dropped["spoiled"] += 1
        elif bench.passes(made := demonstration_from(line)):
            kept.append(made)
        else:
            dropped["not_verified"] += 1
    rolled = (t for f in _inputs_of(node, "collect").values() for t in read_shards(f / "trajectories"))
    more, why = successes(rolled, size - len(kept)) if len(kept) < size else ([], {})
    return kept, more, {reason: n for reason, n in {**dropped, **why}.items() if n}


def _demonstrations(node: NodeContext, name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the demonstrations of a training set that may train, unparsed; of problems there are none."""
    gone = dropped_ids(node, name)
    return [d for d in read_rows(folder / "records.jsonl") if "turns" in d and d["problem"]["id"] not in gone]


def _remedy_notes(done: Remedied, maker: SiblingMaker, pools: dict[str, dict[str, Any]]) -> list[str]:
    report = maker.report
    notes = [f"pool {name}: {p['records']} rows" for name, p in pools.items()]
    notes += [f"{n} cases: {what}" for what, n in sorted(done.counts.items())]
    notes += [f"{n} drawn siblings refused: {reason}" for reason, n in sorted(report.refused.items())]
    notes += [
        f"{n} siblings not solved by their own environment: {name}" for name, n in sorted(report.unsolved.items())
    ]
    notes += [f"{n} cases without a sibling: {reason}" for reason, n in sorted(report.impossible.items())]
    return notes


@dataclass(frozen=True, slots=True)
class _Pool:
    records: list[dict[str, Any]]
    trajectories: list[Trajectory] | None


def pool(node: NodeContext) -> Outcome:
    """Hand on one pool of the round, with what earlier rounds put into it. Writes what a data node writes.

    Where the pool has a `size`, the newest trajectories stay. They are told apart by problem and tokens: rollouts of
    several nodes may share a name.
    """
    name: str = node.params["pool"]
    parts = [_read_pool(node.inputs["remedy"] / "pools" / name)]
    if "earlier" in node.inputs:
        parts.append(_read_pool(node.inputs["earlier"]))
    records = {r.get("problem", r)["id"]: r for part in reversed(parts) for r in part.records}
    rolled: dict[tuple[str, tuple[int, ...]], Trajectory] = {}
    for trajectory in (t for part in parts for t in part.trajectories or ()):
        rolled.setdefault((trajectory.problem_id, tuple(trajectory.ids)), trajectory)
    room = max(0, int(node.params["size"]) - len(records)) if "size" in node.params else len(rolled)
    kept = list(rolled.values())[:room]
    write_rows(node.out / "records.jsonl", list(records.values()))
    if any(part.trajectories is not None for part in parts):
        write_shards(node.out / "trajectories", kept)
    count, cut = len(records) + len(kept), len(rolled) - len(kept)
    write_json(node.out / "summary.json", {"records": count, "trajectories": len(kept), "pool": name, "cut": cut})
    notes = [] if count else [f"pool {name} is empty: no remedy gave it anything"]
    notes += [f"pool {name}: {cut} older trajectories are beyond its size and were left out"] if cut else []
    return Outcome(metrics={"records": float(count)}, notes=notes)


def _read_pool(folder: Path) -> _Pool:
    if not (folder / "summary.json").is_file():
        raise StateError(f"{folder}: holds no pool (summary.json is missing); run the node that fills it again")
    shards = folder / "trajectories"
    return _Pool(list(read_rows(folder / "records.jsonl")), list(read_shards(shards)) if shards.is_dir() else None)


def publish(node: NodeContext) -> Outcome:
    """Write new versions of what outlives the run, outside it: the ledger of cases, what is held back, what trained.

    Writes `published.json`. A problem is held back once for each case, however often the case is found again. Where the
    remedies stopped for the reward, only the ledger gets what is new.
    """
    home, program = home_of(node), str(node.params["program"])
    stopped = "proceed" in node.inputs and not read_json(node, "proceed", "decision.json")["go"]
    before = published_pools.cases(home, program)
    ledger = _ledger(node, before)
    if stopped:
        _nothing_held_back(ledger, before)
    solved: dict[str, bool] = {} if stopped else read_json(node, "cases", "causes.json")["regression"]
    cases = [to_dict(aged(case, solved)) for case in ledger]
    pools, wanted = node.inputs["remedy"] / "pools", {case.regression for case in ledger}
    held = [r for r in read_rows(pools / "regression" / "records.jsonl") if r["id"] in wanted]
    known, merged = _merged(home, program, published_pools.REGRESSION, held)
    about = {"program": program, "round": node.params["round"], "added": len(merged) - known}
    given = () if stopped else _GIVEN
    siblings = [r.get("problem", r) for name in given for r in read_rows(pools / name / "records.jsonl")]
    texts = [{"id": p["id"], "type": p["type"], "text": p["text"]} for p in siblings]
    _, trained = _merged(home, program, published_pools.TRAINED, texts)
    published_pools.publish(home, program, published_pools.TRAINED, trained, about)
    version = published_pools.publish(home, program, published_pools.REGRESSION, merged, about)
    published_pools.publish(home, program, published_pools.CASES, cases, about)
    confirming.note_lives(home, program, ledger)
    body = {
        "regression": version.resolved(), "cases": len(cases), "problems": len(merged), "trained": len(trained),
    }  # fmt: skip
    write_json(node.out / "published.json", body)
    lives = {
        life: float(sum(c["life"] == life for c in cases)) for life in ("open", "in_training", "fixed", "regressed")
    }
    return Outcome(
        metrics={"regression_problems": float(len(merged)), "cases": float(len(cases)), **lives},
        notes=[f"the regression pool holds {len(merged)} problems, {about['added']} of them new"],
    )


def _merged(home: Path, program: str, pool: str, rows: Sequence[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """Return how many records a published pool holds, and those with the new ones behind them, each id once."""
    newest = published_pools.newest(home, program, pool)
    known = [] if newest is None else published_pools.records(home, newest)
    return len(known), list({r["id"]: r for r in [*known, *rows]}.values())


def _ledger(node: NodeContext, known: Sequence[dict[str, Any]]) -> list[BadCase]:
    """Return the cases of the round and those that were known, which stay as they are but for their life."""
    found = {c["id"]: case_from(c) for c in read_rows(node.inputs["remedy"] / "cases.jsonl")}
    for case in map(case_from, known):
        new = found.get(case.id)
        held = new is not None and case.regression is None and new.regression is not None
        if new is not None and (held or new.status != case.status or "said" in new.evidence):
            new.life = case.life  # it was only suspected, so that nothing was held back; or a person spoke since
            new.regression = case.regression or new.regression
        else:
            found[case.id] = case
    read = _trained_on(node)
    given: dict[str, str] = read_json(node, "remedy", "given.json")
    for name, pool in given.items():
        if pool in read and found[name].life == "open":
            found[name].life = "in_training"
    return list(found.values())


def _nothing_held_back(ledger: Sequence[BadCase], before: Sequence[dict[str, Any]]) -> None:
    """Let cases hold only what was held back for them before: verdicts of a reward that is to be mended give nothing."""
    known = {c["id"]: c["regression"] for c in before}
    for case in ledger:
        case.regression = known.get(case.id)


def _trained_on(node: NodeContext) -> set[str]:
    """Return the pools that a stage of the round trained on: one that was skipped has what it starts from as output."""
    came = {s["id"]: node.inputs.get(s["from"]) for s in node.params["stages"]}
    ran = [s for s in node.params["stages"] if node.inputs.get(s["id"]) not in (None, came[s["id"]])]
    return {pool for s in ran for pool in s["pools"]}


def aged(case: BadCase, solved: dict[str, bool]) -> BadCase:
    """Return the case with its life as the greedy try of its held-back problem says; unchanged where there is none."""
    passes = solved.get(case.regression) if case.regression is not None else None
    if passes is True:
        case.life = "fixed"
    elif passes is False and case.life in ("fixed", "regressed"):
        case.life = "regressed"
    return case
