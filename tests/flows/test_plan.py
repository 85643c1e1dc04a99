import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows import plan as plans
from flows.cli import main
from flows.compile import compile
from flows.describe import effective_loss
from flows.looks import Known
from flows.nodes import Node, Plan, content_key
from flows.plan import Status, diff, same, save_bytes, statuses, totals
from flows.power import GatePower, gate_powers
from flows.state import NOTHING, NodeReceipt, RunRecord, State
from specs.errors import ProgramError
from specs.grpo import GRPO
from tasks.statistics.looks import Asked, spend
from tests.flows.programs import SMALL, changed, nodes, plan, program, resolution


def state_in(folder: Path) -> State:
    state = State(folder)
    state.prepare()
    return state


def finish(state: State, made: Plan, until: str | None = None, **results: str) -> dict[str, str]:
    """Seal every node up to `until` as if it had run; conditional ones as skipped. Return run key by node."""
    digests: dict[str, str] = {}
    keys: dict[str, str] = {}
    for node in made:
        key = content_key(node, {name: digests[source] for name, source in node.inputs.items()})
        (state.node(key) / "out").mkdir(parents=True, exist_ok=True)
        (state.node(key) / "out" / "made.txt").write_text(f"{node.id} {key}")
        result = results.get(node.id.replace(".", "_"), "completed" if node.when is None else "skipped")
        alias = keys[node.inputs[node.passthrough]] if result == "skipped" and node.passthrough else None
        through = digests[node.inputs[node.passthrough]] if result == "skipped" and node.passthrough else NOTHING
        receipt = NodeReceipt(node.id, node.kind, key, node.plan_key, result, [], through, {}, alias=alias)
        digests[node.id] = state.seal(receipt).output_digest
        keys[node.id] = key
        if node.id == until:
            break
    return keys


def record(state: State, made: Plan, **nodes_ended: dict[str, Any]) -> None:
    digest = state.save_plan(made.to_dict())
    state.program(made.program).mkdir(parents=True, exist_ok=True)
    state.save_record(RunRecord("e1", made.program, "f.yaml", {}, digest, made.resolution, {}, "t", nodes=nodes_ended))


def words(found: dict[str, Status]) -> dict[str, str]:
    return {n: str(s) for n, s in found.items()}


def test_at_first_everything_runs():
    found = words(statuses(plan(), None))
    assert found["data.demos"] == "run: new"
    assert found["data.apart"] == "run: after data.demos, data.train, data.golden …"
    assert found["harvest.fit2"] == "maybe: only if harvest.collect1 says continue: true"


def test_after_a_run_everything_is_reused(tmp_path: Path):
    state, made = state_in(tmp_path), plan()
    finish(state, made)
    found = statuses(made, state, made)
    assert {s.status for s in found.values()} == {"reused"}
    assert str(found["rl.first1.fit1"]) == "reused: skipped"
    assert totals(made, found)["to_run"] == 0


def test_a_change_says_which_field_and_what_follows(tmp_path: Path):
    state, made = state_in(tmp_path), plan()
    finish(state, made)
    other = plan(changed(SMALL, "stages.1.algorithm.temperature", 0.9))
    found = words(statuses(other, state, made))
    assert found["harvest.collect1"] == "run: params.algorithm.temperature 1.0 -> 0.9"
    assert found["harvest.fit1"] == "run: input harvest.collect1 changed"
    assert found["teach"] == "reused"
    assert found["rl"].startswith("run: input rl.first2.fit2, rl.choose3 changed")


def test_changed_data_is_named_as_an_input(tmp_path: Path):
    state, made = state_in(tmp_path), plan()
    finish(state, made)
    found = words(statuses(plan(changed(SMALL, "data.demos.size", 300)), state, made))
    assert found["data.demos"] == "run: params.source.size 200 -> 300"
    assert found["teach"] == "run: input policy.init, data.demos, data.apart changed"
    assert found["eval.init.hidden"] == "run: input policy.init changed"


