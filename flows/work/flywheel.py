"""Body of `cases.attribute`: why what failed failed. It runs in the driver, so it is torch-free."""

from collections.abc import Iterator

from flows.confirming import CaseAnswer, answer_from, answered, brought_in
from flows.context import NodeContext, Outcome
from flows.work.choosing import read_json
from flows.work.lines import read_rows, write_rows
from flows.work.reading import environments
from flows.work.reading import problems as problems_of
from specs.records import Trajectory
from specs.reward import Reward
from tasks.cases.finding import Found, Source, find_cases
from tasks.episodes.shards import read_shards
from tasks.files import write_json


def attribute(node: NodeContext) -> Outcome:
    """Attribute every failure among mined rollouts and evaluations; writes `cases.jsonl` and `causes.json`."""
    reward = Reward.model_validate(node.params["reward"])
    deciding = [*reward.must, *reward.outcome]
    worlds = environments(node)
    found: dict[str, Found] = {}
    for name, trajectories in _judged(node):
        problems = {p.id: p for p in problems_of(node, name)}
        source = Source(node.params["program"], node.params["round"], name, node.params["sources"][name])
        found[name] = find_cases(source, trajectories, problems, worlds, deciding)
    given = _answers(node)
    answered([c for f in found.values() for c in f.cases], given)
    cases = [c for f in found.values() for c in f.cases]
    number = node.params["round"]
    again = brought_in(cases, given, node.params["sources"], number) if number == 1 else []  # later: done in the first
    cases += again
    write_rows(node.out / "cases.jsonl", cases)
    whole = _together(found)
    figures = {k: v for k, v in whole.figures().items() if k != "types"}
    sets = {name: f.figures() for name, f in found.items()}
    write_json(node.out / "causes.json", figures | {"sets": sets, "regression": _regression(node)})
    notes = _cause_notes(whole, found)
    notes += [f"{len(again)} cases of earlier rounds were confirmed by a person since"] if again else []
    return Outcome(metrics=_cause_metrics(whole), notes=notes)


def _answers(node: NodeContext) -> list[CaseAnswer]:
    """Return what people said of cases by the time that the program was resolved."""
    folder = node.inputs.get("answered")
    return [] if folder is None else [answer_from(r) for r in read_rows(folder / "records.jsonl")]


def _judged(node: NodeContext) -> Iterator[tuple[str, list[Trajectory]]]:
    """Yield each set's judged trajectories: those mined of it, and those of its evaluation where it is asked for."""
    if "mined" in node.inputs:
        by_set: dict[str, list[str]] = read_json(node, "mined", "mine.json")["problems"]
        names = {i: name for name, ids in by_set.items() for i in ids}
        mined: dict[str, list[Trajectory]] = {name: [] for name in by_set}
        for trajectory in read_shards(node.inputs["mined"] / "trajectories"):
            mined[names[trajectory.problem_id]].append(trajectory)
        yield from mined.items()
    for name in node.params["causes_from"]:
        folder = node.inputs.get(f"evaluated.{name}") or node.inputs["evidence"] / "evaluations" / name
        yield name, list(read_shards(folder / "trajectories"))


def _regression(node: NodeContext) -> dict[str, bool]:
    """Return, by problem of the regression pool, whether the round's start policy solves it greedily."""
    name = node.params.get("regression")
    folder = node.inputs["evidence"] / "evaluations" / name if name and "evidence" in node.inputs else None
    if folder is None or not (folder / "greedy").is_dir():
        return {}
    tries = read_shards(folder / "greedy")
    return {t.problem_id: t.success and t.status == "finished" for t in tries if t.success is not None}


def _together(found: dict[str, Found]) -> Found:
    """Return one figure over all sets."""
    whole = Found()
    for f in found.values():
        whole.cases += f.cases
        whole.apart.update(f.apart)
        whole.judged.update(f.judged)
        whole.types |= f.types
        whole.without_clerk += f.without_clerk
    return whole


def _cause_metrics(whole: Found) -> dict[str, float | None]:
    failed = whole.share()
    metrics: dict[str, float | None] = {"failure_rate": failed.estimate if failed else None}
    metrics |= {f"cause_{name}": figure["share"] for name, figure in whole.figures()["causes"].items()}
    confirmed = sum(c.status == "confirmed" for c in whole.cases)
    return metrics | {"cases": float(len(whole.cases)), "confirmed": float(confirmed)}


def _cause_notes(whole: Found, found: dict[str, Found]) -> list[str]:
    notes: list[str] = []
    for name, f in found.items():
        causes = ", ".join(f"{v['count']} {cause}" for cause, v in f.figures()["causes"].items()) or "none"
        notes.append(f"{name}: {len(f.cases)} of {f.judged.total()} failed: {causes}")
    notes += [f"{n} trajectories have no verdict ({what}): no failure of the policy" for what, n in whole.apart.items()]
    if whole.without_clerk:
        notes.append(f"{whole.without_clerk} failures were attributed without the clerk's run: their world is gone")
    return notes
