"""Carry out a plan: what has a valid receipt is reused, the rest runs as soon as its inputs are there.

Statuses: `reused, completed, skipped, gate_failed, held, failed, blocked, interrupted`; each with its reason.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from flows.access import need_secrets
from flows.child import Assignment, record_failure, run_body, with_environment
from flows.conditions import skip_reason
from flows.ends import Event, NodeEnd, end_of, ranks
from flows.launch import Launcher, NodeError
from flows.leases import DeviceLock, Lease, Process
from flows.nodes import NODE_KINDS, Node, Plan
from flows.state import NOTHING, NodeReceipt, State
from specs.errors import Interrupted, StateError, UsageError

SMALL = 16 << 20
"""Bytes up to which an output is compared with its sha256 before its node is reused; before use, every file is."""
STOP_SECONDS = 7.0
"""How long nodes get to save and stop before their processes are ended."""
_POLL = 0.2  # seconds between two looks at a lease that another driver holds


@dataclass(frozen=True, slots=True)
class Settings:
    """How a plan is carried out; nothing here is part of a key."""

    parallel: int = 2
    wanted: frozenset[str] | None = None
    """Nodes to carry out; all where left out. Others are only looked up."""
    wall_seconds: float | None = None
    execution: str | None = None
    """Id of the execution, which registered policies name."""
    code: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    entry_for: Callable[[str], str] = lambda kind: NODE_KINDS[kind].entry


class Executor:
    """Carries out a plan with `parallel` nodes at once, those first on which most of the rest waits."""

    def __init__(self, plan: Plan, state: State, launcher: Launcher, settings: Settings | None = None) -> None:
        self.plan = plan
        self.state = state
        self.execution = (settings or Settings()).execution
        self.notes: list[str] = []
        """Sentences that belong to the run and to no receipt."""
        self._launcher = launcher
        self._settings = settings or Settings()
        self._nodes = {n.id: n for n in plan.nodes}
        self._wanted = [n.id for n in plan.nodes if self._settings.wanted is None or n.id in self._settings.wanted]
        self._rank = ranks(plan)
        self._ends: dict[str, NodeEnd] = {}
        self._futures: dict[str, Future[NodeEnd]] = {n: Future() for n in self._wanted}
        self._works: dict[str, Assignment] = {}
        self._submitted: set[str] = set()
        self._launched: set[str] = set()
        self._verified: set[str] = set()
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(self._settings.parallel, thread_name_prefix="node")
        self._device = DeviceLock(state.home / "device.lock", str(plan.execution.get("device", "cpu")))
        self._listeners: list[Callable[[Event], None]] = []
        self._timers: list[threading.Timer] = []
        self._walked = self._begun = False
        self._stopped: tuple[str, int] | None = None

    # --- what others see

    @property
    def ends(self) -> dict[str, NodeEnd]:
        """Return how nodes ended so far, in the plan's order."""
        with self._lock:
            return {n: self._ends[n] for n in self._nodes if n in self._ends}

    @property
    def wanted(self) -> list[str]:
        """Return the nodes that this run carries out, in the plan's order."""
        return list(self._wanted)

    @property
    def finished(self) -> bool:
        """Return whether every wanted node has ended."""
        with self._lock:
            return all(n in self._ends for n in self._wanted)

    @property
    def stopping(self) -> bool:
        """Return whether the run was asked to stop."""
        return self._stopped is not None

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every event from now on, in the thread where it happens; it must be quick."""
        self._listeners.append(listener)

    def exit_code(self) -> int:
        """Return the exit code: the first node in the plan's order that did not end well decides."""
        codes = [end.exit_code for end in self.ends.values() if end.exit_code and end.status != "blocked"]
        return codes[0] if codes else (self._stopped[1] if self._stopped and not self.finished else 0)

    # --- starting and stopping

    def walk(self) -> None:
        """Find out, before anything starts, which nodes are done. What is damaged and needed is set aside, and redone.

        StateError where a wanted node needs one that is neither done nor wanted.
        """
        with self._lock:
            if self._walked:
                return
            self._walked = True
            found = self.find()
            for node_id in self._wanted:
                lacking = [i for i in self._nodes[node_id].inputs.values() if i not in found and i not in self._futures]
                if node_id not in found and lacking:
                    raise UsageError(
                        f"node {node_id}: needs {', '.join(lacking)}, which {'is' if len(lacking) == 1 else 'are'} "
                        f"not done; run with `--until {node_id}` to do that first"
                    )
            for end in found.values():
                self._end(end)

    def find(self) -> dict[str, NodeEnd]:
        """Return the nodes that are done and can be named before anything runs; damaged ones are set aside."""
        while True:
            found: dict[str, NodeEnd] = {}
            for node in self.plan.nodes:
                known = all(i in found for i in node.inputs.values())
                if known and (end := self._reuse(node, self.run_key(node, found))) is not None:
                    found[node.id] = end
            open_nodes = [self._nodes[n] for n in self._wanted if n not in found]
            needed = {i for node in open_nodes for i in node.inputs.values() if i in found}
            damaged = [i for i in sorted(needed) if not self._intact(found[i])]
            if not damaged:
                return found

    def run_key(self, node: Node, ends: Mapping[str, NodeEnd]) -> str:
        """Return the run key of a node whose inputs ended so."""
        return self.state.run_key(node, {k: str(ends[i].digest) for k, i in node.inputs.items()})

    def prestart(self) -> None:
        """Begin to carry out everything that is wanted, in the background.

        StateError where the disk is too small, ProgramError where a variable of the environment is not set.
        """
        self.walk()
        if self._begun:
            return
        left = [self._nodes[n] for n in self._wanted if n not in self._ends]
        self.state.check_space(sum(n.estimate.disk_mb for n in left))
        need_secrets(left)
        if self._settings.wall_seconds is not None and not self._timers:
            self._after(self._settings.wall_seconds, lambda: self.stop("the wall budget is used up", exit_code=8))
        self._begun = True
        self._prepare()
        self._pump()

    def run_all(self) -> int:
        """Carry out everything that is wanted, wait for it and return the exit code."""
        self.prestart()
        wait(list(self._futures.values()))
        self.close()
        return self.exit_code()

    def stop(self, reason: str = "asked to stop", *, exit_code: int = 4) -> None:
        """Take no new node, ask those that run to save and stop, and end their processes if they do not in time."""
        with self._lock:
            if self._stopped is not None:
                return
            self._stopped = (reason, exit_code)
        self._launcher.stop()
        self._after(STOP_SECONDS, self._launcher.kill)
        self._pump()

    def kill(self) -> None:
        """End the processes of all nodes at once."""
        self._launcher.kill()

    def close(self) -> None:
        """Give up threads, timers and spare processes; what runs is not waited for."""
        for timer in self._timers:
            timer.cancel()
        self._launcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    # --- scheduling

    def _emit(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _note(self, node_id: str, text: str) -> None:
        self.notes.append(f"{node_id}: {text}")
        self._emit(Event("note", node_id, text=text))

    def _end(self, end: NodeEnd) -> None:
        with self._lock:
            if end.node in self._ends:
                return
            self._ends[end.node] = end
        try:
            self._emit(Event("ended", end.node, end=end))
        finally:  # whatever a listener does, nobody waits for this node any more
            if end.node in self._futures:
                self._futures[end.node].set_result(end)

    def _pump(self) -> None:
        """End what cannot run any more, and start what is ready, most urgent first."""
        while True:
            with self._lock:
                hopeless = [e for n in self._wanted if (e := self._hopeless(n)) is not None]
                if not hopeless:
                    self._submit_ready()
                    return
            for end in hopeless:
                self._end(end)

    def _hopeless(self, node_id: str) -> NodeEnd | None:
        if node_id in self._ends or node_id in self._submitted:
            return None
        ends = [self._ends[i] for i in self._nodes[node_id].inputs.values() if i in self._ends]
        if failed := next((e for e in ends if e.status in ("failed", "blocked")), None):
            why = "failed" if failed.status == "failed" else "could not run"
            return NodeEnd(node_id, "blocked", f"needs {failed.node}, which {why}", exit_code=failed.exit_code)
        if cut := next((e for e in ends if e.status == "interrupted"), None):
            reason = f"not reached: {cut.node} was interrupted"
            return NodeEnd(node_id, "interrupted", reason, exit_code=cut.exit_code)
        if self._stopped is not None:
            return NodeEnd(node_id, "interrupted", f"not reached: {self._stopped[0]}", exit_code=self._stopped[1])
        return None

    def _submit_ready(self) -> None:
        running = [n for n in self._submitted if n not in self._ends]
        free = self._settings.parallel - len(running)
        ready = [
            n
            for n in self._wanted
            if n not in self._submitted
            and n not in self._ends
            and all(i in self._ends for i in self._nodes[n].inputs.values())
        ]
        for node_id in sorted(ready, key=lambda n: -self._rank[n])[: max(0, free)]:
            self._submitted.add(node_id)
            future = self._pool.submit(self._do, self._nodes[node_id])
            future.add_done_callback(lambda f, n=node_id: self._done(n, f))

    def _done(self, node_id: str, future: "Future[NodeEnd]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        try:
            self._end(future.result() if error is None else self._failed(node_id, error))
            self._prepare()
        finally:  # what fails here must not keep the rest from running
            self._pump()

    def _prepare(self) -> None:
        with self._lock:
            left = [n for n in self._wanted if self._nodes[n].heavy and n not in self._ends and n not in self._launched]
        self._launcher.prepare(0 if self.stopping else len(left))

    def _failed(self, node_id: str, error: BaseException) -> NodeEnd:
        work = self._works.get(node_id)
        key = work.run_key if work is not None else None
        if isinstance(error, Interrupted):
            reason, code = self._stopped or (str(error), 4)
            return NodeEnd(node_id, "interrupted", reason, key, exit_code=code)
        if isinstance(error, NodeError) or work is None:
            text, code = str(error), getattr(error, "exit_code", 5)
        else:
            failure = record_failure(error, work)
            text, code = failure["text"], failure["exit_code"]
        if self._nodes[node_id].kind == "choose":
            code = 2  # a preflight that says no is the program's matter
        return NodeEnd(node_id, "failed", text, key, exit_code=code)

    # --- one node

    def _reuse(self, node: Node, key: str) -> NodeEnd | None:
        receipt = self._receipt(key, up_to=SMALL)
        return None if receipt is None else end_of(node, receipt, reused=True)

    def _receipt(self, key: str, *, up_to: int | None) -> NodeReceipt | None:
        """Return a valid receipt; what is damaged is set aside and named."""
        known = len(self.state.damage)
        receipt = self.state.receipt(key, deep=True, up_to=up_to)
        # no receipt at all is no damage: the node was not finished, and its body begins in an empty folder
        if len(self.state.damage) > known and (aside := self.state.set_aside(key)) is not None:
            self.notes += [f"{text}; it is kept at {aside}" for text in self.state.damage[known:]]
        return receipt

    def _intact(self, end: NodeEnd) -> bool:
        """Return whether every byte of an output is as sealed; looked at once. What is not is set aside."""
        key = end.run_key
        if key is None or key in self._verified:
            return True
        if self._receipt(key, up_to=None) is None:
            return False
        self._verified.add(key)
        return True

    def _do(self, node: Node) -> NodeEnd:
        inputs = {name: self._ends[i] for name, i in node.inputs.items()}
        key = self.state.run_key(node, {name: e.digest or NOTHING for name, e in inputs.items()})
        folder = self.state.node(key)
        folder.mkdir(parents=True, exist_ok=True)
        self._works[node.id] = work = self._assignment(node, key, inputs)
        lease = Lease(folder / "lease")
        while not lease.try_acquire(node=node.id, program=self.plan.program):
            if self.stopping:
                raise Interrupted("stopped")
            time.sleep(_POLL)
        try:
            if (end := self._reuse(node, key)) is not None:
                return end
            if self.stopping:
                raise Interrupted("stopped")
            return self._carry_out(node, work, inputs, lease)
        finally:
            lease.release()

    def _assignment(self, node: Node, key: str, inputs: dict[str, NodeEnd]) -> Assignment:
        folders = {name: self.state.out(e.run_key) for name, e in inputs.items() if e.run_key is not None}
        return Assignment(
            entry=self._settings.entry_for(node.kind),
            node=node.id,
            kind=node.kind,
            run_key=key,
            plan_key=node.plan_key,
            home=str(self.state.home),
            params=with_environment(node.params),
            execution={**self.plan.execution, "threads": node.threads},
            seed=node.seed,
            inputs={name: str(folder) for name, folder in folders.items() if folder is not None},
            input_digests={name: e.digest or NOTHING for name, e in inputs.items()},
            code=self._settings.code,
            run=self.execution,
        )

    def _carry_out(self, node: Node, work: Assignment, inputs: dict[str, NodeEnd], lease: Lease) -> NodeEnd:
        for end in inputs.values():
            if not self._intact(end):
                raise StateError(f"{end.node}: its output was found damaged just now; run the same command to redo it")
        results = {name: e.receipt.result for name, e in inputs.items() if e.receipt is not None}
        if (reason := skip_reason(node, {k: Path(v) for k, v in work.inputs.items()}, results)) is not None:
            return self._skip(node, work, inputs, reason)
        self._emit(Event("started", node.id, run_key=work.run_key))

        def progress(what: str, share: float | None, figures: dict[str, float]) -> None:
            self._emit(Event("progress", node.id, text=what, share=share, figures=figures))

        if node.heavy:
            self._launch(work, lease, progress)
        else:
            run_body(work, lambda: self.stopping, progress, lambda text: self._note(node.id, text))
        receipt = self.state.receipt(work.run_key)
        if receipt is None:
            raise NodeError(f"its process ended well but left no receipt; what it printed is in {work.log}")
        return end_of(node, receipt, reused=False)

    def _launch(
        self, work: Assignment, lease: Lease, progress: Callable[[str, float | None, dict[str, float]], None]
    ) -> None:
        def started(child: Process) -> None:
            lease.note(node=work.node, program=self.plan.program, child=child.to_dict())

        with self._device.held(lambda: self.stopping):
            self._launched.add(work.node)
            for text in self._launcher.run(work, started, progress):
                self._note(work.node, text)

    def _skip(self, node: Node, work: Assignment, inputs: dict[str, NodeEnd], reason: str) -> NodeEnd:
        other = inputs.get(node.passthrough or "")
        alias = None if other is None or other.digest == NOTHING else other.run_key
        digest = other.digest if other is not None and other.digest else NOTHING
        receipt = NodeReceipt(
            node.id, node.kind, work.run_key, node.plan_key, "skipped", [], digest, work.input_digests,
            notes=[reason], code=work.code, alias=alias,
        )  # fmt: skip
        return end_of(node, self.state.seal(receipt), reused=False)