def test_an_input_that_came_out_the_same_stops_the_change(tmp_path: Path):
    """Another evaluation set moves the plan key of data.apart, but as long as it finds the same, nothing trains again."""
    state, made = state_in(tmp_path), plan()
    finish(state, made, until="teach")
    other = plan(changed(SMALL, "data.hidden.size", 801))
    digests = {n: s for n, s in statuses(made, state).items() if s.status == "reused"}
    assert "teach" in digests
    hidden = other.node("data.hidden")
    for node in (hidden, other.node("data.apart")):
        seal_like(state, made, other, node)
    found = statuses(other, state, made)
    assert nodes(other)["teach"].plan_key != nodes(made)["teach"].plan_key
    assert found["teach"].status == "reused"


def seal_like(state: State, made: Plan, other: Plan, node: Node) -> None:
    """Seal a node of `other`; data.apart with the output it had in `made`."""
    known = statuses(other, state)
    inputs: dict[str, str] = {}
    for name, source in node.inputs.items():
        receipt = state.receipt(str(known[source].run_key))
        assert receipt is not None
        inputs[name] = receipt.output_digest
    key = content_key(node, inputs)
    out = state.node(key) / "out"
    out.mkdir(parents=True)
    before = statuses(made, state)[node.id].run_key
    same_output = node.id == "data.apart" and before is not None
    text = (state.node(str(before)) / "out" / "made.txt").read_text() if same_output else "other"
    (out / "made.txt").write_text(text)
    state.seal(NodeReceipt(node.id, node.kind, key, node.plan_key, "completed", [], "", {}))


def test_an_interrupted_node_goes_on_from_its_checkpoint(tmp_path: Path):
    state, made = state_in(tmp_path), plan()
    finish(state, made, until="data.apart")
    key = statuses(made, state)["policy.init"].run_key
    finish(state, made, until="eval.init.hidden")
    found = statuses(made, state, made)
    key = found["teach"].run_key
    assert key is not None
    assert str(found["teach"]) == "run: not finished before"
    (state.node(key) / "ckpt" / "step-340").mkdir(parents=True)
    (state.node(key) / "progress.json").write_text(json.dumps({"total": 1000}))
    assert str(statuses(made, state, made)["teach"]) == "resume: checkpoint 340/1000"


def test_a_failure_is_remembered(tmp_path: Path):
    state, made = state_in(tmp_path), plan()
    finish(state, made, until="eval.init.hidden")
    key = statuses(made, state)["teach"].run_key
    assert key is not None
    state.node(key).mkdir(parents=True)
    (state.node(key) / "failure.json").write_text(json.dumps({"text": "the loss is not finite"}))
    assert str(statuses(made, state)["teach"]) == "run: failed last time: the loss is not finite"


def test_a_held_gate_holds_its_promotion(tmp_path: Path):
    state, made = state_in(tmp_path), plan()
    finish(state, made, gate_ship="held")
    found = words(statuses(made, state, made))
    assert found["gate.ship"] == "held: gate.ship inconclusive"
    assert found["promote.ship"] == "blocked: gate.ship is held"
    assert found["report"] == "reused"


def test_a_failed_gate_blocks_its_promotion(tmp_path: Path):
    state, made = state_in(tmp_path), plan()
    finish(state, made, gate_ship="gate_failed")
    found = words(statuses(made, state, made))
    assert found["gate.ship"] == "gate failed"
    assert found["promote.ship"] == "blocked: gate.ship failed"


def test_a_damaged_output_is_made_again(tmp_path: Path):
    state, made = state_in(tmp_path), plan()
    keys = finish(state, made)
    (state.node(keys["data.train"]) / "out" / "made.txt").unlink()
    found = words(statuses(made, state, made))
    assert found["data.train"] == "run: not finished before"
    assert state.damage


def test_differences_name_fields_inputs_and_nodes():
    made = plan()
    data = changed(SMALL, "stages.0.algorithm.epochs", 2.0)
    data = changed(data, "evaluation.at_the_end", ["hidden"])
    found = diff(made, plan(data))
    assert [str(c) for c in found.changed["teach"]] == ["params.algorithm.epochs 1.0 -> 2.0"]
    assert found.moved["eval.teach.golden"] == ["teach"]
    assert found.removed == ["eval.init.golden"]
    back = diff(plan(data), made)
    assert back.added == ["eval.init.golden"]
    assert diff(made, made).empty
    assert found.to_dict()["changed"]["teach"] == [{"field": "params.algorithm.epochs", "before": 1.0, "after": 2.0}]


