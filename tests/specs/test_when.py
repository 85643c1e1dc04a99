from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs import when
from specs.errors import ProgramError
from specs.records import Problem

PROBLEM = Problem("p1", "desk", "mail", "train", "Write to Ann", {}, {}, ["adversarial"], 3)


def holds(text: str) -> bool:
    return when.parse(text, when.PROBLEM_NAMES).evaluate(when.problem_values(PROBLEM))


def test_the_names_that_a_condition_reads() -> None:
    text = "not (problem.type == 'a' or 2 < state.turn) and state.last_tool_failed and problem.type != 'b'"
    found = when.mentioned(when.parse(text, when.ROUTING_NAMES))
    assert sorted(found) == ["problem.type", "state.last_tool_failed", "state.turn"]
    assert when.mentioned(when.parse("true", when.ROUTING_NAMES)) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("problem.type in ['mail','place'] and 'adversarial' not in problem.tags", False),
        ("problem.type in ['mail','place'] and 'adversarial' in problem.tags", True),
        ("problem.type == 'mail'", True),
        ('problem.type != "mail"', False),
        ("not problem.type == 'mail' or problem.min_calls >= 3", True),
        ("problem.min_calls < 3 or problem.min_calls > 3", False),
        ("not (problem.min_calls <= 2 or problem.id == 'p1')", False),
        ("problem.min_calls in [1, 3.0]", True),
        ("'Ann' in problem.text", True),
        ("true and not false", True),
        ("problem.min_calls == -3", False),
        ("problem.type == 'place' or problem.type == 'mail' and problem.min_calls == 3", True),
    ],
)
def test_conditions(text: str, value: bool) -> None:  # noqa: FBT001
    assert holds(text) is value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problem.typ == 'a'", "column 1: unknown name problem.typ, expected .*; did you mean problem.type?"),
        ("problem.type = 'a'", "column 14: found =, expected =="),
        ("problem.type == mail", "column 17: unknown name mail, expected .*; put texts in quotes"),
        ("problem.type", "column 13: found the end, expected a comparison: problem.type is a text"),
        ("(problem.min_calls > 1", r"column 23: found the end, expected \)"),
        (
            "problem.tags == 'a'",
            "column 17: found 'a', a text, behind ==, expected texts; to ask whether a list holds a value, write VALUE in NAME",
        ),
        ("problem.type == 3", "column 17: found 3, a number, behind ==, expected a text; put a text in quotes"),
        ("problem.min_calls < 'a'", "column 21: found 'a', a text, behind <, expected two numbers or two texts"),
        ("problem.min_calls in ['a']", "expected a list of numbers"),
        ("problem.min_calls in [1, 'a']", "found texts and numbers in one list"),
        ("problem.type in []", "found an empty list"),
        ("1 < 2 < 3", "column 7: found a second comparison; join comparisons by and"),
        ("problem.type == 'abc", "column 17: a quote is not closed"),
        ("true && true", "column 6: found &, expected and, or or not"),
        ("true true", "column 6: found true, expected and, or, or the end"),
        ("problem.id not 'a'", r"expected in \(not in\)"),
        ("", "column 1: found the end, expected a name"),
        ("not " * 40 + "true", "nested more than 30 levels deep"),
        ("(" * 5000, "expected a condition of at most 2000"),
        ("__import__('os').system('x')", "unknown name __import__"),
        ("problem.min_calls == 1e999", "expected a finite number"),
        ("problem.expected == 'x'", "unknown name problem.expected"),
    ],
)
def test_what_is_no_condition(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        when.parse(text, when.PROBLEM_NAMES)


def test_values_must_be_there_and_of_their_type() -> None:
    expression = when.parse("a > 1 and b", {"a": "number", "b": "flag"})
    assert expression.evaluate({"a": 2, "b": True})
    with pytest.raises(ProgramError, match="no value for a, expected a number"):
        expression.evaluate({})
    with pytest.raises(ProgramError, match="a is 'x', expected a number"):
        expression.evaluate({"a": "x", "b": True})


WORDS = st.sampled_from(
    [
        "problem.type",
        "problem.min_calls",
        "in",
        "not",
        "and",
        "or",
        "(",
        ")",
        "[",
        "]",
        ",",
        "==",
        "<",
        "'a'",
        "3",
        "true",
    ]
)


@settings(deadline=None, derandomize=True)
@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=12).map(" ".join)))
def test_any_text_is_a_condition_or_a_program_error(text: str) -> None:
    values: dict[str, Any] = when.problem_values(PROBLEM)
    try:
        expression = when.parse(text, when.PROBLEM_NAMES)
    except ProgramError:
        return
    assert isinstance(expression.evaluate(values), bool)


def test_texts_that_a_name_is_compared_with_are_told() -> None:
    text = "problem.type in ['a', 'b'] or not (problem.type == 'c' and 'd' != problem.type) or problem.id == 'x' or 'e' in problem.tags"
    assert sorted(when.compared(when.parse(text, when.PROBLEM_NAMES), "problem.type")) == ["a", "b", "c", "d"]
