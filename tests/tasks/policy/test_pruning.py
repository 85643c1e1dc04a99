import copy

import pytest
import torch

from tasks.policy.pruning import blocks_of, measure, narrowed, without_layers
from tasks.policy.quantization import Grid, quantize, rounded, size_mb
from tests.tasks.learning.tiny import tiny_model

IDS = torch.arange(12).view(2, 6)
ALL = ([list(range(24))] * 2, [[0]] * 2)


def runs(model):
    def run():
        model.hidden(IDS)

    return run


def same(one, other):
    torch.testing.assert_close(one.hidden(IDS), other.hidden(IDS))


def two_heads():
    model = tiny_model()
    config = model.config
    made = type(model)(type(config)(**{**vars_of(config), "heads": 4, "kv_heads": 2, "head_dim": 6}))
    torch.manual_seed(3)
    for p in made.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.3)
    return made


def vars_of(config):
    return {name: getattr(config, name) for name in config.__slots__}


def test_what_keeps_everything_is_the_same_function():
    model = tiny_model()
    same(without_layers(model, []), model)
    same(narrowed(model, *ALL), model)


def test_a_removed_neuron_or_head_is_one_that_writes_nothing():
    model = two_heads()
    neurons, heads = [[i for i in range(24) if i not in (3, 20)]] * 2, [[1]] * 2
    silent = copy.deepcopy(model)
    with torch.no_grad():
        for block in blocks_of(silent):
            block.down.weight[:, [3, 20]] = 0.0
            block.o.weight[:, : 2 * 6] = 0.0  # the two queries of the first key-value head
    made = narrowed(model, neurons, heads)
    same(made, silent)
    assert (made.config.heads, made.config.kv_heads, made.config.intermediate_size) == (2, 1, 22)
    assert sum(p.numel() for p in made.parameters()) < sum(p.numel() for p in model.parameters())


def test_a_removed_layer_is_one_that_adds_nothing():
    model = tiny_model()
    silent = copy.deepcopy(model)
    with torch.no_grad():
        first = blocks_of(silent)[0]
        first.o.weight.zero_()
        first.down.weight.zero_()
    same(without_layers(model, [0]), silent)
    assert measure(silent, runs(silent)).influence[0] == pytest.approx(0.0, abs=1e-6)


def test_what_writes_more_matters_more():
    model = two_heads()
    with torch.no_grad():
        for block in blocks_of(model):
            block.down.weight[:, 5] *= 50
            block.o.weight[:, 12:] *= 50
    found = measure(model, runs(model))
    assert all(max(range(24), key=lambda i: layer[i]) == 5 for layer in found.neurons)
    assert all(head[1] > head[0] for head in found.heads)
    assert all(0 < value < 2 for value in found.influence)
    assert not blocks_of(model)[0]._forward_hooks, "nothing watches any more"


@pytest.mark.parametrize("group", [None, 8, 5])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounded_weights_lie_on_a_grid(bits, group):
    torch.manual_seed(bits)
    weight = torch.randn(6, 16)
    found = rounded(weight, Grid(bits, group, least_error=False))
    size = group or 16
    for row in found:
        for part in row.split(size):
            step = weight.abs().max()  # any scale that is too large shows too few levels, never too many
            assert len(part.unique()) <= 2**bits
            assert part.abs().max() <= step
    torch.testing.assert_close(rounded(found, Grid(bits, group, least_error=False)), found)
    best = rounded(weight, Grid(bits, group, least_error=True))
    assert (best - weight).norm() <= (found - weight).norm()


def test_more_bits_are_nearer_and_larger():
    errors, sizes = [], []
    for bits in (2, 3, 4, 8):
        model, grid = tiny_model(), Grid(bits, 8, least_error=True)
        before = model.embed.weight.clone()
        errors.append(max(quantize(model, grid, embedding=False).values()))
        sizes.append(size_mb(model, grid, embedding=False))
        assert torch.equal(model.embed.weight, before)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01
    assert sizes == sorted(sizes)
    model = tiny_model()
    assert "embed" in quantize(model, Grid(4, None, least_error=False), embedding=True)


def test_a_weight_of_zeros_stays_so():
    assert torch.equal(rounded(torch.zeros(2, 4), Grid(4, None, least_error=True)), torch.zeros(2, 4))
