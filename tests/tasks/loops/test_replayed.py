"""Replay and curriculum through the real loop, sampler, learner and verifier."""

import copy
import math
from itertools import pairwise

import pytest
import torch

from specs.algorithms import policy_gradient_from
from specs.errors import Interrupted
from specs.replay import Curriculum
from tasks.learning.learner import Learner
from tasks.loops.curriculum import CurriculumOrder
from tasks.loops.replayed import Mixture
from tasks.loops.resampling import best_of
from tests.tasks.learning.test_rows import A, U, trajectory
from tests.tasks.loops.test_on_policy import stage, taught, weights
from tests.tasks.loops.toy import demonstration_rows, problem

__all__ = ["taught"]

SMALL = {"group_size": 6, "problems_per_step": 4, "steps": 5, "optimizer": {"learning_rate": 1e-2}}
HISTORY = {"history": {"capacity": 64, "per_step": 12, "max_age": 3, "max_uses": 2}}


def spec_of(kind="grpo", **more):
    return policy_gradient_from({"type": kind, **SMALL, **more})


def staged(taught, spec, **more):
    shown = []
    if spec.replay is not None and spec.replay.demonstrations is not None:
        shown = [[r] for r in demonstration_rows(taught, 12)]
    mixture = Mixture(spec, 5, shown) if spec.replay is not None else None
    return stage(taught, spec, mixture=mixture, **more)


def watched(monkeypatch):
    """Return the rows of every step of the policy's learner, as they are when it begins."""
    seen, step = [], Learner.step

    def spy(self, rows, *args, **named):
        seen.append(copy.deepcopy(list(rows)))
        return step(self, rows, *args, **named)

    monkeypatch.setattr(Learner, "step", spy)
    return seen


def test_trajectories_of_earlier_steps_train_again_with_the_ratio_to_their_own_policy(taught, monkeypatch):
    seen = watched(monkeypatch)
    _, run = staged(taught, spec_of(replay=HISTORY, updates_per_batch=2))
    report = run()
    assert report.curve[0]["replayed"] == 0.0
    assert all(line["replayed"] == 12 for line in report.curve[1:])
    assert all(1 <= line["replay_age"] <= 3 for line in report.curve[1:])
    assert all(line["logprob_gap"] < 1e-4 for line in report.curve), "the gauge is of fresh rows alone"
    again = [r for r in seen[3] if r.stale]  # second pass of the second step
    fresh = [r for r in seen[3] if not r.stale]
    assert again
    assert all(r.old_logprobs == r.sampler_logprobs for r in again)
    assert any(r.old_logprobs != r.sampler_logprobs for r in fresh)
    assert all(r.corrections is not None for r in seen[3])
    known = {r.trajectory for r in seen[0]}
    assert {r.trajectory for r in again} <= known
    assert report.replay_left["used_up"] > 0


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_a_token_without_a_logprob_is_counted_once_however_often_it_is_replayed(taught, monkeypatch, kind):
    from tasks.loops import resampling

    judged, steps = resampling.rollouts, []

    def lossy(*args, **more):
        made = judged(*args, **more)
        for t in made[:6] if not steps else ():
            t.logprobs[t.turns[0].start] = -math.inf
        steps.append(made)
        return made

    monkeypatch.setattr(resampling, "rollouts", lossy)
    critic = {"critic": {"optimizer": {"learning_rate": 1e-2}}} if kind == "ppo" else {}
    spec = spec_of(kind, replay=HISTORY, max_missing_logprobs=0.2, **critic)
    _, run = staged(taught, spec)
    report = run()
    assert sum(line["replayed"] for line in report.curve) > 40
    assert report.missing_logprobs == 6


def test_silent_groups_alone_are_filled_up(taught):
    fill = {"history": {**HISTORY["history"], "fill": "silent"}}
    mixed = [problem(i, never=i > 3) for i in range(6)]
    _, run = staged(taught, spec_of(replay=fill, problems_per_step=6), problems=mixed)
    curve = run().curve
    assert all(a["replayed"] <= 6 * 6 * a["zero_variance_groups"] + 1e-9 for a in curve)
    assert any(line["replayed"] for line in curve[1:])


