"""Alignment of two tokenizers over the same bytes.

Both sides' tokens are cut at every byte where a token ends on both sides. Inside such a chunk the teacher scored one
text of several tokens and the policy another cut of it: only the sums can be compared,
D = sum of teacher logprobs - sum of policy logprobs. One pass over both sides, prefix sums, no search.
Alignment as in 2606.09456 and GOLD. S policy tokens, T teacher tokens, C chunks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.alignment import Drop

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks in order; ranges are half open. Tokens in none of them have no counterpart."""

    bytes_C2: Ints
    """Where each chunk begins and ends, in bytes."""
    policy_C2: Ints
    teacher_C2: Ints

    def __len__(self) -> int:
        return len(self.bytes_C2)

    @property
    def policy_sizes_C(self) -> Ints:
        """Return how many of the policy's tokens each chunk has."""
        return self.policy_C2[:, 1] - self.policy_C2[:, 0]

    @property
    def teacher_sizes_C(self) -> Ints:
        """Return how many of the teacher's tokens each chunk has."""
        return self.teacher_C2[:, 1] - self.teacher_C2[:, 0]

    def moved(self, data: int, policy: int, teacher: int) -> "Chunks":
        """Return the same chunks further on in a longer text."""
        return Chunks(self.bytes_C2 + data, self.policy_C2 + policy, self.teacher_C2 + teacher)


def joined(parts: Sequence[Chunks]) -> Chunks:
    """Return the chunks of several pieces as one."""
    empty = np.zeros((0, 2), dtype=np.int64)
    return Chunks(
        np.concatenate([empty, *(p.bytes_C2 for p in parts)]),
        np.concatenate([empty, *(p.policy_C2 for p in parts)]),
        np.concatenate([empty, *(p.teacher_C2 for p in parts)]),
    )


def align(policy_ends_S: Ints, teacher_ends_T: Ints) -> Chunks:
    """Return the chunks between all common ends, the smallest there are.

    A token without bytes belongs to the chunk after it; behind the last common end it belongs to none.
    """
    last = int(max(policy_ends_S[-1:].sum(), teacher_ends_T[-1:].sum()))
    policy_at, teacher_at = _first_at(policy_ends_S, last), _first_at(teacher_ends_T, last)
    ends_C = np.flatnonzero((policy_at > 0) & (teacher_at > 0))
    return Chunks(ranges(ends_C), ranges(policy_at[ends_C]), ranges(teacher_at[ends_C]))


def _first_at(ends: Ints, last: int) -> Ints:
    """Return for each byte 1 + the first token that ends there, 0 where none does; byte 0 is no end."""
    found = np.zeros(last + 1, dtype=np.int64)
    found[ends[::-1]] = np.arange(len(ends), 0, -1)
    found[0] = 0
    return found


def ranges(stops_C: Ints) -> Ints:
    """Return the ranges that end at these places, each beginning where the one before it ends."""
    starts_C = np.concatenate([np.zeros(1, dtype=np.int64), stops_C[:-1]])[: len(stops_C)]
    return np.stack([starts_C, stops_C], -1)


def sums(values: NDArray[Any], ranges_C2: Ints) -> Floats:
    """Return the sum over each range, by prefix sums in double precision."""
    total = np.concatenate([[0.0], np.asarray(values, dtype=np.float64).cumsum()])
    return total[ranges_C2[:, 1]] - total[ranges_C2[:, 0]]


