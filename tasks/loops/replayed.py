"""What a step trains on beside its fresh rollouts: trajectories of earlier steps, and demonstrations."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from torch import Tensor

from specs.policy_gradient import PolicyGradient
from specs.records import Trajectory
from specs.replay import Shown
from specs.turn_credit import TurnCredit
from specs.value_based import ValueBased
from tasks.learning.learner import Learner
from tasks.learning.replay import Drawn, ReplayBuffer, as_replayed
from tasks.learning.rows import TrainingRow


@dataclass(slots=True)
class Extra:
    """Rows of a step beside the fresh ones, and the figures of both kinds."""

    rows: list[TrainingRow] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    drawn: list[tuple[Drawn, list[TrainingRow]]] = field(default_factory=list)
    """From the buffer, with the rows that train."""


class Mixture:
    """Mixes batches of one stage. Deterministic: what is drawn depends on the seed, the step and the buffer."""

    def __init__(self, spec: PolicyGradient, seed: int, demonstrations: Sequence[Sequence[TrainingRow]] = ()) -> None:
        """`demonstrations`: each as its rows."""
        assert spec.replay is not None, "there is nothing to mix"
        self._spec, self._seed = spec, seed
        self._replay = spec.replay
        self._shown = list(demonstrations)
        self.buffer = ReplayBuffer(spec.replay.history, seed) if spec.replay.history is not None else None

    def extra(self, learner: Learner, step: int, silent: int) -> Extra:
        """Return what the step trains on again; `silent` trajectories of the fresh ones teach nothing."""
        made = Extra()
        self._again(made, step, silent)
        self._show(made, learner, step)
        return made

    def _again(self, made: Extra, step: int, silent: int) -> None:
        spec = self._replay.history
        if spec is None or self.buffer is None:
            return
        count = min(spec.per_step, silent) if spec.fill == "silent" else spec.per_step
        found = self.buffer.draw(step, self._spec.steps, count)
        for one in found:
            rows = [as_replayed(r, spec.weight * one.times, one.weight) for r in one.kept.rows]
            made.rows += rows
            made.drawn.append((one, rows))
        made.figures |= {
            "replayed": float(sum(one.times for one in found)),
            "replay_buffer": float(len(self.buffer)),
            "replay_age": fmean(step - one.kept.step for one in found) if found else 0.0,
        }

    def _show(self, made: Extra, learner: Learner, step: int) -> None:
        spec = self._replay.demonstrations
        if spec is None:
            return
        chosen = _turn(len(self._shown), spec, self._seed, step) if step < spec.until * self._spec.steps else []
        rows = [self._as_shown(row, spec) for i in chosen for row in self._shown[i]]
        for row, values in zip(rows, learner.logprobs(rows), strict=True):
            row.sampler_logprobs = values  # the ratio begins at 1
        made.rows += rows
        made.figures["shown"] = float(len(chosen))

    def _as_shown(self, row: TrainingRow, spec: Shown) -> TrainingRow:
        made = replace(row, weight=spec.weight, advantage=spec.advantage)
        made.stale = True
        if isinstance(self._spec, TurnCredit):
            made.advantages = [spec.advantage] * len(row.ids)
        return made

    def learn(self, extra: Extra, step: int, rows: Sequence[TrainingRow], fresh: Sequence[Trajectory]) -> None:
        """After the update: take in the fresh rows; where a critic judges, keep what it now thinks of the others."""
        if self.buffer is None:
            return
        by_critic = isinstance(self._spec, ValueBased)
        if by_critic:
            self.buffer.judge(extra.drawn)
        self.buffer.admit(step, rows, {t.id: bool(t.success) for t in fresh}, by_critic=by_critic)

    @property
    def left(self) -> dict[str, int]:
        """Return, by reason, how many trajectories the buffer did not take in or has let go."""
        return {} if self.buffer is None else dict(self.buffer.left)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain data for a checkpoint."""
        return self.buffer.state() if self.buffer is not None else ({}, {})

    def load_state(self, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        if self.buffer is not None:
            self.buffer.load_state(tensors, data)


def _turn(count: int, spec: Shown, seed: int, step: int) -> list[int]:
    """Return which demonstrations a step has: pass after pass over all, each shuffled anew, none twice in a step."""
    size = min(spec.per_step, count)
    found: list[int] = []
    at = step * size
    while len(found) < size:
        order = list(range(count))
        random.Random(f"{seed}/shown/{at // count}").shuffle(order)
        free = [i for i in order[at % count :] if i not in found]
        taken = free[: size - len(found)]
        found += taken
        at += count - at % count
    return found
