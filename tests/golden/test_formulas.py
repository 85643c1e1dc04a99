"""Worked numbers, evaluated with the product's own functions. GOLDEN_FILE names another file of the same form."""

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FILE = Path(os.environ.get("GOLDEN_FILE", HERE / "formulas.json"))
TOLERANCE = 2e-6
NOT_YET = set[str]()
"""What the product cannot compute yet. May only shrink."""


def numbers(value: Any) -> Any:
    """Return the value with minus infinity as a number."""
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [numbers(v) for v in value]
    return float(value) if value in ("-inf", "inf") else value


def cases() -> dict[str, dict[str, Any]]:
    return {c["id"]: numbers(c) for c in json.loads(FILE.read_text(encoding="utf-8"))["cases"]}


def evaluators() -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """Return by case what computes it: the tables `CASES` of the modules beside this one."""
    found: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
    for path in sorted(HERE.glob("cases_*.py")):
        table = importlib.import_module(f"tests.golden.{path.stem}").CASES
        assert not set(table) & set(found), f"{path.name} computes again what another module does"
        found |= table
    return found


def differences(found: Any, expected: Any, at: str) -> list[str]:
    """Return where the two are apart; every expected key and element is compared."""
    if isinstance(expected, dict):
        return [
            line
            for key, value in expected.items()
            for line in (
                differences(found[key], value, f"{at}.{key}") if key in found else [f"{at}.{key} was not computed"]
            )
        ]
    if isinstance(expected, list):
        if len(found) != len(expected):
            return [f"{at}: {len(found)} values, expected {len(expected)}"]
        return [
            line
            for i, (a, b) in enumerate(zip(found, expected, strict=True))
            for line in differences(a, b, f"{at}[{i}]")
        ]
    if isinstance(expected, bool | str):
        return [] if found == expected else [f"{at}: {found!r}, expected {expected!r}"]
    return [] if abs(found - expected) <= TOLERANCE else [f"{at}: {found!r}, expected {expected!r}"]


def test_every_case_is_computed_or_listed() -> None:
    assert set(cases()) <= set(evaluators()) | NOT_YET
    assert not set(evaluators()) & NOT_YET, "take these off the list"
    if FILE.parent == HERE:
        assert set(evaluators()) | NOT_YET <= set(cases())


@pytest.mark.parametrize("name", sorted(set(evaluators()) & set(cases())))
def test_worked_numbers(name: str) -> None:
    case = cases()[name]
    assert differences(evaluators()[name](case["inputs"]), case["expected"], name) == []


def test_a_difference_is_seen() -> None:
    assert differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.1], "b": 1}, "x") == [
        "x.a[1]: 2.0, expected 2.1",
        "x.b was not computed",
    ]
    assert differences({"a": True}, {"a": False}, "x") == ["x.a: True, expected False"]
    assert differences([1.0], [1.0, 2.0], "x") == ["x: 1 values, expected 2"]
