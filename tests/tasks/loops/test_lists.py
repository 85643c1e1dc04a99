"""Lists of candidates: every list counts the same, whatever else stands in its step."""

import pytest

from tasks.learning.batching import row_weights
from tasks.learning.rows import TrainingRow
from tasks.loops.lists import MEAN, Lists


def row(number):
    return TrainingRow(str(number), "lists", [1, 2, 3], [False, True, True])


@pytest.mark.parametrize("step", [[0], [1], [0, 1], [0, 2], [0, 1, 2]])
def test_a_list_weighs_the_same_however_many_candidates_it_has(step):
    made = Lists()
    for name, size in (("a", 2), ("b", 6), ("c", 2)):
        made.add(name, [(row(i), float(i)) for i in range(size)], 1.0)
    made.weigh()
    rows = [made.rows[i] for k in step for i in made.spans[k]]
    found: dict[str, float] = {}
    for own, weight in zip(rows, row_weights(rows, MEAN).sum(-1).tolist(), strict=True):
        found[own.pair] = found.get(own.pair, 0.0) + weight
    assert list(found.values()) == pytest.approx([1 / len(step)] * len(step))
