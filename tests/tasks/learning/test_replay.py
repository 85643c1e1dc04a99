import math
import random

import pytest
import torch

from specs.replay import Curriculum, History, Replay, Shown
from tasks.learning.replay import (
    ReplayBuffer,
    annealed,
    as_replayed,
    importance_weights,
    magnitude,
    probabilities,
    stratified,
)
from tasks.learning.rows import TrainingRow


def row(name, advantage, group="g", advantages=None):
    made = TrainingRow(
        id=name, source="data", ids=[1, 2, 3, 4], mask=[False, True, True, False], trajectory=name, group=group,
        advantage=advantage, advantages=advantages, sampler_logprobs=[0.0, -0.1, -1 / 3, -math.inf], temperature=0.7,
    )  # fmt: skip
    made.reference_logprobs, made.weight, made.corrections = [0.0] * 4, 3.0, [2.0] * 4
    return made


def filled(step=0, count=4, **changes):
    buffer = ReplayBuffer(History(**{"capacity": 16, "per_step": 4, **changes}), 7)
    rows = [row(f"{step}.{i}", 0.5 * (i + 1) * (-1) ** i, f"{step}.{i // 2}") for i in range(count)]
    buffer.admit(step, rows, {r.trajectory: r.advantage > 0 for r in rows}, by_critic=False)
    return buffer


def test_what_is_drawn_comes_up_as_often_as_its_priority_says_and_its_weight_takes_that_back():
    chances = probabilities([1.0, 2.0, 5.0], 1.0)
    assert chances == pytest.approx([0.125, 0.25, 0.625])
    drawn = stratified(chances, 8, random.Random(0))
    assert all(abs(drawn[i] - 8 * p) <= 1 for i, p in enumerate(chances))
    # with beta 1 the weighted draw has the uniform mean
    weights = importance_weights(chances, 1.0)
    values = [3.0, -1.0, 4.0]
    assert sum(p * w * v for p, w, v in zip(chances, weights, values, strict=True)) == pytest.approx(sum(values) / 3)
    assert importance_weights(probabilities([1.0, 9.0], 0.0), 0.4) == pytest.approx([1.0, 1.0])
    assert [annealed(0.4, 1.0, s, 4) for s in (0, 3)] == pytest.approx([0.4, 1.0])


@pytest.mark.parametrize("most", [1, 3])
def test_none_is_used_more_often_than_it_may_be(most):
    buffer = ReplayBuffer(History(per_step=8, alpha=1.0, max_uses=most), 7)
    rows = [row(f"r{i}", 9.0 if i == 0 else 0.1) for i in range(8)]
    buffer.admit(0, rows, {}, by_critic=False)
    drawn = buffer.draw(1, 4, 8)
    assert sum(one.times for one in drawn) == 8
    assert max(one.times for one in drawn) == most
    assert all(one.kept.uses <= most for one in drawn)


def test_a_drawn_row_is_as_it_was_rolled_out():
    one = filled().draw(1, 4, 4)[0]
    again = as_replayed(one.kept.rows[0], 2.0, one.weight)
    assert (again.stale, again.weight, again.importance) == (True, 2.0, one.weight)
    assert (again.reference_logprobs, again.corrections, again.old_logprobs) == (None, None, None)
    assert again.sampler_logprobs == [0.0, -0.1, -1 / 3, -math.inf]
    assert again.temperature == 0.7


def test_admission_counts_what_it_leaves_out():
    buffer = filled(admit="successes", min_advantage=1.0)
    assert len(buffer) == 1
    assert buffer.left == {"not_asked_for": 2, "small_advantage": 1}
    silent = ReplayBuffer(History(), 0)
    silent.admit(0, [row("x", 0.0)], {"x": True}, by_critic=False)
    assert (len(silent), silent.left) == (0, {"small_advantage": 1})


def test_the_old_and_the_used_leave_before_a_draw():
    buffer = filled(max_age=2, max_uses=1)
    assert len(buffer.draw(2, 9, 4)) > 0
    buffer.draw(2, 9, 1)
    assert buffer.left["used_up"] >= 1
    assert filled(max_age=2).draw(3, 9, 4) == []


def test_a_group_leaves_as_a_whole_when_there_is_no_room():
    buffer = filled(capacity=5, per_step=1)
    rows = [row("new1", 1.0, "new"), row("new2", -1.0, "new")]
    buffer.admit(1, rows, {}, by_critic=False)
    assert len(buffer) == 4
    assert buffer.left == {"no_room": 2}


def test_where_a_critic_judges_the_reward_is_kept_and_priorities_move():
    buffer = ReplayBuffer(History(per_step=2, capacity=4), 3)
    by_token = row("a", 1.0, advantages=[0.0, 0.5, -1.5, 9.0])
    unknown = row("b", 0.0)
    buffer.admit(0, [by_token, unknown], {}, by_critic=True)
    assert magnitude([by_token]) == 1.0
    assert buffer.priorities() == pytest.approx([1.001, 1.001])  # what has none has the largest
    drawn = [(d, [as_replayed(r) for r in d.kept.rows]) for d in buffer.draw(1, 4, 2)]
    assert all(r.advantages is None for _, rows in drawn for r in rows)
    for _, rows in drawn:
        rows[0].advantages = [0.0, 3.0, 3.0, 0.0]
    buffer.judge(drawn)
    assert 3.001 in [pytest.approx(p) for p in buffer.priorities()]


def test_a_restored_buffer_draws_the_same():
    buffer = filled()
    buffer.admit(1, [row("t", 0.3, advantages=[0.0, 0.2, 0.4, 0.0])], {}, by_critic=False)
    buffer.draw(1, 5, 2)
    tensors, data = buffer.state()
    other = ReplayBuffer(History(capacity=16, per_step=4), 7)
    other.load_state({n: t.clone() for n, t in tensors.items()}, data)
    assert other.left == buffer.left
    for step in (2, 3):
        a, b = buffer.draw(step, 5, 4), other.draw(step, 5, 4)
        assert [(d.kept, d.times, d.weight) for d in a] == [(d.kept, d.times, d.weight) for d in b]
    empty = ReplayBuffer(History(), 0)
    tensors, data = empty.state()
    assert all(isinstance(t, torch.Tensor) for t in tensors.values())
    empty.load_state(tensors, data)
    assert empty.draw(0, 1, 4) == []


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Replay(), "history, demonstrations or both"),
        (lambda: History(capacity=4, per_step=5), "at most capacity"),
        (lambda: History(alpha=0, beta=0.5), "not read with alpha: 0"),
        (lambda: Shown(sets=[]), "at least 1"),
        (lambda: Curriculum(band=(0.8, 0.2)), "the lower rate first"),
        (lambda: Curriculum(retire_above=0.1), "more than the band's lower rate"),
    ],
)
def test_what_contradicts_itself_is_refused(made, said):
    with pytest.raises(ValueError, match=said):
        made()
