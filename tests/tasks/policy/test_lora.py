"""Adapters: the same function at first, the reference when off, and one sum however it is written down."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specs.errors import StateError
from specs.optimizer import Optimizer
from specs.policy import LoRA
from specs.supervised import SFT
from tasks.learning.algorithms import loss_for
from tasks.policy.adapter_files import save_adapter, with_adapter
from tasks.policy.lora import adapted, adapters, difference, merged
from tasks.policy.weights import named_weights
from tests.tasks.learning.tiny import learner, random_rows, tiny_model

SPEC = LoRA(kind="lora", rank=3, alpha=6.0)
IDS = [3, 1, 4, 1, 5, 9, 2, 6]
NLL = loss_for(SFT(type="sft"))


def taught(spec=SPEC, steps=6, **more):
    """Return a base and an adapted model that has learnt something."""
    base = tiny_model()
    model = adapted(base, spec, 5)
    made = learner(model, steps, optimizer=Optimizer(learning_rate=3e-2), **more)
    losses = [made.step(random_rows(4), NLL).loss for _ in range(steps)]
    assert losses[-1] < losses[0]
    return base, model, made


def test_it_begins_as_its_base_and_leaves_the_base_alone():
    before = named_weights(tiny_model())
    base = tiny_model()
    assert difference(base, adapted(base, SPEC, 5), IDS) == 0.0
    base, model, _ = taught()
    assert all(torch.equal(before[n], w) for n, w in named_weights(base).items())
    assert difference(base, model, IDS) > 1e-2
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        f"{name}.{side}" for name in adapters(model) for side in ("a_RI", "b_OR")
    }
    for layer in adapters(model).values():
        with torch.no_grad():
            layer.b_OR.zero_()
    assert difference(base, model, IDS) == 0.0, "off, it is the reference, bit for bit"


@pytest.mark.parametrize("targets", [["qkv", "o", "gate_up", "down"], ["qkv"], ["down", "o"]])
def test_the_sum_gives_what_the_parts_give(targets):
    _, model, made = taught(LoRA(kind="lora", rank=2, targets=targets))
    assert {name.rpartition(".")[2] for name in adapters(model)} == set(targets)
    plain = merged(model)
    assert not adapters(plain)
    assert difference(plain, model, IDS) < 1e-4
    assert made.plain() is made.plain(), "one sum is kept and renewed"
    made.step(random_rows(4, 9), NLL)
    assert difference(made.plain(), model, IDS) < 1e-4
    assert difference(made.plain(), plain, IDS) > 1e-4
    assert made.plain().embed.weight is model.embed.weight, "what no adapter changes is not held twice"


def test_a_fused_matrix_and_its_parts_have_one_gradient():
    """The gradient of A and B is the chain rule through W + scale B A."""
    base = tiny_model()
    model = adapted(base, SPEC, 5)
    caught = {}
    made = learner(model, optimizer=Optimizer(learning_rate=1e-9, grad_norm=1e9))
    with torch.no_grad():
        for layer in adapters(model).values():
            layer.b_OR.normal_(std=0.1)
    plain = merged(model)
    for weight in plain.parameters():
        weight.requires_grad_()
    made.step(random_rows(3), NLL, guard=lambda _: caught.update({n: p.grad for n, p in model.named_parameters()}))
    learner(plain, optimizer=Optimizer(learning_rate=1e-9, grad_norm=1e9)).step(
        random_rows(3), NLL, guard=lambda _: caught.update({f"plain.{n}": p.grad for n, p in plain.named_parameters()})
    )
    for name, layer in adapters(model).items():
        whole = caught[f"plain.{name}.weight"]
        torch.testing.assert_close(caught[f"{name}.b_OR"], layer.scale * whole @ layer.a_RI.T, atol=1e-5, rtol=1e-3)
        torch.testing.assert_close(caught[f"{name}.a_RI"], layer.scale * layer.b_OR.T @ whole, atol=1e-5, rtol=1e-3)


def test_files_added_to_the_base_give_the_sum(tmp_path):
    base, model, _ = taught()
    save_adapter(model, SPEC, "digest", tmp_path)
    read = with_adapter(base, tmp_path, "digest")
    assert difference(read, merged(model), IDS) < 1e-5
    names = set(load_file(tmp_path / "adapter_model.safetensors"))
    assert "base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight" in names
    assert len(names) == 2 * 7 * base.config.layers
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (3, 6.0, "LORA")


def rewrite(folder, change):
    """Change the tensors of an adapter, as another tool would have written it."""
    path = folder / "adapter_model.safetensors"
    tensors = {n: t.clone() for n, t in load_file(path).items()}
    save_file(change(tensors), path)
    (folder / "about.json").unlink()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: {n.replace("model.layers", "text.layers"): v for n, v in t.items()},
            r"28 of 28 parts fit no matrix",
        ),
        (lambda t: t | {"base_model.model.model.head.lora_A.weight": torch.ones(3, 4)}, r"1 of 29 parts fit no matrix"),
        (lambda t: {n: v for n, v in t.items() if "0.mlp.down_proj.lora_B" not in n}, r"down_proj \(A .*, B False\)"),
        (lambda t: {}, "it is empty"),
    ],
)
def test_an_adapter_that_fits_nothing_is_refused(tmp_path, change, said):
    base, model, _ = taught()
    save_adapter(model, SPEC, "", tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(StateError, match=said):
        with_adapter(base, tmp_path)


def test_an_adapter_of_another_base_or_kind_is_refused(tmp_path):
    base, model, _ = taught()
    save_adapter(model, SPEC, "one", tmp_path)
    with pytest.raises(StateError, match=r"made for the policy one, found another"):
        with_adapter(base, tmp_path, "another")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(StateError, match=r"use_dora.*expected a plain LORA"):
        with_adapter(base, tmp_path, "one")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x80\x04cos")
    with pytest.raises(Exception, match="pickle"):
        with_adapter(base, tmp_path, "one")


def test_an_adapter_that_was_not_applied_is_seen(tmp_path, monkeypatch):
    from tasks.policy import adapter_files

    base, model, _ = taught()
    save_adapter(model, SPEC, "", tmp_path)
    monkeypatch.setattr(adapter_files, "model_from", lambda *_: base)
    with pytest.raises(StateError, match="the adapter was not applied"):
        with_adapter(base, tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_its_state_is_complete_and_small(precision):
    whole = taught(precision=precision)[2]
    made = learner(adapted(tiny_model(), SPEC, 5), 6, optimizer=Optimizer(learning_rate=3e-2), precision=precision)
    for _ in range(3):
        made.step(random_rows(4), NLL)
    tensors, data = made.state()
    assert sum(t.numel() for n, t in tensors.items() if n.startswith("model.")) < 0.6 * sum(
        p.numel() for p in whole.model.parameters()
    )
    again = learner(adapted(tiny_model(), SPEC, 77), 6, optimizer=Optimizer(learning_rate=3e-2), precision=precision)
    again.load_state({n: t.clone() for n, t in tensors.items()}, data)
    for _ in range(3):
        again.step(random_rows(4), NLL)
    pairs = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("adapter", [None, SPEC])
def test_checkpointed_gradients_are_the_same_bits(adapter):
    def gradients(again):
        model = tiny_model()
        model = model if adapter is None else adapted(model, adapter, 5)
        model.checkpointing = again
        caught = {}
        made = learner(model)
        given = {n: p for n, p in model.named_parameters() if p.requires_grad}
        made.step(
            random_rows(5),
            NLL,
            guard=lambda _: caught.update({n: p.grad.clone() for n, p in given.items() if p.grad is not None}),
        )
        return caught

    plain, again = gradients(False), gradients(True)
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        assert torch.equal(gradient, again[name]), name
