"""Adapters in programs: which nodes train one, what it takes, what is told, and how one is taken in and given out."""

from pathlib import Path

import pytest
import torch

from flows.cli import main
from flows.describe import details
from flows.work import policy as body
from flows.work import supervised
from specs.errors import ProgramError, StateError
from specs.policy import LoRA, Policy, PretrainedPolicy
from specs.supervised import SFT, SupervisedBatch
from tasks.policy.adapter_files import save_adapter
from tasks.policy.lora import adapted, difference, merged
from tasks.policy.store import load_policy, save_policy
from tests.flows.programs import SMALL, changed, moved, nodes, plan, program
from tests.flows.test_policy_node import node as init_node
from tests.flows.test_policy_node import texts
from tests.flows.test_stages import MUON, POLICY, SHARED, base, node
from tests.specs.programs import load, mistakes

__all__ = ["base", "texts"]

LORA = {"kind": "lora", "rank": 4}


def with_adapter(**more):
    return changed(SMALL, "policy.adapter", LORA | more)


def test_stages_that_adapt_say_so_in_their_keys_and_no_other_node_does():
    gone = set(moved(plan(), plan(with_adapter(stages=["rl"]))))
    assert "rl" in gone
    assert not gone & {"policy.init", "teach", "harvest.fit1", "rl.preflight1", "eval.teach.golden"}
    made = nodes(plan(with_adapter(stages=["rl", "harvest"])))
    having = {n.id for n in made.values() if (n.params.get("policy") or {}).get("adapter")}
    assert having == {
        "harvest.fit1",
        "harvest.fit2",
        "rl",
        "rl.first1.fit1",
        "rl.first1.fit2",
        "rl.first2.fit1",
        "rl.first2.fit2",
    }
    gone = set(moved(plan(with_adapter(stages=["rl"])), plan(with_adapter(stages=["rl", "harvest"]))))
    assert "harvest.fit1" in gone
    assert "teach" not in gone


def test_it_takes_little_memory_and_its_reference_none():
    data = changed(with_adapter(), "stages.2.algorithm", {"type": "ppo", "kl_coef": 0.1, "steps": 3})
    whole = nodes(plan(changed(data, "policy.adapter", None)))["rl"].estimate.memory_parts
    small = nodes(plan(data))["rl"].estimate.memory_parts
    assert small["gradients"] == small["adapter"] < 0.2 * whole["gradients"]
    assert small["critic"] < 0.2 * whole["critic"]
    assert "reference" in whole
    assert "reference" not in small
    shared = changed(data, "stages.2.algorithm.critic", {"backbone": "shared"})
    assert "critic" not in nodes(plan(shared))["rl"].estimate.memory_parts


def test_checkpointing_takes_less_and_is_offered_where_nothing_else_fits():
    deep = changed(SMALL, "policy.init.layers", 24)
    plain, again = (
        nodes(plan(changed(deep, "run.gradient_checkpointing", on)))["teach"].estimate.memory_parts["activations"]
        for on in (False, True)
    )
    assert again < 0.3 * plain
    with pytest.raises(ProgramError, match=r"with run.gradient_checkpointing: true and run"):
        plan(changed(deep, "run.max_memory_gb", 0.6))
    assert not moved(plan(deep), plan(changed(deep, "run.gradient_checkpointing", True))), "it is no part of any key"


def test_the_plan_tells_what_trains():
    spec = program(with_adapter(stages=["rl"]))
    losses = details(spec, spec.reward.model_copy(update={"outcome": {"state": 1.0}}))["losses"]
    assert isinstance(losses, dict)
    assert "trains an adapter (rank 4, alpha 32, on qkv, o, gate_up, down) and no other weight" in losses["rl"]["words"]
    assert "adapter" not in losses["teach"]["words"]


def test_names_and_random_weights_are_checked(tmp_path):
    at = "policy:\n"
    wrong = (at, "policy:\n  adapter: {kind: lora, stages: [nobody]}\n")
    assert any(
        "policy.adapter.stages[0]: found 'nobody', expected a stage" in line for line in mistakes(tmp_path, wrong)
    )
    (warning,) = load(tmp_path, (at, "policy:\n  adapter: {kind: lora}\n")).warnings
    assert "teach would train an adapter over random weights" in str(warning)
    assert not load(tmp_path, (at, "policy:\n  adapter: {kind: lora, stages: [rl]}\n")).warnings


def test_a_stage_writes_the_sum_and_the_adapter(base, tmp_path):
    _, at = base
    policy = POLICY.model_copy(update={"adapter": LoRA(kind="lora", rank=4)})
    spec = SFT(type="sft", epochs=1, batch=SupervisedBatch(tokens=1024), optimizer=MUON)
    params = SHARED | {"algorithm": spec, "data": {"demos": None}, "policy": policy}
    made = node(tmp_path, "teach", {"policy": at["taught"], "data.demos": at["data.demos"]}, params)
    supervised.sft(made)
    before, after = (load_policy(folder / "policy") for folder in (at["taught"], made.out))
    assert torch.equal(before.model.embed.weight, after.model.embed.weight)
    assert not torch.equal(
        before.model.get_parameter("blocks.0.o.weight"), after.model.get_parameter("blocks.0.o.weight")
    )

    folder = at["taught"] / "policy"
    taken = PretrainedPolicy(kind="pretrained", model=str(folder), adapter="x", max_length=128)
    adapter = {"path": str(made.out / "adapter"), "digest": ""}
    again = init_node(tmp_path / "again", Policy(init=taken), {}, adapter=adapter)
    body.init(again)
    assert difference(load_policy(again.out / "policy").model, after.model, [1, 2, 3, 4]) < 1e-4


def test_an_adapter_of_another_base_is_not_taken_in(texts, tmp_path):
    made = init_node(tmp_path / "a", Policy(init=body_scratch()), {"texts": texts})
    body.init(made)
    policy = load_policy(made.out / "policy")
    spec = LoRA(kind="lora", rank=2)
    model = adapted(policy.model, spec, 1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("b_OR"):
                weight.normal_(generator=torch.Generator().manual_seed(2))
    save_adapter(model, spec, policy.digest, tmp_path / "adapter")
    policy.model = merged(model)
    save_policy(policy, tmp_path / "other")
    taken = PretrainedPolicy(kind="pretrained", model=str(tmp_path / "other"), adapter="x", max_length=96)
    node_b = init_node(tmp_path / "b", Policy(init=taken), {}, adapter={"path": str(tmp_path / "adapter")})
    with pytest.raises(StateError, match="an adapter fits its own base alone"):
        body.init(node_b)


def body_scratch():
    from tests.flows.test_policy_node import SCRATCH

    return SCRATCH


def test_a_missing_adapter_is_named_before_the_run(tmp_path: Path, texts, capsys: pytest.CaptureFixture[str]):
    made = init_node(tmp_path / "a", Policy(init=body_scratch()), {"texts": texts})
    body.init(made)
    file = tmp_path / "x.yaml"
    file.write_text(
        "program: taken\n"
        f"policy: {{init: {{kind: pretrained, model: {made.out / 'policy'}, adapter: nowhere, max_length: 96}}}}\n"
        "environments: {desk: {kind: order_desk}}\nverifiers: {state: {kind: environment_state}}\n"
        "stages: [{id: rl, algorithm: {type: grpo}, data: [desk.train]}]\n"
    )
    assert main(["plan", str(file)]) == 2
    assert "no adapter 'nowhere'" in capsys.readouterr().err
    assert main(["export", "init", str(tmp_path / "out"), "--adapter"]) == 2
