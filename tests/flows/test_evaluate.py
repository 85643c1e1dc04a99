"""The evaluate body, `evaluate` and `export`, with a real policy (tiny, random), real problems and real verifiers."""

import argparse
import json
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import leftovers
from flows.checkup.kept import left_over
from flows.commands import evaluate as evaluate_command
from flows.commands import export as export_command
from flows.context import MetricSpool, NodeContext
from flows.durable import digest_tree
from flows.leases import Lease
from flows.state import State
from flows.work import judging
from specs.environments import OrderDesk
from specs.errors import BusyError, ProgramError, StateError
from specs.gates import Evaluation
from specs.implicit import SIZES
from specs.policy import BPETokenizer, Policy, ScratchPolicy
from specs.records import to_dict
from specs.reward import Reward
from tasks.judging.results import read_evaluation
from tasks.loops.rollout_ledger import RolloutLedger

SCRATCH = ScratchPolicy(
    kind="scratch", hidden_size=16, layers=1, heads=2, kv_heads=2, intermediate_size=16, max_length=192,
    tokenizer=BPETokenizer(kind="bpe", vocab_size=300),
)  # fmt: skip
TEMPLATE = "builtin/compact@1"

PROGRAM = """
program: tiny
policy:
  init: {kind: scratch, hidden_size: 16, layers: 1, heads: 2, kv_heads: 2, intermediate_size: 16, max_length: 192,
         tokenizer: {kind: bpe, vocab_size: 300}}
agent: {kind: tool_loop, max_new_tokens: 4}
environments:
  desk: {kind: order_desk, max_turns: 6}
verifiers:
  state: {kind: environment_state}
data:
  demos: {kind: demonstrations, environment: desk, size: 20}
  hidden: {kind: problems, environment: desk, split: hidden, size: 5, role: hidden}
stages:
  - {id: teach, algorithm: {type: sft}, data: [demos]}
evaluation: {sets: [hidden], samples: 2}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `policy/policy`, `problems/records.jsonl` and a program."""
    from tasks.episodes.environments import environment_for
    from tasks.policy.initial import from_scratch
    from tasks.policy.store import save_policy

    root = tmp_path_factory.mktemp("place")
    desk = environment_for("desk", OrderDesk(kind="order_desk", max_turns=6))
    problems = desk.problems("hidden", 5, 3)
    save_policy(from_scratch(SCRATCH, TEMPLATE, [p.text for p in problems], [], 1), root / "policy" / "policy")
    (root / "problems").mkdir()
    lines = "".join(json.dumps(to_dict(p)) + "\n" for p in problems)
    (root / "problems" / "records.jsonl").write_text(lines, encoding="utf-8")
    (root / "tiny.yaml").write_text(PROGRAM, encoding="utf-8")
    return root


def context(place: Path, folder: Path, **evaluation: Any) -> NodeContext:
    for name in ("out", "ckpt"):
        (folder / name).mkdir(parents=True)
    spec = Evaluation(**{"samples": 2, **evaluation})
    params = {
        "evaluation": spec.model_dump(mode="json"),
        "policy": Policy(init=SCRATCH).model_dump(mode="json"),
        "agent": {"kind": "tool_loop", "max_new_tokens": 4},
        "environments": {"desk": {"kind": "order_desk", "max_turns": 6}},
        "verifiers": {"state": {"kind": "environment_state"}},
        "reward": Reward(outcome={"state": 1.0}).model_dump(mode="json"),
        "set": "hidden",
        "role": "hidden",
    }
    return NodeContext(
        id="eval.init.hidden", kind="evaluate", params=params, execution={"threads": 1}, seed=7,
        inputs={"policy": place / "policy", "problems": place / "problems"}, out=folder / "out",
        checkpoints=folder / "ckpt", metrics=MetricSpool(folder / "metrics.jsonl"), stop=lambda: False,
        progress=lambda what, share, figures: None,
    )  # fmt: skip


