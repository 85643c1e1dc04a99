"""Short rollouts within distillation, through real episodes and the real learner."""

import math
from typing import Any

import pytest

from specs.distillation import SampledTokens
from specs.errors import Interrupted
from specs.short_opd import ByConfidence, ByGap, ByRepetition, Segments, ShortOPD, Tokens
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.rows import TrainingRow
from tasks.loops.distill import train_opd
from tasks.loops.fit import Hooks
from tasks.loops.shortening import Shortening
from tests.tasks.loops.test_distill import RATE, good, stage, student, taught
from tests.tasks.loops.test_self_teaching import said

__all__ = ["good", "taught"]
LENGTHS: dict[str, Any] = {"lengths": (6, 7, 8)}


def spec(**more):
    return ShortOPD(type="short_opd", group_size=2, problems_per_step=16, steps=6, optimizer=RATE, **more)


def run(taught, good, made, **more):
    shape = Shortening(made, 8)
    done = stage(student(taught), [OpenTeacher("good", good)], made, shape=shape)
    return train_opd(*done, **more), shape


@pytest.mark.parametrize(
    ("length", "more"),
    [
        (ByGap(kind="by_gap", **LENGTHS), {}),
        (ByGap(kind="by_gap", **LENGTHS), {"over": SampledTokens(kind="sampled")}),
        (ByConfidence(kind="by_confidence", **LENGTHS), {"select": Tokens(kind="tokens", share=0.5)}),
        (ByRepetition(kind="by_repetition", start=8, least=6, most=8, every=2), {"horizon": 0.5}),
        (ByGap(kind="by_gap", **LENGTHS), {"select": Segments(kind="segments")}),
    ],
)
def test_it_learns_with_every_length_and_choice(taught, good, length, more):
    made = spec(length=length, **more)
    report, _ = run(taught, good, made)
    first, last = report.curve[0], report.curve[-1]
    assert last["success"] > first["success"] + 0.1
    assert all(line["completion_limit"] <= 8 for line in report.curve)
    if made.select is not None and made.select.kind == "tokens":
        assert first["kept_tokens"] == pytest.approx(0.5, abs=0.05)
    if made.horizon < 1:
        assert first["kept_tokens"] < last["kept_tokens"] == 1.0


def test_the_nearer_the_teacher_the_shorter():
    shape = Shortening(spec(length=ByGap(kind="by_gap", lengths=(10, 20, 30))), 25)
    assert shape.limit(0) == 20
    for gap, limit in ((0.1, 10), (0.3, 20), (0.9, 25)):
        shape.learn([], {"gap": gap})
        assert shape.limit(1) == limit


def test_the_surer_the_policy_the_shorter():
    shape = Shortening(spec(length=ByConfidence(kind="by_confidence", lengths=(10, 20, 30))), 99)
    for chance, limit in ((0.95, 10), (0.7, 20), (0.2, 30)):
        trajectory = said("a", 0, True)
        trajectory.logprobs = [math.log(chance)] * 3
        shape.learn([trajectory], {})
        assert shape.limit(1) == limit


def looped(tail):
    ids = [1, 2, 3, 4] + [5] * tail
    weights, said = [0.0] + [0.1] * (len(ids) - 1), [0.0] * len(ids)
    return TrainingRow("r", "s", ids, [False] + [True] * (len(ids) - 1), distill=weights, sampler_logprobs=said)


RULE = ByRepetition(kind="by_repetition", start=40, least=10, most=60, every=2, least_loop=6, least_kept=0.2)


def test_a_loop_that_the_teacher_finds_predictable_does_not_train():
    shape = Shortening(spec(length=RULE), 99)
    row = looped(8)
    figures = shape.weigh([row], [[0.0, 1.0, 1.0, 1.0] + [0.1] * 8])
    assert row.distill == [0.0] + [0.1] * 4 + [0.0] * 7, "the first of the repeated tokens stays"
    assert figures["looping"] == 1.0
    assert figures["outside_loops"] == pytest.approx(4 / 11)
    corrected = looped(8)
    shape.weigh([corrected], [[2.0] * 12])
    assert corrected.distill == [0.0] + [0.1] * 11, "a loop that the teacher corrects is what must be learnt"


