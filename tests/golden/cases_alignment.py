"""Cases of alignment between tokenizers."""

import math
from typing import Any

import numpy as np
import torch

from tasks.learning.sampled import Spread, spread
from tasks.tokens.alignment import align, sums
from tasks.tokens.covers import ByteOrder, SpanScorer

Json = dict[str, Any]


def cross_tokenizer(i: Json) -> Json:
    lengths = {side: [len(bytes.fromhex(t)) for t in i[f"{side}_tokens_hex"]] for side in ("student", "teacher")}
    policy_ends, teacher_ends = (np.cumsum(lengths[side]) for side in ("student", "teacher"))
    chunks = align(policy_ends, teacher_ends)
    policy, teacher = np.array(i["student_logp"]), np.array(i["teacher_logp"])
    of_policy, of_teacher = sums(policy, chunks.policy_C2), sums(teacher, chunks.teacher_C2)
    listed = [
        {
            "byte_span": [int(a), int(b)],
            "student_token_range": [int(x) for x in s],
            "teacher_token_range": [int(x) for x in t],
            "teacher_logp": lt,
            "student_logp": ls,
            "D": lt - ls,
        }
        for (a, b), s, t, lt, ls in zip(
            chunks.bytes_C2, chunks.policy_C2, chunks.teacher_C2, of_teacher, of_policy, strict=True
        )
    ]
    told = np.zeros(len(policy))
    told[chunks.policy_C2[:, 1] - 1] = of_teacher
    numbers = np.repeat(np.arange(len(chunks)), chunks.policy_sizes_C)
    told_BT, policy_BT, chunks_BT = (torch.tensor(x)[None] for x in (told, policy, numbers))

    def spread_by(mode: Spread) -> list[float]:
        return spread(told_BT, policy_BT, chunks_BT, mode)[0].tolist()

    gap = float((of_teacher - of_policy).sum())
    return {
        "student_ends": [int(e) for e in policy_ends],
        "teacher_ends": [int(e) for e in teacher_ends],
        "common_ends": [int(e) for e in chunks.bytes_C2[:, 1]],
        "chunks": listed,
        "adv_equal_share": spread_by("equal"),
        "adv_broadcast": spread_by("broadcast"),
        "adv_causal": spread_by("causal"),
        "adv_teacher_share": spread_by("teacher_share"),
        "sum_D": gap,
        "mean_reverse_KL_per_byte": -gap / int(policy_ends[-1]),
    }


def span_probability(i: Json) -> Json:
    probabilities = i["unigram_token_probs"]
    table = [b"" if t.startswith("<") else t.encode() for t in probabilities]
    logprobs = np.log(np.array(list(probabilities.values())))
    scorer = SpanScorer(ByteOrder(table), lambda _: logprobs)
    span = i["span"].encode()
    whole, without = scorer.begins_with(span), scorer.begins_with(span[:-1])
    return {
        "prefix_probability": whole,
        "token_boundary_probability": scorer.is_written_as(span),
        "single_token_probability": probabilities[i["span"]],
        "prefix_probability_without_last_byte": without,
        "conditional_last_byte": math.exp(scorer.shares([span[:-1], span[-1:]])[1]),
        "log_prefix_probability": math.log(whole),
    }


CASES = {"cross_tokenizer": cross_tokenizer, "span_probability": span_probability}