def test_demonstrations_teach_what_rollouts_never_show(taught, monkeypatch):
    seen = watched(monkeypatch)
    shown = {"demonstrations": {"sets": ["demos"], "per_step": 5, "weight": 0.5, "until": 0.6}}
    _, run = staged(taught, spec_of(replay=shown))
    curve = run().curve
    assert [line["shown"] for line in curve] == [5, 5, 5, 0, 0]
    rows = [r for r in seen[0] if r.stale]
    assert len({r.trajectory for r in rows}) == 5
    assert all((r.weight, r.advantage) == (0.5, 1.0) for r in rows)
    assert all(r.trained and sum(map(bool, r.sampler_logprobs)) == r.trained for r in rows)
    drawn = [{r.trajectory for r in step if r.stale} for step in seen[:3]]
    assert all(a.isdisjoint(b) for a, b in pairwise(drawn[:2]))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("reinforce", {"correction": {}}),
        ("gspo", {}),
        ("gigpo", {}),
        ("cispo", {"correction": {"outside": "zero"}, "kl_coef": 0.01}),
        ("ppo", {"critic": {"optimizer": {"learning_rate": 1e-2}}}),
        ("sao", {"critic": {"optimizer": {"learning_rate": 1e-2}}}),
    ],
)
def test_a_mixed_stage_that_is_stopped_ends_with_the_same_bits(taught, tmp_path, kind, more):
    shown = {"demonstrations": {"sets": ["demos"], "per_step": 3}}
    spec = spec_of(kind, steps=4, replay=HISTORY | shown, **more)
    whole, run = staged(taught, spec)
    expected = run()
    assert sum(line["replayed"] for line in expected.curve) > 0
    _, run = staged(taught, spec, folder=tmp_path, stop_after=2)
    with pytest.raises(Interrupted):
        run()
    second, run = staged(taught, spec, folder=tmp_path)
    assert run().curve == expected.curve
    assert torch.equal(weights(second), weights(whole))


def test_history_without_a_ratio_is_refused(taught):
    with pytest.raises(ValueError, match=r"replay\.history needs an importance ratio"):
        spec_of("rloo", replay=HISTORY)
    with pytest.raises(ValueError, match="with a critic none does"):
        spec_of("ppo", replay={"history": {"fill": "silent"}})


def test_a_curriculum_spends_rollouts_where_they_vary_and_resumes(taught, tmp_path):
    problems = [problem(i, never=i % 3 > 0) for i in range(24)]

    def run_with(spec, **more):
        order = CurriculumOrder({"a": problems}, 5, spec.curriculum) if spec.curriculum else None
        return stage(taught, spec, problems=problems, order=order, **more)

    plain = run_with(spec_of(steps=8))[1]().curve
    spec = spec_of(steps=8, curriculum=Curriculum(by_type="all", floor=0.001, explore=0.0).model_dump())
    whole, run = run_with(spec)
    curve = run().curve

    def mixed(lines):
        return sum(line["mixed_groups"] for line in lines[4:]) / 4

    assert mixed(curve) > mixed(plain) + 0.15
    _, run = run_with(spec, folder=tmp_path, stop_after=3)
    with pytest.raises(Interrupted):
        run()
    second, run = run_with(spec, folder=tmp_path)
    assert run().curve == curve
    assert torch.equal(weights(second), weights(whole))


def test_a_step_that_is_stopped_after_its_draw_draws_the_same_again(taught, tmp_path):
    class Stopped(CurriculumOrder):
        draws = 0

        def draw(self, count):
            drawn = super().draw(count)
            self.draws += 1
            if self.draws == 2:
                raise Interrupted("in the middle of the rollouts")
            return drawn

    spec = spec_of(steps=3, curriculum=Curriculum().model_dump())
    problems = [problem(i) for i in range(12)]
    orders = [kind({"a": problems}, 5, Curriculum()) for kind in (CurriculumOrder, Stopped, CurriculumOrder)]
    curve = stage(taught, spec, problems=problems, order=orders[0])[1]().curve
    with pytest.raises(Interrupted):
        stage(taught, spec, problems=problems, order=orders[1], folder=tmp_path)[1]()
    assert stage(taught, spec, problems=problems, order=orders[2], folder=tmp_path)[1]().curve == curve


def test_the_best_of_several_train_and_all_of_them_count(taught, monkeypatch):
    seen = watched(monkeypatch)
    _, run = stage(taught, spec_of(best_of=3, steps=2, kl_coef=0.01))
    report = run()
    assert report.rollouts == 2 * 4 * 6 * 3
    assert len(seen[0]) == 4 * 6
    assert len({r.trajectory for r in seen[0]}) == 4 * 6
    assert report.curve[0]["success"] < 0.75, "success is of everything that was drawn"


def test_the_best_of_a_block_is_the_first_with_the_highest_reward():
    def made(name, reward):
        t = trajectory([U, A], name=name)
        t.reward = reward
        return t

    drawn = [made("a", 0.0), made("b", 1.0), made("c", 1.0), made("d", None), made("e", -1.0), made("f", None)]
    assert [t.id for t in best_of(drawn, 3)] == ["b", "e"]
    assert drawn[1].tags == ["best_of:3"]
    assert best_of(drawn, 1) == drawn
