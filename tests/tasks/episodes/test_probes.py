"""What a server's logprobs may differ by: rounding in bf16 and nothing else."""

import copy

import pytest
import torch

from specs.errors import RolloutError
from tasks.episodes.probes import check_probe, expected_logprobs, probes_of
from tasks.policy.llama import Llama
from tests.tasks.episodes.counter_world import counter_policy

Drawn = list[tuple[list[int], list[float]]]


def sure_policy(seed: int = 3) -> Llama:
    """Return a policy with logits as large as those of a trained one over a large vocabulary."""
    model = copy.deepcopy(counter_policy(seed=seed).model)
    with torch.no_grad():
        model.norm.weight.mul_(150)
    return model


def served_in_bf16(model: Llama, *, raw: bool = False) -> Drawn:
    """Return what a server that computes all in bf16 draws for the probes."""
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    found: Drawn = []
    for probe in probes_of(counter_policy(seed=3)):
        ids: list[int] = []
        for _ in range(8):
            context = torch.tensor([[*probe.ids, *ids]])
            logits = rounded.head(rounded.hidden(context))[0, -1].float() / probe.settings.temperature
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=torch.Generator().manual_seed(len(ids)))
            ids.append(int(drawn))
        temperature = 1.0 if raw else probe.settings.temperature
        found.append((ids, expected_logprobs(rounded, probe.ids, ids, temperature)))
    return found


def test_rounding_in_bf16_is_let_through_however_large_the_logits() -> None:
    model, probes = sure_policy(), probes_of(counter_policy(seed=3))
    drawn = served_in_bf16(model)
    cool = [
        abs(a - b)
        for probe, (ids, logprobs) in zip(probes, drawn, strict=True)
        if probe.settings.temperature < 1
        for a, b in zip(expected_logprobs(model, probe.ids, ids, 0.6), logprobs, strict=True)
    ]
    assert sum(cool) / len(cool) > 0.05, "else this shows nothing"
    check_probe("http://server", model, probes, drawn, "bf16")
    with pytest.raises(RolloutError, match="in another precision"):
        check_probe("http://server", model, probes, drawn, "fp32")


def test_other_weights_and_raw_logprobs_are_found_beside_it() -> None:
    model, probes = sure_policy(), probes_of(counter_policy(seed=3))
    with pytest.raises(RolloutError, match="does not hold these weights whole"):
        check_probe("http://server", sure_policy(seed=4), probes, served_in_bf16(model), "bf16")
    with pytest.raises(RolloutError, match="not those after temperature"):
        check_probe("http://server", model, probes, served_in_bf16(model, raw=True), "bf16")
