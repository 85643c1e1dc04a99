"""The decoder against transformers, against itself with a cache, and under a tree mask."""

import pytest
import torch

from tasks.policy.config import LlamaConfig, config_from, config_to_hf
from tasks.policy.initial import random_model
from tasks.policy.llama import KVCache
from tasks.policy.weights import named_weights

CONFIGS = [
    LlamaConfig(97, 32, 2, 4, 4, 48, 1000.0, 40),
    LlamaConfig(97, 48, 3, 6, 2, 64, 100000.0, 40, rms_norm_eps=1e-6),
    LlamaConfig(97, 32, 1, 4, 1, 48, 10000.0, 40, head_dim=16, tied=False, trained_length=64),
]


def same(found, expected):
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def noisy(config):
    model = random_model(config, 3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(5)) * 0.1)
    return model


@pytest.mark.parametrize("config", CONFIGS)
def test_same_logits_as_transformers(config):
    from transformers import LlamaConfig as TheirConfig
    from transformers import LlamaForCausalLM

    model = noisy(config)
    theirs = LlamaForCausalLM(TheirConfig(**config_to_hf(config, pad_id=0, stop_id=5)))
    weights = named_weights(model)
    missing = theirs.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    theirs.tie_weights()
    ids = torch.randint(0, 97, (3, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(ids).logits
        found = model.head(model.hidden(ids))
    same(found, expected)


@pytest.mark.parametrize("config", CONFIGS)
def test_cached_steps_with_right_padding_give_the_same_states(config):
    model = noisy(config)
    ids = torch.randint(0, 97, (2, 14), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model.hidden(ids)
        cache = model.new_cache(2, 20)
        first = model.step(ids[:, :6], torch.arange(6).expand(2, -1), cache, 6)
        lengths = torch.tensor([3, 6])  # row 0 holds three tokens; the rest was padding
        positions = (lengths[:, None] + torch.arange(8)).clamp(max=19)
        fed = torch.stack([ids[0, 3:11], ids[1, 6:14]])
        second = model.step(fed, positions, cache, 14)
        third = model.step(ids[:1, 11:12], torch.tensor([[11]]), cache, 12)
    same(first, expected[:, :6])
    same(second[0], expected[0, 3:11])
    same(second[1], expected[1, 6:14])
    same(third[0], expected[0, 11:12])


def test_gathered_and_swapped_rows_carry_their_keys():
    model = noisy(CONFIGS[0])
    ids = torch.randint(0, 97, (3, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model.hidden(ids)
        cache = model.new_cache(3, 8)
        model.step(ids[:, :8], torch.arange(8).expand(3, -1), cache, 8)
        larger = KVCache.gather([(cache, torch.tensor([2, 0]), 8), (cache, torch.tensor([1]), 8)], 12)
        larger.swap(torch.tensor([0]), torch.tensor([2]), 8)  # now rows 1, 0, 2
        found = model.step(ids[[1, 0, 2], 8:], torch.full((3, 1), 8), larger, 9)
    assert (larger.rows, larger.length) == (3, 12)
    same(found[:, 0], expected[[1, 0, 2], 8])


def test_a_shared_prompt_under_a_tree_mask_equals_separate_rows():
    model = noisy(CONFIGS[1])
    prompt, one, two = [1, 2, 3], [4, 5, 6], [7, 8]
    ids = torch.tensor([prompt + one + two])
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4]])
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[0, :6, :6] = torch.ones(6, 6, dtype=torch.bool).tril()
    mask[0, 6:, :3] = True
    mask[0, 6:, 6:] = torch.ones(2, 2, dtype=torch.bool).tril()
    with torch.no_grad():
        tree = model.hidden(ids, positions, mask)[0]
        a, b = model.hidden(torch.tensor([prompt + one]))[0], model.hidden(torch.tensor([prompt + two]))[0]
    same(tree[:6], a)
    same(tree[6:], b[3:])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_states_asked_for_alone_are_those_of_the_whole_with_the_same_gradient(checkpointing):
    ids = torch.randint(0, 97, (3, 9), generator=torch.Generator().manual_seed(4))
    at = torch.tensor([26, 0, 7, 7, 13])  # in any order, one of them twice
    whole, part = noisy(CONFIGS[1]), noisy(CONFIGS[1])
    part.load_state_dict(whole.state_dict())
    part.checkpointing = checkpointing
    expected, found = whole.hidden(ids).flatten(0, 1)[at], part.hidden(ids, at_N=at)
    same(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    for one, other in zip(part.parameters(), whole.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        cache = part.new_cache(3, 9)
        same(part.step(ids, torch.arange(9).expand(3, -1), cache, 9, at), expected)


@pytest.mark.parametrize("bf16", [False, True])
def test_checkpointing_gives_the_same_gradient_to_the_bit(bf16):
    ids = torch.randint(0, 97, (3, 9), generator=torch.Generator().manual_seed(4))
    models = [noisy(CONFIGS[1]) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[1].checkpointing = True
    for model in models:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model.hidden(ids).square().sum()
        loss.backward()
    for one, other in zip(*(m.named_parameters() for m in models), strict=True):
        if one[0] != "lm_head.weight":
            assert one[1].grad is not None
            assert other[1].grad is not None
            assert torch.equal(one[1].grad, other[1].grad), one[0]


def test_too_long_is_said():
    model = noisy(CONFIGS[0])
    with pytest.raises(AssertionError, match="41 tokens, but only 40 positions"):
        model.hidden(torch.zeros(1, 41, dtype=torch.long))


def test_config_round_trip_and_variants_that_are_refused():
    from specs.errors import ProgramError

    data = config_to_hf(CONFIGS[1], pad_id=0, stop_id=5)
    assert config_from(data, "x") == CONFIGS[1]
    assert config_from({**data, "rope_parameters": None, "rope_theta": 7.0}, "x").rope_theta == 7.0
    for key, value, words in (
        ("model_type", "qwen2", "supported are Llama"),
        ("attention_bias", True, "attention_bias True"),
        ("hidden_act", "gelu", "hidden_act"),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1.0}, "rope_type 'llama3'"),
        ("vocab_size", None, "missing or no number"),
    ):
        with pytest.raises(ProgramError, match=words):
            config_from({**data, key: value}, "x")
    with pytest.raises(ProgramError, match="max_length 99 is more than the 40"):
        config_from(data, "x", 99)
    with pytest.raises(ProgramError, match="do not fit"):
        LlamaConfig(97, 32, 2, 5, 2, 48, 1000.0, 40)
