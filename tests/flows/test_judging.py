import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import lookup, registry
from flows.commands import compare as compare_command
from flows.context import MetricSpool, NodeContext
from flows.state import NodeReceipt, RunRecord, State, now
from flows.work import judging
from specs.errors import DataError, StateError
from specs.gates import Gate
from specs.records import Observation, to_dict
from tasks.judging.evaluation import summarise
from tasks.judging.results import write_evaluation
from tests.tasks.judging.builders import call, problem, trajectory

N = 200


def fake_evaluation(folder: Path, right: set[int], digest: str, *, shards: bool = False, name: str = "hidden") -> Path:
    """Write an evaluation of N problems as the body does; `right` are solved."""
    folder.mkdir(parents=True)
    problems = [problem(i, "move" if i % 2 else "find") for i in range(N)]
    calls = [(call("get", order="<b>7</b>"), Observation({"ok": True})), (None, None)]
    sampled = [trajectory(i, success=i in right, calls=calls) for i in range(N)]
    greedy = [trajectory(i, success=i in right, calls=calls) for i in range(N)]
    results, summary = summarise(problems, sampled, greedy)
    if shards:
        from tasks.episodes.shards import write_shards

        write_shards(folder / "greedy", greedy)
    head: dict[str, Any] = {
        "policy_digest": digest * 64, "set": name, "role": name, "samples": 1, "temperature": 1.0, "greedy": True,
        "reward_range": [-1.0, 1.0],
    }  # fmt: skip
    write_evaluation(folder, results, {**summary, **head})
    return folder


def node(
    tmp_path: Path, params: dict[str, Any], inputs: dict[str, Path], kind: str = "gate", state: Path | None = None
) -> NodeContext:
    home = tmp_path / f"node-{len(list(tmp_path.glob('node-*')))}"
    for name in ("out", "ckpt"):
        (home / name).mkdir(parents=True)
    return NodeContext(
        id=kind, kind=kind, params=params, execution={}, seed=1, inputs=inputs, out=home / "out",
        checkpoints=home / "ckpt", metrics=MetricSpool(home / "metrics.jsonl"), stop=lambda: False,
        progress=lambda what, share, figures: None, home=state,
    )  # fmt: skip


def gate_params(*require: dict[str, Any], **changes: Any) -> dict[str, Any]:
    spec = Gate.model_validate({"require": list(require), **changes.pop("gate", {})})
    return {
        "gate": spec.model_dump(mode="json", by_alias=True), "name": "ship", "candidates": ["rl"],
        "sets": list({r["set"]: 1 for r in require}), "baseline": None, "champion": None, "program": "desk", "others": [],
        **changes,
    }  # fmt: skip


LEAST = {"set": "hidden", "at_least": 0.85}
NO_WORSE = {"set": "hidden", "no_worse_by": 0.03}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return fake_evaluation(tmp_path / "good", set(range(190)), "c")


def read(context: NodeContext) -> dict[str, Any]:
    return json.loads((context.out / "gate.json").read_text())


def test_a_gate_passes_on_whole_evidence(tmp_path: Path, good: Path):
    context = node(tmp_path, gate_params(LEAST), {"candidate.rl.hidden": good})
    outcome = judging.gate(context)
    record = read(context)
    assert (outcome.result, record["answer"], record["candidate"]) == ("completed", "pass", "rl")
    assert record["candidate_digest"] == "c" * 64
    assert "pass" in (context.out / "gate.txt").read_text()
    assert outcome.metrics["passed"] == 1.0


def spoil_missing(folder: Path) -> None:
    (folder / "problems.jsonl").unlink()


def spoil_truncated(folder: Path) -> None:
    path = folder / "problems.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")


def spoil_flipped(folder: Path) -> None:
    path = folder / "problems.jsonl"
    path.write_text(path.read_text().replace('"successes": 0', '"successes": 1'))


def spoil_metrics(folder: Path) -> None:
    (folder / "metrics.json").write_text('{"format": 1, "success": NaN}')


def spoil_all(folder: Path) -> None:
    shutil.rmtree(folder)


SPOILS = [spoil_missing, spoil_truncated, spoil_flipped, spoil_metrics, spoil_all]


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("whose", ["candidate", "baseline"])
def test_a_gate_never_passes_on_missing_or_damaged_evidence(
    tmp_path: Path, good: Path, spoil: Callable[[Path], None], whose: str
):
    other = fake_evaluation(tmp_path / "other", set(range(180)), "b")
    spoil(good if whose == "candidate" else other)
    inputs = {"candidate.rl.hidden": good, "baseline.hidden": other}
    context = node(tmp_path, gate_params(LEAST, NO_WORSE, baseline="champion"), inputs)
    outcome = judging.gate(context)
    assert read(context)["answer"] == "inconclusive"
    assert "cannot be used" in read(context)["sentence"]
    assert (outcome.result, outcome.metrics["passed"]) == ("held", 0.0)


