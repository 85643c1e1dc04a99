"""Replay, a curriculum and a round that prefers, by the command line with the real bodies."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.work.lines import read_rows
from specs.records import pair_from
from tasks.episodes.shards import read_shards
from tests.flows.small_desk import DESK

PROGRAM = (
    f"program: again\n{DESK}"
    + """\
  more: {kind: demonstrations, environment: desk, size: 30, seed: 5}
  golden: {kind: problems, environment: desk, split: golden, size: 8, role: golden}
verifiers: {state: {kind: environment_state, answer: no}}
stages:
  - id: teach
    algorithm: {type: sft, epochs: 5, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}}
    data: [demos]
  - id: rl
    from: teach
    algorithm:
      type: grpo
      group_size: 4
      problems_per_step: 6
      steps: 3
      replay:
        history: {capacity: 64, per_step: 8, max_age: 3}
        demonstrations: {sets: [more], per_step: 4, weight: 0.3}
      curriculum: {band: [0.1, 0.9], explore: 0.2}
    preflight: {problems: 8, samples: 4}
    data: [train]
evaluation: {sets: [], at_the_end: [golden], greedy: no}
flywheel:
  mine: {from: [train], problems: 16, samples: 2}
  default: prefer
  siblings: {per_case: 3}
  round:
    stages:
      - {id: choose_right, algorithm: {type: dpo, pairing: {samples: 4, at_least: 1}}, data: [pairs]}
"""
)


def test_replay_a_curriculum_and_a_round_that_prefers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = tmp_path / "home", tmp_path / "again.yaml"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    file.write_text(PROGRAM)
    code = main(["run", str(file), "--no-services", "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0, told
    nodes = {n["node"]: n for n in told["nodes"]}
    assert {n["status"] for n in told["nodes"]} <= {"completed", "skipped"}

    def folder(node: str) -> Path:
        return home / "nodes" / nodes[node]["run_key"] / "out"

    curve = json.loads((folder("rl") / "curve.json").read_text())["steps"]
    assert [line["shown"] for line in curve] == [4, 4, 4]
    assert [line["replayed"] for line in curve] == [0, 8, 8]
    assert all(0 < line["curriculum_seen"] <= 1 for line in curve)
    assert any("trained again" in n for n in nodes["rl"]["notes"])

    pool = list(read_rows(folder("round1.pool.pairs") / "records.jsonl"))
    assert pool
    pairs = [pair_from(p) for p in read_rows(folder("choose_right@1.pairs") / "pairs.jsonl")]
    known = {t.id: t for t in read_shards(folder("choose_right@1.pairs") / "trajectories")}
    assert {p.problem_id for p in pairs} <= {r["problem"]["id"] for r in pool}
    assert any(p.by == "solution" for p in pairs), "where the policy never succeeds the clerk's solution is chosen"
    for pair in pairs:
        assert known[pair.chosen].success is True
        assert known[pair.rejected].success is False
        assert known[pair.rejected].origin == "rollout"
        assert (pair.by == "solution") == known[pair.chosen].origin.startswith("demonstration/")
    assert nodes["choose_right@1"]["metrics"]["pairs"] == len(pairs)
