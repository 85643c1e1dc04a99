import json
from pathlib import Path

import pytest

from flows.compile import compile
from flows.nodes import NODE_KINDS, plan_from
from flows.plan import save_bytes
from flows.resolution import Resolution, program_digest
from specs.errors import ProgramError
from tests.flows.programs import MACHINE, SMALL, as_kept, changed, closure, nodes, plan, program, resolution


def test_the_nodes_of_a_program_are_those_of_the_table():
    found = nodes(plan())
    assert {n.kind for n in found.values()} <= set(NODE_KINDS)
    assert [i for i in found if i.startswith("harvest")] == [
        "harvest.collect1",
        "harvest.fit1",
        "harvest.collect2",
        "harvest.fit2",
    ]
    assert found["harvest.collect2"].when == {"node": "harvest.collect1", "continue": True}
    assert found["harvest.collect2"].inputs["policy"] == "harvest.fit1"
    assert found["harvest.fit2"].passthrough == "policy"
    assert found["harvest.collect2"].seed == found["harvest.collect1"].seed, "all rounds draw the same problems"
    assert found["rl.first1.collect1"].seed not in (found["harvest.collect1"].seed, found["rl.first2.collect1"].seed)
    assert found["eval.harvest.golden"].inputs["policy"] == "harvest.fit2"
    assert {i for i in found if i.startswith("eval.init")} == {"eval.init.golden", "eval.init.hidden"}
    assert "eval.teach.hidden" not in found


def test_a_failing_preflight_runs_else_first_as_often_as_it_may_be_tried():
    found = nodes(plan())
    assert found["rl.first1.collect1"].when == {"node": "rl.choose1", "go": False}
    assert found["rl.first2.collect1"].inputs["policy"] == "rl.first1.fit2"
    assert found["rl.preflight2"].inputs["policy"] == "rl.first1.fit2"
    assert [found[f"rl.choose{k}"].params["last"] for k in (1, 2, 3)] == [False, False, True]
    assert found["rl"].inputs["decision"] == "rl.choose3"
    assert found["rl"].inputs["policy"] == "rl.first2.fit2"
    assert found["rl"].when is None


def test_the_choice_after_a_skipped_try_is_the_one_before():
    found = nodes(plan())
    assert found["rl.choose2"].passthrough == "previous"
    assert found["rl.choose2"].inputs["previous"] == "rl.choose1"
    assert found["rl.preflight2"].inputs["previous"] == "rl.preflight1"


def test_promotions_of_a_run_know_of_one_another():
    data = changed(SMALL, "gates.also", {"candidate": "teach", "require": [{"set": "hidden", "at_least": 0.1}]})
    found = nodes(plan(data))
    first, second = found["promote.ship"], found["promote.also"]
    assert ("before" in first.inputs, first.passthrough) == (False, None)
    assert (second.inputs["before"], second.passthrough) == ("promote.ship", "before")
    assert found["gate.also"].params["others"] == ["ship"]
    assert found["gate.also"].inputs["data.hidden"] == "data.hidden"


def test_conditions_are_inputs_and_name_a_node_that_decides():
    made = plan()
    found = nodes(made)
    conditional = [n for n in made if n.when is not None]
    assert conditional
    for node in conditional:
        assert node.when is not None
        assert node.inputs["condition"] == node.when["node"]
        assert NODE_KINDS[found[node.when["node"]].kind].decides is not None
        assert node.passthrough is None or node.passthrough in node.inputs


def test_inputs_come_before_their_readers_and_every_key_is_its_own():
    made = plan()
    seen: set[str] = set()
    for node in made:
        assert set(node.inputs.values()) <= seen
        seen.add(node.id)
    assert len({n.plan_key for n in made}) == len(made.nodes)


def test_only_what_is_used_enters():
    data = changed(SMALL, "data.idle", {"kind": "problems", "environment": "unused", "size": 5})
    data = changed(data, "verifiers.idle", {"kind": "tool_trace"})
    data = changed(data, "reward", {"outcome": {"state": 1.0}})
    made = nodes(plan(data))
    assert "data.idle" not in made
    assert set(made["rl"].params["environments"]) == {"desk"}
    assert set(made["rl"].params["verifiers"]) == {"state"}


def test_a_single_verifier_is_the_outcome():
    assert nodes(plan())["rl"].params["reward"]["outcome"] == {"state": 1.0}
    two = changed(SMALL, "verifiers.tools", {"kind": "tool_trace"})
    with pytest.raises(ProgramError, match="expected at least one of state, tools"):
        plan(two)


def test_policies_are_paired_by_the_seed_of_their_set():
    found = nodes(plan())
    seeds = {found[f"eval.{p}.golden"].seed for p in ("init", "teach", "harvest", "rl")}
    assert len(seeds) == 1
    assert found["eval.init.hidden"].seed not in seeds
    assert found["data.train"].seed != found["data.golden"].seed
    assert nodes(plan(changed(SMALL, "data.train.seed", 5)))["data.train"].seed == 5


def test_the_champion_is_a_baseline_once_it_exists():
    first = nodes(plan())
    assert not [i for i in first["gate.ship"].inputs if i.startswith("baseline")]
    assert first["gate.ship"].params["champion"] is None
    champion = {"version": 3, "digest": "d" * 64, "folder": "registry/small/v3"}
    made = plan(aliases={"champion": champion})
    later = nodes(made)
    assert later["policy.champion"].params["folder"] == "registry/small/v3"
    assert later["gate.ship"].inputs["baseline.golden"] == "eval.champion.golden"
    assert "baseline.hidden" not in later["gate.ship"].inputs
    assert later["gate.ship"].params["champion"] == {"version": 3, "digest": "d" * 64, "former": []}


