"""Every policy gradient through the real loop, sampler, learner and verifier, on a policy of some ten thousand weights."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from specs.algorithms import policy_gradient_from
from specs.errors import Interrupted, TrainingError
from specs.policy_gradient import Correction
from tasks.learning.critic import CriticLearner
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.loops import updates
from tasks.loops.resampling import draw_step
from tasks.loops.updates import StepRows, policy_updates, update, without_missing
from tests.tasks.loops.test_on_policy import PROBLEMS, stage, taught, weights
from tests.tasks.loops.toy import problem, toy_arena

__all__ = ["taught"]

SMALL = {
    "group_size": 6,
    "problems_per_step": 4,
    "steps": 8,
    "optimizer": {"learning_rate": 1e-2, "schedule": "linear"},
}
MADE = {
    "reinforce": {"baseline": "running_mean", "aggregation": "sequence"},
    "rloo": {"kl_coef": 0.001, "aggregation": "sequence"},
    "grpo": {"kl_coef": 0.001, "kl": "k2", "entropy_coef": 0.001, "updates_per_batch": 2, "dual_clip": 3.0},
    "dr_grpo": {"token_budget": 8, "updates_per_batch": 2},
    "dapo": {"resample": {"max_rounds": 2, "when_short": "train"}},
    "gspo": {"updates_per_batch": 2},
    "gigpo": {},
    "g2po": {"scale_rewards": "group_std", "anchor": "history"},
    "ppo": {"critic": {"optimizer": {"learning_rate": 1e-2}, "warmup_steps": 1}, "updates_per_batch": 2},
    "turn_ppo": {"critic": {"optimizer": {"learning_rate": 1e-2}}, "updates_per_batch": 2},
    "sao": {
        "critic": {"optimizer": {"learning_rate": 1e-2}, "updates_per_batch": 2, "clip": None},
        "group_size": 1,
        "problems_per_step": 6,
        "steps": 16,
    },
    "cispo": {"correction": {"outside": "zero", "reject_below": 1e-4}},
}


def spec_of(kind, **more):
    return policy_gradient_from({"type": kind, **SMALL, **MADE.get(kind, {}), **more})


@pytest.mark.parametrize("kind", MADE)
def test_each_learns_what_is_rewarded(taught, kind):
    learner, run = stage(taught, spec_of(kind))
    report = run()
    first, last = report.curve[0], report.curve[-3:]
    assert 0.1 < first["success"] < 0.8
    assert sum(line["success"] for line in last) / 3 > first["success"] + 0.1, kind
    assert max(line.get("logprob_gap", 0.0) for line in report.curve) < 1e-4
    assert all(math.isfinite(v) for line in report.curve for v in line.values())
    assert learner.updates > 0


@pytest.mark.parametrize("kind", ["reinforce", "dapo", "gspo", "ppo"])
def test_a_stopped_stage_ends_with_the_same_bits(taught, tmp_path, kind):
    spec = spec_of(kind, steps=4)
    whole, run = stage(taught, spec)
    expected = run()
    _, run = stage(taught, spec, folder=tmp_path, stop_after=2)
    with pytest.raises(Interrupted):
        run()
    second, run = stage(taught, spec, folder=tmp_path)
    resumed = run()
    assert torch.equal(weights(second), weights(whole))
    assert (resumed.curve, resumed.draws, resumed.running_mean) == (
        expected.curve,
        expected.draws,
        expected.running_mean,
    )
    assert (resumed.running_mean is not None) == (kind == "reinforce")


def test_a_critic_learns_alone_in_its_warm_up(taught):
    spec = spec_of(
        "ppo", steps=5, critic={"optimizer": {"learning_rate": 2e-2}, "warmup_steps": 4, "updates_per_batch": 3}
    )
    learner, run = stage(taught, spec)
    before, report = weights(learner), run()
    losses = [line["value_loss"] for line in report.curve]
    assert losses[3] < 0.7 * losses[0]
    assert [line["updated"] for line in report.curve] == [0.0] * 4 + [1.0]
    assert (report.skipped_steps, learner.updates, learner.total_steps) == (0, 2, 2)
    assert not torch.equal(weights(learner), before)
    assert "value_explained" in report.curve[0]


def test_a_critic_without_two_different_rewards_stops_the_stage(taught):
    spec = spec_of("ppo", max_flat_steps=2)
    _, run = stage(taught, spec, problems=[problem(i, never=True) for i in range(6)])
    with pytest.raises(TrainingError, match=r"2 steps in a row no two trajectories had two different rewards"):
        run()


def test_one_trajectory_a_problem_learns_against_the_step(taught):
    _, run = stage(taught, spec_of("reinforce", group_size=1, problems_per_step=6, baseline="batch_mean"))
    report = run()
    assert report.curve[0]["too_few_valid_groups"] == 1.0
    assert report.trained_tokens > 0


def test_corrections_are_measured_and_leave_an_exact_sampler_alone(taught):
    plain, run = stage(taught, spec_of("gspo", steps=2))
    run()
    spec = spec_of("gspo", steps=2, correction=Correction(normalize=True, reject_mean=(0.9, 1.1)).model_dump())
    corrected, run = stage(taught, spec)
    report = run()
    assert report.curve[0]["mismatch_max"] < 1e-4
    assert report.curve[0]["correction_ess"] == pytest.approx(1.0, abs=1e-4)
    assert (report.curve[0]["rejected"], report.dropped) == (0.0, {})
    torch.testing.assert_close(weights(corrected), weights(plain), atol=1e-4, rtol=1e-3)


def spoil(sampler):
    model = copy.deepcopy(sampler._model)
    with torch.no_grad():
        model.embed.weight.mul_(1.1)
    sampler._model = model


def test_a_sampler_that_differs_is_corrected_or_rejected(taught):
    plain = {"steps": 1, "kl_coef": 0.0, "kl": "k3_plus", "max_logprob_gap": 9.0}
    spec = spec_of("grpo", **plain, correction={"outside": "zero"})
    _, run = stage(taught, spec, spoil=spoil)
    assert run().curve[0]["mismatch_k3"] > 1e-5
    spec = spec_of("grpo", **plain, correction={"reject_mean": (0.9999999, 1.0000001)})
    learner, run = stage(taught, spec, spoil=spoil)
    before = weights(learner)
    with pytest.raises(TrainingError, match=r"none of 1 steps made an update.*\d+ outside_reject_mean"):
        run()
    spec = spec_of("grpo", **plain, correction={"reject_mean": (0.9999999, 1.0000001)}, max_flat_steps=None)
    learner, run = stage(taught, spec, spoil=spoil)
    report = run()
    assert report.dropped["outside_reject_mean"] > 0
    assert (report.skipped_steps, report.curve[0]["updated"]) == (1, 0.0)
    assert torch.equal(weights(learner), before)


def test_a_stage_that_rejects_everything_stops_and_names_what_it_left_out(taught):
    spec = spec_of("grpo", max_flat_steps=2, correction={"reject_mean": (1.5, 2.0)}, problems_per_step=6)
    learner, run = stage(taught, spec)
    with pytest.raises(TrainingError, match=r"in 2 steps in a row no update was made; .*\(\d+ outside_reject_mean\)"):
        run()
    assert learner.updates == 0


class Order:
    """Problems in an order that is given; says what was asked for."""

    def __init__(self, *problems):
        self.left, self.asked = list(problems), []

    def draw(self, count):
        self.asked.append(count)
        drawn, self.left = self.left[:count], self.left[count:]
        return drawn


def drawn(taught, order, **resample):
    spec = spec_of("dapo", resample=resample, group_size=12)
    return draw_step(toy_arena(copy.deepcopy(taught)), spec, order.draw, seed=3, step=0)


def useful(*which):
    return [problem(i) if good else problem(i, never=True) for i, good in enumerate(which)]


def test_groups_that_do_not_vary_are_replaced_within_the_bound(taught):
    order = Order(*useful(1, 0, 0, 0), *useful(0, 0, 0), *useful(1, 0, 0), *useful(1, 1))
    made = drawn(taught, order, max_rounds=3, when_short="train")
    assert (made.rounds, order.asked) == ([4, 3, 3], [4, 3, 3])
    assert (made.stats.teaching, made.short) == (2, 2)
    assert made.figures() == {"sampling_rounds": 3.0, "discarded_groups": 8.0, "short_groups": 2.0}
    assert len(made.collected.trajectories) == 10 * 12
    assert len({t.id for t in made.collected.trajectories}) == 10 * 12
    assert len(made.stats.advantages) == 2 * 12


def test_a_full_step_asks_no_further(taught):
    order = Order(*useful(1, 1, 1, 0), *useful(1))
    made = drawn(taught, order, max_rounds=5)
    assert (made.rounds, made.short, made.stats.teaching) == ([4, 1], 0, 4)


def test_a_short_step_may_stop_the_stage(taught):
    order = Order(*useful(1, 0, 0, 0), *useful(0, 0, 0))
    with pytest.raises(TrainingError, match=r"1 of 4 groups vary after 2 rounds \(84 rollouts; solved: toy.say \d+%"):
        drawn(taught, order, max_rounds=2, when_short="stop")


def test_a_short_step_is_normalised_by_what_it_has(taught):
    spec = spec_of("dapo", steps=1, problems_per_step=6, resample={"max_rounds": 1, "when_short": "train"})
    some = [problem(i, never=i > 1) for i in range(6)]
    _, run = stage(taught, spec, problems=some)
    line = run().curve[0]
    assert line["short_groups"] >= 4
    assert line["updated"] == 1.0
    assert line["trained_tokens"] > 0


def row(logprobs, mask=(False, True, True, True)):
    return TrainingRow(id="r", source="s", ids=[1, 2, 3, 4], mask=list(mask), sampler_logprobs=logprobs)


def test_tokens_without_a_sampler_logprob_do_not_train_and_are_counted():
    rows = [row([0.0, -1.0, -math.inf, -0.5]), row([0.0, math.nan, -math.inf, -math.inf]), row([0.0, -1.0, -1.0, -1.0])]
    kept, missing = without_missing(rows, 0.5, 0)
    assert [r.mask for r in kept] == [[False, True, False, True], [False, True, True, True]]
    assert ([r.trained for r in kept], missing) == ([2, 3], 4)
    by_turn, _ = without_missing(rows, 0.5, 0, whole_turns=True)
    assert [r.mask for r in by_turn] == [[False, True, True, True]]
    two_turns = TrainingRow(
        id="r", source="s", ids=[1] * 6, mask=[False, True, False, True, True, True],
        sampler_logprobs=[0.0, -1.0, 0.0, -1.0, -math.inf, -1.0],
    )  # fmt: skip
    ((left,), missing) = without_missing([two_turns], 0.5, 0, whole_turns=True)
    assert (left.mask, missing) == ([False, True, False, False, False, False], 1)
    with pytest.raises(
        TrainingError, match=r"step 7: 4 of 9 tokens have no sampler logprob.*max_missing_logprobs is 0.4"
    ):
        without_missing(rows, 0.4, 7)


def test_a_sampler_without_logprobs_stops_before_the_first_update(taught, monkeypatch):
    from tasks.loops import resampling

    judged = resampling.rollouts

    def lossy(*args, **more):
        made = judged(*args, **more)
        return [replace(t, logprobs=[-math.inf if p else p for p in t.logprobs]) for t in made]

    monkeypatch.setattr(resampling, "rollouts", lossy)
    learner, run = stage(taught, spec_of("grpo", steps=1), problems=PROBLEMS)
    before = weights(learner)
    with pytest.raises(TrainingError, match="have no sampler logprob"):
        run()
    assert torch.equal(weights(learner), before)


def learners(taught, spec):
    model = copy.deepcopy(taught).model
    critic = CriticLearner(copy.deepcopy(taught).model, spec.critic, spec.steps) if hasattr(spec, "critic") else None
    return Learner(model, spec.optimizer, policy_updates(spec)), critic


def test_missing_tokens_are_counted_as_tokens_and_lost_trajectories_as_such(taught):
    spec = spec_of("grpo", kl_coef=0.0, kl="k3_plus", max_logprob_gap=9.0, max_missing_logprobs=0.9)
    rows = [row([0.0, -1.0, -math.inf, -0.5]), row([0.0, *[-math.inf] * 3])]
    rows[1].id = "other"
    done = update(learners(taught, spec)[0], StepRows(rows), spec, None, max_length=9, step=0)
    assert (done.missing_logprobs, done.dropped) == (4, {"missing_logprob": 1})


def test_both_schedules_go_on_in_steps_without_a_row(taught):
    spec = spec_of(
        "ppo", steps=4, critic={"optimizer": {"learning_rate": 1e-2}, "warmup_steps": 2, "updates_per_batch": 3}
    )
    learner, critic = learners(taught, spec)
    assert critic is not None
    for step in range(4):
        done = update(learner, StepRows([]), spec, None, max_length=9, step=step, critic=critic)
        assert done.warm_up is (step < 2)
        assert "value_loss" not in done.figures
    assert (learner.step_index, learner.total_steps) == (4, 4)  # two passes in each of two steps
    assert (critic.step_index, critic.total_steps) == (12, 12)


@pytest.mark.parametrize("mean", ["constant", "sequence_sum"])
def test_sums_over_tokens_are_divided_by_trajectories_of_silent_groups_too(taught, mean):
    spec = spec_of("dr_grpo", updates_per_batch=1, aggregation=mean, token_budget=8 if mean == "constant" else None)

    def loss(unmoved):
        made = row([0.0, -1.0, -1.0, -1.0])
        made.advantage = 1.0
        wide = spec.model_copy(update={"max_logprob_gap": 99.0})
        learner = learners(taught, spec)[0]
        return update(learner, StepRows([made], unmoved), wide, None, max_length=9, step=0).figures["loss"]

    assert loss(3) == pytest.approx(loss(0) / 4)


@pytest.mark.parametrize(
    ("kind", "more", "all_train"),
    [
        ("grpo", {"kl_coef": 0.0, "kl": "k3_plus", "entropy_coef": 0.0}, False),
        ("grpo", {"entropy_coef": 0.0}, True),
        ("grpo", {"kl_coef": 0.0, "kl": "k3_plus"}, True),
        ("gigpo", {"kl_coef": 0.1}, True),
        ("dapo", {"kl_coef": 0.1}, False),
    ],
)
def test_silent_groups_train_where_kl_or_entropy_is_of_all(taught, monkeypatch, kind, more, all_train):
    from tasks.loops import on_policy

    seen = []

    def watched(learner, batch, *args, **named):
        seen.append(copy.deepcopy(batch))
        return updates.update(learner, batch, *args, **named)

    monkeypatch.setattr(on_policy, "update", watched)
    spec = spec_of(kind, steps=1, problems_per_step=6, **more)
    _, run = stage(taught, spec, problems=[problem(i, never=i > 1) for i in range(6)])
    run()
    (batch,) = seen
    flat = [r for r in batch.rows if not r.advantage]
    assert (len(batch.rows) == 36, bool(flat)) == (all_train, all_train)
    assert all(not any(r.advantages or []) for r in flat)
    assert batch.unmoved == (36 - len(batch.rows) if kind == "grpo" else 0)
