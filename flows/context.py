"""What a node's body gets: its params, its inputs as folders, where to write, and how to be stopped."""

import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flows.durable import Ledger, write_durable
from specs.errors import StateError

Result = Literal["completed", "gate_failed", "held", "already_promoted"]


@dataclass(slots=True)
class Outcome:
    """What a body returns. `metrics` are finite numbers; a missing one is None with its reason in `notes`."""

    result: Result = "completed"
    metrics: dict[str, float | None] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    """`rollouts, tokens, steps` and so on."""
    notes: list[str] = field(default_factory=list)
    """Sentences that a person must see: dropped rows, fallbacks, reasons."""


class MetricSpool:
    """Append-only metric lines of one node: `{"step", "seconds", "values"}`; sent to MLflow from the side."""

    def __init__(self, path: Path, *, keep_until_step: int | None = None) -> None:
        self._path = path
        self._ledger = Ledger(path)
        self._start = time.monotonic()
        self.dropped = 0
        """Lines that a full disk did not take; they are missing from the curves and nothing else."""
        if keep_until_step is not None and path.exists():
            self._truncate(keep_until_step)

    def _truncate(self, last: int) -> None:
        kept: list[str] = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= last:
                    kept.append(line)
            except (ValueError, KeyError):  # a torn tail after a kill
                break
        write_durable(self._path, "".join(f"{k}\n" for k in kept))

    def resume_from(self, step: int) -> None:
        """Forget lines after `step`: a resumed node writes them again."""
        if self._path.exists():
            self._truncate(step)

    def log(self, step: int, **values: float) -> None:
        """Append one line; a value that is not finite is written as null and named under `not_finite`."""
        bad = [k for k, v in values.items() if not math.isfinite(v)]
        line: dict[str, Any] = {
            "step": step,
            "seconds": round(time.monotonic() - self._start, 3),
            "values": {k: (None if k in bad else float(v)) for k, v in values.items()},
        }
        if bad:
            line["not_finite"] = bad
        try:
            self._ledger.append([line], durable=False)
        except StateError:
            self.dropped += 1


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Everything a body may touch. Files under `out/notes/` are no part of the node's digest (timings, previews)."""

    id: str
    kind: str
    params: dict[str, Any]
    """The semantic half, JSON."""
    execution: dict[str, Any]
    """`specs.run.Run` as JSON, with `threads` resolved; never changes what is computed."""
    seed: int
    inputs: dict[str, Path]
    """Input name -> the producing node's `out` folder."""
    out: Path
    """Empty at the start of an attempt; what lies here at the end is the output."""
    checkpoints: Path
    """Survives attempts of the same node."""
    metrics: MetricSpool
    stop: Callable[[], bool]
    """True when the body should save a checkpoint and raise `Interrupted`."""
    progress: Callable[[str, float | None, dict[str, float]], None]
    """(what, share done or None, figures to show); cheap, may be called every step."""
    home: Path | None = None
    """Home of the run, where servers are shared; None where there is none."""
    run: str | None = None
    """Id of the execution; registered policies name it, and no result depends on it."""
    say: Callable[[str], object] = lambda text: None
    """Takes a sentence that belongs to this run and not to the node's result."""
    at_end: ExitStack = field(default_factory=ExitStack)
    """Closed when the body has ended: what the node holds is given up."""

    @property
    def run_key(self) -> str:
        """Return the key under which the node's folder lies; all attempts share it."""
        return self.out.parent.name

    @property
    def teachers(self) -> Path:
        """Return the folder of the program's teachers, which all its nodes and runs share."""
        home = self.home if self.home is not None else self.checkpoints
        return home / "teachers" / self.params["access"]["program"]
