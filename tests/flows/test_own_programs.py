"""Programs of one's own in plans: what they are is part of every key that relies on them, where they lie is not."""

import json
import shutil
from pathlib import Path

import pytest

from flows.cli import main
from flows.compile import compile as compile_program
from flows.nodes import Plan
from flows.resolve import resolve
from specs.errors import ProgramError
from specs.loader import load_program
from tests.flows.programs import closure, moved, nodes

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example program with its world, verifier and agent."""
    shutil.copytree(EXAMPLES, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    return tmp_path / "mine"


def plan(folder: Path, *settings: str) -> Plan:
    loaded = load_program(folder / "lamps.yaml", settings)
    return compile_program(loaded.program, resolve(loaded))


def touch(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_where_a_program_lies_moves_no_key(folder: Path):
    before = plan(folder)
    shutil.copytree(folder, folder.parent / "elsewhere")
    after = plan(folder.parent / "elsewhere")
    assert moved(before, after) == set()
    found = nodes(after)["teach"].params["environments"]["house"]["resolved"]
    assert found["folder"] == str(folder.parent / "elsewhere")
    assert list(found["files"]) == ["lamp_world.py"]
    assert found["reported"] == "lamps-2"


def test_a_change_runs_what_depends_on_it_and_nothing_else(folder: Path):
    before = plan(folder)
    touch(folder / "lamp_rules.py", "lamps as wanted", "lamps as they are wanted")
    judged = moved(before, after := plan(folder))
    assert judged == closure(before, *(n.id for n in before if "verifiers" in n.params))
    assert "teach" not in judged

    touch(folder / "lamp_agent.py", "An agent", "One agent")
    acted = moved(after, last := plan(folder))
    assert acted == closure(after, "harvest.collect1", *(n.id for n in after if n.kind == "evaluate"))
    assert "teach" not in acted

    touch(folder / "lamp_world.py", '"lamps-2"', '"lamps-3"')
    assert moved(last, again := plan(folder)) == {n.id for n in last}
    assert nodes(again)["data.train"].params["environment"]["resolved"]["reported"] == "lamps-3"


def test_a_version_that_moves_without_a_file_moves_the_keys(folder: Path):
    """What a program reports may depend on what is installed; it is asked each time."""
    touch(
        folder / "lamp_world.py", 'os.environ.get("LAMPS", "lamps-2")', 'open(os.path.dirname(__file__) + "/v").read()'
    )
    (folder / "v").write_text("v1")
    before = plan(folder)
    (folder / "v").write_text("v2")
    assert "data.train" in moved(before, plan(folder))


def test_mistakes_are_found_offline_with_their_places(folder: Path, capsys: pytest.CaptureFixture[str]):
    touch(folder / "lamps.yaml", "[python3, lamp_world.py]", "[python3, lamp_wrld.py]")
    touch(folder / "lamps.yaml", "files: [lamp_rules.py]", "files: [rules], cases: none.jsonl")
    touch(folder / "lamps.yaml", "max_new_tokens: 24", "max_new_tokens: 24, limits: {restarts: 1}")
    assert main(["check", str(folder / "lamps.yaml")]) == 2
    told = capsys.readouterr().err
    assert "environments.house.command[1]: no such file: lamp_wrld.py" in told
    assert "verifiers.lamps.files[0]: no such file or folder: rules" in told
    assert "verifiers.lamps.cases: no such file: none.jsonl" in told
    assert "agent.limits.restarts: is not read for an agent" in told


def test_what_is_filled_in_is_not_written(folder: Path, capsys: pytest.CaptureFixture[str]):
    touch(folder / "lamps.yaml", "[python3, lamp_world.py]", "[python3, lamp_world.py], resolved: {folder: /}")
    assert main(["check", str(folder / "lamps.yaml")]) == 2
    assert "environments.house.resolved: is filled in by tutelage; remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("lamp_world.py]", "lamp_world.py, --broken, protocol]", "it answered hello with protocol 2"),
        ("python3, lamp_world.py", "python33, lamp_world.py", "cannot be started: python33"),
        ("[sh, lamp_judge.sh]", '[sh, -c, "echo hello"]', "cannot be read"),
    ],
)
def test_a_program_that_does_not_answer_stops_the_plan(old: str, new: str, told: str, folder: Path):
    touch(folder / "lamps.yaml", old, new)
    with pytest.raises(
        ProgramError, match=r"lamps\.yaml:\d+:\d+ (environments\.house|verifiers\.lamps)\.command: "
    ) as e:
        plan(folder)
    assert told in str(e.value)


def test_the_contract_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    file = str(folder / "lamps.yaml")
    assert main(["check", file, "--contract", "house"]) == 0
    assert "house: keeps its contract" in capsys.readouterr().out
    assert main(["check", file, "--contract", "lamps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["check", file, "--contract", "hous"]) == 2
    assert "expected an environment or a verifier" in capsys.readouterr().err
    touch(folder / "lamp_world.py", 'f"lamps-{split}-{job}"', '"lamps-1"')
    touch(folder / "lamp_world.py", 'found.setdefault(made["id"], made)', "found[len(found)] = made")
    assert main(["check", file, "--contract", "house"]) == 2
    told = capsys.readouterr().out
    assert "problems are drawn by seed: BROKEN" in told
    assert "share an id" in told
