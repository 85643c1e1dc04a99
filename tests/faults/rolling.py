"""Eight hundred rollouts as an evaluation draws them, with the batch that programs have. `python -m tests.faults.rolling FOLDER`.

Writes down each episode that ended, where nothing of the product reads it, and at the end what came out.
"""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from specs.errors import Interrupted
from specs.run import Run
from tasks.episodes.local import LocalSampler
from tasks.files import write_json
from tasks.loops.collect import Draw, collect
from tasks.loops.rollout_ledger import RolloutLedger
from tests.tasks.loops.toy import ToyEnvironment, ToyWorld, problem, toy_arena, toy_policy

ROLLOUTS = 800
PAUSE = float(os.environ.get("FAULT_PAUSE", "0"))


class Slow(LocalSampler):
    """The sampler of this process, which rests before each turn."""

    def generate(self, requests: Any) -> Any:
        time.sleep(PAUSE)
        return super().generate(requests)


class Witnessed(ToyEnvironment):
    """Writes down each episode that ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, problem: Any, seed: int) -> Any:
        path = self.path

        class World(ToyWorld):
            def final_state(self) -> dict[str, str]:
                with path.open("a") as f:
                    f.write(f"{problem.id}\n")
                return super().final_state()

        return World()


def main(folder: Path, asked: threading.Event) -> int:
    policy = toy_policy()
    arena = replace(
        toy_arena(policy),
        sampler=Slow(policy, "start"),
        environments={"toy": Witnessed(folder / "ended")},
        in_flight=Run().rollout_batch,
    )
    store = RolloutLedger(folder / "ckpt" / "sampled.jsonl")
    problems = [problem(i) for i in range(ROLLOUTS)]
    try:
        found = collect(arena, problems, Draw(1, 1.0, 7, "sampled"), stop=asked.is_set, store=store).trajectories
    except Interrupted:
        return 4
    made = [asdict(t) | {"latency": {}} for t in found]
    write_json(folder / "result.json", {"rollouts": made, "notes": store.notes()})
    return 0


def result(folder: Path, *, logprobs: bool = True) -> list[dict[str, Any]]:
    """Return what came out, `logprobs` left out where asked."""
    made = json.loads((folder / "result.json").read_text())["rollouts"]
    return made if logprobs else [t | {"logprobs": []} for t in made]


if __name__ == "__main__":
    torch.set_num_threads(1)
    to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: to_stop.set())
    sys.exit(main(Path(sys.argv[1]), to_stop))
