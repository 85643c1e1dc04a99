"""What nodes that act and train share: rollouts kept until a checkpoint, and new weights for the sampler."""

from flows.work.serving import AnySampler
from specs.errors import StateError
from specs.records import Trajectory
from tasks.learning.checkpoints import tensor_digest
from tasks.learning.learner import Learner
from tasks.loops.rollout_store import RolloutStore


class Keeper:
    """Holds rollouts until the next checkpoint, then stores them; gives them back in order of steps."""

    def __init__(self, store: RolloutStore) -> None:
        self._store = store
        self._pending: dict[int, list[Trajectory]] = {}

    def keep(self, step: int, trajectories: list[Trajectory]) -> None:
        """Hold a step's rollouts."""
        self._pending[step] = trajectories

    def flush(self, steps: int) -> None:
        """Store what belongs to finished steps."""
        for step in [s for s in self._pending if s < steps]:
            self._store.write(f"step-{step:06d}", self._pending.pop(step))

    def all(self, steps: int) -> list[Trajectory]:
        """Return the rollouts of all steps. StateError where a stored step is damaged."""
        found: list[Trajectory] = []
        for step in range(steps):
            part = self._pending.get(step)  # empty where a step had nothing but demonstrations
            part = self._store.read(f"step-{step:06d}") if part is None else part
            if part is None:
                raise StateError(
                    f"the kept rollouts of step {step} are damaged or gone; remove the node's ckpt folder to train the "
                    "stage anew"
                )
            found += part
        return found


def load_weights(sampler: AnySampler, learner: Learner, node_id: str, step: int) -> None:
    """Give the sampler the learner's weights, as those of this step."""
    model = learner.plain()
    digest = tensor_digest(dict(model.named_parameters()))
    sampler.load_weights(model, f"{node_id}/{step}/{digest[:12]}")
