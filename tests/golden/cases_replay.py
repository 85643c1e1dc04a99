"""Cases of replay and of rewards, computed by the functions that the buffer and the judge use."""

from statistics import fmean, stdev
from typing import Any

from tasks.evidence.shaping import capped, total, weighted
from tasks.learning.grouping import Rewarded, outliers_cut
from tasks.learning.replay import importance_weights, probabilities

Json = dict[str, Any]


def per(i: Json) -> Json:
    chances = probabilities(i["priority"], i["alpha"])
    raw = importance_weights(chances, i["beta"])
    asked = [raw[k] for k in i["sampled_indices"]]
    return {
        "P": chances,
        "raw_weight": raw,
        "weight_max_over_buffer": [w / max(raw) for w in raw],
        "sampled_weight_max_over_buffer": [w / max(raw) for w in asked],
        "sampled_weight_max_over_minibatch": [w / max(asked) for w in asked],
    }


def reward_shaping(i: Json) -> Json:
    soft = [weighted(scores, i["soft_weights"]) for scores in i["soft_scores"]]
    scaled = [w * i["soft_scale"] for w in i["soft_weights"]]
    process = [capped(p, i["process_cap"]) for p in i["process_sum"]]
    rewards = [
        total({"task": o, "soft": weighted(s, scaled), "process": p}, kept=bool(kept), floor=i["fail_reward"])
        for o, s, p, kept in zip(i["outcome"], i["soft_scores"], process, i["gate"], strict=True)
    ]
    return {
        "soft": soft,
        "process_capped": process,
        "total": rewards,
        "group_mean": fmean(rewards),
        "group_sample_std": stdev(rewards),
        "clipped": list(outliers_cut(Rewarded(rewards, [0] * len(rewards)), i["clip_k"]).rewards),
    }


CASES = {"per": per, "reward_shaping": reward_shaping}
