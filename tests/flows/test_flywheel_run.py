"""A whole small program with a round, carried out by the command line with the real bodies."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows import pools
from flows.cli import main
from tests.flows.small_desk import DESK

PROGRAM = (
    f"program: wheel\n{DESK}"
    + """\
  golden: {kind: problems, environment: desk, split: golden, size: 12, role: golden}
  regress: {kind: pool, pool: regression, role: regression}
verifiers: {state: {kind: environment_state, answer: no}}
stages:
  - id: teach
    algorithm:
      type: sft
      epochs: 4
      batch: {tokens: 1024}
      optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}
    data: [demos]
evaluation: {sets: [golden], at_the_end: [golden, regress]}
gates:
  ship:
    looks: 9
    require:
      - {metric: success, set: golden, at_least: 0.0001}
      - {metric: regressed_cases, set: regress, at_most: 100}
    on_inconclusive: pass_on
flywheel:
  mine: {from: [train], problems: 16}
  causes_from: [golden]
  default: repair
  pools: {anchor: 40}
  round:
    stages:
      - id: mend
        algorithm: {type: sft, batch: {rows: 16}, optimizer: {kind: muon, learning_rate: 2e-3}}
        data: {anchor: 0.5, repaired: 0.3, successes: 0.2}
schedule: {nightly: {cron: "0 3 * * *", rounds_only: yes}}
"""
)


def run(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    ended = main(["run", str(file), "--no-services", "--json", *arguments])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert ended == code, told
    return told


def test_a_round_closes_and_its_cases_judge_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = tmp_path / "home", tmp_path / "wheel.yaml"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    file.write_text(PROGRAM)
    first = run(capsys, file)
    nodes = {n["node"]: n for n in first["nodes"]}
    assert {n["status"] for n in first["nodes"]} <= {"completed", "skipped"}
    assert nodes["mend@1"]["status"] == "completed"
    assert [g["gate"] for g in first["gates"]] == ["ship", "ship@1"]
    assert nodes["eval.mend@1.regress"]["notes"] == ["the pool holds no case yet, so nothing was asked"]
    published = pools.newest(home, "wheel", "regression")
    assert published is not None
    assert published.rows > 0, "some of the failures were confirmed and give the regression pool a case"
    held = {r["id"] for r in pools.records(home, published)}
    mined = {c["problem_id"] for c in pools.cases(home, "wheel")}
    assert not held & mined, "a failure on a training source is held back by a sibling, never itself"
    lives = {c["life"] for c in pools.cases(home, "wheel")}
    assert "in_training" in lives, "the stage ran on siblings of cases"
    trained = pools.newest(home, "wheel", "trained")
    assert trained is not None
    assert trained.rows > 0
    assert held.isdisjoint(r["id"] for r in pools.records(home, trained))
    report = Path(first["report"]).read_text()
    assert "<h2>Rounds</h2>" in report
    assert "golden, after" in report

    again = run(capsys, file)
    assert {n["status"] for n in again["nodes"]} <= {"reused", "skipped"}, "an unchanged program has nothing to do"

    later = {n["node"]: n for n in run(capsys, file, "--refresh", "--until", "eval.teach.regress")["nodes"]}
    assert later["data.regress"]["metrics"]["records"] == published.rows
    assert later["teach"]["status"] == "reused", "the pool's new version trains nothing anew"
    assert later["eval.teach.regress"]["status"] == "completed"

    changed = PROGRAM.replace("demos: {kind: demonstrations", "demos: {seed: 5, kind: demonstrations")
    assert changed != PROGRAM
    file.write_text(changed)
    assert main(["plan", str(file), "--rounds-only"]) == 0
    assert "rounds only: the first begins with the champion (version" in capsys.readouterr().out
    begun = run(capsys, file, "--scheduled", "nightly", "--until", "round1.start")
    alone = {n["node"]: n for n in begun["nodes"]}
    assert {"teach", "gate.ship"}.isdisjoint(alone), "the changed file trains nothing of the main part"
    assert {alone[n]["status"] for n in ("policy.champion", "round1.start")} == {"completed"}
    assert alone["round1.start"]["notes"] == ["round 1 starts from champion: rounds alone were asked for"]
    assert main(["resume", str(file), "--no-services", "--json"]) == 0
    resumed = {n["node"]: n["status"] for n in json.loads(capsys.readouterr().out)["nodes"]}
    assert "teach" not in resumed, "what was asked for is resumed"
    assert resumed["round1.start"] == "reused"

    stopped = PROGRAM.replace("default: repair", "default: stop_for_reward_fix")
    file.write_text(stopped.replace("{anchor: 0.5, repaired: 0.3, successes: 0.2}", "[demos]").replace("pools:", "#"))
    held = run(capsys, file, code=7)
    ends = {n["node"]: (n["status"], n["reason"]) for n in held["nodes"] if n["node"].endswith("@1")}
    assert set(ends.values()) == {("skipped", "round1.remedy is held")}
    assert pools.newest(home, "wheel", "regression") == published, "only the ledger is published"
