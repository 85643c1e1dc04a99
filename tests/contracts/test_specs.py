"""What every spec owes: its fields are read, its members are implemented, documented and tested."""

import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from specs.algorithms import ALGORITHMS, Algorithm
from specs.base import Spec
from specs.data import DataSource
from specs.environments import Environment
from specs.errors import ProgramError
from specs.flywheel import Remedy
from specs.loader import dump_program, load_program
from specs.policy import PolicyInit
from specs.reader import read_yaml
from specs.routing import Teacher
from specs.schema import SCHEMA_FILE, field_docs, schema_text
from specs.shapes import members as union_members
from specs.shapes import shape_of
from specs.verifiers import Verifier
from tests.contracts.sources import ROOT, classes_matched, specs_of, words_read

PROGRAMS = sorted((ROOT / "specs" / "programs").glob("*.yaml"))
UNIONS = {
    "Algorithm": (Algorithm, ()),
    "Environment": (Environment, ("tasks/episodes/environments",)),
    "Verifier": (Verifier, ("tasks/evidence",)),
    "DataSource": (DataSource, ("flows", "specs/implicit.py", "specs/references.py")),
    "Remedy": (Remedy, ("tasks/cases",)),
    "Teacher": (Teacher, ("tasks/teachers", "tasks/loops", "flows")),
    "PolicyInit": (PolicyInit, ("flows", "tasks/policy")),
}
"""Unions and where a `case` of each member stands; test_algorithms.py says where an algorithm stands."""
READERS = {
    **dict.fromkeys(
        {v.partition(":")[0] for v in ALGORITHMS.table.values()} | {"specs.policy_gradient"},
        ("tasks/learning", "tasks/loops", "flows/work", "flows/unroll.py"),
    ),
    "specs.ladder": ("tasks", "flows", "specs/ladder.py"),
    "specs.environments": ("tasks/episodes/environments", "flows/work/data.py", "tasks/ownprogram.py"),
    "specs.verifiers": ("tasks/evidence", "tasks/ownprogram.py"),
    "specs.reward": ("tasks/evidence", "tasks/loops", "flows/work"),
}
"""Where a spec's implementation is; any file of tasks and flows for the others."""
ANYWHERE = ("tasks", "flows")
NOT_READ = {("Program", "schema_")}
"""The version of the format is read by validation itself."""


def members() -> list[Any]:
    return [
        pytest.param(member, folders, id=f"{name}-{member.__name__}")
        for name, (union, folders) in UNIONS.items()
        for member in (shape.type for shape in union_members(shape_of(union)))
    ]


def test_every_field_is_read_by_its_implementation() -> None:
    unread: list[str] = []
    for spec in specs_of():
        words = words_read(*READERS.get(spec.__module__, ANYWHERE))
        for name, field in spec.model_fields.items():
            fixed = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
            if not fixed and (spec.__name__, name) not in NOT_READ and name not in words:
                unread.append(f"{spec.__module__}.{spec.__name__}.{name}")
    assert unread == [], "a field that nothing reads promises what does not happen; implement it or remove it"


@pytest.mark.parametrize(("member", "folders"), members())
def test_every_member_is_implemented_documented_and_tested(member: type[Spec], folders: tuple[str, ...]) -> None:
    assert not folders or member.__name__ in classes_matched(*folders), (
        f"no `case {member.__name__}()` in {', '.join(folders)}"
    )
    assert (member.__doc__ or "").strip().endswith("."), f"{member.__name__} needs a docstring, a sentence"
    tests = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    tag = next(
        v
        for n in ("type", "kind", "do")
        if n in member.model_fields
        for v in get_args(member.model_fields[n].annotation)
    )
    assert re.search(rf"\b{member.__name__}\(|\b{tag}\b", tests), f"no test speaks of {member.__name__}"


def test_every_spec_and_its_switches_are_explained() -> None:
    for spec in specs_of():
        assert (spec.__doc__ or "").strip(), f"{spec.__name__} needs a docstring"
        assert set(field_docs(spec)) <= set(spec.model_fields)


def test_the_schema_on_disk_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run: tutelage schema --out specs/schema.json"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_shipped_programs_load_and_round_trip(path: Path, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    loaded = load_program(path)
    jsonschema.validate(read_yaml(path.read_bytes(), path.name).data, json.loads(schema_text()))
    (tmp_path / path.name).write_text(dump_program(loaded.program), encoding="utf-8")
    assert load_program(tmp_path / path.name).program == loaded.program


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_a_typo_in_a_shipped_program_is_refused(path: Path, tmp_path: Path) -> None:
    text = re.sub(r"^stages:", "stagse:", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (tmp_path / path.name).write_text(text, encoding="utf-8")
    with pytest.raises(ProgramError, match=r"stagse: unknown key; did you mean stages\?"):
        load_program(tmp_path / path.name)


def test_the_beginners_program_is_short() -> None:
    lines = (ROOT / "specs" / "programs" / "beginner.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 25
