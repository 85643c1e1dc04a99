"""Self-evolution by the command line with the real bodies: problems that grow, and learners that share in turns."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.work import choosing
from specs.errors import StateError
from tasks.episodes.shards import read_shards
from tests.flows.small_desk import DESK
from tests.flows.test_judging import fake_evaluation
from tests.flows.test_stages import node

PROGRAM = (
    f"program: evolving\n{DESK}"
    + """\
  chooses: {kind: problems, environment: desk, split: golden, size: 12, role: golden, seed: 4}
verifiers: {state: {kind: environment_state, answer: no}}
stages:
  - id: teach
    algorithm: {type: sft, epochs: 5, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}}
    data: [demos]
  - id: evolve
    from: teach
    algorithm:
      type: self_evolve
      group_size: 4
      problems_per_step: 6
      steps: 4
      max_flat_steps: null
      success_distill: {exploration: 0.5}
      growth: {calls: [2], share: 0.5}
      learners: {each: [{}, {temperature: 1.2, learning_rate: 1e-3}], turns: 2, choose_on: chooses}
      experience_per_step: 4
    preflight: {problems: 8, samples: 4}
    data: [train]
evaluation: {sets: [chooses], greedy: no}
"""
)


@pytest.mark.slow
def test_learners_evolve_in_turns_and_share_what_they_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = tmp_path / "home", tmp_path / "evolving.yaml"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    file.write_text(PROGRAM)
    code = main(["run", str(file), "--no-services", "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0, [(n["node"], n["reason"]) for n in told["nodes"] if n["reason"]]
    nodes = {n["node"]: n for n in told["nodes"]}

    def folder(name: str) -> Path:
        return home / "nodes" / nodes[name]["run_key"] / "out"

    def curve(turn: int, learner: int) -> list[dict[str, float]]:
        return json.loads((folder(f"evolve.turn{turn}.learner{learner}") / "curve.json").read_text())["steps"]

    verified = sum(
        t.success is True and t.status == "finished"
        for k in (1, 2)
        for t in read_shards(folder(f"evolve.turn1.learner{k}") / "trajectories")
    )
    assert verified > 0
    for learner in (1, 2):
        assert len(curve(1, learner)) == len(curve(2, learner)) == 2
        assert all(line["taught"] > 0 for line in curve(2, learner))
        assert all(line["made_2_calls"] == 1.0 for line in curve(1, learner))
    assert curve(1, 1) != curve(1, 2), "their seeds differ"

    found = json.loads((folder("evolve") / "best.json").read_text())
    chosen = found["learner"]
    assert found["success"][str(chosen)] == max(found["success"].values())
    assert any(f"learner {chosen} goes on; success on chooses" in n for n in nodes["evolve"]["notes"])
    weights = [folder(n) / "policy" / "model.safetensors" for n in ("evolve", f"evolve.turn2.learner{chosen}")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert list(read_shards(folder("evolve") / "trajectories"))


def test_the_first_of_equals_goes_on_and_missing_evidence_stops(tmp_path: Path) -> None:
    inputs: dict[str, Path] = {}
    for k, right in ((1, {0, 1}), (2, {0, 1, 2}), (3, {4, 5, 6})):
        (tmp_path / str(k) / "policy").mkdir(parents=True)
        (tmp_path / str(k) / "policy" / "who").write_text(str(k))
        inputs |= {f"learner.{k}": tmp_path / str(k)}
        inputs |= {f"eval.{k}": fake_evaluation(tmp_path / "e" / str(k), right, str(k))}
    made = node(tmp_path, "evolve", inputs, {"set": "golden", "learners": 3})
    choosing.best(made)
    assert (made.out / "policy" / "who").read_text() == "2"
    (inputs["eval.3"] / "metrics.json").unlink()
    with pytest.raises(StateError, match="learners cannot be compared without it"):
        choosing.best(node(tmp_path, "evolve", inputs, {"set": "golden", "learners": 3}))
