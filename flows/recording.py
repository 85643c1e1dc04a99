"""One execution as the recorder sees it: what is to be sent, in which order, and what was sent already."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import datasets, services
from flows.durable import FileEntry, digest_entries
from flows.headline import RAN, semantic, stage_points, summary_vector
from flows.nodes import Node, Plan, outside_name, plan_from, round_of
from flows.publication import groups, item_of
from flows.registry import load as load_registry
from flows.showing import gate_record, gate_rows, plan_table
from flows.state import NodeReceipt, RunRecord, State
from flows.tracking import Tracking, millis, points_of
from specs.errors import ServiceError, StateError, TutelageError

if TYPE_CHECKING:
    from flows.recorder import Sent

ATTACHED = ("gate.json", "gate.txt", "report.html", "metrics.json", "collect.json", "preflight.json", "decision.json")
ATTACHED += ("pairs.json", "start.json", "causes.json", "pools.json", "published.json")
"""Small outputs that are shown beside a node's run."""
_ATTACHED_BYTES = 5 << 20
_LIVE_SECONDS = 3.0
_ENDS = {0: "FINISHED", 3: "FINISHED", 7: "FINISHED", 4: "KILLED", 8: "KILLED"}
"""Exit code -> status of the run; others are FAILED."""


class Backoff:
    """When something that failed may be tried again."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._wait = 0.5
        self._next = 0.0

    def ready(self) -> bool:
        """Return whether it may be tried."""
        return time.monotonic() >= self._next

    def failed(self) -> None:
        """Wait twice as long as the last time."""
        self._wait = min(self._longest, self._wait * 2)
        self._next = time.monotonic() + self._wait

    def worked(self) -> None:
        """Forget the past."""
        self._wait = 0.5


class Stores:
    """MLflow and DVC, each with its own patience."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._tracking: Tracking | None = None
        self.mlflow = Backoff(15.0)
        self.dvc = Backoff(15.0)

    def tracking(self) -> Tracking:
        """Return the MLflow store to use now."""
        uri = services.tracking_uri(self._home)
        if self._tracking is None or self._tracking.uri != uri:
            self._tracking = Tracking(uri, self._home)
        return self._tracking


