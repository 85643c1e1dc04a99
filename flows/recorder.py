"""The process beside a run that sends metrics to MLflow and publishes data versions: `python -m flows.recorder HOME`.

One per home. It follows what executions leave on disk, sends at least once what can be sent twice without harm, and
notes what was sent in `.tutelage/recorder/sent.jsonl`. Training never waits for it: what a locked or absent store
did not take stays on disk, and the next run (or `tutelage data sync`) sends it.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from flows import services
from flows.durable import Ledger, move, write_json
from flows.leases import Lease
from flows.nodes import Plan
from flows.state import RunRecord, State, now
from specs.errors import StateError
from tasks.processes import spawn

LINGER_SECONDS = 60.0
"""How long it goes on trying after the last driver has ended."""
_POLL = 0.25
_START_SECONDS = 4.0
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "GIT_PYTHON_REFRESH": "quiet",
}


# --- the driver's side


class Events:
    """What the driver tells the recorder about one execution, beside its ledger: that it began, and how it ended."""

    def __init__(self, state: State, execution: str) -> None:
        self.path = state.home / "executions" / f"{execution}.jsonl"
        self._execution = execution

    def start(self, plan: Plan, record: RunRecord) -> None:
        """Say that the execution begins, with the text of its program as it is now."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            source = Path(record.file).read_text(encoding="utf-8")
        except (OSError, ValueError):
            source = ""
        self._append({"event": "start", "program": plan.program, "source": source})

    def end(self, exit_code: int) -> None:
        """Say that every node has ended."""
        self._append({"event": "end", "exit_code": exit_code})

    def _append(self, event: dict[str, Any]) -> None:
        Ledger(self.path).append([{**event, "execution": self._execution, "at": now()}])


def start(home: Path) -> None:
    """Start the recorder, where none runs; returns at once."""
    folder = home / "recorder"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("ab") as log:
        spawn(
            [sys.executable, "-m", "flows.recorder", str(home)],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **services.quiet_environment(home), **SETTINGS},
        )


def drain(home: Path, execution: str, timeout: float = 10.0) -> list[str]:
    """Wait until everything of an execution is sent, at most `timeout` seconds; return sentences about what is not."""
    until = time.monotonic() + timeout
    lease, seen = Lease(home / "recorder" / "lock"), time.monotonic()
    while not (status := read_status(home).get(execution, {})).get("done"):
        if lease.held_elsewhere:
            seen = time.monotonic()
        if time.monotonic() > min(until, seen + _START_SECONDS):
            left = status.get("left") or ["metrics and data versions"]
            reason = f" ({'; '.join(status['errors'])})" if status.get("errors") else ""
            return [
                f"not sent yet to MLflow and DVC: {_few(left)}{reason}; it is on disk and goes on being sent, "
                "by the next run, or by `tutelage data sync`"
            ]
        time.sleep(0.1)
    return list(status.get("said", []))


def read_status(home: Path) -> dict[str, Any]:
    """Return, by execution, what the recorder last said: done, left, errors, said."""
    try:
        data = json.loads((home / "recorder" / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _few(items: list[str]) -> str:
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


# --- the recorder's side


class Sent:
    """The ledger of what was sent: (execution, what) -> value."""

    def __init__(self, home: Path) -> None:
        self._ledger = Ledger(home / "recorder" / "sent.jsonl")
        self._known: dict[tuple[str, str], Any] = {}
        try:
            for r in self._ledger:
                self._known[r["execution"], r["what"]] = r.get("value")
        except StateError:  # damaged: everything is found again by tag, or sent again without harm
            move(self._ledger.path, self._ledger.path.with_suffix(f".damaged.{time.time_ns()}"))
            self._known.clear()

    def has(self, execution: str, what: str) -> bool:
        """Return whether it was sent."""
        return (execution, what) in self._known

    def get(self, execution: str, what: str) -> Any:
        """Return what was noted with it."""
        return self._known.get((execution, what))

    def note(self, execution: str, what: str, value: Any = None) -> None:
        """Note that it was sent."""
        self._known[execution, what] = value
        self._ledger.append([{"execution": execution, "what": what, "value": value}])


class Recorder:
    """Follows every execution of a home that is not wholly sent."""

    def __init__(self, home: Path) -> None:
        from flows.recording import Stores

        self.home = home
        self.sent = Sent(home)
        self._stores = Stores(home)
        self._open: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        """Execution -> done, left, errors, said."""

    def pending(self) -> list[str]:
        """Return executions that are not wholly sent."""
        names = sorted(p.stem for p in (self.home / "executions").glob("*.jsonl"))
        return [n for n in names if not self.sent.has(n, "done")]

    def step(self) -> bool:
        """Send what can be sent now; return whether a driver of something pending still lives."""
        from flows.recording import Recording

        living = False
        for name in self.pending():
            one = self._open.get(name)
            if one is None:
                one = self._open[name] = Recording(State(self.home), name, self.sent, self._stores)
            one.step()
            living = living or not one.over
            self.status[name] = {"done": one.done, "left": one.left, "errors": one.errors, "said": one.said}
            if one.done:
                del self._open[name]
        if self.status != read_status(self.home):
            write_json(self.home / "recorder" / "status.json", self.status)
        return living

    def run(self, linger: float) -> None:
        """Send until nothing is left, or until `linger` seconds after the last driver ended."""
        until = time.monotonic() + linger
        while self.pending():
            if self.step():
                until = time.monotonic() + linger
            elif time.monotonic() > until:
                return
            time.sleep(_POLL)


def sync(home: Path, *, seconds: float = LINGER_SECONDS) -> dict[str, Any]:
    """Send in this process what is pending; return what became of each. StateError where another recorder is at it."""
    (home / "recorder").mkdir(parents=True, exist_ok=True)
    os.environ.update({**services.quiet_environment(home), **SETTINGS})
    lease = Lease(home / "recorder" / "lock")
    if not lease.try_acquire():
        raise StateError(
            f"{lease.path}: a recorder of this project is sending already; see {home / 'recorder' / 'log'}"
        )
    try:
        recorder = Recorder(home)
        recorder.run(seconds)
    finally:
        lease.release()
    return recorder.status


def main(home: Path) -> int:
    """Be the recorder of a home until all is sent, unless another one is."""
    os.nice(15)
    lease = Lease(home / "recorder" / "lock")
    patience = time.monotonic() + 3.0  # one that is just ending might not have seen what is new
    while time.monotonic() < patience:
        if lease.try_acquire():
            try:
                recorder = Recorder(home)
                recorder.run(LINGER_SECONDS)
            finally:
                lease.release()
            if not Recorder(home).pending():
                return 0
        time.sleep(0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
