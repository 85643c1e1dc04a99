from pathlib import Path

import pytest

from specs.errors import ProgramError
from specs.grpo import GRPO
from specs.loader import load_program
from tests.specs.programs import BASE, load, mistakes, write


def extended(folder: Path, text: str, base: str = BASE) -> Path:
    write(folder, base, "base.yaml")
    return write(folder, f"extends: base.yaml\n{text}")


def refusal(path: Path) -> str:
    with pytest.raises(ProgramError) as e:
        load_program(path)
    return str(e.value).replace(f"{path.parent}/", "")


def test_maps_are_merged_and_lists_replaced(tmp_path: Path) -> None:
    loaded = load_program(
        extended(
            tmp_path,
            "seed: 5\ndata: {train: {size: 7}}\nevaluation: {sets: [golden, train]}\n".replace(", train]", "]"),
        )
    )
    assert loaded.program.seed == 5
    assert loaded.program.data["train"].model_dump()["size"] == 7
    assert loaded.program.data["train"].model_dump()["environment"] == "desk"
    assert loaded.sources == (tmp_path / "x.yaml", tmp_path / "base.yaml")
    assert loaded.positions["data", "train", "size"].file.endswith("x.yaml")
    assert loaded.positions["data", "train", "environment"].file.endswith("base.yaml")


def test_a_map_of_another_kind_replaces(tmp_path: Path) -> None:
    text = "policy: {init: {kind: pretrained, model: 'package:x'}}\n"
    assert load_program(extended(tmp_path, text)).program.policy.init.kind == "pretrained"


def test_mistakes_name_the_file_that_holds_them(tmp_path: Path) -> None:
    lines = refusal(extended(tmp_path, "sed: 5\n", BASE.replace("group_size: 8", "group_size: 1"))).splitlines()
    assert lines[0] == "x.yaml:2:1 sed: unknown key; did you mean seed?"
    assert lines[1].startswith("base.yaml:22:7 stages[1].algorithm.group_size: found 1")


def test_bases_that_cannot_be(tmp_path: Path) -> None:
    message = refusal(extended(tmp_path, "seed: 5\n", f"extends: more.yaml\n{BASE}"))
    assert message == "base.yaml:1:1 extends: a base cannot extend another file; only one level is possible"
    (tmp_path / "base.yaml").unlink()
    assert refusal(write(tmp_path, "extends: base.yaml\n")).startswith("x.yaml:1:1 extends: base.yaml: no such file")
    assert "expected the path of one program file" in refusal(write(tmp_path, "extends: [a]\n"))
    assert "base.yaml:1:5: not YAML" in refusal(extended(tmp_path, "seed: 5\n", "a: b: c"))
    assert "base.yaml:1:1: found no map" in refusal(extended(tmp_path, "seed: 5\n", "5"))


def test_settings_write_over_values(tmp_path: Path) -> None:
    program = load(
        tmp_path,
        sets=(
            "seed=5",
            "stages.rl.algorithm.steps=1e2",
            "stages[0].algorithm.epochs=2.5",
            "run.parallel=4",
            "evaluation={sets: [golden], greedy: off}",
            "data.desk.hidden={kind: problems, environment: desk, split: hidden, size: 3, role: hidden}",
        ),
    ).program
    grpo = program.stages[1].algorithm
    assert isinstance(grpo, GRPO)
    assert (program.seed, grpo.steps, program.stages[0].algorithm.type, program.run.parallel) == (5, 100, "sft", 4)
    assert program.evaluation.greedy is False
    assert program.data["desk.hidden"].role == "hidden"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("run.paralel=3", "--set run.paralel: unknown key; did you mean parallel?"),
        ("stages.rll.algorithm.steps=5", "--set stages.rll.algorithm.steps: stages has no item 'rll', expected teach or rl; did you mean rl?"),
        ("stages[7].id=a", "--set stages[7].id: stages has no item '7', expected teach or rl"),
        ("seed.x=3", "--set seed.x: seed is no map, so it has no x; set seed itself"),
        ("seed", "--set: expected path=value, for example run.parallel=4"),
        ("seed=", "--set seed: expected path=value, for example run.parallel=4"),
        ("=5", "--set : expected path=value, for example run.parallel=4"),
        ("seed=abc", "--set seed: found 'abc', expected a whole number of at least 0 and below 2147483648"),
        ("seed=[1", "--set seed: not YAML: expected `,` or `]`; check the brackets"),
        ("seed={a: 1, a: 2}", "the key is written twice"),
        ("stages.rl.from=tech", "--set stages.rl.from stages[1].from: found 'tech', expected an earlier stage (teach or init)"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(tmp_path: Path, setting: str, message: str) -> None:
    assert any(message in line for line in mistakes(tmp_path, sets=(setting,)))
