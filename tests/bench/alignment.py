"""Alignment across tokenizers: cost per token at 100,000 tokens over that at 1,000, speed against one teacher call per
policy token, and agreement with brute force over all covers of a toy vocabulary. Medians of seven interleaved runs.
"""

import random
import time
from statistics import median

import numpy as np
import torch

from specs.alignment import Alignment
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.other_tokenizer import OtherTokenizerTeacher
from tasks.policy.config import LlamaConfig
from tasks.policy.initial import random_model
from tasks.protocols import Span
from tasks.tokens.covers import ByteOrder, SpanScorer
from tasks.tokens.retelling import Reteller
from tests.bench.common import report
from tests.tasks.tokens.conversations import conversation, side, span, template
from tests.tasks.tokens.kinds import TEXTS
from tests.tasks.tokens.test_covers import TABLE, brute, distribution

RUNS = 7
POLICY = template("builtin/compact@1", 400)
OWN, OTHER = side("builtin/compact@1", POLICY), side("builtin/chatml@1", template("builtin/chatml@1", 320))


def spoken(tokens: int, calls: int) -> Span:
    """Return a trajectory of about so many policy tokens in some turns."""
    words = [w for t in TEXTS[:3] for w in t.split()]
    rng = random.Random(tokens)
    parts: list[str | list[int]] = []
    for _ in range(calls):
        text = ""
        while len(OWN[0].ids(text)) < tokens / calls:
            text += " ".join(rng.choice(words) for _ in range(max(1, tokens // calls // 4))) + " "
        parts.append([*OWN[0].ids(text)[: tokens // calls - 1], POLICY.stop_ids[0]])
    return span(conversation(POLICY, parts))


def seconds_per_token(asked: Span) -> float:
    """Return what telling, aligning, summing and judging costs by policy token; nothing is remembered from before."""
    teacher = np.full(4 * len(asked.ids), -0.5)
    own = np.array(asked.trajectory.logprobs)
    began = time.perf_counter()
    retold = Reteller(OWN, OTHER, Alignment()).tell(asked)
    retold.judge(own, teacher[: len(retold.ids)], Alignment())
    return (time.perf_counter() - began) / sum(asked.mask)


def scaling() -> dict[str, float]:
    short, long = [spoken(1_000, 4) for _ in range(20)], spoken(100_000, 400)
    few, many = list[float](), list[float]()
    for _ in range(RUNS):
        few.append(sum(seconds_per_token(s) for s in short) / len(short))
        many.append(seconds_per_token(long))
    return {
        "us_per_token_1k": median(few) * 1e6,
        "us_per_token_100k": median(many) * 1e6,
        "ratio": median(many) / median(few),
    }


def against_one_call_a_token() -> dict[str, float]:
    asked = spoken(240, 4)
    config = LlamaConfig(
        vocab_size=OTHER[0].size, hidden_size=128, layers=4, heads=4, kv_heads=2, intermediate_size=256,
        rope_theta=10000.0, max_length=4096,
    )  # fmt: skip
    teacher = OpenTeacher("big", random_model(config, 0))
    aligned = OtherTokenizerTeacher(teacher, OWN, OTHER, Alignment(max_gap=1e9))
    once, each = list[float](), list[float]()
    for _ in range(RUNS):
        began = time.perf_counter()
        aligned.score([asked])
        once.append(time.perf_counter() - began)
        began = time.perf_counter()
        for end in np.flatnonzero(asked.mask).tolist():
            before = asked.ids[: end + 1]
            told = Reteller(OWN, OTHER, Alignment()).tell(Span(asked.trajectory, 0, before, asked.mask[: end + 1]))
            teacher.score([Span(asked.trajectory, 0, told.ids, [False] * (len(told.ids) - 1) + [True])])
        each.append(time.perf_counter() - began)
    figures = aligned.take_figures()
    return {
        "one_pass_ms": median(once) * 1e3,
        "a_call_per_token_ms": median(each) * 1e3,
        "speedup": median(each) / median(once),
        "coverage": figures["alignment_coverage"],
    }


def worst_difference() -> float:
    texts = [b"a", b"ab", b"ba", b"aab", b"abab", b"babab", b"abba"]
    return max(abs(SpanScorer(ByteOrder(TABLE), distribution).begins_with(t) - brute(t)) for t in texts)


def main() -> None:
    torch.set_num_threads(1)
    found = scaling() | against_one_call_a_token() | {"worst_difference_to_brute_force": worst_difference()}
    holds = found["ratio"] <= 1.2 and found["speedup"] >= 20 and found["worst_difference_to_brute_force"] < 1e-9
    bound = "cost per token at 100k <= 1.2x that at 1k; >= 20x one call per token; exact on a toy vocabulary"
    report("alignment", found["ratio"], bound, holds=holds, detail={k: float(f"{v:.4g}") for k, v in found.items()})


if __name__ == "__main__":
    main()