class Recording:
    """Sends one execution. `step` may be called as often as one likes; `done` when nothing is left."""

    def __init__(self, state: State, execution: str, sent: "Sent", stores: Stores) -> None:
        self._state = state
        self._sent = sent
        self._stores = stores
        self.execution = execution
        self.done = False
        self.over = False
        """No driver carries it out any more."""
        self.left: list[str] = []
        self.errors: list[str] = []
        self.said: list[str] = []
        self._start: dict[str, Any] = {}
        self._end: dict[str, Any] | None = None
        self._record: RunRecord | None = None
        self._plan: Plan | None = None
        self._events: list[dict[str, Any]] = []
        self._live: dict[str, tuple[float, int]] = {}

    # --- what is on disk

    def _read(self) -> bool:
        """Take in what the driver has written; return whether there is enough to go on."""
        for event in _lines(self._state.home / "executions" / f"{self.execution}.jsonl"):
            if event.get("event") == "start":
                self._start = event
            elif event.get("event") == "end":
                self._end = event
        if self._record is None:
            self._look()
        if self._record is None or self._plan is None:
            self.over = True
            self.errors = [f"{self.execution}: its record or plan is gone, so it cannot be sent"]
            self._finish()
            return False
        self._events = self._state.events(self._record.program, self.execution)
        driver = self._record.process
        self.over = self._end is not None or driver is None or not driver.alive
        if not self._start and self.over:  # the disk was full, or the driver was killed, as it was to be noted
            self._say(f"{self.execution}: how it began was not noted, so it is sent without the text of its program")
        return bool(self._start) or self.over

    def _look(self) -> None:
        """Find the record of the execution, which is there before anything is noted, and its plan."""
        for path in self._state.home.glob(f"programs/*/executions/{self.execution}.json"):
            try:
                self._record = RunRecord(**json.loads(path.read_bytes()))
                data = self._state.plan(self._record.plan)
                self._plan = None if data is None else plan_from(data)
            except (OSError, ValueError, TypeError, TutelageError):
                self._plan = None

    def _finish(self) -> None:
        self._sent.note(self.execution, "done")
        self.done, self.left = True, []

    @property
    def plan(self) -> Plan:
        """Return the plan."""
        assert self._plan is not None
        return self._plan

    @property
    def record(self) -> RunRecord:
        """Return the execution's record."""
        assert self._record is not None
        return self._record

    def ends(self) -> dict[str, dict[str, Any]]:
        """Return how nodes ended, those that were reused from the start among them."""
        return self.record.nodes | {e["node"]: e for e in self._events if e["status"] != "running"}

    def began(self) -> dict[str, str]:
        """Return when nodes began that run or ran."""
        return {e["node"]: e["at"] for e in self._events if e["status"] == "running"}

    def run_key(self, node: str) -> str | None:
        """Return the run key of a node that began or ended."""
        keys = [e.get("run_key") for e in self._events if e["node"] == node]
        return (self.ends().get(node) or {}).get("run_key") or next((k for k in keys if k), None)

    def receipt(self, node: str) -> NodeReceipt | None:
        """Return the receipt of a node that ended."""
        key = (self.ends().get(node) or {}).get("run_key")
        return None if key is None else self._state.receipt(key)

    # --- sending

    def step(self) -> None:
        """Send what can be sent now; what cannot is named in `left` and `errors`."""
        if not self._read():
            return
        self.left, errors = [], list[str]()
        for backoff, units in ((self._stores.dvc, self._data_units()), (self._stores.mlflow, self._run_units())):
            for what, send in units:
                if self._sent.has(self.execution, what):
                    continue
                waits = what == "datasets" and any(u.startswith("data:") for u in self.left)
                if waits or not backoff.ready():
                    self.left.append(what)
                    continue
                try:
                    value = send()
                    backoff.worked()
                except (ServiceError, StateError) as e:
                    backoff.failed()
                    self.left.append(what)
                    errors.append(str(e))
                    continue
                self._sent.note(self.execution, what, value)
        self.errors = errors or (self.errors if self.left else [])
        self._send_live()
        if self.over and not self.left:
            self._finish()

    def _data_units(self) -> list[tuple[str, Callable[[], Any]]]:
        """Return one publication for each group of nodes that has ended."""
        ends = self.ends()
        ready = {g: ns for g, ns in groups(self.plan).items() if self.over or all(n.id in ends for n in ns)}
        return [(f"data:{g}", lambda g=g, ns=ns: self._publish(g, ns)) for g, ns in ready.items()]

    def _publish(self, group: str, nodes: list[Node]) -> dict[str, Any]:
        found_items = ((n.id, item_of(self._state, self.plan, n, self.receipt(n.id))) for n in nodes)
        items = {n: i for n, i in found_items if i is not None}
        if not items:
            return {}
        message = f"{self.plan.program}: {group} ({self.execution})"
        found = datasets.publish(self._state.home, list(items.values()), message, say=self._say)
        return {n: asdict(v) for n, v in zip(items, found, strict=True)}

    def _say(self, text: str) -> None:
        if text not in self.said:
            self.said.append(text)

    def _run_units(self) -> list[tuple[str, Callable[[], Any]]]:
        ends = self.ends()
        units: list[tuple[str, Callable[[], Any]]] = [("run", self._send_run)]
        units += [(f"node:{n.id}", lambda n=n: self._send_node(n)) for n in self.plan if n.id in ends]
        if self.over:
            began = self.began()
            cut = [n for n in self.plan if n.id in began and n.id not in ends]
            units += [(f"cut:{n.id}", lambda n=n: self._send_cut(n)) for n in cut]
            units += [("datasets", self._send_datasets), ("registry", self._send_registry), ("end", self._send_end)]
        return units

    @property
    def _parent(self) -> str:
        run = self._sent.get(self.execution, "run")
        if run is None:
            raise ServiceError("MLflow: the run of this execution could not be made yet")
        return str(run)

    def _send_run(self) -> str:
        tracking, plan = self._stores.tracking(), self.plan
        tags = {"tutelage.execution": self.execution, "tutelage.level": "execution"}
        run = tracking.run(plan.program, self.execution, tags, millis(self.record.started))
        more = {f"tag.{k}": v for k, v in dict(plan.tags).items()}
        tracking.tags(
            run,
            {
                "tutelage.program": plan.program,
                "tutelage.plan": self.record.plan,
                "tutelage.program_digest": plan.program_digest,
                "tutelage.round": _rounds(plan),
                "mlflow.note.content": plan.about,
                **more,
            },
        )
        tracking.params(run, {"seed": plan.seed, "stages": list(plan.stages), **semantic(plan)})
        if source := self._start.get("source"):
            tracking.text(run, source, f"program/{Path(self.record.file).name}")
        tracking.text(run, json.dumps(plan.to_dict(), indent=1, sort_keys=True), "plan/plan.json")
        tracking.text(run, plan_table(plan, self.record.plan), "plan/plan.md")
        return run

    def _child(self, node: Node, receipt: NodeReceipt | None) -> str:
        began = self.began().get(node.id) or (receipt.started if receipt is not None else self.record.started)
        tags = {"tutelage.execution": self.execution, "tutelage.node": node.id, "tutelage.level": "node"}
        return self._stores.tracking().run(self.plan.program, node.id, tags, millis(began), self._parent)

    def _send_node(self, node: Node) -> str | None:
        end, receipt, tracking = self.ends()[node.id], self.receipt(node.id), self._stores.tracking()
        if end["status"] not in (*RAN, "reused") or (end["status"] == "interrupted" and node.id not in self.began()):
            return None
        if end["status"] == "reused":
            if receipt is None or receipt.result == "skipped":
                return None
            known = tracking.find_run(self.plan.program, {"tutelage.run_key": receipt.run_key, "tutelage.sent": "all"})
            if known is not None:  # the execution that ran it has it
                return known
        run = self._child(node, receipt)
        tracking.params(run, node.params)
        start = millis(self.began().get(node.id) or (receipt.started if receipt else self.record.started))
        tracking.metrics(run, self._points(node, receipt, start))
        tags = {"tutelage.kind": node.kind, "tutelage.status": end["status"], "tutelage.reason": end["reason"] or ""}
        tags["tutelage.round"] = str(round_of(node.id) or "main")
        if receipt is not None:
            self._send_outputs(run, node, receipt)
            tags |= {"tutelage.run_key": receipt.run_key, "tutelage.output_digest": receipt.output_digest}
            tags |= {f"tutelage.code.{k}": v for k, v in receipt.code.items() if v is not None}
            tags |= {"mlflow.note.content": "\n".join(receipt.notes), "tutelage.sent": "all"}
        tracking.tags(run, tags)
        status = {"failed": "FAILED", "interrupted": "KILLED"}.get(end["status"], "FINISHED")
        until = start + round((receipt.seconds if receipt is not None else 0.0) * 1000)
        tracking.close(run, status, millis(end["at"]) if "at" in end and end["status"] != "reused" else until)
        return run

    def _send_cut(self, node: Node) -> str:
        """Close the run of a node that its driver's death cut short."""
        run, points = self._child(node, None), self._points(node, None, millis(self.began()[node.id]))
        self._stores.tracking().metrics(run, points)
        self._stores.tracking().tags(run, {"tutelage.kind": node.kind, "tutelage.status": "crashed"})
        self._stores.tracking().close(run, "KILLED", max([millis(self._end_time()), *(p[2] for p in points)]))
        return run

    def _points(self, node: Node, receipt: NodeReceipt | None, start: int) -> list[tuple[str, float, int, int]]:
        key = self.run_key(node.id)
        points = points_of(_text_lines(self._state.node(key) / "metrics.jsonl"), start) if key else []
        if receipt is not None:
            at, known = start + round(receipt.seconds * 1000), {p[0] for p in points}
            last = max((p[3] for p in points), default=0)
            summary = {k: v for k, v in receipt.metrics.items() if v is not None and k not in known}
            summary |= {f"cost.{k}": v for k, v in receipt.cost.items()} | {"seconds": receipt.seconds}
            points += [(k, float(v), at, last) for k, v in summary.items()]
        return points

    def _send_outputs(self, run: str, node: Node, receipt: NodeReceipt) -> None:
        tracking, out = self._stores.tracking(), self._state.node(receipt.run_key) / "out"
        for name in ATTACHED:
            if (out / name).is_file() and (out / name).stat().st_size <= _ATTACHED_BYTES:
                tracking.file(run, out / name)
        tracking.datasets(run, self._used(node))
        stages = [s for s, n in self.plan.policies.items() if n == node.id]
        policy = [FileEntry(e.path[7:], e.size, e.sha256) for e in receipt.outputs if e.path.startswith("policy/")]
        if stages and policy and node.kind not in ("policy.registered", "round.start"):
            folder = (out / "policy").relative_to(self._state.home).as_posix()
            model = tracking.model(self.plan.program, stages[0], digest_entries(policy), folder, run)
            tracking.outputs(run, model, int(receipt.cost.get("steps", 0)))

    def _used(self, node: Node) -> list[dict[str, Any]]:
        """Return the data versions that a node read, as far as they are published."""
        versions: dict[str, Any] = {}
        for group in groups(self.plan):
            versions |= self._sent.get(self.execution, f"data:{group}") or {}
        context = "evaluation" if node.kind == "evaluate" else "training"
        read = [i for i in dict.fromkeys(node.inputs.values()) if i in versions]
        return [{**versions[i], "context": context} for i in read]

    def _send_datasets(self) -> None:
        """Name the data versions again: those that were published only after a node had been sent."""
        for node in self.plan:
            run = self._sent.get(self.execution, f"node:{node.id}")
            if run is not None:
                self._stores.tracking().datasets(run, self._used(node))

    def _send_live(self) -> None:
        """Send what nodes that run have measured so far; whatever fails is sent with the node."""
        ended = self.ends()
        for node_id, at in self.began().items():
            sent_at, count = self._live.get(node_id, (0.0, 0))
            if self.over or node_id in ended or time.monotonic() - sent_at < _LIVE_SECONDS:
                continue
            node, key = self.plan.node(node_id), self.run_key(node_id)
            points = points_of(_text_lines(self._state.node(key) / "metrics.jsonl"), millis(at)) if key else []
            if len(points) > count and self._stores.mlflow.ready() and self._sent.has(self.execution, "run"):
                try:
                    self._stores.tracking().metrics(self._child(node, None), points[count:])
                except ServiceError:
                    self._stores.mlflow.failed()
                    continue
            self._live[node_id] = (time.monotonic(), max(count, len(points)))

    def _send_registry(self) -> None:
        registry = load_registry(self._state.home, self.plan.program)
        if registry.versions:
            self._stores.tracking().mirror(registry)

    def _end_time(self) -> str:
        times = [e["at"] for e in self._events] + ([self._end["at"]] if self._end else [])
        return max([self.record.started, *times])

    def _send_end(self) -> None:
        tracking, run, at = self._stores.tracking(), self._parent, millis(self._end_time())
        ends = self.ends()
        receipts = {n.id: r for n in self.plan if n.id in ends and (r := self.receipt(n.id)) is not None}
        hours = (at - millis(self.record.started)) / 3.6e6
        vector = summary_vector(self._state, self.plan, receipts, ends, hours)
        points = [(k, v, at, 0) for k, v in vector.items()] + stage_points(self.plan, receipts, at)
        tracking.metrics(run, points)
        code = self._end["exit_code"] if self._end is not None else None
        tags = {"tutelage.exit_code": str(code)}
        for node in self.plan:
            if node.kind == "gate" and node.id in receipts:
                record = gate_record(self._state, receipts[node.id].run_key)
                rows, text = gate_rows(self._state, receipts[node.id].run_key)
                tags[outside_name(node.id)] = str(record.get("answer", ""))
                tracking.text(run, json.dumps({"text": text, "rows": rows}, indent=1), f"gates/{node.id}.json")
                tracking.text(run, str(record.get("text", text)), f"gates/{node.id}.txt")
            if node.kind == "report" and node.id in receipts:
                out = self._state.node(receipts[node.id].run_key) / "out"
                best = [p for p in (out / "notes" / "report.html", out / "report.html") if p.is_file()]
                if best:
                    tracking.file(run, best[0], "report")
        tracking.tags(run, tags)
        tracking.close(run, "KILLED" if code is None else _ENDS.get(code, "FAILED"), at)


def _rounds(plan: Plan) -> str:
    """Return `main`, and how many rounds may follow it."""
    most = max((round_of(n.id) for n in plan), default=0)
    return f"main, then at most {most}" if most else "main"


def _text_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]


def _lines(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in _text_lines(path):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
