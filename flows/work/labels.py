"""What the bodies of preference nodes do without pairs: trajectories one by one (KTO), and solutions of a round's pool."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from flows.context import NodeContext, Outcome
from flows.work import inputs
from flows.work.lines import read_rows, write_rows
from flows.work.reading import environments, records
from specs.errors import DataError
from specs.preference import Pairing
from specs.records import Demonstration, Trajectory, label_from
from tasks.episodes.agents import agent_for
from tasks.episodes.render import render_demonstration
from tasks.episodes.shards import write_shards
from tasks.evidence.judge import judge
from tasks.files import write_json
from tasks.learning.rows import TrainingRow
from tasks.loops.collect import Arena
from tasks.loops.labelling import LabelReport, label_rows, label_up, require_labels
from tasks.policy.store import LoadedPolicy

_POOL = "pairs"


def solutions(node: NodeContext, arena: Arena, policy: LoadedPolicy, solved: Collection[str]) -> list[Trajectory]:
    """Return the verified solutions of the pool `pairs`, rendered and judged, of problems that the policy did not solve."""
    if _POOL not in node.params.get("of_round", []) or _POOL not in inputs.filled(node):
        return []
    agent, worlds = agent_for(inputs.agent_spec(node)), environments(node)
    found: list[Trajectory] = []
    for record in records(node, _POOL):
        if not isinstance(record, Demonstration):
            raise DataError(f"data {_POOL!r}: holds a problem without a solution; run the round again")
        if record.problem.id in solved:
            continue
        tools = worlds[record.problem.environment].tools(record.problem)
        made = render_demonstration(record, agent, policy.template, tools)
        judge(made, record.problem, arena.verifiers, arena.reward)
        found.append(made)
    return found


def label(node: NodeContext, spec: Pairing, usable: Sequence[Trajectory], max_length: int) -> Outcome:
    """Label rollouts, and the solutions that a round brought; writes `trajectories/`, `labels.jsonl` and `pairs.json`."""
    report = label_up(usable)
    label_rows(report, {t.id: t for t in usable}, max_length)
    require_labels(report, spec, node.id)
    used = {one.trajectory for one in report.labels}
    write_shards(node.out / "trajectories", [t for t in usable if t.id in used])
    write_rows(node.out / "labels.jsonl", report.labels)
    write_json(node.out / "pairs.json", report.to_json())
    wanted, unwanted = report.sides()
    return Outcome(metrics={"wanted": float(wanted), "unwanted": float(unwanted)}, notes=report.sentences())


def read_labels(folder: Path) -> LabelReport:
    """Return the labels that a node wrote."""
    path = folder / "labels.jsonl"
    try:
        found = [label_from(line) for line in read_rows(path)]
    except TypeError as e:
        raise DataError(f"{path}: holds a label that cannot be read ({e}); make the pairs again") from e
    return LabelReport(labels=found, problems=len({one.problem_id for one in found}))


def side_counts(rows: Sequence[TrainingRow]) -> dict[str, Any]:
    """Return rows and tokens of either side, as `rows.json` has them."""
    sources: dict[str, Any] = {}
    for name, side in (("chosen", True), ("rejected", False)):
        of_side = [r for r in rows if r.preferred is side]
        tokens, trained = sum(len(r.ids) for r in of_side), sum(r.trained for r in of_side)
        share = round(trained / max(1, tokens), 6)
        sources[name] = {"rows": len(of_side), "tokens": tokens, "trained": trained, "trained_share": share}
    return sources
