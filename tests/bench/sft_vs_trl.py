"""Supervised steps against TRL on the CPU: the same batches in the same order, so that the losses are compared too.

Rows of like length stand together (the product's own plan of batches), which is what TRL's `group_by_length` strives for;
padding-free and packed forms are slower there. 32 rows of 24 to 320 tokens for the tiny model, 16 of function calls for
SmolLM2.
"""

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from specs.supervised import SupervisedBatch
from tasks.loops.batches import batch_plan
from tests.bench.peer import compare, function_calls, in_turns, ratio, saved

MICRO_BATCH = {"tiny": 8192, "smollm2": 4096}
"""Padded tokens of the product's forward passes (`run.micro_batch_tokens`)."""
BOUNDS = {"tiny": 1.2, "smollm2": 2.0}
ROWS = {"tiny": 32, "smollm2": 16}
STEPS = {"tiny": (30, 4), "smollm2": (4, 1)}
RATES = {"tiny": 1e-3, "smollm2": 2e-5}
AGREES = {"fp32": 2e-3, "bf16": 1e-2}
"""Largest difference of a step's loss, relative to the loss."""


def _uneven(count: int) -> list[tuple[list[int], list[int]]]:
    rng = random.Random(0)
    rows: list[tuple[list[int], list[int]]] = []
    for _ in range(count):
        length = int(min(320, max(24, rng.lognormvariate(4.4, 0.6))))
        answer = max(8, int(length * rng.uniform(0.3, 0.6)))
        ids = [rng.randrange(8, 512) for _ in range(length)]
        rows.append((ids[: length - answer], ids[length - answer :]))
    return rows


def measure(name: str, options: Any) -> dict[str, Any]:
    """Return the ratio for one model and how it came about."""
    steps, warm = STEPS[name]
    steps = warm + (options.steps or steps)
    with tempfile.TemporaryDirectory() as folder:
        policy = saved(name, Path(folder))
        rows = _uneven(steps * ROWS[name]) if name == "tiny" else function_calls(policy, steps * ROWS[name])
        plan = batch_plan([len(p) + len(c) for p, c in rows], SupervisedBatch(rows=ROWS[name]), 1.0, seed=0)
        setting = {
            "what": "sft", "folder": folder, "threads": options.threads, "precision": options.precision, "warm": warm, "micro_batch_tokens": MICRO_BATCH[name],
            "learning_rate": RATES[name], "end": policy.tokenizer.decode([policy.template.stop_ids[0]]),
            "steps": [[rows[i] for i in step] for step in plan if len(step) == ROWS[name]],
        }  # fmt: skip
        own, peer = in_turns(setting, options.runs, lambda text: print(text, file=sys.stderr, flush=True))
    gap = max(abs(a - b) / b for a, b in zip(own[0]["found"], peer[0]["found"], strict=True))
    tokens = [sum(len(p) + len(c) for p, c in step) for step in setting["steps"]][warm:]
    return {
        "ratio": ratio(own, peer, "seconds"),
        "cpu_ratio": ratio(own, peer, "cpu"),
        "tokens_per_second": sum(tokens) / sum(own[0]["seconds"]),
        "peer_tokens_per_second": sum(tokens) / sum(peer[0]["seconds"]),
        "memory": own[0]["peak_mb"] / peer[0]["peak_mb"],
        "loss": [own[0]["found"][0], own[0]["found"][-1]],
        "peer_loss": [peer[0]["found"][0], peer[0]["found"][-1]],
        "largest_loss_gap": gap,
        "peer": f"TRL {peer[0]['version']}, sequential over the same batches, {options.precision}, {options.threads} thread",
        "holds": ratio(own, peer, "seconds") >= BOUNDS[name] and gap < AGREES[options.precision],
    }


def main() -> None:
    compare("sft_vs_trl", (__doc__ or "").splitlines()[0], measure, BOUNDS, "equal losses")


if __name__ == "__main__":
    main()
