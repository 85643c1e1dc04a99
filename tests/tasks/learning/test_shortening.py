import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specs.short_opd import ByGap, ByRepetition, Segments, ShortOPD, Tokens
from tasks.learning.shortening import first_part, kept_tokens, kept_turns, loop_start, runs

LOOP = ByRepetition(kind="by_repetition", period=8, least_loop=6, start=64)


@pytest.mark.parametrize(
    ("ids", "start"),
    [
        ([9, 8, 7, 1, 1, 1, 1, 1, 1], 4),  # six ones: the first stays
        ([9, 8, 1, 2, 1, 2, 1, 2], 4),
        ([9, 2, 1, 2, 1, 2, 1, 2], 3),  # the loop begins where it first repeats
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], None),
        ([9, 8, 7, 1, 1, 1, 1, 1], None),  # five tokens: too short
        ([1, 2, 3, 1, 2, 3], None),  # two copies
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], 3),
        ([1, 2, 3, 1, 2, 3, 1, 2, 3, 9], None),  # not at the end
        ([], None),
    ],
)
def test_a_loop_is_a_repeated_suffix(ids, start):
    assert loop_start(ids, LOOP) == start


@given(st.lists(st.integers(0, 2), max_size=30))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_it_is_the_one_that_a_search_over_all_periods_finds(ids):
    def slow():
        for period in range(1, LOOP.period + 1):
            length = period
            while length < len(ids) and ids[len(ids) - length - 1] == ids[len(ids) - length - 1 + period]:
                length += 1
            if length <= len(ids) and length >= max(LOOP.copies * period, LOOP.least_loop):
                return len(ids) - length + period
        return None

    assert loop_start(ids, LOOP) == slow()


def test_tokens_are_kept_by_divergence_over_all_rows():
    masks = [[False, True, True], [False, True]]
    values = [[0.0, 0.1, 0.9], [0.0, 0.5]]
    assert kept_tokens(values, masks, Tokens(kind="tokens", share=0.5)) == [[False, False, True], [False, True]]
    assert kept_tokens(values, masks, Tokens(kind="tokens", above=0.5)) == [[False, False, True], [False, False]]


def test_turns_are_kept_by_their_mean():
    mask = [False, True, True, False, True, False, True]
    values = [0.0, 0.9, 0.0, 0.0, 0.6, 0.0, 0.1]
    assert runs(mask) == [[1, 2], [4], [6]]
    kept = kept_turns(values, mask, Segments(kind="segments", share=0.4))
    assert [t for t, k in enumerate(kept) if k] == [1, 2, 4]
    assert sum(kept_turns(values, mask, Segments(kind="segments", share=0.01))) == 1


def test_the_first_part_of_a_trajectory():
    assert first_part([False, True, False, True, True], 0.5) == [False, True, False, True, False]
    assert first_part([True] * 3, 1.0) == [True] * 3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ByGap(kind="by_gap", lengths=(9, 5, 20)), "lengths: found"),
        (lambda: ByGap(kind="by_gap", bounds=(0.5, 0.2)), "bounds: found"),
        (lambda: ByRepetition(kind="by_repetition", start=9, least=10), "expected them to rise"),
        (lambda: ShortOPD(type="short_opd", horizon=0.0), "greater than 0"),
        (lambda: ShortOPD(type="short_opd", max_truncated=0.5), "max_truncated is not read by short_opd"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, text):
    with pytest.raises(ValidationError, match=text):
        make()
