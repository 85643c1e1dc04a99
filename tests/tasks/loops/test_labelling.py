from typing import Any

import pytest

from specs.errors import DataError
from specs.preference import DPO, KTO, Pairing
from specs.records import Trajectory
from specs.reward_models import RewardModel
from tasks.loops.labelling import label_rows, label_up
from tests.tasks.judging.builders import trajectory


def made(problem: int, sample: int, *, success: bool | None, **more: Any) -> Trajectory:
    ids = more.pop("ids", [5, 6, 7 + sample])
    found = trajectory(problem, success=success, status=more.pop("status", "finished"), reward=1.0, ids=ids, **more)
    found.id = f"{problem}/{sample}"
    found.sources = [1, 2, 2][: len(ids)]
    found.logprobs = [0.0] * len(ids)
    return found


def test_a_success_is_wanted_a_failure_is_not_and_the_rest_is_counted() -> None:
    report = label_up(
        [
            made(0, 0, success=True),
            made(0, 1, success=False),
            made(0, 1, success=False),
            made(1, 2, success=None),
            made(1, 3, success=True, status="turn_limit"),
            made(1, 4, success=False, status="truncated"),
        ]
    )
    assert [(x.trajectory, x.wanted) for x in report.labels] == [("0/0", True), ("0/1", False)]
    assert report.dropped == {"repeated": 1}
    assert report.unusable == {"invalid": 1, "unfinished": 1, "truncated": 1}
    assert report.problems == 2


def test_sides_weigh_the_same_and_within_a_side_so_do_problems() -> None:
    drawn = [
        *(made(0, k, success=True) for k in range(3)),
        made(1, 3, success=True),
        *(made(0, k, success=False) for k in range(4, 6)),
    ]
    report = label_up(drawn)
    rows = label_rows(report, {t.id: t for t in drawn}, 9)
    weights = [row.weight for row in rows]
    assert sum(weights[:4]) == pytest.approx(sum(weights[4:]))
    assert sum(weights[:3]) == pytest.approx(weights[3])
    assert sum(weights) == pytest.approx(len(rows))
    assert all(row.alone and not row.pair for row in rows)


def test_what_is_missing_or_empty_is_named() -> None:
    empty = made(0, 0, success=True, ids=[5])
    report = label_up([empty])
    assert label_rows(report, {empty.id: empty}, 9) == []
    assert report.dropped == {"empty": 1}
    with pytest.raises(DataError, match="no such trajectory"):
        label_rows(label_up([made(0, 1, success=True)]), {}, 9)


def test_only_kto_takes_single_trajectories() -> None:
    alone = Pairing(choose="alone")
    assert KTO(type="kto", pairing=alone).pairing.choose == "alone"
    with pytest.raises(ValueError, match="alone makes no pairs, which this algorithm needs"):
        DPO(type="dpo", pairing=alone)
    with pytest.raises(ValueError, match="which a reward model needs"):
        RewardModel(type="reward_model", pairing=alone)
    with pytest.raises(ValueError, match="margin is not read with choose: alone"):
        Pairing(choose="alone", margin=0.1)