def test_a_rewired_input_is_a_change():
    found = diff(plan(), plan(changed(SMALL, "stages.1.from", "init")))
    assert str(found.changed["harvest.collect1"][0]) == 'inputs.policy "teach" -> "policy.init"'


def test_a_saved_plan_is_the_same_plan(tmp_path: Path):
    made = plan()
    (tmp_path / "p.json").write_bytes(save_bytes(made))
    again = plans.load(tmp_path / "p.json")
    assert same(made, again)
    assert save_bytes(again) == save_bytes(made)
    assert not same(made, plan(changed(SMALL, "seed", 3)))


@pytest.mark.parametrize(("text", "told"), [("{", "not JSON"), ("[]", "found list"), ("{}", "schema None found")])
def test_a_file_that_is_no_plan(tmp_path: Path, text: str, told: str):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ProgramError, match=told):
        plans.load(tmp_path / "p.json")
    with pytest.raises(ProgramError, match="cannot be read"):
        plans.load(tmp_path / "none.json")


def test_gates_say_what_they_can_see():
    absolute, paired = gate_powers(plan())
    assert absolute.decidable
    assert absolute.text == "passes from 704 of 800 (0.880)"
    assert paired.text.startswith("not asked in this run, there is no champion yet")
    assert paired.smallest == pytest.approx(0.0464, abs=1e-3)
    best, _ = gate_powers(plan(changed(SMALL, "gates.ship.candidate", "best")))
    assert best.alpha == absolute.alpha / len(SMALL["stages"]), "the best of several looks better than it is"
    few = gate_powers(plan(changed(SMALL, "data.hidden.size", 10)))[0]
    assert not few.decidable
    assert "cannot pass: 10 problems are too few even without one mistake" in few.text


def test_a_margin_that_so_few_problems_cannot_show():
    gate = {"baseline": {"stage": "init"}, "require": [{"set": "golden", "no_worse_by": 0.02}]}
    data = changed(changed(SMALL, "gates.ship", gate), "data.golden.size", 148)
    (few,) = gate_powers(plan(data))
    assert not few.decidable
    assert "149 pairs are needed, 148 given" in few.text
    (enough,) = gate_powers(plan(changed(data, "data.golden.size", 149)))
    assert enough.decidable
    assert "weak: " in enough.text


def test_used_up_looks_are_told_before_the_run():
    made = plan()
    first = gate_powers(made)[0]
    a, b, c = (Asked(n, spend(0.05, 3, i)) for i, n in enumerate("abc", 1))

    def seen(*asked: Asked, candidate: str | None = None, looks: int = 3) -> GatePower:
        data = changed(SMALL, "gates.ship.looks", looks)
        return gate_powers(plan(data), {"gate.ship": Known(list(asked), candidate)})[0]

    assert seen(a).alpha < first.alpha
    assert seen(a, b, candidate="a").alpha == first.alpha, "a gate that decided is not asked again"
    for looks in (3, 9):  # declared later, when nothing is left that they could spend
        spent = seen(a, b, c, looks=looks)
        assert not spent.decidable
        assert spent.text == "used up: 3 looks have spent alpha 0.05; only new problems help"
    assert seen(a, looks=1).text.endswith("asked 1 times of 1 declared looks; draw new problems or declare more looks")


def test_totals_keep_conditional_nodes_apart_and_count_what_can_run_at_once():
    made = plan()
    sums = totals(made, statuses(made, None))
    assert sums["conditional"] == sum(1 for n in made if n.when is not None)
    assert sums["at_most"]["rollouts"] > sums["rollouts"]
    most = max(n.estimate.memory_gb for n in made)
    assert most < sums["memory_gb"] < 2 * most
    assert sums["wall_seconds"] < sums["seconds"]
    alone = replace(made, execution={**made.execution, "parallel": 1})
    assert totals(alone, statuses(alone, None))["memory_gb"] == pytest.approx(most, abs=1e-3)


