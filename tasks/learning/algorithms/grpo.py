"""GRPO: clipped policy gradient on group-relative advantages (arXiv:2402.03300), asymmetric clip of DAPO (2503.14476).

A_i = (R_i - mean R) / (sample std R + std_floor) within a group. `group_population_std` divides by the population's
(as the paper's formula can be read), `batch_std` by the step's sample std (LitePPO, 2508.08221), `none` by nothing.
L = sum_it w_it max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A), r = pi / pi_old where the trainer's logprobs before
the update are given, else pi / sampler; dual clip (1912.09729), KL and entropy as declared.
Left out: the published k3 is `kl: k3`, the default has its value and the gradient of KL(pi || reference).
B trajectories, T tokens.
"""

from functools import partial
from statistics import stdev

from specs.grpo import GRPO
from tasks.learning.grouping import FLAT, Rewarded, Values, by_group, centred, scaled
from tasks.learning.surrogate import clipped, terms, total
from tasks.tensors import Batch, LossOutput


def advantages(rewarded: Rewarded, spec: GRPO) -> Values:
    """Return the distance of each reward from its group's mean, scaled; None where no reward was given."""
    match spec.scale_rewards:
        case "none":
            return by_group(rewarded, centred)
        case "batch_std":
            values = [rewarded.value(i) for i in rewarded.given()]
            spread = (stdev(values) if len(values) > 1 else FLAT) + spec.std_floor
            return [a if a is None else a / spread for a in by_group(rewarded, centred)]
        case "group_std" | "group_population_std" as scale:
            return by_group(rewarded, partial(_scaled, spec.std_floor, scale == "group_population_std"))


def _scaled(floor: float, population: bool, rewards: list[float], tokens: list[int]) -> list[float]:  # noqa: FBT001
    return scaled(rewards, floor, population=population)


def loss(batch: Batch, spec: GRPO) -> LossOutput:
    """Return minus the clipped surrogate plus the KL term."""
    t = terms(batch, spec)
    return total(batch, spec, *clipped(t.ratio_BT, t.advantages_BT, spec))
