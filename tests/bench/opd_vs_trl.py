"""A step of on-policy distillation over a vocabulary of 49,152 against TRL on the CPU: full reverse KL, given completions.

Both of the peer's trainers are asked, and the faster one counts. Completions are given to all sides, so that generation is
in no figure; no prompt is shared. Memory above that of the loaded models is set against two forms in which every table of
logits is whole: the peer's GKDTrainer, which the bound is for, and the product's own, which differs in nothing else.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tasks.policy.config import LlamaConfig
from tasks.policy.llama import Llama
from tasks.policy.store import LoadedPolicy, save_policy
from tests.bench.peer import OWN, PEER, compare, model, ratio, side

ROWS, PROMPT, COMPLETION = 16, 64, 96
MICRO_BATCH = 8192
"""Padded tokens of the product's forward passes (`run.micro_batch_tokens`)."""
BOUNDS = {"tiny": 2.0, "smollm2": 1.45}
MEMORY = 0.5
STEPS = {"tiny": (8, 2), "smollm2": (3, 1)}
RATE = 1e-5
AGREES = 0.01
"""Largest difference of the first step's loss from that of the trainer that counts, as a share of it."""
NOISE = {"tiny": 0.05, "smollm2": 0.003}
"""Of the teacher's weights against the policy's."""
Made = dict[str, Any]


def policies(name: str, folder: Path) -> tuple[Path, Path, LoadedPolicy]:
    """Save a policy and a teacher that differs a little from it; both have the vocabulary of SmolLM2."""
    policy = model("smollm2")
    if name == "tiny":
        config = LlamaConfig(
            vocab_size=policy.config.vocab_size, hidden_size=128, layers=4, heads=4, kv_heads=2, intermediate_size=384,
            rope_theta=1000.0, max_length=512,
        )  # fmt: skip
        torch.manual_seed(0)
        policy.model, policy.config = Llama(config), config
        for parameter in policy.model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.05)
    save_policy(policy, folder / "policy")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=NOISE[name])
    save_policy(policy, folder / "teacher")
    return folder / "policy", folder / "teacher", policy


def measure(name: str, options: Any) -> Made:
    """Return the ratio for one model and how it came about."""
    steps, warm = STEPS[name]
    steps = warm + (options.steps or steps)
    with tempfile.TemporaryDirectory() as folder:
        own_folder, teacher, policy = policies(name, Path(folder))
        ids = torch.randint(10, policy.config.vocab_size, (steps, ROWS, PROMPT + COMPLETION)).tolist()
        setting = {
            "folder": str(own_folder), "teacher": str(teacher), "threads": options.threads, "warm": warm,
            "precision": options.precision, "micro_batch_tokens": MICRO_BATCH, "learning_rate": RATE,
            "end": policy.tokenizer.decode([policy.template.stop_ids[0]]),
            "steps": [[[row[:PROMPT], row[PROMPT:]] for row in step] for step in ids],
        }  # fmt: skip
        runs = {
            "own": (OWN, "opd", False),
            "whole": (OWN, "opd", True),
            "distillation": (PEER, "opd", False),
            "gkd": (PEER, "gkd", False),
        }
        found: dict[str, list[Made]] = {side_name: [] for side_name in runs}
        for number in range(options.runs):
            for side_name, (script, what, whole) in runs.items():
                made = side(script, setting | {"what": what, "whole": whole})
                found[side_name].append(made)
                told = f"{median(made['seconds']):.3f} s a step ({median(made['cpu']):.3f} CPU), peak {made['peak_mb']:.0f} MB"
                print(f"  {name} run {number} {side_name}: {told}", file=sys.stderr, flush=True)
    return _figures(name, found, options)


def _figures(name: str, found: dict[str, list[Made]], options: Any) -> Made:
    ratios = {peer: ratio(found["own"], found[peer], "seconds") for peer in ("distillation", "gkd")}
    above = {n: median(m["peak_mb"] - m["loaded_mb"] for m in made) for n, made in found.items()}
    losses = {n: found[n][0]["found"][0] for n in found}
    counts = min(ratios, key=lambda peer: ratios[peer])
    apart = max(abs(losses[n] - losses["own"]) / abs(losses["own"]) for n in ("whole", counts))
    memory = above["own"] / above["gkd"]
    return {
        "ratio": min(ratios.values()),
        "ratios": ratios,
        "cpu_ratios": {peer: ratio(found["own"], found[peer], "cpu") for peer in ratios},
        "memory": memory,
        "memory_own_whole": above["own"] / above["whole"],
        "above_models_mb": above,
        "peak_mb": {n: median(m["peak_mb"] for m in made) for n, made in found.items()},
        "first_loss": losses,
        "peer": f"TRL {found['gkd'][0]['version']}, DistillationTrainer (chunked) and GKDTrainer, {options.precision}, "
        f"{options.threads} thread, {ROWS} rows of {PROMPT} + {COMPLETION} tokens",
        "holds": min(ratios.values()) >= BOUNDS[name] and memory <= MEMORY and apart < AGREES,
    }


def main() -> None:
    compare(
        "opd_vs_trl",
        (__doc__ or "").splitlines()[0],
        measure,
        BOUNDS,
        "equal losses",
        f"<= {MEMORY:g} of the memory of the peer's whole form",
    )


if __name__ == "__main__":
    main()
