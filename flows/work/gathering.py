"""What the report needs, read from the nodes it is given. What cannot be read is named on the page, never guessed."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from flows.context import NodeContext
from flows.nodes import round_of
from flows.work.gathering_rounds import gather_rounds
from specs.errors import TutelageError
from specs.records import Trajectory
from specs.strict_json import parse
from specs.teacher_choice import acting_name
from tasks.judging.report_data import (
    Conversation,
    Cost,
    Curve,
    ReportData,
    Said,
    StageResult,
    Talk,
    Tokens,
    final_candidate,
)
from tasks.judging.results import Evaluated, Unusable, try_evaluation

SOLVED, STILL_FAILED = 2, 1
"""Conversations of problems that the candidate newly solves, and of those that it still fails."""
REPLY = 600
"""Characters of a tool's reply that are shown."""


@dataclass(slots=True)
class _Inputs:
    """The nodes of the report, each folder once (a skipped node shares another's folder)."""

    nodes: dict[str, Path]
    problems: list[str] = field(default_factory=list)

    def json(self, node: str, name: str) -> Any | None:
        """Return a JSON file of a node; None, with a note on the page, where it is not there or damaged."""
        path = self.nodes[node] / name
        if not path.is_file():
            return None
        try:
            return parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            self.problems.append(f"{node}: {name} cannot be read ({e})")
            return None

    def having(self, name: str) -> list[str]:
        """Return the nodes with a file or folder of that name."""
        return [n for n, folder in self.nodes.items() if (folder / name).exists()]


def _inputs(node: NodeContext) -> _Inputs:
    seen: set[Path] = set()
    nodes: dict[str, Path] = {}
    for name, folder in node.inputs.items():
        real = folder.resolve()
        if name == "condition" or real in seen:
            continue
        seen.add(real)
        nodes[name] = folder
    return _Inputs(nodes)


def gather(node: NodeContext) -> ReportData:
    """Return everything on the page."""
    found = _inputs(node)
    params = node.params
    evaluations = _evaluations(found)
    data = ReportData(program=params["program"], about=params.get("about", ""))
    data.gates = [g for n in found.having("gate.json") if (g := found.json(n, "gate.json")) is not None]
    data.stages = _stages(params["stages"], evaluations)
    data.curves = [c for n in _trained(found) if (c := _curve(found, n)) is not None]
    data.data = _sets(found, params["sets"])
    data.apart = next((found.json(n, "apart.json") for n in found.having("apart.json")), None)
    data.tokens = [t for n in found.having("rows.json") for t in _tokens(n, found.json(n, "rows.json") or {})]
    data.preflights = [{"node": n, **(found.json(n, "preflight.json") or {})} for n in found.having("preflight.json")]
    data.collects = [_collect(n, found.json(n, "collect.json") or {}) for n in found.having("collect.json")]
    data.pairs = [{"node": n, **(found.json(n, "pairs.json") or {})} for n in found.having("pairs.json")]
    data.teachers = [{"node": n, **s} for n in found.having("signals.json") if (s := found.json(n, "signals.json"))]
    used = "notes/used.json"
    data.used = [{"node": n, "teachers": u} for n in found.having(used) if (u := found.json(n, used))]
    data.rounds = gather_rounds(list(found.nodes), found.json)
    _receipts(found, data)
    data.conversations = _conversations(params["stages"], data, evaluations, found)
    data.problems = found.problems
    return data


def _evaluations(found: _Inputs) -> dict[tuple[str, str], Evaluated]:
    """Return (policy, set) -> evaluation, by node ids `eval.<policy>.<set>`."""
    evaluations: dict[tuple[str, str], Evaluated] = {}
    for name, folder in found.nodes.items():
        parts = name.split(".", 2)  # a set's name may have a dot, a policy's has none
        if len(parts) != 3 or parts[0] != "eval":
            continue
        result = try_evaluation(folder)
        if isinstance(result, Unusable):
            found.problems.append(f"{name}: {result.reason}")
        else:
            evaluations[parts[1], parts[2]] = result
    return evaluations


def _stages(stages: list[dict[str, Any]], evaluations: dict[tuple[str, str], Evaluated]) -> list[StageResult]:
    declared = {s["id"]: s for s in stages}
    others = [p for p in dict.fromkeys(p for p, _ in evaluations) if p not in declared and p != "init"]
    acting = [p for p in others if p.startswith(acting_name(""))]
    results = []
    for policy in ("init", *(p for p in others if p not in acting), *declared, *acting):
        sets = {s: e.metrics for (p, s), e in evaluations.items() if p == policy}
        if sets:
            about = declared.get(policy, {})
            results.append(StageResult(policy, about.get("type", ""), about.get("from"), sets))
    return results


def _trained(found: _Inputs) -> list[str]:
    having = found.having("policy")
    return [n for n in having if not n.startswith("policy.") and not n.endswith(".start")]


