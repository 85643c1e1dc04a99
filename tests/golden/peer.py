"""Losses of this product and of the peer on the same small tensors.

`python -m tests.golden.peer` writes peer.json: what the peer's own code says, asked in its environment (`make trl`).
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specs.algorithms import Algorithm
from specs.group_relative import CISPO, DAPO, GSPO, RLOO, DrGRPO
from specs.grpo import GRPO
from specs.preference import DPO, IPO
from specs.supervised import SFT
from tasks.learning.algorithms import loss_for
from tasks.tensors import Batch, token_weights
from tests.contracts.sources import ROOT

FILE = Path(__file__).with_name("peer.json")
PEER = ROOT / ".venv-trl"
ASKED = ROOT / "tests" / "bench" / "trl_losses.py"
ROWS, TOKENS, BUDGET = 4, 6, 8
CLIPPED = {"clip_low": 0.2, "clip_high": 0.28}
Case = dict[str, Any]

# name -> our spec, how its weights are made, what the peer is asked
LOSSES: dict[str, tuple[Algorithm, Any, Case]] = {
    "sft": (SFT(type="sft"), "token", {"trainer": "sft"}),
    "grpo": (GRPO(type="grpo"), "sequence", {"trainer": "grpo", **CLIPPED, "loss_type": "grpo"}),
    "grpo_kl": (GRPO(type="grpo", kl_coef=0.1, kl="k3"), "sequence",
                {"trainer": "grpo", **CLIPPED, "loss_type": "grpo", "beta": 0.1}),
    "dual_clip": (GRPO(type="grpo", dual_clip=3.0, clip_high=0.28), "token",
                  {"trainer": "grpo", **CLIPPED, "loss_type": "bnpo", "delta": 3.0}),
    "dapo": (DAPO(type="dapo"), "token", {"trainer": "grpo", **CLIPPED, "loss_type": "dapo"}),
    "dr_grpo": (DrGRPO(type="dr_grpo", clip_high=0.28), BUDGET,
                {"trainer": "grpo", **CLIPPED, "loss_type": "dr_grpo", "budget": BUDGET}),
    "gspo": (GSPO(type="gspo", clip_low=0.05, clip_high=0.06), "sequence",
             {"trainer": "grpo", "loss_type": "grpo", "level": "sequence", "clip_low": 0.05, "clip_high": 0.06}),
    "cispo": (CISPO(type="cispo", ratio_high=1.2), "token",
              {"trainer": "grpo", **CLIPPED, "loss_type": "cispo", "clip_high": 1.2}),
    "rloo": (RLOO(type="rloo"), "sequence_sum", {"trainer": "rloo", **CLIPPED}),
    "dpo": (DPO(type="dpo", beta=0.3), "sequence", {"trainer": "dpo", "loss_type": "sigmoid", "beta": 0.3}),
    "dpo_lengths": (DPO(type="dpo", beta=2.0, lengths="mean"), "sequence",
                    {"trainer": "dpo", "loss_type": "sigmoid_norm", "beta": 2.0}),
    "ipo": (IPO(type="ipo", tau=0.5), "sequence", {"trainer": "dpo", "loss_type": "ipo", "beta": 0.5}),
}  # fmt: skip
ON_POLICY = ("rloo",)
"""Losses that are given the policy's own logprobs as those before: there the slopes meet, and the values do not."""


def drawn(name: str) -> Case:
    """Return the inputs of a loss as they are written."""
    draw = torch.Generator().manual_seed(list(LOSSES).index(name))

    def random(make: Callable[..., Tensor], *shape: int) -> Tensor:
        return make(*shape, generator=draw, dtype=torch.float64)

    lengths = torch.randint(2, TOKENS + 1, (ROWS,), generator=draw)
    logprobs = -random(torch.rand, ROWS, TOKENS) * 3
    old = logprobs if name in ON_POLICY else logprobs + 1.2 * random(torch.randn, ROWS, TOKENS)
    found = {
        "logprobs": logprobs,
        "old": old,
        "reference": logprobs + 0.3 * random(torch.randn, ROWS, TOKENS),
        "advantages": random(torch.randn, ROWS),
    }
    mask = torch.arange(TOKENS)[None] < lengths[:, None]
    return {"mask": mask.int().tolist(), **{k: (v * 1e6).round().div(1e6).tolist() for k, v in found.items()}}


def own(name: str, given: Case) -> tuple[float, list[list[float]]]:
    """Return value and gradient by logprob of this product's loss."""
    spec, mean, _ = LOSSES[name]
    logprobs, old, reference, advantages = (
        torch.tensor(given[k], dtype=torch.float64) for k in ("logprobs", "old", "reference", "advantages")
    )
    logprobs.requires_grad_()
    half = ROWS // 2  # of pairs: all chosen sides, then all rejected ones
    batch = Batch(
        logprobs,
        token_weights(torch.tensor(given["mask"], dtype=torch.bool), mean).double(),
        old_logprobs_BT=old,
        sampler_logprobs_BT=old,
        reference_logprobs_BT=reference,
        advantages_BT=advantages[:, None].expand(ROWS, TOKENS),
        entropy_BT=torch.zeros(ROWS, TOKENS, dtype=torch.float64),
        preferred_B=torch.arange(ROWS) < half,
        pairs_P2=torch.stack([torch.arange(half), torch.arange(half) + half], 1),
        baselines_B=torch.zeros(ROWS, dtype=torch.float64),
    )
    loss = loss_for(spec)(batch).loss
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad.tolist()


def answers(cases: list[Case], folder: Path) -> Case:
    """Return what the peer says to cases: its versions, and by name the value and the gradient."""
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    done = subprocess.run(
        [str(PEER / "bin" / "python"), "-P", str(ASKED), str(file)],
        capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def golden() -> Case:
    """Return what the file says."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def main() -> None:
    """Ask the peer and write the file."""
    from tempfile import TemporaryDirectory

    inputs = {name: drawn(name) for name in LOSSES}
    with TemporaryDirectory() as folder:
        asked = [{"name": n, **inputs[n], **LOSSES[n][2]} for n in LOSSES]
        said = answers(asked, Path(folder))
    rows = [{"name": n, "given": inputs[n], **said["found"][n]} for n in LOSSES]
    lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
    FILE.write_text(f'{{"peer": {json.dumps(said["peer"])}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
