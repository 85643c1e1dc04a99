import pytest
import torch

from specs.policy_gradient import Correction
from tasks.learning.correction import correct, staleness
from tasks.learning.rows import TrainingRow

TRAINER = [[0.0, -0.5, -1.0], [0.0, -9.9, -0.1]]
SAMPLER = [[0.0, -0.4, -2.9], [0.0, -0.1, -0.1]]


def rows(advantages=(1.0, -1.0)):
    return [
        TrainingRow(
            id=str(i), source="s", ids=[3, 4, 5], mask=[False, True, True], advantage=a, sampler_logprobs=sampler
        )
        for i, (a, sampler) in enumerate(zip(advantages, SAMPLER, strict=True))
    ]


def test_weights_and_old_logprobs_are_set():
    made = correct(rows(), TRAINER, Correction())
    assert [r.old_logprobs for r in made.rows] == TRAINER
    first, second = (r.corrections for r in made.rows)
    assert first == pytest.approx([0.0, 0.904837, 2.0], abs=1e-6)
    assert second == pytest.approx([0.0, 0.0000555, 1.0], abs=1e-6)
    assert made.rejected == {}
    assert made.figures["mismatch_max"] == pytest.approx(9.8)
    assert made.figures["rejected"] == 0.0


def test_a_zero_weight_keeps_its_token():
    made = correct(rows(), TRAINER, Correction(outside="zero"))
    assert [r.trained for r in made.rows] == [2, 2]
    assert made.rows[0].corrections == pytest.approx([0.0, 0.904837, 0.0], abs=1e-6)
    assert made.figures["correction_zero"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rule", "name", "left"),
    [
        ({"reject_below": 1e-3}, "reject_below", ["0"]),
        ({"reject_mean": (0.5, 2.0)}, "outside_reject_mean", []),
        ({"reject_drifted": 0.5}, "reject_drifted", ["0"]),
    ],
)
def test_rejected_trajectories_leave_the_mean_and_are_counted(rule, name, left):
    made = correct(rows(), TRAINER, Correction(**rule))
    assert [r.id for r in made.rows] == left
    assert made.rejected == {name: 2 - len(left)}
    assert made.figures["rejected"] == 1 - len(left) / 2
    positive = correct(rows((1.0, 1.0)), TRAINER, Correction(reject_drifted=0.5))
    assert len(positive.rows) == 2


def test_normalised_weights_have_a_mean_of_one_over_what_is_left():
    made = correct(rows(), TRAINER, Correction(normalize=True, reject_below=1e-3))
    weights = torch.tensor(made.rows[0].corrections)
    assert float(weights.sum()) / 2 == pytest.approx(1.0)


def test_without_rows_there_is_nothing_to_correct():
    assert correct([], [], Correction()).rows == []


def test_staleness_decays_with_the_oldest_version_and_ends_at_the_bound():
    assert staleness(10, [10, 9, 5], 3, 0.9) == [(0, 1.0), (1, pytest.approx(0.9)), (5, None)]


def test_the_contexts_of_a_trajectory_are_judged_and_rejected_together():
    made = rows()
    made[0].trajectory = made[1].trajectory = "t"
    other = rows()[0]
    other.trajectory = "u"
    found = correct([*made, other], [*TRAINER, TRAINER[0]], Correction(reject_below=1e-3, ratio="sequence"))
    assert [r.trajectory for r in found.rows] == ["u"]
    assert (found.rejected, found.figures["rejected"]) == ({"reject_below": 1}, 0.5)
    weighed = correct(made, TRAINER, Correction(ratio="sequence", band=(0.5, 9.0)))
    product = pytest.approx(float(torch.tensor(-0.1 + 1.9 - 9.8).exp()), rel=1e-5)
    assert [w for r in weighed.rows for w in (r.corrections or [])[1:]] == [product] * 4
