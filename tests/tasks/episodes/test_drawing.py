"""Drawing tokens: exact behaviour logprobs after temperature (KP-ROLL-02), seeds by hashing (KP-ROLL-04)."""

import numpy as np
import pytest
import torch

from tasks.episodes.drawing import draw
from tasks.episodes.seeds import derive, uniforms


def drawn(logits, temperature, uniform):
    tokens, logprobs = draw(
        torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([uniform], dtype=torch.float64)
    )
    return int(tokens[0]), float(logprobs[0])


def test_logprob_is_that_of_the_distribution_that_was_sampled():
    token, logprob = drawn([2.0, 1.0, 0.0], 0.5, 0.3)
    assert token == 0
    assert logprob == pytest.approx(-0.1429, abs=1e-4)
    assert drawn([2.0, 1.0, 0.0], 1.0, 0.3)[1] == pytest.approx(-0.4076, abs=1e-4)
    assert drawn([2.0, 1.0, 0.0], 0.0, 0.999) == (0, 0.0)


def test_inverse_distribution_function_hits_each_token_by_its_probability():
    logits = torch.log(torch.tensor([0.2, 0.0, 0.5, 0.3])).repeat(20000, 1)
    noise = torch.from_numpy(uniforms([7], 20000)[0])
    tokens, logprobs = draw(logits, torch.ones(20000), noise)
    shares = torch.bincount(tokens, minlength=4) / 20000
    assert shares.tolist() == pytest.approx([0.2, 0.0, 0.5, 0.3], abs=0.01)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


def test_edges_never_leave_the_vocabulary_or_hit_probability_zero():
    for uniform in (2.0**-33, 1 - 2.0**-33):
        assert drawn([float("-inf"), 0.0, 0.0, float("-inf")], 1.0, uniform)[0] in (1, 2)


def test_mixed_temperatures_stay_apart():
    logits = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    tokens, logprobs = draw(logits, torch.tensor([0.0, 2.0]), torch.tensor([0.01, 0.01], dtype=torch.float64))
    assert tokens.tolist() == [1, 0]
    assert logprobs.tolist() == pytest.approx([0.0, float((logits[0] / 2).log_softmax(-1)[0])])


def test_uniforms_are_uniform_and_depend_on_seed_and_place_only():
    many = uniforms(list(range(500)), 40)
    assert many.shape == (500, 40)
    assert 0 < many.min() < 0.001 < 0.999 < many.max() < 1
    assert abs(many.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(many[:, 0], many[:, 1])[0, 1]) < 0.15
    assert np.array_equal(uniforms([3, 499], 7), many[[3, 499], :7])
    assert uniforms([2**63 - 1], 3).shape == (1, 3)


def test_derived_seeds_differ_by_every_part_and_by_order():
    seeds = {
        derive(1, "p", 0),
        derive(1, "p", 1),
        derive(2, "p", 0),
        derive(1, "q", 0),
        derive(1, 0, "p"),
        derive(1, "p0"),
    }
    assert len(seeds) == 6
    assert all(0 <= s < 2**63 for s in seeds)
    assert derive(17, "desk-train-1", 3) == derive(17, "desk-train-1", 3)
