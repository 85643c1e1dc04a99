"""Thirty steps of a tiny model with everything that a checkpoint must hold: leave any part out and the end differs."""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.faults import fault_point
from tasks.learning.checkpoints import Checkpointer

STEPS, EVERY = 30, 5
PARTS = ("weights", "optimizer", "schedule", "scale", "torch_rng", "numpy_rng", "python_rng", "position")


class Learner:
    """Dropout, AdamW, a learning rate schedule, a loss scale, shuffled data: each with a state of its own."""

    def __init__(self, seed: int, rows: list[list[float]]) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.rows = rows
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.scale = 1.0
        self.order: list[int] = []

    def step(self) -> float:
        if not self.order:
            self.order = random.sample(range(len(self.rows)), len(self.rows))
        batch = torch.tensor([self.rows[self.order.pop()] for _ in range(4)])
        noise = torch.tensor(np.random.normal(0, 0.01, (4, 1)), dtype=torch.float32)
        loss = ((self.model(batch) - batch.mean(1, keepdim=True) - noise) ** 2).mean()
        self.optimizer.zero_grad()
        (loss * self.scale).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.3)
        self.optimizer.step()
        self.schedule.step()
        self.scale = self.scale * 1.25 if float(loss.detach()) < 0.3 else self.scale * 0.5
        return float(loss.detach())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        optimizer = self.optimizer.state_dict()
        tensors = {f"weights.{n}": t for n, t in self.model.state_dict().items()}
        tensors |= {f"optimizer.{i}.{n}": t for i, s in optimizer["state"].items() for n, t in s.items()}
        tensors["torch_rng"] = torch.get_rng_state()
        numpy: Any = np.random.get_state()
        data = {
            "schedule": self.schedule.state_dict(),
            "lr": optimizer["param_groups"][0]["lr"],
            "scale": self.scale,
            "numpy_rng": [numpy[0], numpy[1].tolist(), *numpy[2:]],
            "python_rng": random.getstate(),
            "position": self.order,
        }
        return tensors, data

    def load(self, tensors: dict[str, Tensor], data: dict[str, Any], leave_out: str = "") -> None:
        """Take up a state, without the part `leave_out`."""
        own = {n.removeprefix("weights."): t for n, t in tensors.items() if n.startswith("weights.")}
        name, keys, *rest = data["numpy_rng"]
        version, inner, gauss = data["python_rng"]
        take: dict[str, Callable[[], object]] = {
            "weights": lambda: self.model.load_state_dict(own),
            "optimizer": lambda: self._load_optimizer(tensors),
            "schedule": lambda: self._load_schedule(data),
            "scale": lambda: setattr(self, "scale", data["scale"]),
            "torch_rng": lambda: torch.set_rng_state(tensors["torch_rng"]),
            "numpy_rng": lambda: np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest)),
            "python_rng": lambda: random.setstate((version, tuple(inner), gauss)),
            "position": lambda: setattr(self, "order", list(data["position"])),
        }
        assert tuple(take) == PARTS
        for part, act in take.items():
            if part != leave_out:
                act()

    def _load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        fresh = self.optimizer.state_dict()
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, field = name.split(".")
                fresh["state"].setdefault(int(index), {})[field] = tensor
        self.optimizer.load_state_dict(fresh)

    def _load_schedule(self, data: dict[str, Any]) -> None:
        self.schedule.load_state_dict(data["schedule"])
        self.optimizer.param_groups[0]["lr"] = data["lr"]

    def digest(self) -> str:
        parts = b"".join(t.numpy().tobytes() for _, t in sorted(self.model.state_dict().items()))
        return hashlib.sha256(parts).hexdigest()


def rows_of(text: str) -> list[list[float]]:
    """Return twenty-four rows of eight numbers that `text` decides."""
    draws = [hashlib.sha256(f"{text}/{i}".encode()).digest()[:8] for i in range(24)]
    return [[b / 255 - 0.5 for b in draw] for draw in draws]


def learn(
    folder: Path,
    seed: int,
    text: str,
    *,
    stop_after: int = STEPS,
    leave_out: str = "",
    step: Callable[[int, float], bool],
    saved: Callable[[int], None] = lambda _: None,
) -> tuple[int, str, list[str]]:
    """Train from the newest checkpoint on; return the last step, the weights' digest, and what was found damaged.

    `step` hears of every step and says whether to save and stop, `saved` of every checkpoint.
    """
    pause = float(os.environ.get("FAULT_PAUSE", "0.004"))
    padding = "x" * int(os.environ.get("FAULT_PAD_CHECKPOINT", "0"))
    checkpoints, learner, first = Checkpointer(folder, "learn"), Learner(seed, rows_of(text)), 0
    found = checkpoints.latest()
    if found is not None:
        learner.load(found.tensors, found.data, leave_out)
        first = found.step
    for number in range(first + 1, stop_after + 1):
        time.sleep(pause)
        loss = learner.step()
        stop = step(number, loss)
        if number % EVERY == 0 or stop:
            fault_point("before_checkpoint")
            tensors, data = _json(learner.state())
            checkpoints.save(number, tensors, data | {"padding": padding})
            saved(number)
            fault_point("after_checkpoint")
        if stop:
            return number, "", checkpoints.damaged
    return stop_after, learner.digest(), checkpoints.damaged


def _json(state: tuple[dict[str, Tensor], dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return state[0], json.loads(json.dumps(state[1]))
