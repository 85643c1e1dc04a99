"""Span probabilities against brute force over all covers, for a model whose next token depends on its history."""

import math
from itertools import product

import numpy as np
import pytest

from tasks.tokens.covers import ByteOrder, SpanScorer

TABLE = [b"a", b"b", b"ab", b"ba", b"aab", b"", b"bab"]
"""The empty one is a special token: it ends what is written."""


def distribution(history):
    draws = np.random.default_rng([7, *history]).normal(size=len(TABLE))
    return draws - np.log(np.exp(draws).sum())


def brute(text: bytes, *, boundary: bool = False) -> float:
    """Sum over all token sequences of up to len(text) tokens, by the definition of a cover."""
    total = 0.0
    for n in range(1, len(text) + 1):
        for tokens in product(range(len(TABLE)), repeat=n):
            pieces = [TABLE[t] for t in tokens]
            before, whole = b"".join(pieces[:-1]), b"".join(pieces)
            if not all(pieces) or len(before) >= len(text) or not text.startswith(before):
                continue
            if whole != text if boundary else not whole.startswith(text):
                continue
            total += math.exp(sum(distribution(tokens[:i])[t] for i, t in enumerate(tokens)))
    return total


@pytest.mark.parametrize("text", [b"a", b"ab", b"aab", b"abab", b"babab"])
def test_exact_over_all_covers(text):
    scorer = SpanScorer(ByteOrder(TABLE), distribution)
    assert scorer.begins_with(text) == pytest.approx(brute(text), abs=1e-12)
    assert scorer.is_written_as(text) == pytest.approx(brute(text, boundary=True), abs=1e-12)
    assert scorer.left_out == 0.0


def test_shares_of_pieces_are_conditional_and_multiply_to_the_whole():
    scorer = SpanScorer(ByteOrder(TABLE), distribution)
    pieces = [b"a", b"ba", b"b"]
    shares = scorer.shares(pieces)
    assert sum(shares) == pytest.approx(math.log(brute(b"abab")), abs=1e-12)
    assert shares[1] == pytest.approx(math.log(brute(b"aba") / brute(b"a")), abs=1e-12)
    assert SpanScorer(ByteOrder(TABLE), distribution).shares([b"c"]) == [-math.inf]


def test_what_is_left_out_is_bounded_by_what_is_said():
    exact = brute(b"babab")
    for least in (0.01, 0.1, 0.5):
        scorer = SpanScorer(ByteOrder(TABLE), distribution, min_mass=least)
        found = scorer.begins_with(b"babab")
        assert found <= exact <= found + scorer.left_out + 1e-12
    blind = SpanScorer(ByteOrder(TABLE), lambda history: distribution(history) if len(history) < 2 else None)
    found = blind.begins_with(b"babab")
    assert found < exact <= found + blind.left_out + 1e-12


def test_the_order_finds_tokens_by_their_bytes():
    order = ByteOrder([b"a", b"\xff", b"\xff\xff", b"ab", b"", b"b", b"\xff\xfe"])
    low, high = order.starting_with(b"\xff")
    assert sorted(order.ids[low:high].tolist()) == [1, 2, 6]
    low, high = order.starting_with(b"a")
    assert sorted(order.ids[low:high].tolist()) == [0, 3]
    assert order.longest_match(b"abc") == 3
    assert order.longest_match(b"c") is None
    assert order.beginnings(b"ab") == [(0, 1)]
