"""Chunks at common ends: the smallest there are, sums kept, what is doubtful dropped by name."""

from itertools import accumulate

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.tokens.alignment import Coverage, Doubts, align, joined, judge, sums

CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=30)


def ends(lengths):
    return np.array(list(accumulate(lengths)), dtype=np.int64)


@settings(deadline=None, derandomize=True)
@given(CUTS, CUTS, st.data())
def test_chunks_are_the_finest_common_cut(own, theirs, data):
    gap = sum(own) - sum(theirs)
    (theirs if gap > 0 else own).append(abs(gap)) if gap else None
    zero = data.draw(st.integers(0, len(theirs)))
    theirs.insert(zero, 0)
    a, b = ends(own), ends(theirs)
    chunks = align(a, b)
    assert chunks.bytes_C2[:, 1].tolist() == sorted((set(a.tolist()) & set(b.tolist())) - {0})
    for (low, high), (i, j), (k, m) in zip(chunks.bytes_C2, chunks.policy_C2, chunks.teacher_C2, strict=True):
        assert sum(own[i:j]) == sum(theirs[k:m]) == high - low
    assert chunks.policy_C2[-1, 1] == len(own)
    values = np.array(data.draw(st.lists(st.floats(-9, 0), min_size=len(own), max_size=len(own))))
    assert np.isclose(sums(values, chunks.policy_C2).sum(), values.sum())


def test_one_to_one_where_both_are_the_same_and_empty_where_nothing_is_shared():
    same = align(ends([1, 2, 3]), ends([1, 2, 3]))
    assert same.policy_C2.tolist() == same.teacher_C2.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert len(align(ends([]), ends([]))) == 0
    assert len(align(ends([3]), ends([]))) == 0
    assert align(ends([2, 3]), ends([2, 1])).bytes_C2.tolist() == [[0, 2]]


def judged(own, theirs, **given):
    chunks = align(ends(own), ends(theirs))
    cut_C = np.zeros(len(chunks), dtype=bool)
    cut_C[-1:] = given.get("cut", False)
    doubts = Doubts(
        np.array(given.get("trains", [True] * len(own))),
        np.isin(np.arange(len(own)), given.get("special", ())),
        np.isin(np.arange(len(theirs)), given.get("unknown", ())),
        cut_C,
    )
    policy, teacher = (np.array(given.get(n, [-1.0] * len(s))) for n, s in (("policy", own), ("teacher", theirs)))
    limits = {"max_tokens": given.get("max_tokens", 6), "max_gap": given.get("max_gap", 20.0)}
    return judge(chunks, policy, teacher, doubts, **limits)


def test_every_doubt_has_its_name_and_counts_tokens():
    own, theirs = [1, 2, 1, 1], [3, 1, 1]
    good, coverage = judged(own, theirs)
    assert good.tolist() == [True, True, True]
    assert (coverage.aligned, coverage.merged, coverage.share, coverage.bytes) == (2, 2, 1.0, 5)
    assert np.isclose(coverage.gap, -3.0 + 4.0)
    cases = {
        "teacher_logprob_missing": {"teacher": [float("-inf"), -1.0, -1.0]},
        "too_many_tokens": {"max_tokens": 1},
        "gap_too_large": {"teacher": [-40.0, -1.0, -1.0]},
        "unknown_token": {"unknown": [0]},
        "special_token": {"special": [1]},
        "masked": {"trains": [True, False, True, True]},
    }
    for reason, change in cases.items():
        good, coverage = judged(own, theirs, **change)
        assert good.tolist() == [False, True, True], reason
        assert coverage.dropped == {reason: 1 if reason == "masked" else 2}
        assert coverage.aligned + coverage.merged + coverage.dropped.total() == coverage.tokens
    good, coverage = judged(own, theirs, cut=True)
    assert good.tolist() == [True, True, False]
    assert coverage.dropped == {"cut": 1}
    good, coverage = judged([2, 3], [2, 1])
    assert coverage.dropped == {"no_teacher_token": 1}
    assert coverage.share == 0.5


def test_coverage_adds_up_and_empty_is_whole():
    total = Coverage()
    assert total.share == 1.0
    for _ in range(3):
        total.add(judged([1, 2], [3])[1])
    assert (total.tokens, total.merged, total.bytes) == (6, 6, 9)
    assert total.figures()["reverse_kl_per_byte"] == -total.gap / 9
    assert len(joined([])) == 0
