"""Run the real command line in a home of its own, and look at what it left on disk and in the process list."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.state import State

ROOT = Path(__file__).resolve().parents[2]
_OURS = ("TUTELAGE_", "FAULT_", "PREFECT_", "MLFLOW_")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def said(self) -> str:
        return self.out + self.err

    def must(self, code: int, *texts: str) -> "Ended":
        """Assert the exit code, every text, and that nobody was shown a traceback."""
        assert self.code == code, f"exit {self.code}, expected {code}\n{self.said}"
        assert "Traceback" not in self.said, self.said
        flat = "".join(self.said.split())  # tables fold long sentences, also within a path
        for text in texts:
            assert "".join(text.split()) in flat, f"{text!r} is not in:\n{self.said}"
        return self


def start(
    *arguments: str | Path, home: Path | None = None, cwd: Path = ROOT, variables: Mapping[str, object] | None = None
) -> subprocess.Popen[str]:
    """Start a command; settings of the person who runs the tests do not reach it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    env |= {k: str(v) for k, v in (variables or {}).items()}
    if home is not None:
        env["TUTELAGE_HOME"] = str(home)
    command = [sys.executable, "-m", "flows.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen[str], timeout: float = 120.0) -> Ended:
    """Wait for a command that `start` started."""
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return Ended(process.returncode, out, err, time.monotonic() - began)


def tutelage(
    *arguments: str | Path,
    home: Path | None = None,
    cwd: Path = ROOT,
    timeout: float = 120.0,
    variables: Mapping[str, object] | None = None,
) -> Ended:
    """Run a command to its end."""
    return end(start(*arguments, home=home, cwd=cwd, variables=variables), timeout)


def receipts(home: Path) -> dict[str, dict[str, Any]]:
    """Return every receipt of a home by node, without its times; each must be valid down to the last byte of output."""
    state, found = State(home), {}
    for path in sorted(home.glob("nodes/*/receipt.json")):
        receipt = state.receipt(path.parent.name, deep=True)
        assert receipt is not None, state.damage
        data = json.loads(path.read_text())
        for name in ("started", "seconds", "code", "check"):
            del data[name]
        assert data["node"] not in found, f"{data['node']} was done twice under two keys"
        found[data["node"]] = data
    return found


def weights(home: Path) -> dict[str, bytes]:
    """Return the weights of every policy that a node left, by node."""
    found: dict[str, bytes] = {}
    for path in home.glob("nodes/*/out/policy/model.safetensors"):
        node = json.loads((path.parents[2] / "receipt.json").read_text())["node"]
        found[node] = path.read_bytes()
    return found


def processes(home: Path) -> dict[int, str]:
    """Return the processes that work for a home: pid and command, whoever their parents are."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if f"TUTELAGE_HOME={home}\0".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:
            continue
    return found


def wait_for_no_process(home: Path, seconds: float = 60.0) -> None:
    """Assert that everything that worked for a home has ended by itself."""
    until = time.monotonic() + seconds
    while left := processes(home):
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.02)
