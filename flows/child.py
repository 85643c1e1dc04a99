"""Carry out one node: `run_body` in any process, and `python -m flows.child` as the process of a heavy node.

The child pre-imports what its arguments name, waits on stdin for its assignment (one JSON line), and ends when stdin
ends or its parent dies. Events go to the stdout it was given; what the body prints goes to the node's log.
"""

import contextlib
import ctypes
import errno
import io
import json
import logging
import math
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flows.context import MetricSpool, NodeContext, Outcome
from flows.durable import disk_error, fault_point, remove_dir, remove_temporaries, write_json, write_quick
from flows.state import NodeReceipt, State, now
from specs.errors import Interrupted, TutelageError
from tasks.processes import until_closed

if TYPE_CHECKING:
    from typing_extensions import Buffer

Progress = Callable[[str, float | None, dict[str, float]], None]
PR_SET_PDEATHSIG = 1
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything that a process needs to carry out one node; plain JSON."""

    entry: str
    """`module:function` of the body."""
    node: str
    kind: str
    run_key: str
    plan_key: str
    home: str
    params: dict[str, Any]
    execution: dict[str, Any]
    seed: int
    inputs: dict[str, str]
    """Input name -> folder."""
    input_digests: dict[str, str]
    code: dict[str, str | None]
    run: str | None = None
    """Id of the execution that does it."""

    @property
    def folder(self) -> Path:
        """Return the node's folder."""
        return State(Path(self.home)).node(self.run_key)

    @property
    def log(self) -> Path:
        """Return the node's log."""
        return self.folder / "log"


def run_body(
    work: Assignment, stop: Callable[[], bool], progress: Progress, note: Callable[[str], object]
) -> NodeReceipt:
    """Run a node's body in a fresh `out` and seal it; the receipt is the last act. What the body raises goes through.

    `note` hears what belongs to this run and not to the node's result.
    """
    state, folder = State(Path(work.home)), work.folder
    out, checkpoints = folder / "out", folder / "ckpt"
    remove_dir(out)
    out.mkdir(parents=True)
    checkpoints.mkdir(exist_ok=True)
    for left in (folder, checkpoints):
        remove_temporaries(left, ours=True)
    (folder / "failure.json").unlink(missing_ok=True)
    module, _, name = work.entry.partition(":")
    body: Callable[[NodeContext], Outcome] = getattr(import_module(module), name)
    if not any(checkpoints.iterdir()):
        (folder / "metrics.jsonl").unlink(missing_ok=True)  # lines of an attempt that is not continued
    context = NodeContext(
        id=work.node,
        kind=work.kind,
        params=work.params,
        execution=work.execution,
        seed=work.seed,
        inputs={k: Path(v) for k, v in work.inputs.items()},
        out=out,
        checkpoints=checkpoints,
        metrics=MetricSpool(folder / "metrics.jsonl"),
        stop=stop,
        progress=progress,
        home=state.home,
        say=note,
        run=work.run,
    )
    began, clock = now(), time.monotonic()
    with context.at_end:
        outcome = body(context)
    fault_point(f"body_done.{work.node}")
    if context.metrics.dropped:
        note(f"the disk did not take {context.metrics.dropped} metric lines; its curves have gaps")
    receipt = state.seal(_receipt(work, outcome, began, time.monotonic() - clock))
    fault_point(f"sealed.{work.node}")
    state.drop_checkpoints(work.run_key)
    return receipt


def _receipt(work: Assignment, outcome: Outcome, began: str, seconds: float) -> NodeReceipt:
    metrics, notes = dict(outcome.metrics), list(outcome.notes)
    for name, value in outcome.metrics.items():
        if value is not None and not math.isfinite(value):
            metrics[name] = None
            notes.append(f"metric {name} is {value}, which is no number; it is recorded as missing")
    return NodeReceipt(
        node=work.node,
        kind=work.kind,
        run_key=work.run_key,
        plan_key=work.plan_key,
        result=outcome.result,
        outputs=[],
        output_digest="",
        inputs=work.input_digests,
        metrics=metrics,
        cost=dict(outcome.cost),
        notes=notes,
        code=work.code,
        started=began,
        seconds=round(seconds, 3),
    )


def failure_of(error: BaseException, work: Assignment) -> dict[str, Any]:
    """Return what is kept and told about a body that raised: no traceback, where to look, what to do."""
    if isinstance(error, TutelageError):
        text, code = str(error), error.exit_code
    elif isinstance(error, OSError) and error.errno in DISK_ERRORS:
        text, code = str(disk_error(error, Path(str(error.filename or work.folder)))), 5
    elif isinstance(error, MemoryError):
        text, code = f"out of memory ({error}); lower run.micro_batch_tokens or run.rollout_batch and resume", 5
    else:
        text, code = f"{type(error).__name__}: {error}; this was not foreseen, the details are in {work.log}", 5
    return {"error": type(error).__name__, "text": text, "exit_code": code, "log": str(work.log), "at": now()}


