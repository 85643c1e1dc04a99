"""A world, a verifier and an agent of one's own, end to end through the command line."""

import json
import shutil
from pathlib import Path

import pytest

from flows.cli import main
from flows.state import State
from specs.records import Source
from tasks.episodes.shards import read_shards

EXAMPLES = Path(__file__).parent
PARTS = ("lamp_world.py", "lamp_judge.sh", "lamp_rules.py", "lamp_agent.py")


SMALL = ("--set", "data.train.size=8", "--set", "data.golden.size=8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all: where a program's folder lies is no part of any key, so the policy is taught once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def folder(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example."""
    shutil.copytree(EXAMPLES, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine"


def run(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict:
    capsys.readouterr()
    code = main(["run", str(folder / "lamps.yaml"), "--no-services", "--json", *SMALL, *more])
    told = json.loads(capsys.readouterr().out)
    assert code in (0, 3, 7), told
    return {n["node"]: n for n in told["nodes"]}


def trajectories(home: Path, node: dict) -> list:
    out = State(home).out(node["run_key"])
    assert out is not None
    return list(read_shards(out / "trajectories"))


def test_the_programs_import_nothing_of_ours():
    for name in PARTS:
        text = (EXAMPLES / name).read_text()
        assert not any(f"{word} {room}" in text for word in ("import", "from") for room in ("specs", "tasks", "flows"))


def test_world_verifier_and_agent_of_ones_own_train_a_policy(
    folder: Path, home: Path, capsys: pytest.CaptureFixture[str]
):
    nodes = run(folder, capsys)
    assert {n["status"] for n in nodes.values()} <= {"completed", "held", "skipped", "gate failed", "gate_failed"}
    rolled = trajectories(home, nodes["harvest.collect1"])
    assert {t.agent for t in rolled} == {"external/flat@2"}
    assert {t.environment_version for t in rolled} == {"process@1/lamps-2"}
    assert {v.version for t in rolled for v in t.verdicts} == {"process@1/lamp-rules-1", "tool_trace@1"}
    assert {t.status for t in rolled} <= {"finished", "turn_limit", "truncated", "tool_error"}
    assert any(t.success for t in rolled), "the policy that was taught solves some"
    for t in rolled:
        drawn = sum(s == Source.POLICY for s in t.sources)
        assert drawn == t.policy_tokens == sum(n for _, n in t.policy_versions)
    assert {n["status"] for n in run(folder, capsys).values()} <= {"reused"}, "nothing is done twice"

    rules = folder / "lamp_rules.py"
    rules.write_text(rules.read_text().replace("lamps as wanted", "lamps as they are wanted"))
    again = run(folder, capsys, "--until", "eval.teach.golden")
    assert (again["teach"]["status"], again["eval.teach.golden"]["status"]) == ("reused", "completed")


RL = [
    "--set", "stages[1].algorithm={type: grpo, steps: 2, group_size: 4, problems_per_step: 4, max_flat_steps: null}",
    "--set", "stages[1].needs={success: 0.0}", "--set", "stages[1].preflight={problems: 4, samples: 2}",
]  # fmt: skip


def test_an_agent_with_two_conversations_is_trained_by_grpo(
    folder: Path, home: Path, capsys: pytest.CaptureFixture[str]
):
    command = "agent.command=[python3, lamp_agent.py, --style, plan]"
    nodes = run(folder, capsys, *RL, "--set", command, "--until", "harvest")
    assert nodes["harvest"]["status"] == "completed", nodes["harvest"]
    rolled = trajectories(home, nodes["harvest"])
    assert len(rolled) == 32
    assert all(len(t.segments) == 2 for t in rolled)


def test_a_world_that_keeps_failing_stops_the_stage_with_its_reason(folder: Path, capsys: pytest.CaptureFixture[str]):
    text = (folder / "lamps.yaml").read_text()
    (folder / "lamps.yaml").write_text(text.replace("lamp_world.py]", "lamp_world.py, --broken, crash]"))
    code = main(["run", str(folder / "lamps.yaml"), "--no-services", *SMALL, "--until", "eval.teach.golden"])
    told = capsys.readouterr()
    assert code == 5
    assert "have no verdict" in told.out + told.err
    assert "the fuse blew" in told.out + told.err
