"""Advantages from a teacher's words: rows that train are those that have a ratio."""

import math

import pytest

from specs.errors import TrainingError
from specs.grpo import GRPO
from specs.ladder import Critique
from tasks.loops.feedback import from_critiques
from tests.tasks.learning.algorithms.test_opd import trajectory


def test_tokens_without_a_sampler_logprob_do_not_train_and_are_counted():
    drawn = [trajectory(i, reward=float(i % 2)) for i in range(4)]
    whole = from_critiques([], drawn, Critique(), GRPO(type="grpo"), 64)
    drawn[0].logprobs[drawn[0].turns[0].start] = math.nan
    made = from_critiques([], drawn, Critique(), GRPO(type="grpo", max_missing_logprobs=0.5), 64)
    assert sum(r.trained for r in made.rows) == sum(r.trained for r in whole.rows) - 1
    assert made.left_out["token_without_a_sampler_logprob"] == 1
    with pytest.raises(TrainingError, match="have no sampler logprob"):
        from_critiques([], drawn, Critique(), GRPO(type="grpo"), 64)
