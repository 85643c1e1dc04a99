"""GiGPO: clipped policy gradient with credit by turn, among turns that start from the same state (arXiv:2505.10978).

G_t = r_t + discount G_{t+1}, the reward standing on the last turn; with `turn_rewards` a turn has what it earned by itself
and the last one the rest too. A_turn = G_t less its mean over the visits of the same state in the group (by their sample
std + std_floor where scaled; 0 for a state visited once). A = A_trajectory + turn_coef A_turn, A_trajectory = R less the
group's mean over trajectories, or over turns (as the reference code has it). L as in GRPO, every token of a turn with the
turn's A. Left out: states that are alike and not equal. B trajectories, T tokens.
"""

from dataclasses import replace
from statistics import fmean, stdev

from specs.turn_credit import GiGPO
from tasks.learning.grouping import Rewarded, TurnValues, Values, by_group, by_turn, normalised, visits
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput


def advantages(rewarded: Rewarded, spec: GiGPO) -> Values:
    """Return each trajectory's advantage within its group."""
    floor = spec.std_floor if spec.scale_rewards == "group_std" else None
    if spec.statistics == "trajectories":
        return by_group(rewarded, lambda rewards, _: normalised(rewards, floor))
    counted = replace(rewarded, tokens=[len(w.anchors) for w in rewarded.walks])
    return by_group(counted, lambda rewards, turns: _over_turns(rewards, turns, floor))


def _over_turns(rewards: list[float], turns: list[int], floor: float | None) -> list[float]:
    repeated = [r for r, n in zip(rewards, turns, strict=True) for _ in range(n)]
    if len(repeated) < 2:
        return [0.0] * len(rewards)
    mean, divisor = fmean(repeated), 1.0 if floor is None else stdev(repeated) + floor
    return [(r - mean) / divisor for r in rewards]


def turn_returns(rewarded: Rewarded, i: int, spec: GiGPO) -> list[float]:
    """Return the discounted reward from each turn on."""
    walk, discount = rewarded.walks[i], spec.discount
    turns, own = len(walk.anchors), walk.rewards if spec.turn_rewards else ()
    rest = rewarded.value(i) - sum(own)
    return [
        rest * discount ** (turns - 1 - k) + sum(own[j] * discount ** (j - k) for j in range(k, len(own)))
        for k in range(turns)
    ]


def turns_own(rewarded: Rewarded, spec: GiGPO) -> dict[tuple[int, int], float]:
    """Return the advantage of (trajectory, turn) among visits of the same state."""
    floor = spec.std_floor if spec.scale_rewards == "group_std" else None
    found: dict[tuple[int, int], float] = {}
    for indices in rewarded.members().values():
        returns = {i: turn_returns(rewarded, i, spec) for i in indices}
        for places in visits(rewarded, indices).values():
            values = normalised([returns[i][k] for i, k in places], floor)
            found |= dict(zip(places, values, strict=True))
    return found


def turn_advantages(rewarded: Rewarded, spec: GiGPO) -> TurnValues:
    """Return by trajectory the advantage of each turn."""
    return by_turn(rewarded, advantages(rewarded, spec), turns_own(rewarded, spec), spec.turn_coef)


def loss(batch: Batch, spec: GiGPO) -> LossOutput:
    """Return minus the clipped surrogate."""
    t = terms(batch, spec)
    return total(batch, spec, *clipped(t.ratio_BT, t.advantages_BT, spec))
