"""Whatever a file holds, loading it gives a program or a ProgramError; and what is dumped loads as itself."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specs.errors import ProgramError
from specs.implicit import expanded
from specs.loader import dump_program, load_program
from specs.program import Program
from specs.reader import read_yaml
from tests.specs.programs import BASE

FOLDER = Path(tempfile.mkdtemp())
WORDS = [
    "kind",
    "type",
    "data",
    "stages",
    "policy",
    "init",
    "a",
    "on",
    "${env:A}",
    "sk-canary",
    "<<",
    "2e-5",
    "id",
    "from",
]
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(WORDS))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)),
    max_leaves=8,
)
LINES = BASE.splitlines()
QUICK = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def load(content: bytes, sets: tuple[str, ...] = ()) -> Program | None:
    path = FOLDER / "x.yaml"
    path.write_bytes(content)
    try:
        return load_program(path, sets).program
    except ProgramError:
        return None


@QUICK
@given(st.binary(max_size=60))
def test_bytes(content: bytes) -> None:
    load(content)


@QUICK
@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@`#,?\n\t <0.e~", max_size=40))
def test_characters_of_yaml(text: str) -> None:
    load(text.encode())


@QUICK
@given(
    st.lists(st.integers(0, len(LINES) - 1), max_size=3), st.integers(0, len(LINES) - 1), st.integers(0, len(LINES) - 1)
)
def test_lines_lost_and_swapped(lost: list[int], a: int, b: int) -> None:
    lines = list(LINES)
    lines[a], lines[b] = lines[b], lines[a]
    load("\n".join(line for i, line in enumerate(lines) if i not in lost).encode())


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """Draw the base program with a few values replaced."""
    data = read_yaml(BASE.encode(), "x").data
    for _ in range(draw(st.integers(1, 3))):
        place: Any = data
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or draw(st.booleans()):
                place[key] = draw(VALUES)
                break
            place = place[key]
    return data


@QUICK
@given(mutated())
def test_values_of_any_kind(data: Any) -> None:
    import yaml

    program = load(yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass"))
    if program is not None:
        assert load(dump_program(program).encode()) == program


@QUICK
@given(st.text(max_size=20), st.text(max_size=20))
def test_settings(path: str, value: str) -> None:
    load(BASE.encode(), (f"{path}={value}", path, f"stages.rl.{path}={value}"))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw valid programs."""
    data = read_yaml(BASE.encode(), "x").data
    positive = st.floats(1e-6, 1e6)
    share = st.floats(0, 1)
    data["seed"] = draw(st.integers(0, 2**31 - 1))
    data["about"] = draw(st.text(max_size=30).filter(lambda t: "${" not in t and "\0" not in t and "-" not in t))
    band = sorted([draw(share), draw(share)])
    kind = draw(st.sampled_from(["grpo", "rft"]))
    algorithm = {
        "grpo": {"type": "grpo", "clip_high": draw(positive), "steps": draw(st.integers(1, 10**6))},
        "rft": {
            "type": "rft",
            "band": band,
            "top_k": draw(st.none() | st.integers(1, 9)),
            "distinct": draw(st.booleans()),
        },
    }[kind]
    data["stages"][1]["algorithm"] = {**algorithm, "optimizer": {"learning_rate": draw(positive)}}
    data["stages"][1]["data"] = draw(st.sampled_from([["train"], {"train": 0.5}, ["desk.train"]]))
    data["run"] = {"parallel": draw(st.integers(1, 64)), "threads": draw(st.none() | st.integers(1, 8))}
    return Program.model_validate(data)


@settings(QUICK, max_examples=25)
@given(programs())
def test_dump_then_load_is_the_same_program(program: Program) -> None:
    loaded = load(dump_program(program).encode())
    assert loaded is not None
    assert loaded == expanded(program)
    assert loaded == expanded(loaded)
    assert load(dump_program(loaded).encode()) == loaded
