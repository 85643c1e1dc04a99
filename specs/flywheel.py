"""The flywheel: rollouts that fail are attributed to causes, remedies fill pools, and rounds of stages train from them."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from specs.base import Count, Positive, SetName, Share, Spec
from specs.stages import Stage

Cause = Literal[
    "infrastructure", "environment", "verifier", "data", "unknown_tool", "argument", "format", "wrong_tool", "planning",
    "state_tracking", "observation_misread", "error_recovery", "premature_stop", "loop", "long_horizon", "reward_hack",
    "inefficiency", "unknown",
]  # fmt: skip
"""Why a trajectory failed."""
Pool = Literal["repaired", "pairs", "hard", "successes", "anchor", "regression"]
"""Reserved names: no data set may be called so."""
POOLS: tuple[Pool, ...] = get_args(Pool)


class Mine(Spec):
    """Rollouts in which a round looks for failures."""

    sources: Annotated[list[SetName], Field(alias="from", min_length=1)]
    """Training sets whose problems are tried."""
    problems: Count = 200
    """Problems of one round; all where there are fewer."""
    samples: Count = 1
    """Tries of each problem."""
    temperature: Positive = 1.0


class Siblings(Spec):
    """Problems of a case's type and cause with other entities: what may train where the case itself may not."""

    per_case: Count = 2
    tries: Count = 16
    """Draws for one sibling until one is new, apart from every evaluation set, and solved."""
    max_unsolved: Share = 0.1
    """Share of siblings that their own environment cannot solve, from which the round stops."""


class Repair(Spec):
    """Solutions of siblings, verified, go into the pool `repaired`."""

    do: Literal["repair"]
    by: Literal["clerk"] = "clerk"
    """Who solves them: the environment's own clerk."""
    quota: Count = 200
    """Most of a round."""


class Prefer(Spec):
    """Siblings with verified solutions go into the pool `pairs`, for stages on pairs.

    Such a stage rolls its policy out on them: what fails is paired with the policy's own success or, where it has none,
    with that solution. With `choose: alone` (kto) such a solution is wanted like a success.
    """

    do: Literal["prefer"]
    by: Literal["clerk"] = "clerk"
    """Who solves them: the environment's own clerk."""
    quota: Count = 200
    """Most of a round."""


class HardPool(Spec):
    """Siblings go into the pool `hard`, as problems to practise on."""

    do: Literal["hard_pool"]
    quota: Count = 200
    """Most of a round."""


class Ticket(Spec):
    """The case is written down for whoever keeps the environment, verifier or data; nothing trains."""

    do: Literal["ticket"]


class AskPerson(Spec):
    """The case waits for a person; nothing trains."""

    do: Literal["ask_person"]


class StopForRewardFix(Spec):
    """The round stops, so that nothing trains on a reward that pays for the wrong thing."""

    do: Literal["stop_for_reward_fix"]


Remedy = Annotated[Repair | Prefer | HardPool | Ticket | AskPerson | StopForRewardFix, Field(discriminator="do")]
DefaultRemedy = Literal["repair", "prefer", "hard_pool", "ticket", "ask_person", "stop_for_reward_fix"]


class PoolSizes(Spec):
    """Most rows of the pools that no remedy fills."""

    successes: Count = 400
    """Verified trajectories of the rollouts that were mined."""
    anchor: Count = 400
    """Verified rows of the main part's training data, against forgetting."""


class Round(Spec):
    """What one round trains; its evaluation and gates are those of the main part."""

    start_from: Literal["candidate_or_champion", "candidate"] = "candidate_or_champion"
    """The candidate before it, unless its gate failed and there is a champion; or that candidate in any case."""
    stages: Annotated[list[Stage], Field(min_length=1)]
    """As in the main part; `data` may name pools, and `from` names an earlier stage of the round."""


class Stop(Spec):
    """When later rounds are left out."""

    no_gain_rounds: Count = 1
    """Rounds in a row without a gain after which no further one runs."""
    gain_on: SetName | None = None
    """Evaluation set whose success must rise; the first of evaluation.sets where left out."""


class Flywheel(Spec):
    """Rounds after the main part: mine, attribute, remedy, train, judge."""

    mine: Mine
    causes_from: list[SetName] = []
    """Evaluation sets whose failures count for causes and give siblings; themselves they never train."""
    remedies: dict[Cause, Remedy] = {}
    """Cause -> what is done about it."""
    default: DefaultRemedy = "ask_person"
    """Remedy of every other cause, with its own defaults."""
    siblings: Siblings = Siblings()
    pools: PoolSizes = PoolSizes()
    round: Round
    rounds: Count = 1
    """Most rounds of one execution."""
    stop: Stop = Stop()


def default_remedy(name: DefaultRemedy) -> Remedy:
    """Return the remedy of that name with its own defaults."""
    match name:
        case "repair":
            return Repair(do=name)
        case "prefer":
            return Prefer(do=name)
        case "hard_pool":
            return HardPool(do=name)
        case "ticket":
            return Ticket(do=name)
        case "ask_person":
            return AskPerson(do=name)
        case "stop_for_reward_fix":
            return StopForRewardFix(do=name)


def remedies_in_use(flywheel: Flywheel) -> list[Remedy]:
    """Return every remedy that may be applied, the default one last."""
    return [*flywheel.remedies.values(), default_remedy(flywheel.default)]


def pools_read(flywheel: Flywheel) -> list[Pool]:
    """Return the pools that stages of the round read, each once."""
    read = dict.fromkeys(n for s in flywheel.round.stages for n in s.data)
    return [pool for pool in POOLS if pool in read]
