"""Every JSON file that a run leaves is read by a strict reader: no NaN, no infinity, no key twice (KP-DATA-02)."""

from pathlib import Path

import pytest

from flows.cli import main
from specs.strict_json import parse
from tests.flows.small_desk import DESK

PROGRAM = (
    f"program: strict\n{DESK}"
    + """\
  golden: {kind: problems, environment: desk, split: golden, size: 8, role: golden}
verifiers: {state: {kind: environment_state, answer: no}}
stages:
  - id: teach
    algorithm: {type: sft, epochs: 3, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2}}
    data: [demos]
  - id: rl
    algorithm: {type: ppo, steps: 2, group_size: 2, problems_per_step: 4, max_flat_steps: null, max_truncated: 1}
    data: [train]
    needs: {success: 0}
    preflight: {problems: 8, samples: 2}
  - id: prefer
    algorithm: {type: dpo, pairing: {samples: 4, at_least: 0, max_truncated: 1}}
    data: [train]
evaluation: {sets: [golden], samples: 2}
gates:
  ship: {require: [{metric: success, set: golden, at_least: 0.001}], on_inconclusive: pass_on}
"""
)
LEFT = {
    "receipt.json", "metrics.json", "metrics.jsonl", "curve.json", "preflight.json", "decision.json", "rows.json", "pairs.json",
    "gate.json", "records.jsonl", "summary.json", "last.json", "config.json",
}  # fmt: skip


def test_every_json_file_of_a_run_is_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    (tmp_path / "strict.yaml").write_text(PROGRAM)
    assert main(["run", str(tmp_path / "strict.yaml"), "--no-services", "--json"]) in (0, 3)
    printed = capsys.readouterr().out
    assert {n["node"] for n in parse(printed)["nodes"]} > {"rl.preflight1", "rl", "prefer", "gate.ship", "report"}
    found = [p for p in (tmp_path / "home").rglob("*") if p.suffix in (".json", ".jsonl")]
    assert {p.name for p in found} >= LEFT
    for path in found:
        text = path.read_text(encoding="utf-8")
        for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
            parse(line)
