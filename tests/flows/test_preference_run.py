"""A small program with preference stages, carried out by the command line with the real bodies."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from tests.flows.small_desk import DESK

PROGRAM = (
    f"program: prefer\n{DESK}"
    + """\
  golden: {kind: problems, environment: desk, split: golden, size: 8, role: golden}
verifiers: {state: {kind: environment_state, answer: no}}
stages:
  - id: teach
    algorithm: {type: sft, epochs: 6, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}}
    data: [demos]
  - {id: weigh, algorithm: {type: reward_weighted, samples: 4}, data: [train]}
  - {id: dpo, from: teach, algorithm: {type: dpo, pairing: {samples: 6, at_least: 2}, optimizer: {learning_rate: 1e-3}}, data: [train]}
  - {id: kto, from: teach, algorithm: {type: kto, pairing: {samples: 6, at_least: 2}}, data: [train]}
evaluation: {at_the_end: [golden]}
"""
)


def test_preference_stages_run_and_branches_share_their_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = tmp_path / "home", tmp_path / "prefer.yaml"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    file.write_text(PROGRAM)
    assert main(["plan", str(file)]) == 0
    assert "log sigmoid(0.1 (h+ - h-))" in capsys.readouterr().out
    code = main(["run", str(file), "--no-services", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0, told
    nodes = {n["node"]: n for n in told["nodes"]}
    assert {nodes[n]["status"] for n in ("weigh", "dpo", "kto")} == {"completed"}
    assert nodes["dpo"]["metrics"]["pairs"] >= 2
    # the same policy, the same problems, the same seed: the second branch finds the pairs of the first
    assert nodes["kto.pairs"]["run_key"] == nodes["dpo.pairs"]["run_key"]
    pages = list(home.rglob("report.html"))
    text = pages[0].read_text(encoding="utf-8")
    assert "<h3>Pairs</h3>" in text
    assert "problems with pairs" in text
    assert '<td class="name">train</td><td>problems</td><td>train</td>' in text