@pytest.mark.parametrize(("choice", "result"), [("hold", "held"), ("fail", "gate_failed"), ("pass_on", "completed")])
def test_what_is_undecided_is_answered_as_declared_and_never_passes(
    tmp_path: Path, good: Path, choice: str, result: str
):
    spoil_flipped(good)
    context = node(tmp_path, gate_params(LEAST, gate={"on_inconclusive": choice}), {"candidate.rl.hidden": good})
    outcome = judging.gate(context)
    assert (outcome.result, read(context)["answer"], read(context)["result"]) == (result, "inconclusive", result)


def test_a_gate_without_its_candidates_evaluation_does_not_pass(tmp_path: Path):
    context = node(tmp_path, gate_params(LEAST), {})
    assert judging.gate(context).result == "held"
    assert "no evaluation was handed in" in read(context)["sentence"]


def test_a_baseline_that_was_declared_and_is_not_there_is_missing_evidence(tmp_path: Path, good: Path):
    context = node(tmp_path, gate_params(LEAST, NO_WORSE, baseline="sft"), {"candidate.rl.hidden": good})
    assert judging.gate(context).result == "held"
    assert "sft was not evaluated on hidden" in read(context)["sentence"]


def test_first_run_and_champion(tmp_path: Path, good: Path):
    inputs = {"candidate.rl.hidden": good}
    first = node(tmp_path, gate_params(LEAST, NO_WORSE), inputs)
    assert judging.gate(first).result == "completed"
    assert [r["answer"] for r in read(first)["rows"]] == ["pass", "not_applicable"]
    assert read(first)["champion"] is None
    known = node(tmp_path, gate_params(LEAST, champion={"version": 3, "digest": "c" * 64}), inputs)
    assert judging.gate(known).result == "already_promoted"
    assert read(known)["champion"] == "c" * 64


def test_the_same_evidence_gives_the_same_bytes(tmp_path: Path, good: Path):
    other = fake_evaluation(tmp_path / "other", set(range(10, 195)), "b")
    inputs = {"candidate.rl.hidden": good, "baseline.hidden": other}
    one, two = (node(tmp_path, gate_params(LEAST, NO_WORSE, baseline="champion"), inputs) for _ in range(2))
    assert judging.gate(one) == judging.gate(two)
    assert (one.out / "gate.json").read_bytes() == (two.out / "gate.json").read_bytes()


def test_problems_that_cannot_be_read_are_named(tmp_path: Path):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(to_dict(problem(1)), ensure_ascii=False) + "\n")
    assert judging.read_problems(path)[0].id == "p1"
    path.write_text(path.read_text() + '{"id": NaN}\n')
    with pytest.raises(DataError, match="line 2"):
        judging.read_problems(path)
    path.write_text("\n")
    with pytest.raises(DataError, match="no problem"):
        judging.read_problems(path)


