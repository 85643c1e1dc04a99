"""The recipes of black-box teachers with the teacher behind a real closed API: text in, text out, no probabilities."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from specs.loader import load_program
from tests.contracts.sources import ROOT
from tests.tasks.teachers.closed_clerk import serve

RECIPES = sorted((ROOT / "specs" / "recipes").glob("blackbox_*.yaml"))
KEY = "sk-canary-0123456789"


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_learns_from_a_closed_api(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    monkeypatch.setenv("TEACHER_KEY", KEY)
    gives = ", ".join(load_program(recipe).program.teachers["clerk"].gives)
    closed = (
        "{kind: openai, model: closed, base_url: '${env:TEACHER_URL}', api_key: '${env:TEACHER_KEY}', "
        f"gives: [{gives}], limits: {{ask_again: 0}}, price: {{input: 1.0, output: 2.0}}}}"
    )
    with serve(recipe, home) as server:
        monkeypatch.setenv("TEACHER_URL", server.url)
        command = ["run", str(recipe), "--smoke", "--set", f"teachers.clerk={closed}", "--no-services", "--json"]
        code = main(command)
        told = json.loads(capsys.readouterr().out)
        assert code == 0, told
        asked = len(server.seen.bodies)
        assert asked > 0
        assert len(server.seen.replies) == asked
        assert not any("logprobs" in json.dumps(body) for body in server.seen.bodies)
        assert not any(b"logprobs" in reply for reply in server.seen.replies)
        assert max(server.seen.keys.values()) == 1
        assert main(command) == 0
        assert len(server.seen.bodies) == asked
    written = [p for p in home.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]
    assert written == []
    ends = {n["node"]: n["status"] for n in told["nodes"]}
    assert all(status in ("completed", "reused") for status in ends.values()), ends
    taught = [n for n in told["nodes"] if n["node"] != "teach"]
    for node in (n for n in taught if n["kind"] == "teach"):
        assert node["metrics"]["answered"] > 0.8 * node["metrics"]["asked"] > 0, node
    trained = [n for n in taught if n["kind"].startswith("train.")]
    assert {s.id for s in load_program(recipe).program.stages[1:]} <= {n["node"] for n in trained}
    for node in trained:
        receipt = json.loads((home / "nodes" / node["run_key"] / "receipt.json").read_text())
        assert receipt["cost"].get("steps", 0) > 0, "there was nothing to train on"
        assert receipt["metrics"].get("units", receipt["metrics"].get("pairs", 0)) > 0
