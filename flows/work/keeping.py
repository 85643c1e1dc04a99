"""What nodes that act and train share: rollouts kept until a checkpoint, and new weights for the sampler."""

from typing import TypeVar

from flows.work.serving import AnySampler
from specs.errors import StateError
from specs.records import Trajectory
from tasks.episodes.token_signals import TokenSignal
from tasks.learning.checkpoints import tensor_digest
from tasks.learning.learner import Learner
from tasks.loops.rollout_store import RolloutStore

T = TypeVar("T")


class Keeper:
    """Holds rollouts, and what teachers said of them, until the next checkpoint, then stores them; gives them back by steps."""

    def __init__(self, store: RolloutStore) -> None:
        self._store = store
        self._pending: dict[int, list[Trajectory]] = {}
        self._said: dict[int, list[TokenSignal]] = {}

    def keep(self, step: int, trajectories: list[Trajectory]) -> None:
        """Hold a step's rollouts."""
        self._pending[step] = trajectories

    def keep_signals(self, step: int, signals: list[TokenSignal]) -> None:
        """Hold what teachers said of a step's tokens."""
        self._said[step] = signals

    def flush(self, steps: int) -> None:
        """Store what belongs to finished steps."""
        for step in [s for s in self._pending if s < steps]:
            self._store.write(_name(step), self._pending.pop(step), self._said.pop(step, None))

    def all(self, steps: int) -> list[Trajectory]:
        """Return the rollouts of all steps. StateError where a stored step is damaged."""
        found: list[Trajectory] = []
        for step in range(steps):
            part = self._pending.get(step)  # empty where a step had nothing but demonstrations
            found += _there(self._store.read(_name(step)) if part is None else part, step)
        return found

    def signals(self, steps: int) -> list[TokenSignal]:
        """Return what teachers said in all steps. StateError where a stored step is damaged."""
        found: list[TokenSignal] = []
        for step in range(steps):
            part = self._said.get(step)
            found += _there(self._store.read_signals(_name(step)) if part is None else part, step)
        return found


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _there(part: list[T] | None, step: int) -> list[T]:
    if part is None:
        raise StateError(
            f"the kept rollouts of step {step} are damaged or gone; remove the node's ckpt folder to train the stage anew"
        )
    return part


def load_weights(sampler: AnySampler, learner: Learner, node_id: str, step: int) -> None:
    """Give the sampler the learner's weights, as those of this step."""
    model = learner.plain()
    digest = tensor_digest(dict(model.named_parameters()))
    sampler.load_weights(model, f"{node_id}/{step}/{digest[:12]}")
