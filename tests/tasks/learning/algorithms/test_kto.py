import math

import pytest
import torch

from specs.preference import KTO
from tasks.learning.algorithms import kto
from tests.tasks.learning.algorithms.pairs import even, pair_batch, slopes

SPEC = KTO(type="kto")


def test_worked_example():
    z = kto.baseline([0.4, -0.2, 0.1])
    assert z == pytest.approx(0.1)
    ratio = torch.tensor([1.5, -0.5, 0.3], dtype=torch.float64)
    found = kto.losses(ratio, torch.tensor([True, True, False]), torch.full((3,), z, dtype=torch.float64), SPEC)
    assert found.tolist() == pytest.approx([0.465057, 0.514996, 0.505], abs=2e-6)
    assert found.mean().item() == pytest.approx(0.495017, abs=2e-6)


def test_the_baseline_is_never_negative():
    assert kto.baseline([-3.0, 1.0]) == 0.0
    assert kto.baseline([]) == 0.0


def test_gradient_of_both_sides():
    logprobs, batch = pair_batch([even(1.0, 2), even(0.5, 4)], [even(0.0, 2), even(0.0, 4)])
    batch.baselines_B = torch.full((2,), 0.2, dtype=torch.float64)
    spec = KTO(type="kto", desirable_weight=1.3)
    output = kto.loss(batch, spec)
    output.loss.backward()

    def slope(x):
        return spec.beta * math.exp(-x) / (1 + math.exp(-x)) ** 2

    good, bad = 1.3 * slope(0.1 * 0.8) / 2, slope(0.1 * -0.3) / 2
    assert slopes(logprobs)[0].tolist() == pytest.approx([-good, -good, 0.0, 0.0])
    assert slopes(logprobs)[1].tolist() == pytest.approx([bad] * 4)
    assert output.metrics["accuracy"].item() == pytest.approx(0.5)  # the rejected side is above the baseline too
    assert output.metrics["chosen_shift"].item() == pytest.approx(1.0)
