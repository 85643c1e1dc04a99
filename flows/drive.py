"""Drive one execution of a plan: record it, carry it out, stop it well, and say how it went."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from flows.durable import Ledger
from flows.ends import Event, NodeEnd
from flows.execute import Executor, Settings
from flows.hooks import Hooks, subject_of, told_crash
from flows.launch import LocalLauncher
from flows.leases import Lease, this_process
from flows.live import Live
from flows.nodes import NODE_KINDS, Node, Plan
from flows.services import release_models as release_model_servers
from flows.state import RunRecord, State, exit_code, new_execution, now
from specs.errors import BusyError, ServiceError, StateError, TutelageError, UsageError
from specs.notify import Notify

GIVE_UP_SECONDS = 9.0
"""After a request to stop, the process ends by then whatever still runs."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for beside the program."""

    file: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """What `resume` repeats."""
    start: str | None = None
    """`--from`: this node and all that depend on it are done again."""
    until: str | None = None
    only: str | None = None
    services: bool = True
    quiet: bool = False
    resume_command: str = "tutelage resume"
    notify: Notify | None = None
    """Who is told what happens."""
    entry_for: Callable[[str], str] = lambda kind: NODE_KINDS[kind].entry
    preload: tuple[str, ...] | None = None
    """Modules that children import before they know their node; those of the plan's heavy nodes where left out."""


@dataclass(frozen=True, slots=True)
class Finish:
    """How an execution went."""

    record: RunRecord
    ends: dict[str, NodeEnd]
    exit_code: int
    notes: list[str]
    seconds: float


def code_version() -> dict[str, str | None]:
    """Return the version of this package and the commit of its sources, where it runs from a git checkout."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found: str | None = version("tutelage")
    except PackageNotFoundError:
        found = None
    return {"version": found, "commit": _commit(Path(__file__).parents[1] / ".git")}


def _commit(git: Path) -> str | None:
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        ref = head.removeprefix("ref: ")
        if (git / ref).exists():
            return (git / ref).read_text(encoding="utf-8").strip()
        lines = (git / "packed-refs").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split()[0] for line in lines if line.endswith(f" {ref}")), None)


def drive(plan: Plan, state: State, request: Request) -> Finish:
    """Carry out a plan. The caller holds the program's driver lease and has reconciled."""
    began = time.monotonic()
    executor = Executor(plan, state, _launcher(plan, request), _settings(plan, request))
    try:
        if request.start is not None:
            _redo(executor, plan, state, request.start)
        executor.walk()
        record, before = _record(plan, state, request, executor), state.last(plan.program)
        hooks = None if request.notify is None else Hooks(request.notify, subject_of(record), state)
        state.save_record(record)
        if hooks is not None:
            told_crash(hooks, before)
        try:
            if not executor.finished:
                _carry_out(executor, record, request, hooks)
        except TutelageError as e:
            _close_record(state, record, executor, e.exit_code)
            _told(hooks, executor, [("node_failed", str(e), e.exit_code)])
            raise
    finally:
        executor.close()
        release_model_servers(state.home)
    code = executor.exit_code()
    _close_record(state, record, executor, code)
    _told(hooks, executor)
    return Finish(record, executor.ends, code, executor.notes, time.monotonic() - began)


def _told(hooks: Hooks | None, executor: Executor, more: Sequence[tuple[str, str, int]] = ()) -> None:
    """Wait, in bounded time, until hooks have told what happened; what failed is a note of the run."""
    if hooks is None:
        return
    for name, reason, code in more:
        hooks.tell([name], reason=reason, exit_code=code)
    executor.notes += hooks.finish(hurry=executor.stopping)


def _close_record(state: State, record: RunRecord, executor: Executor, code: int) -> None:
    record.ended, record.exit_code = now(), code
    record.nodes = {n: _node_json(e) for n, e in executor.ends.items()}
    state.save_record(record)


def _launcher(plan: Plan, request: Request) -> LocalLauncher:
    heavy = [n for n in plan.nodes if n.heavy]
    preload = request.preload
    if preload is None:
        modules = dict.fromkeys(request.entry_for(n.kind).partition(":")[0] for n in heavy)
        preload = ("numpy", "torch", *modules)
    return LocalLauncher(
        max((n.threads for n in heavy), default=1), preload, fork=plan.execution.get("device", "cpu") == "cpu"
    )


def _settings(plan: Plan, request: Request) -> Settings:
    wanted: frozenset[str] | None = None
    if request.only is not None:
        wanted = frozenset([plan.node(request.only).id])
    elif request.until is not None:
        plan.node(request.until)
        wanted = frozenset(plan.upstream(request.until))
    hours = plan.budget.get("wall_hours")
    return Settings(
        parallel=int(plan.execution.get("parallel", 2)),
        wanted=wanted,
        wall_seconds=None if hours is None else hours * 3600.0,
        execution=new_execution(),
        code=code_version(),
        entry_for=request.entry_for,
    )


