"""What teachers said of tokens is kept with the trajectories, once each, also through a stop."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flows.work.keeping import Keeper
from specs.distillation import FullVocabulary, Over, SampledTokens, TeacherTerm
from specs.errors import Interrupted
from specs.grpo import GRPO
from tasks.episodes.token_signals import TokenSignal, read_signals, write_signals
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.learner import Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.loops.distill import train_opd
from tasks.loops.fit import Hooks
from tasks.loops.on_policy import OnPolicy, train_policy_gradient
from tasks.loops.order import ProblemOrder
from tasks.loops.rollout_store import RolloutStore
from tasks.loops.token_lessons import Panel
from tasks.protocols import Span
from tests.tasks.loops.test_distill import (
    RATE,
    Stopped,
    demonstration_trajectories,
    good,
    local,
    spec,
    stage,
    student,
    taught,
)
from tests.tasks.loops.toy import problem, toy_arena

__all__ = ["good", "taught"]

SAMPLED = SampledTokens(kind="sampled")


def said(signal: TokenSignal) -> np.ndarray:
    """Return the logprobs that must be there."""
    assert signal.logprobs is not None
    return signal.logprobs


def run(taught: Any, teachers: Any, keeper: Keeper, over: Over = SAMPLED, hooks: Hooks | None = None, **more: Any):
    learner, arena, made = stage(student(taught), teachers, spec(over=over, steps=3, problems_per_step=4), **more)
    panel = replace(made.panel, revisions={t.name: f"earlier_self {t.name}" for t in teachers})
    made = replace(made, panel=panel, keep=keeper.keep, keep_signals=keeper.keep_signals, before_save=keeper.flush)
    return train_opd(learner, arena, made, hooks)


def test_every_scored_trajectory_names_its_teacher_and_has_its_logprobs(taught, good, tmp_path):
    keeper, teacher = Keeper(RolloutStore(tmp_path / "rollouts")), OpenTeacher("good", good)
    report = run(taught, [teacher], keeper)
    write_signals(tmp_path, keeper.signals(3))
    signals, trajectories = list(read_signals(tmp_path)), keeper.all(3)
    assert [s.id for s in signals] == [t.id for t in trajectories]
    assert {(s.teacher, s.revision, s.weight, s.start) for s in signals} == {("good", "earlier_self good", 1.0, 0)}
    assert sum(s.tokens for s in signals) == report.taught_tokens
    mask = [source == 2 for source in trajectories[0].sources]
    (expected,) = teacher.score([Span(trajectories[0], 0, trajectories[0].ids, mask)])
    np.testing.assert_allclose(said(signals[0]), expected.logprobs, atol=1e-5)
    assert np.isfinite(said(signals[0])).sum() == trajectories[0].policy_tokens == signals[0].tokens
    assert signals[0].chunks is None


def test_over_a_vocabulary_the_teachers_of_a_row_and_their_shares_are_kept(taught, good, tmp_path):
    def weights(trajectory):
        return [0.25, 0.75] if trajectory.problem_id.endswith("1") else [2.0, 0.0]

    keeper = Keeper(RolloutStore(tmp_path))
    teachers = [OpenTeacher("good", good), OpenTeacher("same", copy.deepcopy(taught.model))]
    run(taught, teachers, keeper, FullVocabulary(), weights=weights)
    problem_of = {t.id: t.problem_id for t in keeper.all(3)}
    found: dict[str, list[tuple[str, float]]] = {}
    for s in keeper.signals(3):
        assert (s.logprobs, s.tokens > 0) == (None, True)
        found.setdefault(s.id, []).append((s.teacher, s.weight))
    assert found.keys() == problem_of.keys()
    both = [("good", 0.25), ("same", 0.75)]
    assert all(asked == (both if problem_of[i].endswith("1") else [("good", 1.0)]) for i, asked in found.items())
    assert both in found.values()


def test_a_stop_neither_loses_nor_doubles_what_was_said(taught, good, tmp_path):
    def text(signals: list[TokenSignal]) -> list[str]:
        return [repr(replace(s, logprobs=None)) + str(s.logprobs) for s in signals]

    whole = Keeper(RolloutStore(tmp_path / "whole"))
    run(taught, [OpenTeacher("good", good)], whole)
    store = RolloutStore(tmp_path / "rollouts")
    store.write("step-000001", [], [])  # of an attempt that died before its checkpoint was there
    hooks = Hooks(checkpointer=Checkpointer(tmp_path / "state", "n"), checkpoint_seconds=1e9)
    with pytest.raises(Interrupted):
        run(taught, [Stopped("good", good)], Keeper(store), hooks=hooks)
    assert list(store.names()) == ["step-000000", "step-000001"]
    resumed = Keeper(store)
    run(taught, [OpenTeacher("good", good)], resumed, hooks=hooks)
    assert text(resumed.signals(3)) == text(whole.signals(3))
    assert len(whole.signals(3)) == 3 * 4 * 2


def test_demonstrations_that_were_scored_stand_there_too(taught, good, tmp_path):
    keeper = Keeper(RolloutStore(tmp_path))
    shown = demonstration_trajectories(taught)
    learner, arena, made = stage(
        student(taught),
        [OpenTeacher("good", good)],
        spec(steps=1, problems_per_step=4, demonstrations=0.5),
        demonstrations=shown,
    )
    train_opd(learner, arena, replace(made, keep=keeper.keep, keep_signals=keeper.keep_signals))
    own = {t.id for t in keeper.all(1)}
    assert [s.id in own for s in keeper.signals(1)] == [True] * 4 + [False] * 4


def test_beside_a_reward_the_same_is_kept(taught, good, tmp_path):
    keeper, policy = Keeper(RolloutStore(tmp_path)), student(taught)
    arena, term = toy_arena(policy), TeacherTerm(over=SAMPLED)
    made = GRPO(
        type="grpo", distill=term, group_size=2, problems_per_step=4, steps=2, optimizer=RATE, max_flat_steps=None
    )
    on = OnPolicy(
        spec=made,
        problems=ProblemOrder({"all": [problem(i) for i in range(8)]}, 0),
        seed=0,
        max_length=policy.config.max_length,
        load_weights=lambda step: local(arena).load_weights(policy.model, f"step{step}"),
        panel=Panel([OpenTeacher("good", good)], lambda _: [1.0]),
        keep=keeper.keep,
        keep_signals=keeper.keep_signals,
    )
    train_policy_gradient(Learner(policy.model, made.optimizer, 2), arena, on)
    assert sorted(s.id for s in keeper.signals(2)) == sorted(t.id for t in keeper.all(2))
    assert all(s.tokens == np.isfinite(said(s)).sum() > 0 for s in keeper.signals(2))