def test_the_loss_is_told_with_its_numbers():
    equation, text = effective_loss(GRPO(type="grpo", kl_coef=0.05, updates_per_batch=2, truncated="mask"))
    assert equation == "L = - sum w min(r A, clip(r, 0.8, 1.28) A) + 0.05 sum w k3(pi || start)"
    assert "from the second pass on" in text
    assert "cut trajectories are left out" in text


def test_a_plan_of_a_thousand_nodes_takes_less_than_a_second():
    stages = [{"id": f"s{i}", "algorithm": {"type": "rft", "rounds": 2}, "data": ["train"]} for i in range(210)]
    data = {**SMALL, "stages": stages}
    spec, found = program(data), resolution(data)
    began = time.process_time()
    made = compile(spec, found)
    statuses(made, None, made)
    totals(made, statuses(made, None))
    gate_powers(made)
    took = time.process_time() - began
    assert len(made.nodes) >= 1000
    assert took < 1.0, f"{took:.2f} s for {len(made.nodes)} nodes"


def test_planning_imports_nothing_heavy():
    code = (
        "import sys, flows.commands.plan, flows.commands.why, flows.render;"
        "print([m for m in ('torch', 'numpy', 'prefect', 'mlflow', 'dvc', 'httpx') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "[]"


# --- commands


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import yaml

    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    data = {k: v for k, v in SMALL.items() if k != "environments"}
    path.write_text(yaml.safe_dump({**data, "environments": {"desk": {"kind": "order_desk"}}}))
    return path


def test_plan_prints_tables(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(file)]) == 0
    told = capsys.readouterr().out
    for part in ("rl.first2.fit2", "what stages minimise", "memory on cpu", "passes from 704 of 800", "run: new"):
        assert part in told
    assert not (file.parent / "home").exists()


def test_plan_prints_json(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert set(told) == {
        "schema", "program", "program_digest", "aliases", "resolution_reused", "rounds_only", "nodes", "totals", "gates",
        "losses", "reward", "dominance", "flywheel", "diff",
    }  # fmt: skip
    assert set(told["nodes"][0]) == {
        "id", "kind", "status", "reason", "plan_key", "run_key", "inputs", "when", "estimate",
    }  # fmt: skip


def test_plan_of_rounds_only_needs_rounds(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(file), "--rounds-only"]) == 2
    assert "small: rounds only, but the program has no flywheel" in capsys.readouterr().err


def test_plan_compares_with_a_saved_plan_and_with_a_file(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(file), "--save", "p.json"]) == 0
    assert main(["plan", str(file), "--set", "stages.0.algorithm.epochs=3.0", "--diff", "p.json"]) == 0
    assert "params.algorithm.epochs 1.0 -> 3.0" in capsys.readouterr().out
    assert main(["plan", str(file), "--diff", str(file)]) == 0
    assert "no difference to" in capsys.readouterr().out
    assert main(["plan", str(file), "--diff", "last"]) == 2
    assert "it was not run here yet" in capsys.readouterr().err
    assert main(["plan", str(file), "--diff", "champion"]) == 2
    assert "there is no champion yet" in capsys.readouterr().err
    assert main(["plan", str(file), "--save", "none/p.json"]) == 5


def test_why_follows_a_change_to_where_it_began(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["why", str(file), "rl"]) == 0
    assert "no earlier run of the program is known here" in capsys.readouterr().out
    state = state_in(file.parent / "home")
    assert main(["plan", str(file), "--save", "p.json"]) == 0
    made = plans.load(Path("p.json"))
    finish(state, made)
    record(state, made)
    capsys.readouterr()
    assert main(["why", str(file), "rl"]) == 0
    assert "rl (train.policy_gradient): reused" in capsys.readouterr().out
    assert main(["why", str(file), "rl", "--set", "stages.0.algorithm.epochs=3.0"]) == 0
    told = capsys.readouterr().out
    assert "because teach: params.algorithm.epochs 1.0 -> 3.0" in told
    assert "changed since the last run: only its inputs" in told
    assert main(["why", str(file), "teach", "--json", "--set", "stages.0.algorithm.epochs=3.0"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["changed"][0]["field"] == "params.algorithm.epochs"
    assert main(["why", str(file), "teech"]) == 2
    assert "did you mean teach" in capsys.readouterr().err
