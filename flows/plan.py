"""What a plan would do: which nodes are reused and why the others run, and how it differs from another plan."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from flows.nodes import Json, Node, Plan, content_key, plan_from
from specs.errors import ProgramError

NOTHING = "nothing"
"""Digest of the output of a skipped node that left none."""
Word = Literal["reused", "run", "maybe", "resume", "held", "gate_failed", "blocked"]
_MISSING = "(absent)"


class ReceiptView(Protocol):
    """What must be known of a finished node."""

    @property
    def result(self) -> str:
        """Return `completed | gate_failed | held | already_promoted | skipped`."""
        ...

    @property
    def output_digest(self) -> str:
        """Return the digest of its outputs; empty or `nothing` where it left none."""
        ...

    @property
    def notes(self) -> list[str]:
        """Return sentences for people."""
        ...


class StateView(Protocol):
    """What must be known of earlier runs; `flows.state.State` is one."""

    def receipt(self, run_key: str) -> ReceiptView | None:
        """Return the valid receipt of a node."""
        ...

    def checkpoint_info(self, run_key: str) -> tuple[int, int] | None:
        """Return (steps done, steps in all or 0) of an unfinished node."""
        ...

    def failure(self, run_key: str) -> Json | None:
        """Return why the last attempt failed."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """A field that differs; `(absent)` where one side lacks it."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.field} {_shown(self.before)} -> {_shown(self.after)}"


@dataclass(frozen=True, slots=True)
class Status:
    """What would happen to a node, and why."""

    node: str
    status: Word
    reason: str = ""
    run_key: str | None = None
    changes: tuple[Change, ...] = ()

    def __str__(self) -> str:
        return f"{self.status.replace('_', ' ')}: {self.reason}" if self.reason else self.status.replace("_", " ")


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """How one plan differs from another. `moved` nodes changed only through the named inputs."""

    added: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    changed: dict[str, list[Change]] = field(default_factory=dict[str, "list[Change]"])
    moved: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])
    unchanged: int = 0

    @property
    def empty(self) -> bool:
        """Return whether both plans do the same."""
        return not (self.added or self.removed or self.changed or self.moved)

    def to_dict(self) -> Json:
        """Return JSON-ready data."""
        changed = {
            n: [{"field": c.field, "before": c.before, "after": c.after} for c in changes]
            for n, changes in self.changed.items()
        }
        return {
            "added": self.added, "removed": self.removed, "changed": changed,
            "moved": self.moved, "unchanged": self.unchanged,
        }  # fmt: skip


# --- files


