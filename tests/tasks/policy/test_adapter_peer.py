"""Adapters against PEFT itself: it reads what is exported here, and what it writes is read here. `make trl` installs it."""

import json
import subprocess
from pathlib import Path
from typing import Literal

import pytest
import torch

from specs.policy import LoRA
from tasks.policy.adapter_files import save_adapter, with_adapter
from tasks.policy.llama import Llama
from tasks.policy.lora import adapted, adapters
from tests.bench.peer import ENVIRONMENT, peer_python, saved

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ENVIRONMENT / "ready").is_file(), reason="the peer is not installed: make trl"),
]
Target = Literal["qkv", "o", "gate_up", "down"]
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def answers(model: Llama) -> torch.Tensor:
    with torch.no_grad():
        return model.head(model.hidden(torch.tensor([IDS])))[0].log_softmax(-1)


@pytest.mark.parametrize("targets", [["qkv", "o", "gate_up", "down"], ["qkv"], ["down", "o"]])
def test_both_read_what_the_other_writes(tmp_path: Path, targets: list[Target]) -> None:
    base = saved("tiny", tmp_path / "base").model
    spec = LoRA(kind="lora", rank=3, alpha=6.0, targets=targets)
    model = adapted(base, spec, 5)
    torch.manual_seed(1)
    for layer in adapters(model).values():
        torch.nn.init.normal_(layer.b_OR, std=0.1)
    save_adapter(model, spec, "", tmp_path / "adapter")
    (tmp_path / "ids.json").write_text(json.dumps(IDS), encoding="utf-8")

    script = Path(__file__).parents[2] / "bench" / "peft_side.py"
    subprocess.run([peer_python(), script, tmp_path], check=True, timeout=300)

    found = {k: torch.tensor(v) for k, v in json.loads((tmp_path / "answers.json").read_text(encoding="utf-8")).items()}
    assert torch.allclose(answers(base), found["base"], atol=1e-4)
    assert torch.allclose(answers(model), found["ours"], atol=1e-4)
    assert (found["ours"] - found["base"]).abs().max() > 1e-2, "the adapter changed what it answers"
    assert torch.allclose(answers(with_adapter(base, tmp_path / "made")), found["theirs"], atol=1e-4)
    assert (found["theirs"] - found["base"]).abs().max() > 1e-2
