import json
from pathlib import Path

import pytest

from flows.cli import main
from tests.specs.programs import BASE, write


def test_check_says_ok_with_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, BASE.replace("data:\n", "data:\n  spare: {kind: problems, environment: desk, size: 1}\n"))
    assert main(["check", str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{path}: ok, 1 warning\n"
    assert shown.err == f"warning: {path}:8:3 data.spare: is used by no stage, evaluation or gate; it is not made\n"


def test_check_prints_every_mistake_and_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, BASE.replace("seed", "sede").replace("type: sft", "type: stf"))
    assert main(["check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{path}:2:1 sede: unknown key; did you mean seed?"
    assert lines[1].startswith(f"{path}:16:7 stages[0].algorithm.type: found 'stf'")
    assert lines[2] == f"{path}: 2 mistakes"


def test_check_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert main(["check", str(path), "--json", "--set", "sede=1"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["mistakes"][0]["path"], found["mistakes"][0]["line"]) == (False, "sede", None)
    assert main(["check", str(path), str(tmp_path / "none.yaml"), "--json"]) == 2
    first, second = json.loads(capsys.readouterr().out)
    assert (first["ok"], first["program"], second["ok"]) == (True, "desk", False)
    assert "no such file" in second["mistakes"][0]["text"]


def test_check_expanded_prints_a_program_that_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(write(tmp_path)), "--expanded"]) == 0
    path = write(tmp_path, capsys.readouterr().out, "expanded.yaml")
    assert main(["check", str(path)]) == 0


def test_init_writes_a_program_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "p.yaml"
    assert main(["init", str(path), "--name", "mine"]) == 0
    written = path.read_text()
    assert len(written.splitlines()) <= 25
    assert main(["check", str(path)]) == 0
    capsys.readouterr()
    assert main(["init", str(path)]) == 2
    assert "is there already and is left as it is" in capsys.readouterr().err
    assert path.read_text() == written
    assert main(["init", str(tmp_path / "q.yaml"), "--name", "a b"]) == 2
    assert not (tmp_path / "q.yaml").exists()


def test_init_where_nothing_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "", "file")
    assert main(["init", str(tmp_path / "file" / "p.yaml")]) in (2, 5)
    assert "p.yaml: " in capsys.readouterr().err


def test_schema_is_json_with_the_fields_docstrings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert (
        schema["$defs"]["GRPO"]["properties"]["group_size"]["description"]
        == "Trajectories of one problem; needs at least 2 where they are compared with one another."
    )
    assert "extends" in schema["properties"]
    assert main(["schema", "--out", str(tmp_path / "s.json")]) == 0
    assert json.loads((tmp_path / "s.json").read_text()) == schema
    assert main(["schema", "--out", str(tmp_path / "none" / "s.json")]) == 5