def test_a_step_of_loops_alone_keeps_nothing_and_shortens_at_once():
    shape = Shortening(spec(length=RULE), 99)
    row = looped(30)
    shape.weigh([row], [[0.0] * 34])
    assert not any(row.distill or [])
    assert shape.limit(1) == 30


def test_the_length_follows_loops_and_cuts():
    def after(looping, cut):
        shape = Shortening(spec(length=RULE), 99)
        trajectories = [said("a", i, True) for i in range(10)]
        for number, t in enumerate(trajectories):
            t.turns[0].finish = "length" if number < 10 * cut else "stop"
        for _ in range(2):
            rows = [looped(8 if n < 10 * looping else 0) for n in range(10)]
            shape.weigh(rows, [[0.0] * len(row.ids) for row in rows])
            shape.learn(trajectories, {})
        return shape.limit(2)

    assert after(0.5, 0.5) == 30
    assert after(0.0, 0.5) == 50
    assert after(0.1, 0.5) == 40
    assert after(0.0, 0.1) == 40


def test_a_stopped_stage_goes_on_with_its_length(taught, good, tmp_path):
    made = spec(length=ByRepetition(kind="by_repetition", start=8, least=6, most=8, every=3))
    expected, whole = run(taught, good, made)
    asked = iter([False, False, False, False, True])
    hooks = Hooks(checkpointer=Checkpointer(tmp_path, "n"), checkpoint_seconds=0.0, stop=lambda: next(asked, False))
    with pytest.raises(Interrupted):
        run(taught, good, made, hooks=hooks)
    again = Hooks(checkpointer=Checkpointer(tmp_path, "n"), checkpoint_seconds=0.0)
    resumed, shape = run(taught, good, made, hooks=again)
    assert resumed.curve == expected.curve
    assert shape.state() == whole.state()


def test_only_the_policys_own_rollouts_say_how_long_they_should_be():
    def rows(own, demonstration):
        made = [
            TrainingRow(name, "s", [1] * 11, [False] + [True] * 10, distill=[0.0] + [0.05] * 10) for name in ("o", "d")
        ]
        made[0].sampler_logprobs = [0.0] * 11
        return made, [[own] * 11, [demonstration] * 11]

    shape = Shortening(spec(length=ByGap(kind="by_gap"), demonstrations=0.5), 4096)
    figures = shape.weigh(*rows(0.7, 0.05))
    shape.learn([], figures)
    assert (figures["gap"], shape.length) == (pytest.approx(0.7), 2048)
    assert figures["kept_tokens"] == 1.0

    demonstration = looped(30)
    demonstration.sampler_logprobs = None
    shape = Shortening(spec(length=RULE, demonstrations=0.5), 99)
    figures = shape.weigh([looped(0), demonstration], [[0.0] * 4, [0.0] * 34])
    assert (figures["looping"], figures["outside_loops"], shape.length) == (0.0, 1.0, 40)
    assert sum(w > 0 for w in demonstration.distill or []) == 4, "its loop does not train"


@pytest.mark.parametrize("length", [ByGap(kind="by_gap", **LENGTHS), ByConfidence(kind="by_confidence", **LENGTHS)])
def test_a_step_that_was_cut_and_left_out_is_a_reason_to_grow(length):
    shape = Shortening(spec(length=length, truncated="mask"), 99)
    cut = [said("a", i, True) for i in range(10)]
    for number, trajectory in enumerate(cut):
        trajectory.status = "truncated" if number < 6 else "finished"
    shape.length = 6
    for expected in (7, 8, 8):
        shape.learn(cut, shape.weigh([], []))
        assert shape.length == expected
    shape.length = 7
    shape.learn([], shape.weigh([], []))
    assert shape.length == 7, "nothing is known"
    scored = Shortening(spec(length=length), 99)
    scored.length = 7
    scored.learn(cut, {"gap": 0.1})
    assert scored.length == 6, "what was cut trains, and says how near the teacher is"


def test_a_stage_that_masks_what_is_cut_grows_until_something_trains(taught, good):
    made = spec(length=ByGap(kind="by_gap", lengths=(1, 2, 8)), truncated="mask")
    report, _ = run(taught, good, made)
    assert [line["completion_limit"] for line in report.curve[:2]] == [2.0, 8.0]
    assert "gap" not in report.curve[0]
    assert [line["updated"] for line in report.curve[:2]] == [0.0, 1.0]
