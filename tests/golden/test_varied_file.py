"""Another valid file of the same form: the evaluators give what the formulas say, for any advantages, masks and rewards.

What is expected is plain arithmetic, without a function of the product.
"""

import random
from math import exp
from statistics import fmean, stdev
from typing import Any

import pytest

from tests.golden.test_formulas import differences, evaluators

SEEDS = range(8)


def logprobs(rng, count):
    return [rng.uniform(-3.0, -0.05) for _ in range(count)]


def some(rng, count):
    """Return a mask with something and not everything in it."""
    mask = [1, 0, *(rng.randint(0, 1) for _ in range(count - 2))]
    rng.shuffle(mask)
    return mask


def clip(x, low, high):
    return max(low, min(high, x))


def cispo(rng):
    rows, columns = 2, 5
    inputs = {
        "logp": [logprobs(rng, columns) for _ in range(rows)],
        "old_logp": [logprobs(rng, columns) for _ in range(rows)],
        "advantage": [[rng.choice([0.0, -1.5, 0.3, 2.0])] for _ in range(rows)],
        "mask": [some(rng, columns) for _ in range(rows)],
        "two_sided": [0.2, 0.28],
        "upper_cap": 5.0,
    }
    ratio = [
        [exp(p - q) for p, q in zip(a, b, strict=True)] for a, b in zip(inputs["logp"], inputs["old_logp"], strict=True)
    ]
    count = sum(map(sum, inputs["mask"]))
    expected: dict[str, Any] = {"ratio": ratio}
    for name, low, high in (("two_sided", 0.8, 1.28), ("upper_cap", 0.0, 5.0)):
        weight = [
            [m * clip(r, low, high) for r, m in zip(rs, ms, strict=True)]
            for rs, ms in zip(ratio, inputs["mask"], strict=True)
        ]
        pairs = [
            (w, a[0], p)
            for ws, a, ps in zip(weight, inputs["advantage"], inputs["logp"], strict=True)
            for w, p in zip(ws, ps, strict=True)
        ]
        expected[f"weight_{name}"] = weight
        expected[f"loss_{name}"] = sum(-w * a * p for w, a, p in pairs) / count
        expected[f"grad_wrt_logp_{name}"] = [
            [-w * a[0] / count for w in ws] for ws, a in zip(weight, inputs["advantage"], strict=True)
        ]
    return inputs, expected


def dapo_clip(rng):
    inputs = {
        "logp": [logprobs(rng, 4) for _ in range(2)],
        "old_logp": [logprobs(rng, 4) for _ in range(2)],
        "advantage": [[rng.choice([0.0, -1.5, 0.3])] for _ in range(2)],
        "mask": [some(rng, 4) for _ in range(2)],
        "eps_low": 0.2,
        "eps_high": 0.28,
        "dual_clip_c": 3.0,
    }
    ratio = [
        [exp(p - q) for p, q in zip(a, b, strict=True)] for a, b in zip(inputs["logp"], inputs["old_logp"], strict=True)
    ]
    token = [
        [m * max(-a[0] * r, -a[0] * clip(r, 0.8, 1.28)) for r, m in zip(rs, ms, strict=True)]
        for rs, a, ms in zip(ratio, inputs["advantage"], inputs["mask"], strict=True)
    ]
    count = sum(map(sum, inputs["mask"]))
    rows = [sum(losses) / sum(mask) for losses, mask in zip(token, inputs["mask"], strict=True)]
    return inputs, {
        "ratio": ratio,
        "token_loss": token,
        "loss_token_mean": sum(map(sum, token)) / count,
        "loss_seq_mean": fmean(rows),
        "loss_dr_grpo_constant_L": sum(map(sum, token)) / 8,
    }


def dis_sao(rng):
    count = 6
    inputs = {
        "logp": logprobs(rng, count),
        "rollout_logp": logprobs(rng, count),
        "advantage": [0.0, *(rng.uniform(-2, 2) for _ in range(count - 1))],
        "mask": some(rng, count),
        "eps_low": 0.3,
        "eps_high": 5.0,
    }
    ratio = [exp(p - q) for p, q in zip(inputs["logp"], inputs["rollout_logp"], strict=True)]
    weight = [m * r * (0.7 < r < 6.0) for r, m in zip(ratio, inputs["mask"], strict=True)]
    n = sum(inputs["mask"])
    terms = list(zip(weight, inputs["advantage"], inputs["logp"], strict=True))
    return inputs, {
        "ratio": ratio,
        "weight": weight,
        "loss": -sum(w * a * p for w, a, p in terms) / n,
        "grad_wrt_logp": [-w * a / n for w, a, _ in terms],
        "kept_fraction": sum(w > 0 for w in weight) / n,
    }


