"""What is on disk under `.tutelage/`: receipts, node folders, plans and the record of each execution.

A node is done iff its receipt is valid and its outputs are there; nothing else says so. Reading changes nothing:
`set_aside` is the only thing that moves a damaged node away, and only a driver calls it.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, groupby
from pathlib import Path
from typing import Any, cast

from flows.durable import (
    FileEntry,
    Ledger,
    digest_entries,
    fsync_dir,
    list_tree,
    move,
    remove_dir,
    sha256_file,
    sync_tree,
    write_durable,
    write_json,
)
from flows.leases import Process, process_from
from flows.nodes import Node, canonical, content_key, digest
from specs.errors import StateError

Json = dict[str, Any]
HOME_VARIABLE = "TUTELAGE_HOME"
_SECOND = len("20260131-235959")
"""Characters of an execution's id that say when it began."""
NOTHING = "nothing"
"""The digest of an input whose node was skipped and left no output."""


@dataclass(frozen=True, slots=True)
class NodeReceipt:
    """Proof that a node is done. Two runs of the same node differ in `started` and `seconds` only."""

    node: str
    kind: str
    run_key: str
    plan_key: str
    result: str
    """`completed | gate_failed | held | already_promoted | skipped`."""
    outputs: list[FileEntry]
    output_digest: str
    inputs: dict[str, str]
    """Input name -> digest of what it read."""
    metrics: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    cost: dict[str, float] = field(default_factory=dict[str, float])
    notes: list[str] = field(default_factory=list[str])
    code: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    started: str = ""
    seconds: float = 0.0
    alias: str | None = None
    """Run key of the node whose output stands in for the output of a skipped one."""


@dataclass(slots=True)
class RunRecord:
    """One execution of a program: what was asked, what it was resolved to, how each node ended."""

    execution: str
    program: str
    file: str
    arguments: Json
    """Options that change what runs; `resume` repeats them."""
    plan: str
    """Digest of the stored plan."""
    resolution: Json
    driver: Json
    started: str
    ended: str | None = None
    exit_code: int | None = None
    nodes: dict[str, Json] = field(default_factory=dict[str, Json])
    """Node id -> {run_key, status, reason, seconds}."""

    @property
    def process(self) -> Process | None:
        """Return the driver."""
        return process_from(self.driver)

    @property
    def state(self) -> str:
        """Return `running`, `crashed` (no end was recorded and the driver is gone) or `ended`."""
        if self.ended is not None:
            return "ended"
        return "running" if self.process is not None and self.process.alive else "crashed"


def find_home(start: Path | None = None) -> Path:
    """Return `.tutelage` of the project: TUTELAGE_HOME, else beside the nearest .tutelage or .git, else here."""
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named).absolute()
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        if (folder / ".tutelage").is_dir() or (folder / ".git").exists():
            return folder / ".tutelage"
    return start / ".tutelage"


