"""Start driver processes of the reference plan, and look at what they left."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.drive import Finish, Request, drive
from flows.leases import driver_lease, process_from
from flows.nodes import Plan
from flows.reconcile import reconcile
from flows.state import State
from tasks.files import digest_tree
from tests.faults.bodies import entry_for
from tests.faults.plans import reference
from tests.parts import installed, lacking

CHAIN: dict[str, Any] = {"options": {"campaign": {"chain": True}}}
"""The reference program with a chain of digests in place of a model."""

MODEL: dict[str, Any] = {"options": {"campaign": {"chain": False}, "preload": ["torch", "numpy"]}}
"""The same program with a real, tiny model."""


def start(home: Path, *, under: tuple[str, ...] = (), **variables: Any) -> subprocess.Popen[str]:
    """Start a driver, `under` another program where given; `options` are those of `tests.faults.driver`.

    The rest are environment variables.
    """
    options = variables.pop("options", {})
    limit = variables.pop("preexec_fn", None)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TUTELAGE_", "FAULT_"))}
    env |= {
        "FAULT_OPTIONS": json.dumps(options),
        "FAULT_PAID": str(home.with_suffix(".paid")),
        "FAULT_STEPS": str(home.with_suffix(".steps")),
    }
    env |= {k: str(v) for k, v in variables.items()}
    return subprocess.Popen(
        [*under, sys.executable, "-m", "tests.faults.driver", str(home)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )


def finish(process: subprocess.Popen[str], timeout: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def run(home: Path, **variables: Any) -> tuple[int, str, str]:
    return finish(start(home, **variables))


def run_with_fault(home: Path, fault: str, **variables: Any) -> tuple[int, str, str]:
    """Run with a fault whose number counts over all processes of the run."""
    count = home.with_suffix(f".{time.monotonic_ns()}.count")  # of this run alone: a dying child may count once more
    return run(home, TUTELAGE_FAULT=fault, TUTELAGE_FAULT_COUNT=count, **variables)


def here(home: Path, plan: Plan | None = None, **request: Any) -> Finish:
    """Drive a plan in this process."""
    plan = plan or reference()
    state = State(home)
    state.prepare()
    state.program(plan.program).mkdir(exist_ok=True)
    with driver_lease(state.program(plan.program) / "lease", plan.program):
        reconcile(state, plan.program)
        return drive(
            plan, state, Request("x.yaml", services=False, quiet=True, entry_for=entry_for, preload=(), **request)
        )


def snapshot(home: Path) -> dict[str, Any]:
    """Return what a run is judged by: every receipt without its times, and the digest of every output on disk."""
    state, found = State(home), {}
    for folder in sorted((home / "nodes").iterdir()):
        receipt = state.receipt(folder.name, deep=True)
        assert receipt is not None, f"{folder}: no valid receipt; {state.damage}"
        data = asdict(receipt)
        for name in ("started", "seconds", "code"):
            del data[name]
        found[receipt.node] = data | {"on_disk": digest_tree(folder / "out")}
        assert not (folder / "ckpt").exists()
        left = [str(p.relative_to(folder)) for p in folder.rglob("*.tmp")]
        assert not left, f"{folder}: left behind: {left}"
    return found


def calls(home: Path) -> Counter[str]:
    """Return how often each reply and each rollout of a campaign was paid for, over all attempts."""
    path = home.with_suffix(".paid")
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line for line in lines if line.startswith(("replies ", "rollouts ")))


EVERY = 5
"""Steps between two checkpoints of the bodies."""


def redone(home: Path) -> int:
    """Return how many steps were trained again, over all attempts and nodes.

    Asserts that each attempt began right after the last checkpoint: at most one save interval is redone per kill.
    """
    path = home.with_suffix(".steps")
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    again = 0
    for node in {line[0] for line in lines}:
        process, last, saved = "", 0, 0
        for _, pid, what, number in (line for line in lines if line[0] == node):
            step = int(number)
            if what == "saved":
                saved = step
                continue
            if pid != process and process:
                begins = (
                    {saved + 1, last + 1} if last % EVERY == 0 else {saved + 1}
                )  # saved, and killed before it said so
                assert step in begins, f"{node} began again at step {step}, with {saved} saved and {last} trained"
                assert last + 1 - step <= EVERY
                again += last + 1 - step
                saved = step - 1
            else:
                assert step == last + 1
            process, last = pid, step
    return again


def resumes(home: Path) -> int:
    """Return how many attempts at training went on from a checkpoint."""
    lines = [line.split() for line in home.with_suffix(".steps").read_text().splitlines()]
    firsts: dict[tuple[str, str], int] = {}
    for node, pid, what, number in lines:
        if what == "step":
            firsts.setdefault((node, pid), int(number))
    return sum(first > 1 for first in firsts.values())


def scan(home: Path) -> None:
    """Assert that nothing which a reader accepts is half written: receipts, checkpoints, records, registry."""
    state = State(home)
    for path in home.glob("nodes/*/receipt.json"):
        assert state.receipt(path.parent.name, deep=True) is not None, state.damage
    for path in home.glob("nodes/*/ckpt/step-*/state.json"):
        json.loads(path.read_text())
    for path in (*home.glob("programs/*/*.json"), *home.glob("registry/*.json"), *home.glob("plans/*.json")):
        json.loads(path.read_text())
    for path in (*home.glob("nodes/*/ckpt/*.jsonl"), *home.glob("programs/*/executions/*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            assert not line.endswith("\n") or json.loads(line), f"{path}: two records in one line"


def tracer() -> str:
    """Return the path of strace; the test that asks is skipped where it may not trace here."""
    found = installed("strace")
    tried = subprocess.run(
        [found, "-f", "-qq", "-e", "trace=none", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        lacking(f"strace ({tried.stderr.strip()})")
    return found


def paid(home: Path) -> int:
    """Return how many rollouts were made, over all attempts."""
    return len(home.with_suffix(".paid").read_text().splitlines())


def wait_until(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.01)
    return found


def live_children(home: Path) -> list[int]:
    """Return the pids of children that leases name and that live."""
    pids: list[int] = []
    for path in home.glob("nodes/*/lease"):
        try:
            child = process_from(json.loads(path.read_text())["child"])
        except (ValueError, KeyError, TypeError):
            continue
        if child is not None and child.alive:
            pids.append(child.pid)
    return pids