def _redo(executor: Executor, plan: Plan, state: State, start: str) -> None:
    """Set what is left of `start` and of everything after it aside, as far as it can be found."""
    plan.node(start)
    if start not in executor.wanted:
        raise UsageError(
            f"--from {start}: it is not among the nodes that this run carries out ({', '.join(executor.wanted[-3:])} at "
            "its end); leave --from out, or name a later end with --until"
        )
    again, found = set(plan.downstream(start)), executor.find()
    for node in plan:
        if node.id in again and all(i in found for i in node.inputs.values()):
            _set_aside(state, node, executor.run_key(node, found))


def _set_aside(state: State, node: Node, run_key: str) -> None:
    """Move away what is left of a node. BusyError where another driver carries it out at this moment."""
    if not (folder := state.node(run_key)).exists():
        return
    lease = Lease(folder / "lease")
    if not lease.try_acquire(node=node.id):
        other = lease.read().get("program", "another program")
        raise BusyError(
            f"--from: node {node.id} is carried out for {other} at this moment, so it cannot be begun again; "
            "wait for it or stop that run, and try again"
        )
    try:
        state.set_aside(run_key, name="replaced", checkpoints=True)
    finally:
        lease.release()


def _record(plan: Plan, state: State, request: Request, executor: Executor) -> RunRecord:
    return RunRecord(
        execution=executor.execution or new_execution(),
        program=plan.program,
        file=request.file,
        arguments=dict(request.arguments),
        plan=state.save_plan(plan.to_dict()),
        resolution=plan.resolution,
        driver=this_process().to_dict(),
        started=now(),
        nodes={n: _node_json(e) for n, e in executor.ends.items()},
    )


def _node_json(end: NodeEnd) -> dict[str, Any]:
    seconds = end.receipt.seconds if end.receipt is not None else 0.0
    return {"run_key": end.run_key, "status": end.status, "reason": end.reason, "seconds": seconds}


def _carry_out(executor: Executor, record: RunRecord, request: Request, hooks: Hooks | None) -> None:
    ledger = executor.state.ledger(record.program, record.execution)
    executor.subscribe(_Recorder(ledger, executor))
    if hooks is not None:
        executor.subscribe(hooks)
    total = len(executor.wanted)

    def leave() -> NoReturn:
        """End this process now, with what is known written down; a run that is complete keeps its exit code."""
        executor.kill()
        code, complete = executor.exit_code(), executor.finished and all(e.done for e in executor.ends.values())
        with contextlib.suppress(TutelageError):
            _close_record(executor.state, record, executor, code if complete else code or 4)
        left = "services were not told everything" if complete else f"go on with `{request.resume_command}`"
        with contextlib.suppress(OSError):  # nobody reads any more
            sys.stderr.write(f"tutelage: ended at once; {left}\n")
            sys.stderr.flush()
        os._exit(exit_code(record) or 0)

    with Live(sys.stderr, total, quiet=request.quiet) as live, _signals(executor, live, leave):
        reused = sum(n in executor.ends for n in executor.wanted)
        if reused:
            live.say(f"{reused} of {total} nodes are done already")
        executor.subscribe(live)
        executor.prestart()
        if request.services:
            _with_services(executor, live)
        executor.run_all()
        if hooks is not None:
            hooks.ended(executor.exit_code())


def _with_services(executor: Executor, live: Live) -> None:
    """Let Prefect show and drive the nodes; where it is absent say so, and go on without."""
    try:
        from flows.orchestrate import run_flow

        run_flow(executor.plan, executor, executor.state, live.say)
    except ServiceError as e:
        text = f"going on without services: {e}"
        executor.notes.append(text)
        live.say(text)


class _Recorder:
    """Writes how nodes end into the ledger of the execution; a full disk there never ends a run."""

    def __init__(self, ledger: Ledger, executor: Executor) -> None:
        self._ledger = ledger
        self._executor = executor
        self._lost = False

    def __call__(self, event: Event) -> None:
        if event.what not in ("started", "ended"):
            return
        started = {"run_key": event.run_key, "status": "running", "reason": "", "seconds": 0.0}
        data = _node_json(event.end) if event.end is not None else started
        try:
            self._ledger.append([{"node": event.node, "at": now(), **data}])
        except StateError as e:
            if not self._lost:
                self._lost = True
                self._executor.notes.append(f"the record of this run has gaps: {e}")


@contextmanager
def _signals(executor: Executor, live: Live, leave: Callable[[], NoReturn]) -> Iterator[None]:
    """Stop well at the first SIGINT or SIGTERM, at once at the second, and in bounded time in any case."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timers: list[threading.Timer] = []

    def stop(number: int, _: object) -> None:
        if timers:
            leave()
        timers.append(threading.Timer(GIVE_UP_SECONDS, leave))
        timers[0].daemon = True
        timers[0].start()
        name = signal.Signals(number).name
        threading.Thread(target=executor.stop, args=(f"stopped by {name}",), daemon=True).start()
        live.say(f"{name}: saving and stopping, at most {GIVE_UP_SECONDS:.0f} s; once more to end at once")

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
