"""What reward models minimise, as an equation and in words. Pure."""

from flows.losses_of_pairs import pair_words
from specs.reward_models import RewardModel

_LABELS = {
    "visits": "y = success among the trajectories of the problem that made the same calls so far",
    "outcome": "y = the trajectory's success",
    "calls": "y = 1 where the call changed, informed or ended well, else 0",
}


def reward_model_loss(spec: RewardModel) -> tuple[str, str]:
    """Return the loss of a reward model, and what its terms are."""
    said = (
        f"{spec.held_out:.0%} of the problems are held out; the stage stops where the model is right on less than "
        f"{spec.least_accuracy:.0%} of what is compared there; the policy stays as it is"
    )
    if spec.learns == "turns":
        labels = f"{_LABELS[spec.turns.by]}, of {spec.turns.samples} rollouts of each problem"
        return "L = - mean [y log sigmoid(v) + (1 - y) log sigmoid(-v)]", f"v = number after a turn; {labels}; {said}"
    ahead = "r+ - r- - (R+ - R-)" if spec.use_margin == "reward" else "r+ - r-"
    centre = f" + {spec.center_coef:g} (r+ + r-)^2" if spec.center_coef else ""
    words = f"r = number after a trajectory, + the chosen one and - the rejected one; {pair_words(spec.pairing)}"
    return f"L = mean [- log sigmoid({ahead}){centre}]", f"{words}; {said}"