def load(path: Path) -> Plan:
    """Return a plan that was saved. ProgramError where the file is missing or no plan."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ProgramError(f"{path}: cannot be read ({e.strerror}); expected a file of `tutelage plan --save`") from e
    except ValueError as e:
        raise ProgramError(f"{path}: not JSON ({e}); expected a file of `tutelage plan --save`") from e
    if not isinstance(data, dict):
        raise ProgramError(f"{path}: found {type(data).__name__}, expected a plan written by `tutelage plan --save`")
    return plan_from(cast(Json, data))


def save_bytes(plan: Plan) -> bytes:
    """Return the bytes of a plan's file; the same plan gives the same bytes."""
    return (json.dumps(plan.to_dict(), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()


def same(a: Plan, b: Plan) -> bool:
    """Return whether two plans compute the same, whatever their execution settings and estimates are."""
    return a.program == b.program and {n.id: n.plan_key for n in a} == {n.id: n.plan_key for n in b}


# --- differences


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in cast(Json, value).items():
            yield from _flat(inner, f"{path}.{key}")
    elif isinstance(value, list) and any(isinstance(v, dict) for v in cast("list[Any]", value)):
        for i, inner in enumerate(cast("list[Any]", value)):
            yield from _flat(inner, f"{path}[{i}]")
    else:
        yield path, value


def _shown(value: Any) -> str:
    text = value if value == _MISSING else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return text if len(text) <= 60 else text[:57] + "..."


def changes(before: Node, after: Node) -> list[Change]:
    """Return what of a node itself differs: version, seed, params that count, and which nodes it reads."""
    a: Json = {"kind": before.kind, "version": before.version, "seed": before.seed}
    b: Json = {"kind": after.kind, "version": after.version, "seed": after.seed}
    a |= dict(_flat(before.key_params, "params")) | {f"inputs.{k}": v for k, v in before.inputs.items()}
    b |= dict(_flat(after.key_params, "params")) | {f"inputs.{k}": v for k, v in after.inputs.items()}
    names = list(dict.fromkeys([*a, *b]))
    return [
        Change(n, a.get(n, _MISSING), b.get(n, _MISSING)) for n in names if a.get(n, _MISSING) != b.get(n, _MISSING)
    ]


def diff(before: Plan, after: Plan) -> PlanDiff:
    """Return what changed from one plan to another."""
    old = {n.id: n for n in before}
    new = {n.id: n for n in after}
    result = PlanDiff(
        added=[n for n in new if n not in old],
        removed=[n for n in old if n not in new],
        unchanged=sum(1 for i, n in new.items() if i in old and old[i].plan_key == n.plan_key),
    )
    for node_id, node in new.items():
        if node_id not in old or old[node_id].plan_key == node.plan_key:
            continue
        own = changes(old[node_id], node)
        if own:
            result.changed[node_id] = own
        else:
            result.moved[node_id] = _moved(node, old, new)
    return result


def _moved(node: Node, old: Mapping[str, Node], new: Mapping[str, Node]) -> list[str]:
    return [i for i in dict.fromkeys(node.inputs.values()) if i not in old or old[i].plan_key != new[i].plan_key]


# --- statuses


def statuses(plan: Plan, view: StateView | None, last: Plan | None = None) -> dict[str, Status]:
    """Return what would happen to each node given what is on disk; `last` is the plan of the last run."""
    walk = _Walk(plan, view, last)
    for node in plan.nodes:
        walk.visit(node)
    return walk.found


class _Walk:
    def __init__(self, plan: Plan, view: StateView | None, last: Plan | None) -> None:
        self.view = view
        self.new = {n.id: n for n in plan}
        self.old = {n.id: n for n in last} if last is not None else {}
        self.found: dict[str, Status] = {}
        self.digests: dict[str, str] = {}
        self.results: dict[str, str] = {}

    def visit(self, node: Node) -> None:
        """Decide about a node whose inputs were decided about."""
        waiting = [i for i in dict.fromkeys(node.inputs.values()) if i not in self.digests]
        if stop := self._blocked(node):
            self.found[node.id] = Status(node.id, "blocked", stop)
        elif waiting:
            self.found[node.id] = self._later(node, waiting)
        else:
            key = content_key(node, {name: self.digests[source] for name, source in node.inputs.items()})
            receipt = self.view.receipt(key) if self.view is not None else None
            self.found[node.id] = self._now(node, key) if receipt is None else self._done(node, key, receipt)

    def _blocked(self, node: Node) -> str | None:
        if node.kind != "promote":
            return None
        result = self.results.get(node.inputs["gate"])
        words = {"held": "is held", "gate_failed": "failed"}
        return f"{node.inputs['gate']} {words[result]}" if result in words else None

    def _done(self, node: Node, key: str, receipt: ReceiptView) -> Status:
        self.digests[node.id] = receipt.output_digest or NOTHING
        self.results[node.id] = receipt.result
        told = receipt.notes[0] if receipt.notes else ""
        match receipt.result:
            case "held":
                return Status(node.id, "held", told or f"{node.id} inconclusive", key)
            case "gate_failed":
                return Status(node.id, "gate_failed", told, key)
            case "skipped" | "already_promoted":
                return Status(node.id, "reused", receipt.result.replace("_", " "), key)
            case _:
                return Status(node.id, "reused", "", key)

    def _later(self, node: Node, waiting: list[str]) -> Status:
        """Return the status of a node that depends on what is still to run; its run key is not known yet."""
        own, moved = self._since_last(node)
        if node.when is not None:
            field_name = next(k for k in node.when if k != "node")
            said = json.dumps(node.when[field_name])
            return Status(node.id, "maybe", f"only if {node.when['node']} says {field_name}: {said}", None, tuple(own))
        if own:
            return Status(node.id, "run", ", ".join(str(c) for c in own[:3]), None, tuple(own))
        if moved:
            return Status(node.id, "run", f"input {', '.join(moved[:3])} changed")
        return Status(node.id, "run", f"after {', '.join(waiting[:3])}" + (" …" if len(waiting) > 3 else ""))

    def _now(self, node: Node, key: str) -> Status:
        """Return the status of a node that could start at once."""
        checkpoint = self.view.checkpoint_info(key) if self.view is not None else None
        if checkpoint is not None:
            done, total = checkpoint
            return Status(node.id, "resume", f"checkpoint {done}/{total or '?'}", key)
        failure = self.view.failure(key) if self.view is not None else None
        if failure is not None:
            return Status(node.id, "run", f"failed last time: {failure.get('text', 'no reason was kept')}", key)
        own, moved = self._since_last(node)
        if own:
            return Status(node.id, "run", ", ".join(str(c) for c in own[:3]), key, tuple(own))
        if moved:
            return Status(node.id, "run", f"input {', '.join(moved[:3])} changed", key)
        return Status(node.id, "run", "not finished before" if node.id in self.old else "new", key)

    def _since_last(self, node: Node) -> tuple[list[Change], list[str]]:
        before = self.old.get(node.id)
        if before is None or before.plan_key == node.plan_key:
            return [], []
        return changes(before, node), _moved(node, self.old, self.new)


# --- totals

_SUMMED = ("rollouts", "tokens", "teacher_calls", "teacher_usd", "disk_mb", "seconds")


def totals(plan: Plan, found: Mapping[str, Status]) -> Json:
    """Return what the nodes that would run take in sum, `conditional` ones apart, with wall time and peak memory."""
    sure = [n for n in plan if found[n.id].status in ("run", "resume")]
    perhaps = [n for n in plan if found[n.id].status == "maybe"]
    parallel = int(plan.execution.get("parallel", 1))
    return {
        "nodes": len(plan.nodes),
        "to_run": len(sure),
        "conditional": len(perhaps),
        **_sum(sure),
        "wall_seconds": round(_wall(plan, {n.id for n in sure}, parallel), 1),
        "memory_gb": round(_peak(plan, {n.id for n in [*sure, *perhaps]}, parallel), 3),
        "at_most": _sum([*sure, *perhaps]),
    }


def _sum(nodes: list[Node]) -> Json:
    return {name: round(sum(getattr(n.estimate, name) for n in nodes), 3) for name in _SUMMED}


def _peak(plan: Plan, running: set[str], parallel: int) -> float:
    """Return the memory of the neediest nodes that can run at once: none of them waits for another."""
    bit = {n.id: 1 << i for i, n in enumerate(plan)}
    before: dict[str, int] = {}
    for node in plan:
        mask = bit[node.id]
        for source in node.inputs.values():
            mask |= before[source]
        before[node.id] = mask
    needy = sorted((n for n in plan if n.id in running), key=lambda n: -n.estimate.memory_gb)
    most = 0.0
    for i, first in enumerate(needy[:32]):
        chosen = [first]
        for other in needy[i + 1 :]:
            if len(chosen) == parallel:
                break
            if all(not (before[a.id] & bit[other.id] or before[other.id] & bit[a.id]) for a in chosen):
                chosen.append(other)
        most = max(most, sum(n.estimate.memory_gb for n in chosen))
    return most


def _wall(plan: Plan, running: set[str], parallel: int) -> float:
    """Return the longer of the critical path and an even share of all the work."""
    ends: dict[str, float] = {}
    for node in plan:
        own = node.estimate.seconds if node.id in running else 0.0
        ends[node.id] = own + max((ends[i] for i in node.inputs.values()), default=0.0)
    work = sum(n.estimate.seconds for n in plan if n.id in running)
    return max(max(ends.values(), default=0.0), work / parallel)