@dataclass(slots=True)
class Coverage:
    """How many of the policy's tokens found a counterpart. Additive over pieces."""

    tokens: int = 0
    aligned: int = 0
    """In a chunk of one token on each side."""
    merged: int = 0
    """In a chunk of several tokens."""
    dropped: Counter[str] = field(default_factory=Counter[str])
    """By reason."""
    bytes: int = 0
    """Of the chunks that count."""
    gap: float = 0.0
    """Sum of D over the chunks that count."""
    strategies: Counter[str] = field(default_factory=Counter[str])
    """Pieces by how they were aligned."""

    def add(self, other: "Coverage") -> None:
        """Count another piece's too."""
        self.tokens += other.tokens
        self.aligned += other.aligned
        self.merged += other.merged
        self.bytes += other.bytes
        self.gap += other.gap
        self.dropped.update(other.dropped)
        self.strategies.update(other.strategies)

    @property
    def share(self) -> float:
        """Return the share of tokens with a counterpart; 1 where there was none to find."""
        return (self.aligned + self.merged) / self.tokens if self.tokens else 1.0

    def figures(self) -> dict[str, float]:
        """Return shares of all tokens, and the reverse KL per byte, which is comparable across tokenizers."""
        n = max(1, self.tokens)
        found = {
            "alignment_coverage": self.share,
            "alignment_aligned": self.aligned / n,
            "alignment_merged": self.merged / n,
            "alignment_dropped": sum(self.dropped.values()) / n,
            "reverse_kl_per_byte": -self.gap / max(1, self.bytes),
        }
        found |= {f"alignment_dropped_{reason}": count / n for reason, count in sorted(self.dropped.items())}
        pieces = max(1, sum(self.strategies.values()))
        return found | {f"alignment_{name}": count / pieces for name, count in sorted(self.strategies.items())}


@dataclass(frozen=True, slots=True)
class Doubts:
    """What speaks against chunks, apart from their size and gap."""

    trains_S: Bools
    """The policy's tokens that are asked about."""
    special_S: Bools
    """Special tokens that the policy wrote inside a text."""
    unknown_T: Bools
    """Teacher tokens that stand for what its vocabulary cannot write."""
    cut_C: Bools
    """Chunks at a place where the text was broken off: neither side need have ended a token there."""


def judge(
    chunks: Chunks, policy_S: Floats, teacher_T: Floats, doubts: Doubts, *, max_tokens: int, max_gap: float
) -> tuple[Bools, Coverage]:
    """Return which chunks count, and the coverage of the tokens that train. Not finite teacher logprobs are missing.

    A chunk with more than `max_tokens` on either side, or whose sums are more than `max_gap` nats apart, does not count.
    """
    policy_C2, teacher_C2 = chunks.policy_C2, chunks.teacher_C2
    missing_T = ~np.isfinite(np.asarray(teacher_T, dtype=np.float64))
    gap_C = sums(np.where(missing_T, 0.0, teacher_T), teacher_C2) - sums(policy_S, policy_C2)
    sizes_C, others_C = chunks.policy_sizes_C, chunks.teacher_sizes_C
    tests: Sequence[tuple[Drop, Bools]] = (
        ("masked", sums(~doubts.trains_S, policy_C2) > 0),
        ("special_token", sums(doubts.special_S, policy_C2) > 0),
        ("no_teacher_token", others_C == 0),
        ("unknown_token", sums(doubts.unknown_T, teacher_C2) > 0),
        ("teacher_logprob_missing", sums(missing_T, teacher_C2) > 0),
        ("cut", doubts.cut_C),
        ("too_many_tokens", np.maximum(sizes_C, others_C) > max_tokens),
        ("gap_too_large", np.abs(gap_C) > max_gap),
    )
    trained_C = sums(doubts.trains_S, policy_C2).astype(np.int64)
    good_C = np.ones(len(chunks), dtype=bool)
    coverage = Coverage(tokens=int(doubts.trains_S.sum()))
    for reason, bad_C in tests:
        coverage.dropped[reason] += int(trained_C[good_C & bad_C].sum())
        good_C &= ~bad_C
    coverage.dropped["no_teacher_token"] += coverage.tokens - int(trained_C.sum())
    coverage.dropped = +coverage.dropped
    single_C = (sizes_C == 1) & (others_C == 1)
    coverage.aligned = int((good_C & single_C).sum())
    coverage.merged = int(sizes_C[good_C & ~single_C].sum())
    coverage.bytes = int((chunks.bytes_C2[:, 1] - chunks.bytes_C2[:, 0])[good_C].sum())
    coverage.gap = float(gap_C[good_C].sum())
    return good_C, coverage
