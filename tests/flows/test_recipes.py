"""Recipes: each compiles, they share their first policy by key, and the page says what was measured and no more."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.cli import main
from flows.compile import compile as compile_program
from flows.nodes import Plan
from flows.resolve import resolve
from specs.loader import LoadedProgram, load_program
from tasks.judging.results import Evaluated
from tests.bench import recipes_page
from tests.bench.recipes import FOLDER, recipes
from tests.bench.recipes_page import Result, StageRow, change, table, write_page
from tests.flows.programs import MACHINE
from tests.tasks.judging.builders import evaluated, pair

RECIPES = recipes()


def planned(path: Path) -> tuple[LoadedProgram, Plan]:
    loaded = load_program(path)
    return loaded, compile_program(loaded.program, replace(resolve(loaded, environ={}), machine=MACHINE))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_compiles_and_says_what_it_shows(path: Path) -> None:
    loaded, plan = planned(path)
    assert loaded.program.about.endswith("."), "about is the sentence on the page"
    assert any(n.id.startswith(f"eval.{loaded.program.stages[-1].id}.") for n in plan), "its last policy is measured"
    for gate in loaded.program.gates.values():
        assert gate.on_pass == "nothing", "a recipe promotes nothing"
        assert gate.on_inconclusive != "hold", "a recipe waits for nobody"


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_runs_in_its_smallest_form(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path))
    assert main(["run", str(path), "--smoke", "--no-services", "--json"]) == 0


def test_recipes_share_their_first_policy() -> None:
    """The same data, the same first stage: one key, so that whichever runs first trains it for all."""
    base = load_program(FOLDER / "base.yaml").program
    keys: dict[str, set[str]] = {}
    for path in RECIPES:
        loaded, plan = planned(path)
        first, same = loaded.program.stages[0], ("policy", "environments", "agent", "data")
        if first == base.stages[0] and all(getattr(loaded.program, k) == getattr(base, k) for k in same):
            keys.setdefault(plan.node("teach").plan_key, set()).add(path.stem)
    shared = max(keys.values(), key=len)
    assert {"grpo", "grpo_family", "ppo", "preference", "reward_weighted"} <= shared


def test_a_difference_of_one_seed_is_over_problems_and_of_several_over_seeds() -> None:
    effect, low, high = change([pair(50, 30, 10, 10)])
    assert effect == pytest.approx(0.2)
    assert 0.05 < low < 0.2 < high < 0.35
    effect, low, high = change([pair(50, k, 10, 40 - k) for k in (28, 30, 32)])
    assert effect == pytest.approx(0.2)
    assert high - low == pytest.approx(2 * 4.303 * 0.02 / 3**0.5)


def _result(seed: int, monkeypatch: pytest.MonkeyPatch) -> Result:
    new, old = pair(50, 30, 10, 10)
    found = {"teach": old, "grpo": new}
    monkeypatch.setattr(Result, "evaluated", lambda self, stage, name: found.get(stage.id, evaluated([1, 0])))
    rows = [
        StageRow("teach", "sft", None, 0, {"hidden": "a"}),
        StageRow("grpo", "grpo", "teach", 3072, {"hidden": "b"}),
    ]
    return Result("grpo", seed, 0, 60.0, 70.0 + seed, 25.0, 30.0, 2, [], rows, ["gains: pass"])


def test_the_table_has_each_stage_against_what_it_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load_program(FOLDER / "grpo.yaml").program
    made = table([_result(17, monkeypatch)], program)
    assert "| teach | sft | hidden | 0.600 | 0.600 |  |  |  |" in made
    assert "| grpo | grpo | hidden | 0.800 | 0.800 | teach | +0.200 [" in made
    assert "Gate `gains`: pass; grpo against teach +0.200" in made
    assert (
        "A seed takes 60 s with 2 nodes at once and 87 processor seconds, 25 and 30 of them for the first policy."
        in made
    )
    page = tmp_path / "recipes.md"
    page.write_text("# Recipes\n\n## grpo\nWords stay.\n\n<!-- measured: grpo -->\nold\n<!-- end -->\nmore words\n")
    monkeypatch.setattr(recipes_page, "PAGE", page)
    write_page({"grpo": [_result(17, monkeypatch)]}, {"grpo": program}, dry=False)
    text = page.read_text()
    assert "Words stay." in text and "more words" in text and "\nold\n" not in text and made in text  # noqa: PT018
    write_page({"other": [_result(18, monkeypatch)]}, {"other": program}, dry=True)
    assert page.read_text() == text
    write_page({"other": [_result(18, monkeypatch)]}, {"other": program}, dry=False)
    assert f"## other\n{program.about}" in page.read_text()
    capsys.readouterr()


def _sized(right: int, of: int, low: float) -> Evaluated:
    made = evaluated([1] * right + [0] * (of - right))
    made.metrics = {"metrics": {"success": {"low": low}}}
    return made


def _opd(monkeypatch: pytest.MonkeyPatch, **right: int) -> str:
    """Return the page's block of the recipe `opd` where policies solved so many of a hundred problems."""
    program = load_program(FOLDER / "opd.yaml").program
    monkeypatch.setattr(
        Result,
        "evaluated",
        lambda self, stage, name: _sized(right.get(stage.id, 50), 100, right.get(stage.id, 50) / 100 - 0.04),
    )
    spent = {"pupil": 500, "alone_2": 2000}
    rows = [StageRow(s.id, s.algorithm.type, s.start, spent.get(s.id, 1000), {"hidden": "x"}) for s in program.stages]
    next(r for r in rows if r.id == "alone_3").start = "alone_2"  # what came before counts too
    return table([Result("opd", 17, 0, 1.0, 1.0, 1.0, 1.0, 2, [], rows, [])], program)


def test_rollouts_to_come_near_a_teacher_are_told_as_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _opd(monkeypatch, harvest=70, pupil=68, alone=60, alone_2=64, alone_3=67, prior=69)
    assert "`pupil` reaches the 95 % interval of `harvest`, from 0.660 on, with 500 rollouts;" in made
    assert "from the same start, with 3000 (`alone_3`): 6.0 times as many." in made
    made = _opd(monkeypatch, harvest=70, pupil=60, alone=60)
    assert "`pupil` does not reach the 95 % interval" in made
    assert "from the same start, not with 3000: more than 6.0 times as many." in made


def test_a_short_distillation_shows_its_tokens_and_what_became_of_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_program(FOLDER / "short_opd.yaml").program
    made = evaluated([1, 1, 0, 0])
    for i, p in enumerate(made.problems.values()):
        p.type = "mail" if i < 3 else "stock"
    monkeypatch.setattr(Result, "evaluated", lambda self, stage, name: made)
    rows = [StageRow(s.id, s.algorithm.type, s.start, 0, {"hidden": "x"}) for s in program.stages]
    for row in rows:
        row.tokens = (
            (9000, 8000, 4000) if row.type == "short_opd" else (9999, 9999, 9999) if row.type == "opd" else None
        )
    found = table([Result("short_opd", s, 0, 1.0, 1.0, 1.0, 1.0, 2, [], rows, []) for s in (17, 18)], program)
    assert "| short | short_opd | 9000 | 8000 | 4000 |" in found
    assert "| full | opd | 9999 | 9999 | 9999 |" in found
    assert (
        "| success by type on hidden | harvest | pruned | full | short | sure | rounded | loops | rounded_again |"
        in found
    )
    assert f"| mail |{' 0.667 |' * 8}" in found
