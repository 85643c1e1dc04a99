"""A stage that runs away and stays finite ends as one that stops learning does, and never as completed."""

import copy
from dataclasses import replace

import pytest

from specs.errors import TrainingError
from specs.optimizer import Optimizer
from specs.preference import DPO, KTO, SimPO
from specs.reward_models import RewardModel
from specs.supervised import SFT, RewardWeighted, SupervisedBatch
from tasks.learning.algorithms import loss_for
from tasks.learning.algorithms.reward_weighted import AGGREGATION
from tasks.learning.batching import Aggregation
from tasks.learning.learner import Chance, Learner, StepReport
from tasks.learning.values import ValueLearner, ValueModel
from tasks.loops.batches import batch_plan
from tasks.loops.divergence import FAR, MARGIN, WINDOW, Guard
from tasks.loops.fit import fit_supervised
from tests.tasks.loops.toy import demonstration_rows, taught_policy, toy_policy

COIN = Guard(Chance(0.7, "a judgement", "the toss of a coin"), 0.1, 20)


@pytest.fixture(scope="module")
def taught():
    policy = taught_policy()
    return policy, demonstration_rows(policy, 80)


def fit(model, rows, spec, learning_rate, *, mean: Aggregation = "token", kind=Learner):
    units = [[2 * k, 2 * k + 1] for k in range(len(rows) // 2)] if rows[0].pair else [[i] for i in range(len(rows))]
    order = batch_plan([rows[unit[0]].length for unit in units], SupervisedBatch(rows=8), 2, 0)
    plan = [[i for unit in step for i in units[unit]] for step in order]
    learner = kind(copy.deepcopy(model), Optimizer(kind="adamw", learning_rate=learning_rate), len(plan))
    return fit_supervised(learner, rows, plan, loss_for(spec), mean)


def sides(policy, rows):
    """Return pairs of rows, the chosen side first, with the policy's own logprobs as the reference."""
    made = [
        replace(row, pair=str(i // 2), preferred=i % 2 == 0, alone=False)
        for i, row in enumerate(rows[: len(rows) // 2 * 2])
    ]
    for row, values in zip(made, Learner(policy.model, Optimizer(learning_rate=1.0), 1).logprobs(made), strict=True):
        row.reference_logprobs = values
    return made


def test_a_likelihood_above_that_of_a_guess_stops_the_stage(taught):
    policy, rows = taught
    told = (
        r"step \d+: training has diverged: a token that is to become likelier costs [12]\d\.\d\d nats .*, 0\.\d\d in the "
        r"first step and 5\.61 by a uniform guess among 274\..*learning_rate \(now 1\)"
    )
    with pytest.raises(TrainingError, match=told):
        fit(policy.model, rows, SFT(type="sft"), 1.0)


@pytest.mark.parametrize("denominator", ["weighted_tokens", "sequences", "tokens"])
def test_weights_and_sums_over_tokens_do_not_hide_it(taught, denominator):
    policy, rows = taught
    weighed = [replace(row, weight=0.01 if i % 2 else 1.99) for i, row in enumerate(rows)]
    spec = RewardWeighted(type="reward_weighted", denominator=denominator)
    mean = AGGREGATION[denominator]
    with pytest.raises(TrainingError, match="training has diverged"):
        fit(policy.model, weighed, spec, 1.0, mean=mean)
    assert fit(policy.model, weighed, spec, 1e-3, mean=mean).notes == []


@pytest.mark.parametrize(
    ("spec", "learning_rate"),
    [(DPO(type="dpo"), 30.0), (SimPO(type="simpo"), 30.0), (KTO(type="kto"), 30.0)],
    ids=lambda v: getattr(v, "type", ""),
)
def test_pairs_that_run_away_stop_the_stage(taught, spec, learning_rate):
    policy, rows = taught
    pairs = sides(policy, rows)
    if isinstance(spec, KTO):
        pairs = [replace(row, pair="", alone=True) for row in pairs]
    with pytest.raises(TrainingError, match=r"training has diverged: a token .*learning_rate \(now 30\)"):
        fit(policy.model, pairs, spec, learning_rate, mean="absolute_sequence")
    assert fit(policy.model, pairs, spec, 1e-4, mean="absolute_sequence").notes == []


def test_a_reward_model_is_held_against_a_coin(taught):
    policy, rows = taught
    spec = RewardModel(type="reward_model", learns="pairs")
    pairs = [replace(row, pair=str(i // 2), preferred=i % 4 == 0 or i % 4 == 3) for i, row in enumerate(rows)]
    model = ValueModel(policy.model, share=True)
    with pytest.raises(TrainingError, match=r"a judgement costs .* and 0\.69 by the toss of a coin"):
        fit(model, pairs, spec, 3.0, mean="absolute_sequence", kind=ValueLearner)
    assert fit(model, pairs, spec, 1e-4, mean="absolute_sequence", kind=ValueLearner).notes == []


def test_a_rise_that_stays_below_a_guess_is_told(taught):
    policy, rows = taught
    (note,) = fit(policy.model, rows, SFT(type="sft"), 0.1).notes
    assert note.startswith("the loss rose: a token that is to become likelier costs ")
    assert "0.35 in the first step (5.61 by a uniform guess among 274); lower optimizer.learning_rate (now 0.1)" in note
    assert fit(policy.model, rows, SFT(type="sft"), 1e-3).notes == []


def test_a_policy_from_nothing_begins_at_a_guess_and_is_let_alone():
    policy = toy_policy()
    done = fit(policy.model, demonstration_rows(policy, 80), SFT(type="sft"), 0.1)
    assert done.first_loss > 5.5
    assert done.last_loss < 1.5
    assert done.notes == []


def test_the_median_of_the_last_steps_decides():
    start, high = 0.1, 0.1 + MARGIN + 0.1
    COIN.check([start, high, high, high, high], [], 5)
    with pytest.raises(
        TrainingError, match=r"step 6: .*a judgement costs 1\.20 nats .*0\.10 in the first step and 0\.70"
    ):
        COIN.check([start, *[high] * WINDOW], [], 6)
    COIN.check([start, high, high, start, start, start], [], 6)
    COIN.check([start, *[0.69] * 19], [], 20)
    COIN.check([high, *[high + 0.5] * 10], [], 11)
    with pytest.raises(TrainingError, match="step 20"):
        COIN.check([start, high], [], 20)
    COIN.check([start], [], 20)


def test_long_stages_have_a_longer_window():
    guard = replace(COIN, steps=100)
    guard.check([0.1, *[9.0] * 9], [], 10)
    with pytest.raises(TrainingError, match="diverged"):
        guard.check([0.1, *[9.0] * 10], [], 11)


def test_what_is_rejected_may_fall_far_and_not_farther():
    costs = [0.1] * 6
    COIN.check(costs, [2.0, *[2.0 + FAR] * 5], 6)
    with pytest.raises(TrainingError, match=r"a token of the rejected side costs 22\.1 nats .*2\.00 in the first step"):
        COIN.check(costs, [2.0, *[2.1 + FAR] * 5], 6)


def test_the_last_update_is_seen_on_its_own_rows():
    guard, high = replace(COIN, steps=3), 0.1 + MARGIN + 0.1
    guard.check_last([0.1, 0.1], [], StepReport(updated=False, cost=high - 0.2))
    guard.check_last([0.1, 0.5], [], StepReport(updated=False, cost=high))
    guard.check_last([], [], StepReport(updated=False))
    told = (
        r"step 3: .*a judgement costs 1\.20 nats after the last update, 0\.10 before it and 0\.70 by the toss of a coin"
    )
    with pytest.raises(TrainingError, match=told):
        guard.check_last([0.1, 0.1], [], StepReport(updated=False, cost=high))
    guard.check_last([0.1], [2.0], StepReport(updated=False, cost=0.1, rejected_cost=2.0 + FAR))
    with pytest.raises(TrainingError, match=r"rejected side costs 22\.1 nats after the last update, 2\.00 before it"):
        guard.check_last([0.1], [2.0], StepReport(updated=False, cost=0.1, rejected_cost=2.1 + FAR))


def test_a_stage_of_one_step_that_runs_away_is_stopped(taught):
    policy, rows = taught
    for learning_rate in (1.0, 1e-3):
        learner = Learner(copy.deepcopy(policy.model), Optimizer(kind="adamw", learning_rate=learning_rate), 1)
        if learning_rate < 1.0:
            assert fit_supervised(learner, rows, [[0, 1, 2, 3]], loss_for(SFT(type="sft"))).notes == []
            continue
        with pytest.raises(
            TrainingError, match=r"step 1: training has diverged: .* after the last update, 0\.\d\d before it"
        ):
            fit_supervised(learner, rows, [[0, 1, 2, 3]], loss_for(SFT(type="sft")))
