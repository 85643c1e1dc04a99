"""Values and gradients of losses against the peer's own code on the same tensors, where the peer is installed.

`make trl` installs it. What these losses are worth by hand is in tests/golden and beside each algorithm.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from specs.group_relative import CISPO, DAPO, GSPO, RLOO, DrGRPO
from specs.grpo import GRPO
from specs.preference import DPO, IPO
from tasks.learning.algorithms import loss_for
from tasks.tensors import Batch, token_weights
from tests.bench.peer import OWN, saved, side
from tests.bench.peer import PEER as PEER_SIDE

ROOT = Path(__file__).parents[3]
PEER = ROOT / ".venv-trl"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PEER / "ready").is_file(), reason="the peer is not installed: make trl"),
]
ROWS, TOKENS, BUDGET = 8, 12, 16
WORDS = [[f"{a} of the {b} and {a}" * 2 for b in ("rest", "more", "last", "best")] for a in ("one", "two", "ten")]


def drawn(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    lengths = torch.randint(2, TOKENS + 1, (ROWS,))
    mask = torch.arange(TOKENS)[None] < lengths[:, None]
    logprobs = -torch.rand(ROWS, TOKENS, dtype=torch.float64) * 3
    return {
        "mask": mask,
        "logprobs": logprobs,
        "old": logprobs + 0.5 * torch.randn(ROWS, TOKENS, dtype=torch.float64),
        "reference": logprobs + 0.3 * torch.randn(ROWS, TOKENS, dtype=torch.float64),
        "advantages": torch.randn(ROWS, dtype=torch.float64),
    }


CLIPPED = {"trainer": "grpo", "clip_low": 0.2, "clip_high": 0.28}
# (name, our spec, how its weights are made, what the peer is asked, whether the values are the same and not the slopes alone)
GRADIENTS = [
    ("grpo", GRPO(type="grpo"), "sequence", {"loss_type": "grpo"}, True),
    ("grpo_kl", GRPO(type="grpo", kl_coef=0.1, kl="k3"), "sequence", {"loss_type": "grpo", "beta": 0.1}, True),
    ("dual_clip", GRPO(type="grpo", dual_clip=3.0, clip_high=9.0), "token", {"loss_type": "bnpo", "clip_high": 9.0}, True),
    ("dapo", DAPO(type="dapo"), "token", {"loss_type": "dapo"}, True),
    ("dr_grpo", DrGRPO(type="dr_grpo", clip_high=0.28), BUDGET, {"loss_type": "dr_grpo", "budget": BUDGET}, True),
    ("gspo", GSPO(type="gspo", clip_low=0.05, clip_high=0.06), "sequence",
     {"loss_type": "grpo", "level": "sequence", "clip_low": 0.05, "clip_high": 0.06}, True),
    ("cispo", CISPO(type="cispo", ratio_high=1.2), "token", {"loss_type": "cispo", "clip_high": 1.2}, True),
    ("rloo", RLOO(type="rloo"), "sequence_sum", {"trainer": "rloo", "on_policy": True}, False),
]  # fmt: skip
PREFERENCE = [
    ("dpo", DPO(type="dpo", beta=0.3), {"loss_type": "sigmoid", "beta": 0.3}),
    ("dpo_lengths", DPO(type="dpo", beta=2.0, lengths="mean"), {"loss_type": "sigmoid_norm", "beta": 2.0}),
    ("ipo", IPO(type="ipo", tau=0.5), {"loss_type": "ipo", "beta": 0.5}),
]


def cases() -> list[dict]:
    made = []
    for number, (name, _, _, asked, _) in enumerate(GRADIENTS):
        given = drawn(number)
        if asked.get("on_policy"):
            given["old"] = given["logprobs"]
        made.append({"name": name, **CLIPPED, **{k: v.tolist() for k, v in given.items()}, **asked})
    for number, (name, _, asked) in enumerate(PREFERENCE):
        made.append({"name": name, "trainer": "dpo", **{k: v.tolist() for k, v in drawn(50 + number).items()}, **asked})
    return made


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    file = tmp_path_factory.mktemp("peer") / "cases.json"
    file.write_text(json.dumps(cases()))
    script = ROOT / "tests" / "bench" / "trl_losses.py"
    done = subprocess.run(
        [str(PEER / "bin" / "python"), "-P", str(script), str(file)],
        capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {m["name"]: m for m in json.loads(done.stdout.strip().splitlines()[-1])}


def agree(mine: torch.Tensor, gradient: torch.Tensor, theirs: dict, *, values: bool = True) -> None:
    if values:
        assert mine.item() == pytest.approx(theirs["loss"], rel=1e-6, abs=1e-9)
    torch.testing.assert_close(gradient, torch.tensor(theirs["gradient"], dtype=torch.float64), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("number", range(len(GRADIENTS)), ids=[g[0] for g in GRADIENTS])
def test_policy_gradients_are_the_peers(peer: dict[str, dict], number: int) -> None:
    name, spec, mean, asked, values = GRADIENTS[number]
    given = drawn(number)
    logprobs = given["logprobs"].clone().requires_grad_()
    batch = Batch(
        logprobs,
        token_weights(given["mask"], mean).double(),
        old_logprobs_BT=given["logprobs"] if asked.get("on_policy") else given["old"],
        sampler_logprobs_BT=given["logprobs"] if asked.get("on_policy") else given["old"],
        reference_logprobs_BT=given["reference"],
        advantages_BT=given["advantages"][:, None].expand(ROWS, TOKENS),
        entropy_BT=torch.zeros(ROWS, TOKENS, dtype=torch.float64),
    )
    loss = loss_for(spec)(batch).loss
    loss.backward()
    assert logprobs.grad is not None
    agree(loss, logprobs.grad, peer[name], values=values)


@pytest.mark.parametrize("number", range(len(PREFERENCE)), ids=[p[0] for p in PREFERENCE])
def test_losses_on_pairs_are_the_peers(peer: dict[str, dict], number: int) -> None:
    name, spec, _ = PREFERENCE[number]
    given = drawn(50 + number)
    half = ROWS // 2
    logprobs = given["logprobs"].clone().requires_grad_()
    batch = Batch(
        logprobs,
        token_weights(given["mask"], "sequence").double(),
        reference_logprobs_BT=given["reference"],
        preferred_B=torch.arange(ROWS) < half,
        pairs_P2=torch.stack([torch.arange(half), torch.arange(half) + half], 1),
        baselines_B=torch.zeros(ROWS, dtype=torch.float64),
    )
    loss = loss_for(spec)(batch).loss
    loss.backward()
    assert logprobs.grad is not None
    agree(loss, logprobs.grad, peer[name])


def test_supervised_steps_are_the_peers(tmp_path: Path) -> None:
    """The losses of three steps: each after the first also tells of the gradients and updates before it."""
    policy = saved("tiny", tmp_path)
    rows = [
        [[policy.tokenizer.encode(w)[:9], policy.tokenizer.encode(w)[: 5 + i]] for i, w in enumerate(step)]
        for step in WORDS
    ]
    setting = {
        "what": "sft", "folder": str(tmp_path), "threads": 1, "precision": "fp32", "warm": 0, "learning_rate": 1e-3,
        "micro_batch_tokens": 64, "end": policy.tokenizer.decode([policy.template.stop_ids[0]]), "steps": rows,
    }  # fmt: skip
    mine, theirs = side(OWN, setting), side(PEER_SIDE, setting)
    assert mine["found"] == pytest.approx(theirs["found"], rel=1e-4)
    assert mine["found"][2] != pytest.approx(mine["found"][0], rel=1e-3)