def sampled_opd(rng):
    count, gamma = 6, 0.5
    inputs = {
        "teacher_logp": [-15.0, *logprobs(rng, count - 1)],
        "student_logp": logprobs(rng, count),
        "mask": some(rng, count),
        "gamma_iw": gamma,
    }
    mask = inputs["mask"]
    gap = [m * (t - s) for t, s, m in zip(inputs["teacher_logp"], inputs["student_logp"], mask, strict=True)]
    total = sum(map(abs, gap))
    weights = [1 + gamma * (1 - sum(map(abs, gap[:t])) / total) for t in range(count)]

    def to_go(discount):
        found, following = [], 0.0
        for g, m in zip(reversed(gap), reversed(mask), strict=True):
            following = g + discount * following if m else following
            found.append(following if m else 0.0)
        return found[::-1]

    return inputs, {
        "advantage_discount0": gap,
        "k1_reverse_KL_estimate": -sum(gap) / sum(mask),
        "return_to_go_gamma1": to_go(1.0),
        "return_to_go_gamma0_9": to_go(0.9),
        "iw_weights": weights,
        "iw_advantage": [w * g for w, g in zip(weights, gap, strict=True)],
    }


def mopd(rng):
    count = 6
    inputs = {
        "teacher_logp": [-15.0, *logprobs(rng, count - 1)],
        "student_logp": logprobs(rng, count),
        "rollout_logp": logprobs(rng, count),
        "mask": some(rng, count),
        "outcome_advantage": rng.uniform(-1, 1),
        "alpha": 0.2,
        "band": [0.5, 2.0],
    }
    student, mask, n = inputs["student_logp"], inputs["mask"], sum(inputs["mask"])
    inputs["teacher_logp"][2] = student[2] - 0.2 * inputs["outcome_advantage"]  # combined with the outcome it is 0
    gap = [m * (t - s) for t, s, m in zip(inputs["teacher_logp"], student, mask, strict=True)]
    both = [m * (g + 0.2 * inputs["outcome_advantage"]) for g, m in zip(gap, mask, strict=True)]
    ratio = [exp(s - r) for s, r in zip(student, inputs["rollout_logp"], strict=True)]
    weight = [m * r * (0.5 <= r <= 2.0) for r, m in zip(ratio, mask, strict=True)]
    return inputs, {
        "opd_advantage": gap,
        "combined_advantage": both,
        "ratio": ratio,
        "weight": weight,
        "loss": -sum(w * a * s for w, a, s in zip(weight, both, student, strict=True)) / n,
        "grad_wrt_student_logp": [-w * a / n for w, a in zip(weight, both, strict=True)],
    }


def gigpo(rng):
    names = [f"t{k}" for k in range(3) for _ in range(rng.randint(2, 4))]
    inputs = {
        "trajectory": names,
        "anchor_observation": [rng.choice("abc") for _ in names],
        "step_reward": [rng.choice([0.0, 0.0, 0.5, -0.2, 1.0]) for _ in names],
        "gamma": 0.9,
        "omega": 0.7,
    }
    returns: list[float] = []
    for name, reward in reversed(list(zip(names, inputs["step_reward"], strict=True))):
        later = returns[-1] if returns and names[len(names) - len(returns)] == name else 0.0
        returns.append(reward + 0.9 * later)
    returns.reverse()
    whole = {n: sum(r for m, r in zip(names, inputs["step_reward"], strict=True) if m == n) for n in names}

    def centred(values, members, *, by_std=False):
        """Return values less the mean of their members, by their sample std where asked; 0 where these do not vary."""
        found = []
        for value, own in zip(values, members, strict=True):
            flat = len(own) < 2 or stdev(own) < 1e-6
            found.append(0.0 if flat else (value - fmean(own)) / (stdev(own) + 1e-6 if by_std else 1.0))
        return found

    episodes, rows = [whole[n] for n in names], [list(whole.values())] * len(names)
    states = [
        [g for g, b in zip(returns, inputs["anchor_observation"], strict=True) if b == a]
        for a in inputs["anchor_observation"]
    ]
    by_trajectory, by_row = centred(episodes, rows), centred(episodes, [episodes] * len(names))
    own, scaled = centred(returns, states), centred(returns, states, by_std=True)
    return inputs, {
        "step_return": returns,
        "episode_adv_traj_mean": by_trajectory,
        "episode_adv_row_mean": by_row,
        "step_adv_mean": own,
        "step_adv_mean_std": scaled,
        "joint_traj_mean": [a + 0.7 * b for a, b in zip(by_trajectory, own, strict=True)],
        "joint_row_mean": [a + 0.7 * b for a, b in zip(by_row, own, strict=True)],
        "joint_mean_std_traj": [a + 0.7 * b for a, b in zip(centred(episodes, rows, by_std=True), scaled, strict=True)],
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", [cispo, dapo_clip, dis_sao, sampled_opd, mopd, gigpo])
def test_another_file_is_computed_and_not_remembered(case, seed):
    inputs, expected = case(random.Random(f"{case.__name__}/{seed}"))
    assert differences(evaluators()[case.__name__](inputs), expected, case.__name__) == []
