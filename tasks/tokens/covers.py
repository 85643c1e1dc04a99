"""Exact probabilities of bytes under a model over tokens.

A cover of a byte string b is a sequence of tokens whose bytes begin with b and all but the last of which end inside it.
P(the next bytes are b | h) = F(h, b), the sum over covers (2412.03719, 2410.09303):
F(h, b) = sum over tokens that begin with b of P(v | h) + sum over tokens v that are a beginning of b of P(v | h) F(h v, b without v).
A policy token with bytes b[i:k] of a chunk scores log F(h, b[:k]) - log F(h, b[:i]): no boundary is given away, and
nothing is counted twice. Only what the teacher would write otherwise costs further passes.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

History = tuple[int, ...]
"""Tokens since the beginning of the span."""
Distribution = Callable[[History], NDArray[np.float64] | None]
"""Logprobs of every next token after a history; None where it may not be asked for."""


class ByteOrder:
    """A vocabulary in the order of its bytes, so that all tokens that begin alike stand together."""

    def __init__(self, table: Sequence[bytes]) -> None:
        kept = sorted((text, i) for i, text in enumerate(table) if text)
        self.texts = [text for text, _ in kept]
        self.ids = np.array([i for _, i in kept], dtype=np.int64)
        self._by_text: dict[bytes, list[int]] = {}
        for text, i in kept:
            self._by_text.setdefault(text, []).append(i)
        self.longest = max((len(t) for t in self.texts), default=0)

    def starting_with(self, prefix: bytes) -> tuple[int, int]:
        """Return the half open range of places of tokens that begin with `prefix`."""
        low = bisect_left(self.texts, prefix)
        rest = prefix.rstrip(b"\xff")
        if not rest:
            return low, len(self.texts)
        return low, bisect_left(self.texts, rest[:-1] + bytes([rest[-1] + 1]))

    def beginnings(self, text: bytes) -> list[tuple[int, int]]:
        """Return (token, bytes) of all tokens that are a proper beginning of `text`."""
        most = min(self.longest, len(text) - 1)
        return [(i, n) for n in range(1, most + 1) for i in self._by_text.get(text[:n], ())]

    def exactly(self, text: bytes) -> Sequence[int]:
        """Return the tokens of exactly these bytes."""
        return self._by_text.get(text, ())

    def longest_match(self, text: bytes) -> int | None:
        """Return the longest token that `text` begins with; of equal ones the first. None where there is none."""
        for n in range(min(self.longest, len(text)), 0, -1):
            if text[:n] in self._by_text:
                return self._by_text[text[:n]][0]
        return None


@dataclass(slots=True)
class SpanScorer:
    """Span probabilities after one context, which `distribution` knows; each history is asked for once."""

    order: ByteOrder
    distribution: Distribution
    min_mass: float = 0.0
    """Other ways of writing with less probability than this (of the way so far) are left out."""
    left_out: float = 0.0
    """Probability, summed over questions, of ways that were left out: what a score may be too low by."""
    _cumulative: dict[History, NDArray[np.float64] | None] = field(
        default_factory=dict[History, NDArray[np.float64] | None]
    )
    _logprobs: dict[History, NDArray[np.float64]] = field(default_factory=dict[History, NDArray[np.float64]])

    def begins_with(self, text: bytes) -> float:
        """Return the probability that what follows begins with `text`."""
        return self._begins((), text, 1.0)

    def is_written_as(self, text: bytes) -> float:
        """Return the probability of `text` with a token boundary at its end: sum over all ways of writing it."""
        return self._written((), text, 1.0)

    def shares(self, pieces: Sequence[bytes]) -> list[float]:
        """Return the logprob of each piece given those before it; minus infinity where a piece cannot follow."""
        before, text, found = 1.0, b"", list[float]()
        for piece in pieces:
            text += piece
            now = self.begins_with(text)
            found.append(math.log(now / before) if now > 0 and before > 0 else -math.inf)
            before = now
        return found

    def _ask(self, history: History) -> bool:
        if history not in self._cumulative:
            logprobs = self.distribution(history)
            if logprobs is None:
                self._cumulative[history] = None
            else:
                ordered = np.exp(np.asarray(logprobs, dtype=np.float64)[self.order.ids])
                self._cumulative[history] = np.concatenate([[0.0], ordered.cumsum()])
                self._logprobs[history] = logprobs
        return self._cumulative[history] is not None

    def _begins(self, history: History, text: bytes, mass: float) -> float:
        if not text:
            return 1.0
        if not self._ask(history):
            self.left_out += mass
            return 0.0
        cumulative = self._cumulative[history]
        assert cumulative is not None
        low, high = self.order.starting_with(text)
        return float(cumulative[high] - cumulative[low]) + self._through(history, text, mass, self._begins)

    def _written(self, history: History, text: bytes, mass: float) -> float:
        if not text:
            return 1.0
        if not self._ask(history):
            self.left_out += mass
            return 0.0
        whole = sum(math.exp(self._logprobs[history][i]) for i in self.order.exactly(text))
        return whole + self._through(history, text, mass, self._written)

    def _through(
        self, history: History, text: bytes, mass: float, rest: Callable[[History, bytes, float], float]
    ) -> float:
        """Return the sum over tokens that end inside the text."""
        total = 0.0
        for token, length in self.order.beginnings(text):
            probability = math.exp(self._logprobs[history][token])
            if probability == 0.0:
                continue
            if mass * probability < self.min_mass:
                self.left_out += mass * probability
                continue
            total += probability * rest((*history, token), text[length:], mass * probability)
        return total