def test_report_shows_results_and_escapes_what_models_wrote(tmp_path: Path):
    inputs: dict[str, Path] = {}
    for policy, right in (("init", set()), ("sft", set(range(100))), ("rl", set(range(190)))):
        folder = fake_evaluation(tmp_path / "n" / policy / "out", right, policy[0], shards=True)
        inputs[f"eval.{policy}.hidden"] = folder
        receipt = {"kind": "evaluate", "seconds": 2.5, "cost": {"rollouts": 400.0}, "notes": [f"<i>{policy}</i> ran"]}
        (folder.parent / "receipt.json").write_text(json.dumps(receipt))
    trained = tmp_path / "n" / "train" / "out"
    (trained / "policy").mkdir(parents=True)
    (trained / "rows.json").write_text(json.dumps({"sources": {"demos": {"rows": 3, "tokens": 40, "trained": 10}}}))
    lines = [json.dumps({"step": i, "values": {"loss": 3.0 - i, "success": None}}) for i in range(3)]
    (trained.parent / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 3, "val')
    decided = node(tmp_path, gate_params(LEAST), {"candidate.rl.hidden": inputs["eval.rl.hidden"]})
    judging.gate(decided)
    shown = tmp_path / "n" / "demos" / "out"
    shown.mkdir(parents=True)
    (shown / "records.jsonl").write_text("{}\n" * 3)
    inputs |= {"sft": trained, "gate.ship": decided.out, "data.demos": shown}
    stages = [{"id": "sft", "type": "sft", "from": None}, {"id": "rl", "type": "grpo", "from": "sft"}]
    sets = {"data.demos": {"kind": "demonstrations", "role": "train"}}
    params = {"program": "desk", "about": "a <script>", "stages": stages, "gates": ["ship"], "sets": sets}
    context = node(tmp_path, params, inputs, "report")
    outcome = judging.report(context)
    page, whole = ((context.out / p).read_text() for p in ("report.html", "notes/report.html"))
    assert any("line 4 of its metrics" in n for n in outcome.notes)
    assert "Passed" in page
    rows = [re.findall(r">\s*([^<>\s][^<>]*?)\s*<", r) for r in page.split("<tr")]
    assert [r[:4] for r in rows if r[:1] == ["demos"]] == [["demos", "demonstrations", "train", "3"]]
    assert "<script" not in page
    assert "a &lt;script&gt;" in page
    assert "&lt;b&gt;7&lt;/b&gt;" in page
    assert page.count('class="talk"') == 9
    assert "2.5" in whole
    assert "&lt;i&gt;rl&lt;/i&gt; ran" in whole
    assert "seconds" not in page
    assert "http://" not in page
    assert "https://" not in page
    again = node(tmp_path, params, inputs, "report")
    judging.report(again)
    assert (again.out / "report.html").read_bytes() == (context.out / "report.html").read_bytes()


def test_a_report_without_anything_still_says_so(tmp_path: Path):
    damaged = fake_evaluation(tmp_path / "bad", {1}, "b")
    spoil_missing(damaged)
    params = {"program": "desk", "about": "", "stages": [{"id": "sft", "type": "sft"}], "gates": [], "sets": {}}
    context = node(tmp_path, params, {"eval.sft.hidden": damaged}, "report")
    judging.report(context)
    page = (context.out / "report.html").read_text()
    assert "no gate" in page
    assert "problems.jsonl is missing" in page


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A finished run of a program with two evaluated stages."""
    state = State(tmp_path / "home")
    state.prepare()
    nodes: list[dict[str, Any]] = []
    ended: dict[str, Any] = {}
    for i, (policy, count) in enumerate((("sft", 100), ("rl", 190))):
        key = f"{i}" * 64
        fake_evaluation(state.node(key) / "out", set(range(count)), policy[0])
        done = NodeReceipt(f"eval.{policy}.hidden", "evaluate", key, key, "completed", [], "", {}, started=now())
        state.seal(done)
        nodes.append({"id": f"eval.{policy}.hidden", "kind": "evaluate", "params": {"set": "hidden"}})
        ended[f"eval.{policy}.hidden"] = {"run_key": key, "status": "completed"}
    key = "9" * 64
    (state.node(key) / "out" / "policy").mkdir(parents=True)
    (state.node(key) / "out" / "policy" / "manifest.json").write_text("{}")
    state.seal(NodeReceipt("rl", "train.policy_gradient", key, key, "completed", [], "", {}, started=now()))
    ended["rl"] = {"run_key": key, "status": "completed"}
    name = state.save_plan({"nodes": nodes, "stages": ["sft", "rl"], "policies": {"init": "policy.init", "rl": "rl"}})
    state.save_record(RunRecord("20260101-000000-aa", "desk", "f", {}, name, {}, {}, now(), now(), 0, ended))
    return state


def test_words_become_folders(state: State, tmp_path: Path):
    assert lookup.policy_folder(state, "rl").name == "policy"
    folder = lookup.policy_folder(state, "rl", "desk")
    assert lookup.policy_folder(state, str(folder)) == folder
    assert lookup.policy_folder(state, str(folder.parent)) == folder
    registry.promote(state.home, "desk", registry.Candidate(folder, "rl"))
    assert lookup.policy_folder(state, "champion").name == "v1"
    assert lookup.policy_folder(state, "v1") == lookup.policy_folder(state, "champion")
    assert lookup.record_of(state, "20260101-000000-aa").program == "desk"
    assert list(lookup.evaluations(state, "desk")) == ["hidden"]


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (lambda s: lookup.policy_folder(s, "rll"), "did you mean rl"),
        (lambda s: lookup.policy_folder(s, "init"), "no node 'policy.init'"),
        (lambda s: lookup.policy_folder(s, "champion"), "registry has no champion"),
        (lambda s: lookup.policy_folder(s, "rl", "other"), "not run here yet"),
        (lambda s: lookup.record_of(s, "desc"), "did you mean desk"),
        (lambda s: lookup.evaluations(s, "desk/rm"), "it has no evaluation"),
        (lambda s: lookup.evaluations(s, "desk/init"), r"no evaluation asked init \(evaluated: rl\)"),
    ],
)
def test_words_that_name_nothing_are_answered_with_near_ones(state: State, ask: Callable[[State], Any], found: str):
    with pytest.raises(StateError, match=found):
        ask(state)


def test_nothing_was_run_yet(tmp_path: Path):
    with pytest.raises(StateError, match="no program was run"):
        lookup.policy_folder(State(tmp_path / "none"), "champion")


def asked(*words: str) -> Any:
    import argparse

    parser = argparse.ArgumentParser()
    compare_command.configure(parser, "compare")
    return parser.parse_args(list(words))


def test_compare_command(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TUTELAGE_HOME", str(state.home))
    assert compare_command.run(asked("desk/sft", "desk", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["metrics"][0]["effect"] == pytest.approx(0.45)
    folder = state.node("0" * 64) / "out"
    assert compare_command.run(asked(str(folder), "desk/rl")) == 0
    assert "+0.4500" in capsys.readouterr().out
    assert compare_command.run(asked(str(folder), str(folder))) == 0
    assert "same policy" in capsys.readouterr().out
    with pytest.raises(StateError, match="share no evaluated set"):
        compare_command.run(asked("desk", "desk", "--set", "golden"))