def test_evaluate_leaves_evidence_that_reads_back_and_repeats(place: Path, tmp_path: Path):
    first, second, small = (context(place, tmp_path / n) for n in "abc")
    outcome = judging.evaluate(first)
    judging.evaluate(second)
    judging.evaluate(replace(small, execution={"threads": 1, "rollout_batch": 3}))
    found = read_evaluation(first.out)
    assert found.policy_digest == digest_tree(place / "policy" / "policy")
    assert (len(found.problems), found.samples, found.greedy) == (5, 2, True)
    assert all(r.samples == r.valid == 2 and r.greedy is not None and r.text for r in found.problems.values())
    assert outcome.metrics["success"] == found.metrics["metrics"]["success"]["value"] == 0.0
    assert outcome.cost["rollouts"] == 15
    assert digest_tree(first.out) == digest_tree(second.out)
    assert read_evaluation(small.out).problems == found.problems
    assert json.loads((tmp_path / "a" / "metrics.jsonl").read_text())["values"]["success"] == 0.0


def test_evaluate_without_the_greedy_try(place: Path, tmp_path: Path):
    node = context(place, tmp_path / "a", greedy=False, samples=1)
    judging.evaluate(node)
    assert not (node.out / "greedy").exists()
    assert read_evaluation(node.out).metrics["metrics"]["success_greedy"]["value"] is None


