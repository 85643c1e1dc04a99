"""A GRPO step with its rollouts against TRL on the CPU: 8 prompts x 8 completions x 48 tokens, one update.

The reward is the share of even token ids, so that both sides can be seen to learn the same. TRL gets the size of its
forward passes that is fastest here; its generation is the one of transformers, the best that it has without a server.
"""

import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from tests.bench.peer import compare, in_turns, prompts, ratio, saved

PROMPTS, GROUP, TOKENS = 8, 8, 48
MICRO_BATCH = 2048
"""Padded tokens of the product's forward passes (`run.micro_batch_tokens`)."""
BOUNDS = {"tiny": 1.5, "smollm2": 3.0}
MEMORY = 0.6
PEER_ROWS = {"tiny": 64, "smollm2": 16}
STEPS = {"tiny": (24, 3), "smollm2": (3, 1)}
RATES = {"tiny": 1e-3, "smollm2": 1e-5}
AGREES = 0.05
"""Largest difference of the mean reward over the last quarter of the steps."""


def measure(name: str, options: Any) -> dict[str, Any]:
    """Return the ratio for one model and how it came about."""
    steps, warm = STEPS[name]
    steps = warm + (options.steps or steps)
    with tempfile.TemporaryDirectory() as folder:
        policy = saved(name, Path(folder))
        asked = prompts(name, steps * PROMPTS, policy)
        setting = {
            "what": "grpo", "folder": folder, "threads": options.threads, "precision": options.precision, "warm": warm, "micro_batch_tokens": MICRO_BATCH,
            "learning_rate": RATES[name], "end": policy.tokenizer.decode([policy.template.stop_ids[0]]),
            "group_size": GROUP, "tokens": TOKENS, "peer_rows": PEER_ROWS[name],
            "steps": [asked[i * PROMPTS : (i + 1) * PROMPTS] for i in range(steps)],
        }  # fmt: skip
        own, peer = in_turns(setting, options.runs, lambda text: print(text, file=sys.stderr, flush=True))
    last = max(1, steps // 4)
    end, peer_end = mean(own[0]["found"][-last:]), mean(peer[0]["found"][-last:])
    memory = max(o["peak_mb"] for o in own) / max(p["peak_mb"] for p in peer)
    return {
        "ratio": ratio(own, peer, "seconds"),
        "cpu_ratio": ratio(own, peer, "cpu"),
        "memory": memory,
        "peak_mb": [max(o["peak_mb"] for o in own), max(p["peak_mb"] for p in peer)],
        "loaded_mb": [own[0]["loaded_mb"], peer[0]["loaded_mb"]],
        "reward": [own[0]["found"][0], end],
        "peer_reward": [peer[0]["found"][0], peer_end],
        "peer": f"TRL {peer[0]['version']}, transformers generate, {PEER_ROWS[name]} rows a forward pass, "
        f"{options.precision}, {options.threads} thread",
        "holds": ratio(own, peer, "seconds") >= BOUNDS[name] and memory <= MEMORY and abs(end - peer_end) < AGREES,
    }


def main() -> None:
    compare(
        "grpo_vs_trl", (__doc__ or "").splitlines()[0], measure, BOUNDS, "like rewards", f"<= {MEMORY:g} of the memory"
    )


if __name__ == "__main__":
    main()
