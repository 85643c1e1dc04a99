"""G2PO: clipped policy gradient with credit by turn, from a graph of the group's states (arXiv:2606.22995).

Worth of a state V(o) = mean over its visits of discount^(K - k) R, K turns, k from 0, R = success_value or 0; the end of
a success has success_value, that of a failure 0. A_turn = [V(next) less its mean over the visits of the same state, and
less invalid_penalty where the call could not be used; only states left more than once] + [V(next) - V(state) less its
mean over the group's turns], both by their sample std + std_floor where scaled. A = A_trajectory + turn_coef A_turn.
L as in GRPO, every token of a turn with the turn's A. Left out: distances to the goal. B trajectories, T tokens.
"""

from collections.abc import Hashable, Sequence
from statistics import fmean

from specs.turn_credit import G2PO
from tasks.learning.grouping import Rewarded, TurnValues, Values, by_group, by_turn, normalised, visits
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput

Place = tuple[int, int]
"""(trajectory, turn)."""


def advantages(rewarded: Rewarded, spec: G2PO) -> Values:
    """Return each trajectory's advantage within its group."""
    return by_group(rewarded, lambda rewards, _: normalised(rewards, _floor(spec)))


def worths(rewarded: Rewarded, indices: Sequence[int], spec: G2PO) -> dict[Hashable, float]:
    """Return the worth of each state of a group."""

    def from_turn(place: Place) -> float:
        walk = rewarded.walks[place[0]]
        return spec.discount ** (len(walk.anchors) - place[1]) * _end(rewarded, place[0], spec)

    return {anchor: fmean(map(from_turn, places)) for anchor, places in visits(rewarded, indices).items()}


def next_worths(rewarded: Rewarded, indices: Sequence[int], spec: G2PO) -> dict[Place, float]:
    """Return the worth of what each turn led to: the next state, or the end."""
    worth, found = worths(rewarded, indices, spec), dict[Place, float]()
    for i in indices:
        anchors = rewarded.walks[i].anchors
        for k in range(len(anchors)):
            found[i, k] = worth[anchors[k + 1]] if k + 1 < len(anchors) else _end(rewarded, i, spec)
    return found


def within_states(rewarded: Rewarded, indices: Sequence[int], spec: G2PO) -> dict[Place, float]:
    """Return how much better each turn's next state is than those of other turns from the same state."""
    after, found = next_worths(rewarded, indices, spec), dict[Place, float]()
    for places in visits(rewarded, indices).values():
        values = normalised([after[p] for p in places], _floor(spec))
        for (i, k), value in zip(places, values, strict=True):
            invalid = len(places) > 1 and not rewarded.walks[i].valid[k]
            found[i, k] = value - (spec.invalid_penalty if invalid else 0.0)
    return found


def gains(rewarded: Rewarded, indices: Sequence[int], spec: G2PO) -> dict[Place, float]:
    """Return how much each turn gained: the worth of its next state less that of its own."""
    worth = worths(rewarded, indices, spec)
    after = next_worths(rewarded, indices, spec)
    return {(i, k): value - worth[rewarded.walks[i].anchors[k]] for (i, k), value in after.items()}


def turns_own(rewarded: Rewarded, spec: G2PO) -> dict[Place, float]:
    """Return the advantage of (trajectory, turn), without that of its trajectory."""
    found: dict[Place, float] = {}
    for indices in rewarded.members().values():
        within, gained = within_states(rewarded, indices, spec), gains(rewarded, indices, spec)
        centred = dict(zip(gained, normalised(list(gained.values()), _floor(spec)), strict=True))
        found |= {place: within[place] + centred[place] for place in gained}
    return found


def turn_advantages(rewarded: Rewarded, spec: G2PO) -> TurnValues:
    """Return by trajectory the advantage of each turn."""
    return by_turn(rewarded, advantages(rewarded, spec), turns_own(rewarded, spec), spec.turn_coef)


def _end(rewarded: Rewarded, i: int, spec: G2PO) -> float:
    return spec.success_value if rewarded.walks[i].success else 0.0


def _floor(spec: G2PO) -> float | None:
    return spec.std_floor if spec.scale_rewards == "group_std" else None


def loss(batch: Batch, spec: G2PO) -> LossOutput:
    """Return minus the clipped surrogate."""
    t = terms(batch, spec)
    return total(batch, spec, *clipped(t.ratio_BT, t.advantages_BT, spec))