def parsed(module: Any, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.configure(parser, "x")
    return parser.parse_args(list(words))


def test_evaluate_command_then_export(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    words = (str(place / "tiny.yaml"), "--policy", str(place / "policy"), "--set", "hidden", "--samples", "1")
    assert evaluate_command.run(parsed(evaluate_command, *words, "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["samples"] == 1
    assert read_evaluation(Path(printed["folder"])).samples == 1
    assert evaluate_command.run(parsed(evaluate_command, *words, "--no-greedy", "--out", str(tmp_path / "o"))) == 0
    assert "success " in capsys.readouterr().out
    with pytest.raises(ProgramError, match="not empty"):
        evaluate_command.run(parsed(evaluate_command, *words, "--out", str(tmp_path / "o")))
    with pytest.raises(ProgramError, match="--samples: found 3 at temperature 0, where every sample is the same"):
        evaluate_command.run(parsed(evaluate_command, *words, "--samples", "3", "--temperature", "0"))
    with pytest.raises(ProgramError, match="did you mean hidden"):
        evaluate_command.run(parsed(evaluate_command, words[0], "--set", "hiden"))
    assert [p for p in (tmp_path / "home" / "evaluations").iterdir() if p.name.startswith(".")] == []
    target = tmp_path / "t.jsonl"
    assert export_command.run(parsed(export_command, "--trajectories", printed["folder"], str(target))) == 0
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(line["shard"] for line in lines) == ["greedy"] * 5 + ["trajectories"] * 5


def test_an_evaluation_goes_on_from_what_a_killed_one_rolled_out(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    words = parsed(
        evaluate_command, str(place / "tiny.yaml"), "--policy", str(place / "policy"), "--set", "hidden", "--json"
    )
    begun, drawn = tmp_path / "home" / "evaluations" / "begun", list[int]()

    def counted(self: Any, trajectory: Any, **more: Any) -> None:
        drawn.append(trajectory.sample)
        keep(self, trajectory, **more)

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    keep = RolloutLedger.keep
    monkeypatch.setattr(RolloutLedger, "keep", counted)
    with monkeypatch.context() as patch:
        patch.setattr(judging, "_evaluated", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate_command.run(words)
    whole = len(drawn)
    (folder,) = begun.iterdir()
    (folder / "greedy.jsonl").unlink()
    drawn.clear()
    assert evaluate_command.run(words) == 0
    told = capsys.readouterr()
    assert "goes on from the rollouts of an evaluation that was interrupted" in told.err
    assert (whole, len(drawn)) == (15, 5), "ten were sampled before; the five greedy ones are drawn"
    assert list(begun.iterdir()) == []
    first = json.loads(told.out)
    assert evaluate_command.run(words) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == first["metrics"]
    lease = Lease(folder / "lease")
    folder.mkdir()
    assert lease.try_acquire()
    with pytest.raises(BusyError, match="the same evaluation is being made by another process"):
        evaluate_command.run(words)
    lease.release()


def test_an_evaluation_that_begins_as_the_same_one_ends(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    state, acquire = State(tmp_path / "home"), Lease.try_acquire
    asked: Any = SimpleNamespace(policy=place / "policy" / "policy", params={}, seed=1, problems=place / "problems")
    inside, looks, removed = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with evaluate_command._begun(state, asked, tmp_path / "result"):
            inside.set()
            looks.wait(10)
        removed.set()

    def late(self: Lease, **more: Any) -> bool:
        if self.path.name == "lease":
            looks.set()  # its folder is there; now the other one ends
            removed.wait(0.3)
        return acquire(self, **more)

    ending = threading.Thread(target=first)
    ending.start()
    assert inside.wait(10)
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "try_acquire", late)
        with (
            pytest.raises(BusyError, match="the same evaluation is being made"),
            evaluate_command._begun(state, asked, tmp_path / "result"),
        ):
            pass
    ending.join(10)
    assert list(leftovers.begun(state.home).iterdir()) == []
    with evaluate_command._begun(state, asked, tmp_path / "result") as folder:
        assert (folder / "lease").exists()


def test_interrupted_evaluations_that_nobody_goes_on_with_are_removed(place: Path, tmp_path: Path):
    state, now = State(tmp_path / "home"), time.time()
    begun = leftovers.begun(state.home)
    made, kept = tmp_path / "made", tmp_path / "kept"
    for name, result, days in (
        ("done", made, 1),
        ("newer", kept, 1),
        ("open", tmp_path / "no", 1),
        ("old", tmp_path / "no", 15),
    ):
        (begun / name).mkdir(parents=True)
        result.mkdir(exist_ok=True)
        for file, text in (("sampled.jsonl", "{}"), ("about.json", json.dumps({"result": str(result)}))):
            (begun / name / file).write_text(text)
            os.utime(begun / name / file, (now - days * 86400, now - days * 86400))
        os.utime(begun / name, (now - days * 86400, now - days * 86400))
    (made / "metrics.json").write_text("{}")
    (kept / "metrics.json").write_text("{}")
    os.utime(kept / "metrics.json", (now - 2 * 86400, now - 2 * 86400))  # of an evaluation before
    shutil.copytree(begun / "old", begun / "held", copy_function=shutil.copy2)
    lease = Lease(begun / "held" / "lease")
    assert lease.try_acquire()
    for path in (lease.path, begun / "held"):
        os.utime(path, (now - 15 * 86400, now - 15 * 86400))
    named = {Path(f.where).name for f in left_over(state.home) if "interrupted evaluation" in f.what}
    assert named == {"done", "old"}
    asked: Any = SimpleNamespace(policy=place / "policy" / "policy", params={}, seed=1, problems=place / "problems")
    with evaluate_command._begun(state, asked, tmp_path / "result"):
        pass
    assert {f.name for f in begun.iterdir()} == {"newer", "open", "held"}
    lease.release()


def test_a_set_that_the_environment_has_can_be_asked_undeclared(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(SIZES["order_desk"], "golden", 4)
    words = (str(place / "tiny.yaml"), "--policy", str(place / "policy"), "--set", "desk.golden", "--no-greedy")
    assert evaluate_command.run(parsed(evaluate_command, *words, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["problems"] == 4


def test_an_exported_policy_is_whole_and_a_damaged_one_is_not_exported(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    target = tmp_path / "exported"
    assert export_command.run(parsed(export_command, str(place / "policy"), str(target), "--json")) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["digest"] == digest_tree(place / "policy" / "policy")
    assert {p.name for p in target.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    with pytest.raises(StateError, match="there already"):
        export_command.run(parsed(export_command, str(place / "policy"), str(target)))
    with pytest.raises(ProgramError, match="expected a policy"):
        export_command.run(parsed(export_command, str(tmp_path / "x")))
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(StateError, match="damaged"):
        export_command.export_policy(State(tmp_path / "home"), str(target), tmp_path / "again")
    assert not (tmp_path / "again").exists()