def _curve(found: _Inputs, node: str) -> Curve | None:
    """Return the metric lines that lie beside a node's output; a torn last line is left out."""
    path = found.nodes[node].parent / "metrics.jsonl"
    if not path.is_file():
        return None
    lines: list[tuple[float, dict[str, float | None]]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            read = json.loads(line)
            lines.append((float(read["step"]), read["values"]))
        except (ValueError, KeyError, TypeError):
            found.problems.append(f"{node}: line {number} of its metrics cannot be read")
            break
    return Curve(node, lines) if lines else None


def _sets(found: _Inputs, declared: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    rows = []
    for node in found.having("records.jsonl"):
        with (found.nodes[node] / "records.jsonl").open("rb") as f:
            count = sum(1 for _ in f)
        rows.append({"name": node.removeprefix("data."), **declared[node], "records": count})
    return rows


def _tokens(node: str, rows: dict[str, Any]) -> Iterable[Tokens]:
    for source, c in (rows.get("sources") or {}).items():
        yield Tokens(node, source, int(c["rows"]), int(c["tokens"]), int(c["trained"]))


def _collect(node: str, figures: dict[str, Any]) -> dict[str, Any]:
    selected = figures.get("selected")
    count = {"selected": len(selected)} if isinstance(selected, list) else {}
    return {"node": node, **figures, **count}


def _receipts(found: _Inputs, data: ReportData) -> None:
    """Take cost, durations and notes from the receipts that lie beside the outputs."""
    for node, folder in found.nodes.items():
        path = folder.parent / "receipt.json"
        if not path.is_file():
            continue
        try:
            receipt = parse(path.read_text(encoding="utf-8"))
            cost = receipt["cost"]
            data.costs.append(
                Cost(
                    node,
                    receipt["kind"],
                    receipt["seconds"],
                    cost.get("rollouts"),
                    cost.get("tokens"),
                    cost.get("steps"),
                    cost.get("taught_tokens"),
                    cost.get("trained_tokens"),
                )
            )
            data.notes += [(node, note) for note in receipt["notes"]]
        except (OSError, ValueError, KeyError, TypeError) as e:
            found.problems.append(f"{node}: its receipt cannot be read ({e!r})")


def _conversations(
    stages: list[dict[str, Any]],
    data: ReportData,
    evaluations: dict[tuple[str, str], Evaluated],
    found: _Inputs,
) -> list[Conversation]:
    """Return the same problems tried by the untouched policy, after the first stage, and by the candidate."""
    main = [s["id"] for s in stages if not round_of(s["id"])] or ["champion"]  # of rounds only
    candidate = final_candidate(data.gates) or main[-1]
    before = next((g["candidate"] for g in data.gates if g.get("candidate")), main[-1])
    wanted = list(dict.fromkeys(["init", main[0], before, candidate]))
    asked = [r["set"] for g in data.gates for r in g.get("rows", ())]
    sets = list(dict.fromkeys([*asked, *(s for _, s in evaluations)]))
    having = {s: [p for p in wanted if (p, s) in evaluations] for s in sets if (candidate, s) in evaluations}
    if not having:
        return []
    chosen = max(having, key=lambda s: len(having[s]))
    policies = having[chosen]
    picked = _pick([evaluations[p, chosen] for p in policies])
    tried = {p: _tried(found, f"eval.{p}.{chosen}", set(picked)) for p in policies}
    last = evaluations[candidate, chosen]
    return [
        Conversation(k, last.problems[k].type, last.problems[k].text, [_talk(p, tried[p][k]) for p in policies if k in tried[p]])
        for k in picked
    ]  # fmt: skip


def _solves(evaluated: Evaluated, problem: str) -> bool | None:
    result = evaluated.problems.get(problem)
    if result is None:
        return None
    if evaluated.greedy:
        return result.greedy
    return None if not result.valid else result.successes == result.valid


def _pick(results: list[Evaluated]) -> list[str]:
    """Return problems that only the last policy solves, of different types, and one that it still fails."""
    *before, last = results
    order = list(last.problems)

    def first(count: int, fits: Callable[[str], bool], taken: set[str]) -> list[str]:
        kinds: set[str] = set()
        chosen: list[str] = []
        for key in [k for k in order if fits(k)]:
            if len(chosen) < count and last.problems[key].type not in kinds and key not in taken:
                kinds.add(last.problems[key].type)
                chosen.append(key)
        rest = (k for k in order if fits(k) and k not in chosen and k not in taken)
        return [*chosen, *islice(rest, count - len(chosen))]

    solved = first(SOLVED, lambda k: _solves(last, k) is True and not any(_solves(b, k) for b in before), set())
    if len(solved) < SOLVED:
        solved += first(SOLVED - len(solved), lambda k: _solves(last, k) is True, set(solved))
    return [*solved, *first(STILL_FAILED, lambda k: _solves(last, k) is False, set(solved))]


def _tried(found: _Inputs, node: str, wanted: set[str]) -> dict[str, Trajectory]:
    from tasks.episodes.shards import read_shards

    folder = found.nodes[node] / "greedy"
    if not folder.is_dir():
        folder = found.nodes[node] / "trajectories"
    tried: dict[str, Trajectory] = {}
    try:
        for trajectory in read_shards(folder):
            if trajectory.problem_id in wanted and trajectory.problem_id not in tried:
                tried[trajectory.problem_id] = trajectory
            if len(tried) == len(wanted):
                break
    except (OSError, ValueError, TutelageError) as e:
        found.problems.append(f"{node}: its trajectories cannot be read ({e})")
    return tried


def _talk(policy: str, trajectory: Trajectory) -> Talk:
    turns = []
    for turn in trajectory.turns:
        reply = None
        if turn.observation is not None:
            reply = json.dumps(turn.observation.data, ensure_ascii=False)
            reply = reply if len(reply) <= REPLY else f"{reply[:REPLY]} … ({len(reply):,} characters)"
        turns.append(Said(turn.text, reply, turn.observation is not None and turn.observation.is_error))
    return Talk(policy, trajectory.success, trajectory.status, turns)