class State:
    """The durable truth of a project. Cheap to make; reading methods change no file."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.damage: list[str] = []
        """Sentences that name what reading found damaged."""

    def prepare(self) -> None:
        """Make the folders that are missing. StateError where the place cannot be written."""
        try:
            for name in ("plans", "nodes", "programs", "registry", "services"):
                (self.home / name).mkdir(parents=True, exist_ok=True)
            ignore = self.home / ".gitignore"
            if not ignore.exists():
                write_durable(ignore, "*\n")
        except OSError as e:
            raise StateError(
                f"{self.home}: cannot keep state here ({e.strerror}); name another place with {HOME_VARIABLE}"
            ) from e

    def check_space(self, needed_mb: float) -> None:
        """Raise StateError with both numbers where the disk holds less than the plan's estimate."""
        free_mb = shutil.disk_usage(self.home).free / 1e6
        if needed_mb > free_mb:
            raise StateError(
                f"disk too small: {self.home} has {free_mb:.0f} MB free, the plan needs about {needed_mb:.0f} MB; "
                f"free space there or name another place with {HOME_VARIABLE}"
            )

    # --- nodes

    def node(self, run_key: str) -> Path:
        """Return a node's folder."""
        return self.home / "nodes" / run_key

    def run_key(self, node: Node, input_digests: Mapping[str, str]) -> str:
        """Return the content key of a node whose inputs are known; execution settings never enter."""
        return content_key(node, input_digests)

    def receipt(self, run_key: str, *, deep: bool = False, up_to: int | None = None) -> NodeReceipt | None:
        """Return a node's receipt if it is valid and its outputs are there in full size; else None.

        `deep` also compares contents with their sha256 (of files up to `up_to` bytes, where given).
        What is damaged is named in `damage`.
        """
        path = self.node(run_key) / "receipt.json"
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        found = _receipt_from(text, run_key)
        if found is None:
            self.damage.append(f"{path}: damaged receipt, its node is done again")
            return None
        problem = self._output_damage(found, deep=deep, up_to=up_to)
        if problem is not None:
            self.damage.append(problem)
            return None
        return found

    def _output_damage(self, receipt: NodeReceipt, *, deep: bool, up_to: int | None) -> str | None:
        if receipt.alias is not None:
            other = self.receipt(receipt.alias, deep=deep, up_to=up_to)
            return None if other is not None else f"{receipt.node}: what it stands for ({receipt.alias[:12]}) is gone"
        out = self.node(receipt.run_key) / "out"
        for entry in receipt.outputs:
            path = out / entry.path
            try:
                size = path.stat().st_size
            except OSError:
                return f"{path}: output of {receipt.node} is missing, the node is done again"
            if size != entry.size:
                return f"{path}: damaged, {size} bytes found, {entry.size} expected; {receipt.node} is done again"
            if deep and (up_to is None or size <= up_to) and sha256_file(path) != entry.sha256:
                return f"{path}: damaged, its sha256 differs from the receipt's; {receipt.node} is done again"
        return None

    def out(self, run_key: str) -> Path | None:
        """Return the folder with a finished node's outputs; None where a skipped node left none."""
        receipt = self.receipt(run_key)
        if receipt is None:
            raise StateError(f"{self.node(run_key)}: no valid receipt; run the program again")
        if receipt.result == "skipped":
            return None if receipt.alias is None else self.out(receipt.alias)
        return self.node(run_key) / "out"

    def seal(self, receipt: NodeReceipt) -> NodeReceipt:
        """Flush a node's outputs and write its receipt, the last act; return it with outputs and digest filled in."""
        folder = self.node(receipt.run_key)
        if receipt.result != "skipped":
            out = folder / "out"
            sync_tree(out)
            entries = list_tree(out)
            receipt = replace(receipt, outputs=entries, output_digest=digest_entries(entries))
        body = asdict(receipt)
        write_json(folder / "receipt.json", {**body, "check": digest(body)})
        fsync_dir(folder.parent)
        return receipt

    def set_aside(self, run_key: str, name: str = "damaged", *, checkpoints: bool = False) -> Path | None:
        """Move a node's receipt and outputs away, so that nothing loads them; return where they are now.

        `checkpoints` and the rollouts beside them go too where another attempt must not go on from them.
        """
        folder = self.node(run_key)
        names = ("receipt.json", "out", "ckpt") if checkpoints else ("receipt.json", "out")
        what = [p for p in (folder / n for n in names) if p.exists()]
        if not what:
            return None
        aside = next(p for n in count(1) if not (p := folder / f"{name}-{n}").exists())
        aside.mkdir()
        for path in what:
            move(path, aside / path.name)
        return aside

    def failure(self, run_key: str) -> Json | None:
        """Return why the last attempt failed: {error, text, log}; None where it did not."""
        return _read_json(self.node(run_key) / "failure.json")

    def checkpoint_info(self, run_key: str) -> tuple[int, int] | None:
        """Return (steps done, steps in all; 0 where unknown) of an unfinished node's newest checkpoint."""
        folder = self.node(run_key)
        if (folder / "receipt.json").exists():
            return None
        names = [p.name.removeprefix("step-") for p in (folder / "ckpt").rglob("step-*")]
        numbers = [int(n) for n in names if n.isdigit()]
        if not numbers:
            return None
        total = (self.progress(run_key) or {}).get("total")
        return max(numbers), int(total) if isinstance(total, int | float) else 0

    def progress(self, run_key: str) -> Json | None:
        """Return what a running node last said: {what, share, figures, at}; None where it said nothing."""
        return _read_json(self.node(run_key) / "progress.json")

    def drop_checkpoints(self, run_key: str) -> None:
        """Remove the checkpoints of a sealed node."""
        if (self.node(run_key) / "receipt.json").exists():
            remove_dir(self.node(run_key) / "ckpt")

    # --- programs

    def program(self, program: str) -> Path:
        """Return a program's folder."""
        return self.home / "programs" / program

    def programs(self) -> list[str]:
        """Return the programs that were run here, the last one first."""
        records = [r for p in self.home.glob("programs/*/last.json") if (r := self.last(p.parent.name)) is not None]
        return [r.program for r in sorted(records, key=lambda r: r.started, reverse=True)]

    def save_plan(self, plan: Json) -> str:
        """Store a plan under its digest and return that."""
        data = canonical(plan)
        name = hashlib.sha256(data).hexdigest()
        path = self.home / "plans" / f"{name}.json"
        if not path.exists():
            write_durable(path, data)
        return name

    def plan(self, name: str) -> Json | None:
        """Return the plan stored under a digest; None where it is gone or damaged."""
        return _read_json(self.home / "plans" / f"{name}.json")

    def last(self, program: str) -> RunRecord | None:
        """Return the record of a program's last execution; where it is damaged, the newest that can be read."""
        path = self.program(program) / "last.json"
        record = _record_from(path)
        if record is None and path.exists():
            kept = sorted(self.program(program).glob("executions/*.json"), reverse=True)
            record = next((r for p in kept if (r := _record_from(p)) is not None), None)
            used = (
                "not used, and there is no other" if record is None else f"that of {record.execution} is used instead"
            )
            self.damage.append(f"{path}: damaged record of the last run, {used}")
        if record is None:
            return None
        for event in self.events(program, record.execution):
            record.nodes[event["node"]] = {k: v for k, v in event.items() if k not in ("node", "at")}
        return record

    def executions(self, program: str) -> list[RunRecord]:
        """Return the records of a program's executions, oldest first; what cannot be read is named in `damage`."""
        return list(self.latest(program))[::-1]

    def latest(self, program: str) -> Iterator[RunRecord]:
        """Yield the records of a program's executions, the newest first, each read as it is asked for."""
        paths = sorted(self.program(program).glob("executions/*.json"), reverse=True)
        for _, same in groupby(paths, key=lambda p: p.name[:_SECOND]):
            began = [r for p in same if (r := self._recorded(program, p)) is not None]
            yield from sorted(began, key=lambda r: r.started, reverse=True)

    def _recorded(self, program: str, path: Path) -> RunRecord | None:
        record = _record_from(path)
        if record is None:
            self.damage.append(f"{path}: damaged record of a run, left out")
            return None
        for event in self.events(program, record.execution):
            record.nodes[event["node"]] = {k: v for k, v in event.items() if k not in ("node", "at")}
        return record

    def save_record(self, record: RunRecord) -> None:
        """Write the record of an execution, now and as the last one."""
        folder = self.program(record.program) / "executions"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{record.execution}.json", asdict(record))
        write_json(self.program(record.program) / "last.json", asdict(record))

    def ledger(self, program: str, execution: str) -> Ledger:
        """Return the ledger of node ends of one execution."""
        return Ledger(self.program(program) / "executions" / f"{execution}.jsonl")

    def events(self, program: str, execution: str) -> list[Json]:
        """Return how nodes ended in one execution, in order; a torn tail is left out."""
        try:
            return [e for e in self.ledger(program, execution) if "node" in e]
        except StateError as e:
            self.damage.append(str(e))
            return []


def exit_code(record: RunRecord) -> int | None:
    """Return the exit code of an execution, None while it has none.

    A smoke run that came to its end is well: what its gate says of a policy that learnt nothing means nothing.
    """
    return 0 if record.arguments.get("smoke") and record.exit_code in (3, 7) else record.exit_code


def now() -> str:
    """Return the time, UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_execution() -> str:
    """Return an id for an execution that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _read_json(path: Path) -> Json | None:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return cast(Json, data) if isinstance(data, dict) else None


def _record_from(path: Path) -> RunRecord | None:
    data = _read_json(path) or {}
    kinds = {"execution": str, "arguments": dict, "nodes": dict}
    if not all(isinstance(data.get(name), kind) for name, kind in kinds.items()):
        return None
    try:
        return RunRecord(**data)
    except TypeError:
        return None


def _receipt_from(text: bytes, run_key: str) -> NodeReceipt | None:
    """Return the receipt that `seal` wrote; None where any byte of its meaning changed."""
    try:
        data = cast(Json, json.loads(text))
        check = data.pop("check")
        if check != digest(data) or data["run_key"] != run_key:
            return None
        data["outputs"] = [FileEntry(**e) for e in data["outputs"]]
        return NodeReceipt(**data)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