def record_failure(error: BaseException, work: Assignment) -> dict[str, Any]:
    """Write `failure.json`, and the traceback to the log; a full disk keeps neither from being returned."""
    failure = failure_of(error, work)
    with contextlib.suppress(OSError, TutelageError), work.log.open("a", encoding="utf-8") as f:
        traceback.print_exception(error, file=f)
    with contextlib.suppress(OSError, TutelageError):
        write_json(work.folder / "failure.json", failure)
    return failure


class LossyFile(io.RawIOBase):
    """A file opened for appending that never raises: what a full disk does not take is dropped and counted."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.dropped = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def write(self, data: "Buffer", /) -> int:
        """Write all of `data`, or count what was dropped."""
        view = memoryview(data)
        written = 0
        try:
            while written < len(view):
                written += os.write(self._fd, view[written:])
        except OSError:
            self.dropped += len(view) - written
        return len(view)


class _Reporter:
    """Sends events to the driver, progress at most five times a second, and keeps `progress.json` for others."""

    def __init__(self, channel: int, folder: Path) -> None:
        self._channel = channel
        self._path = folder / "progress.json"
        self._sent = self._kept = -math.inf

    def send(self, **event: Any) -> None:
        """Send one event; a driver that is gone is no reason to fail, the watchdog ends this process."""
        with contextlib.suppress(OSError):
            os.write(self._channel, json.dumps(event).encode() + b"\n")

    def note(self, text: str) -> None:
        """Send a sentence that belongs to this run."""
        self.send(event="note", text=text)

    def progress(self, what: str, share: float | None, figures: dict[str, float]) -> None:
        """Send progress, unless one was just sent."""
        clock = time.monotonic()
        if clock - self._sent >= 0.2:
            self._sent = clock
            self.send(event="progress", what=what, share=share, figures=figures)
        if clock - self._kept >= 1.0:
            self._kept = clock
            data = {"what": what, "share": share, "figures": figures, "total": figures.get("steps"), "at": now()}
            with contextlib.suppress(TutelageError):  # a full disk
                write_quick(self._path, json.dumps(data))


def die_with_parent() -> None:
    """Have the system end this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(stdin: int) -> None:
    """End this process at once when the driver closes its side or is gone."""
    until_closed(stdin)
    os._exit(4)


def _read_line(stdin: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(stdin, 1 << 20)
        if not part:
            os._exit(0)  # a spare that nobody needs
        line += part
    return line


def warm(preload: list[str]) -> None:
    """Import modules, and what torch imports when it is told to be deterministic: more than a second."""
    for module in preload:
        import_module(module)
    if torch := sys.modules.get("torch"):
        torch.use_deterministic_algorithms(True)


def _settle(work: Assignment) -> None:
    """Import the body (which may draw numbers), then set seeds, threads and determinism."""
    import_module(work.entry.partition(":")[0])
    random.seed(work.seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(work.seed)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(work.execution.get("threads") or 1))
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(work.seed)


def _redirect(log: Path) -> LossyFile | None:
    """Send what this process prints, also below Python, to the log; None where the disk has no place for one."""
    try:
        raw = LossyFile(log)
    except OSError:
        return None
    os.dup2(raw.fileno(), 1)
    os.dup2(raw.fileno(), 2)
    buffered = io.BufferedWriter(raw)
    sys.stdout = sys.stderr = io.TextIOWrapper(buffered, "utf-8", "backslashreplace", line_buffering=True)
    return raw


def main(preload: list[str]) -> int:
    """Wait for an assignment, carry it out, return 0 (sealed), 4 (interrupted) or the error's exit code."""
    die_with_parent()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm(preload)
    channel = os.dup(1)
    work = Assignment(**json.loads(_read_line(0)))
    threading.Thread(target=_watch, args=(0,), daemon=True).start()
    reporter = _Reporter(channel, work.folder)
    log = _redirect(work.log)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    sys.excepthook = _excepthook(work, reporter)
    _settle(work)
    try:
        run_body(work, stopping.is_set, reporter.progress, reporter.note)
    except Interrupted as e:
        reporter.send(event="interrupted", text=str(e))
        return 4
    finally:
        sys.stdout.flush()
        if log is None or log.dropped:
            reporter.note("the disk took no more log lines, some were dropped")
    return 0


def _excepthook(
    work: Assignment, reporter: _Reporter
) -> Callable[[type[BaseException], BaseException, TracebackType | None], None]:
    """Return what turns an exception that ends this process into `failure.json` and an event."""

    def hook(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
        reporter.send(event="failed", **record_failure(error, work))

    return hook


def with_environment(params: dict[str, Any]) -> dict[str, Any]:
    """Return params with `${env:NAME}` replaced; the values are in no plan, receipt or record.

    What `access` holds stays as it is: secrets are looked at where they are used.
    """
    if "${env:" not in json.dumps({k: v for k, v in params.items() if k != "access"}):
        return params
    from flows.resolve import expanded

    return {k: v if k == "access" else expanded(v, os.environ) for k, v in params.items()}


def encode(work: Assignment) -> bytes:
    """Return the line that tells a waiting child what to do."""
    return json.dumps(asdict(work)).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main([m for m in (sys.argv[1].split(",") if len(sys.argv) > 1 else []) if m]))
