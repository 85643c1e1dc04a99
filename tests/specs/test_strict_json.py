"""Strict JSON: what one reader takes and another does not is refused, and what it gives can be written again."""

import json

import pytest

from specs.strict_json import parse


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[NaN]", "NaN is not a number"),
        ("1e999", "not finite"),
        ('{"a": 1, "a": 2}', "repeated key 'a'"),
        ("[" * 100_000, "nested too deep"),
        (r'"\ud800"', r"a lone surrogate \(\\ud800\)"),
        (r'{"a": ["x\uDFFFy"]}', r"a lone surrogate \(\\udfff\)"),
        (r'{"\ud83d": 1}', "a lone surrogate"),
        ('"\udc80"', "a lone surrogate"),
    ],
)
def test_what_is_refused_is_named(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as e:
        parse(text)
    assert type(e.value) in (ValueError, json.JSONDecodeError)


def test_whole_characters_are_read() -> None:
    assert parse(r'["\ud83c\udfaf", "\\ud800", "ü🎯"]') == ["🎯", "\\ud800", "ü🎯"]
