"""Every policy gradient, with its critic, its reference and its adapter, goes on from a checkpoint with the same bits."""

import pytest
import torch

from specs.algorithms import POLICY_GRADIENTS
from specs.errors import Interrupted
from specs.policy import LoRA
from tests.tasks.loops.test_on_policy import stage, taught, weights
from tests.tasks.loops.test_policy_gradients import MADE, spec_of

__all__ = ["taught"]

LORA = LoRA(kind="lora", rank=2)
SMALL = {"steps": 3, "group_size": 4, "problems_per_step": 3}
SHARED = {"critic": {"backbone": "shared", "warmup_steps": 1}}
CASES = {kind: ({}, None) for kind in POLICY_GRADIENTS if kind in MADE}
CASES |= {
    "ppo-shared": (SHARED, None),
    "turn_ppo-shared-adapter": ({**SHARED, "kl_coef": 0.1}, LORA),
    "grpo-adapter": ({}, LORA),
    "sao-adapter": ({}, LORA),
    "grpo-muon": ({"optimizer": {"kind": "muon", "learning_rate": 1e-2, "warmup_steps": 2}}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_it_ends_with_the_same_bits(taught, tmp_path, name):
    more, adapter = CASES[name]
    kind = name.partition("-")[0]
    kl = {} if "kl_coef" in more or "kl_coef" in MADE[kind] else {"kl_coef": 0.01}
    spec = spec_of(kind, **{**SMALL, **kl, **more})
    whole, run = stage(taught, spec, adapter=adapter)
    expected = run()
    assert whole.updates > 0
    _, run = stage(taught, spec, folder=tmp_path, stop_after=1, adapter=adapter)
    with pytest.raises(Interrupted):
        run()
    second, run = stage(taught, spec, folder=tmp_path, adapter=adapter)
    resumed = run()
    assert torch.equal(weights(second), weights(whole))
    assert resumed.curve == expected.curve
    if isinstance(more.get("critic"), dict):
        assert all("value_loss" in line for line in resumed.curve)