def test_without_a_champion_the_untouched_policy_may_stand_in():
    data = changed(SMALL, "gates.ship.baseline", {"alias": "champion", "first": "init"})
    assert nodes(plan(data))["gate.ship"].inputs["baseline.golden"] == "eval.init.golden"


def test_the_best_stage_is_chosen_among_all():
    found = nodes(plan(changed(SMALL, "gates.ship.candidate", "best")))
    gate = found["gate.ship"]
    assert gate.params["candidates"] == ["teach", "harvest", "rl"]
    assert gate.inputs["candidate.teach.hidden"] == "eval.teach.hidden"
    assert found["promote.ship"].inputs["policy.harvest"] == "harvest.fit2"
    data = changed(SMALL, "gates.ship.candidate", "best")
    data["stages"].insert(2, {"id": "judge", "algorithm": {"type": "reward_model"}, "data": ["train"]})
    judged = nodes(plan(changed(data, "verifiers.likes", {"kind": "reward_model", "stage": "judge"})))
    assert judged["gate.ship"].params["candidates"] == ["teach", "harvest", "rl"], "it only hands its policy on"


def test_nothing_is_promoted_where_nothing_is_asked_for():
    assert "promote.ship" not in nodes(plan(changed(SMALL, "gates.ship.on_pass", "nothing")))


@pytest.mark.parametrize("name", ["init", "report", "last", "teach"])
def test_a_taken_stage_name_is_refused(name: str):
    with pytest.raises(ProgramError, match="is taken"):
        plan(changed(SMALL, "stages.1.id", name))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("stages.1.from", "nowhere", "is no stage before it"),
        ("gates.ship.candidate", "nobody", "expected last, best or one of"),
        ("gates.ship.baseline", {"stage": "nobody"}, "expected one of init, teach"),
        ("data.train.environment", "moon", "no environment is called 'moon'"),
        ("evaluation.sets", ["moon"], "no data set is called moon"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(path: str, value: object, words: str):
    with pytest.raises(ProgramError, match=words):
        plan(changed(SMALL, path, value))


def test_a_failure_that_may_earn_what_a_success_does_is_refused():
    data = changed(SMALL, "reward", {"outcome": {"state": 1.0}, "process_cap": 2.0, "process_per_call": 0.5})
    with pytest.raises(ProgramError, match="a failure may earn as much as a success"):
        plan(data)


def test_a_node_that_cannot_fit_is_refused_with_the_cheapest_change():
    data = changed(SMALL, "policy.init", {**SMALL["policy"]["init"], "hidden_size": 512, "layers": 8})
    data = changed(data, "stages.0.algorithm", {"type": "sft", "batch": {"tokens": 8192}})
    with pytest.raises(ProgramError) as caught:
        plan(changed(data, "run.max_memory_gb", 2.0))
    text = str(caught.value)
    assert text.startswith("rl: needs ")
    assert "run.max_memory_gb" in text
    assert "with run.micro_batch_tokens: 2048 it needs" in text
    plan(changed(changed(data, "run.max_memory_gb", 2.0), "run.micro_batch_tokens", 2048))
    with pytest.raises(ProgramError, match="use a smaller policy"):
        plan(changed(data, "run.max_memory_gb", 0.3))
    with pytest.raises(ProgramError, match=r"90% of the machine's 1\.0 GB"):
        compile(program(data), _on(data, 1.0))


def _on(data: dict[str, object], memory_gb: float):
    from dataclasses import replace

    return replace(resolution(data), machine={**MACHINE, "memory_gb": memory_gb})


def test_the_same_program_and_resolution_give_the_same_bytes():
    first, again = save_bytes(plan()), save_bytes(plan())
    assert first == again
    assert save_bytes(plan_from(json.loads(first))) == first


def test_every_evaluation_gate_and_training_node_is_in_the_report():
    made = plan()
    kinds = {"evaluate", "gate", "collect", "preflight", "train.sft", "train.rft", "train.policy_gradient"}
    kinds |= {"data.demonstrations", "data.problems", "data.apart"}
    assert set(nodes(made)["report"].inputs) == {n.id for n in made if n.kind in kinds}
    assert closure(made, "data.demos") >= {"report", "gate.ship"}


@pytest.mark.parametrize("path", sorted(Path("specs/programs").glob("*.yaml")), ids=lambda p: p.stem)
def test_golden_plan(path: Path):
    from specs.loader import load_program

    loaded = load_program(path)
    weights = {"path": "w", "digest": "e" * 64, "stat": "", "shape": _SMOLLM2} if path.stem.startswith("smol") else None
    # made by hand: the packages that a program names need not be installed where this test runs
    found = Resolution(
        program_digest(loaded.program),
        weights=weights,
        teachers={name: weights for name in loaded.program.teachers if weights is not None},
        packages={"bfcl-eval": "1"},
        machine=MACHINE,
        aliases={},
    )
    made = compile(loaded.program, found)
    as_kept(made, path.stem)


_SMOLLM2 = {"hidden": 576, "layers": 30, "heads": 9, "kv_heads": 3, "intermediate": 1536, "vocab": 49152}
