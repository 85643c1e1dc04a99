"""What is read from a reply, and what is an abstention."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.teachers import reading
from tasks.teachers.reading import Unreadable


@pytest.mark.parametrize(
    "text",
    [
        '{"score": 8}',
        '```json\n{"score": 8}\n```',
        'I looked at it closely.\n{"score": {"result": 8}}\nThat is all.',
        '{"score": "8/10"}',
        '{"score": 8.0, "why": "the {state} is right"}',
    ],
)
def test_a_score_is_read_where_one_is_given(text):
    assert reading.scores(text, ["result"], 10) == {"score": 0.8, "dimensions": {"result": 0.8}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"score": 73}', "outside 0 to 10"),
        ('{"score": -1}', "outside 0 to 10"),
        ('{"score": "8/5"}', "expected of 10"),
        ('{"score": "8"}', "expected a number"),
        ('{"score": true}', "expected a number"),
        ("2 of the 4 points hold, so I would say 7", "no JSON object"),
        ("0.7", "no JSON object"),
        ("Not enough information", "no JSON object"),
        ("[ERROR] 429 after 3 attempts", "no JSON object"),
        ("", "no JSON object"),
        ('{"score": 8} ... on reflection {"score": 2}', "2 JSON objects"),
        ('{"score": NaN}', "not strict|expected a number"),
        ('{"score": 2, "score": 9}', "repeated key"),
        ('{"score": {"result": 8, "beauty": 9}}', "beauty"),
        ('{"score": {}}', "result"),
        ('{"score": ' * 3000, "beginnings of JSON"),
        ('It wrote {"score": {"result": 10}}. I say {"score": {"result": 0,}}', "a broken JSON object"),
        ('It wrote {"score": 10}. I say {\\"score\\": 0}', "a broken JSON object"),
    ],
)
def test_anything_else_is_an_abstention(text, reason):
    with pytest.raises(Unreadable, match=reason):
        reading.scores(text, ["result"], 10)


def test_one_number_does_not_stand_for_two_dimensions():
    with pytest.raises(Unreadable, match="one for each of result, care"):
        reading.scores('{"score": 8}', ["result", "care"], 10)


@pytest.mark.parametrize(
    ("text", "tiers"),
    [('{"order": ["B", "A", "C"]}', [[1], [0], [2]]), ('{"order": [["B", "C"], "A"]}', [[1, 2], [0]])],
)
def test_an_order_with_and_without_ties(text, tiers):
    assert reading.order(text, ["A", "B", "C"]) == {"tiers": tiers}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"order": ["A", "B"]}', "missing C"),
        ('{"order": ["A", "B", "B", "C"]}', "twice"),
        ('{"order": ["A", "B", "D"]}', "unknown D; missing C"),
        ('{"order": "A > B > C"}', "expected a list"),
        ('{"order": [1, 2, 3]}', "no label"),
        ('{"order": []}', "expected a list"),
    ],
)
def test_an_order_that_does_not_hold_everyone_once(text, reason):
    with pytest.raises(Unreadable, match=reason):
        reading.order(text, ["A", "B", "C"])


def test_a_critique_speaks_of_every_turn():
    right = {"turn": 1, "label": "good", "correction": None}
    wrong = {"turn": 2, "label": "first_error", "correction": {"name": "finish", "arguments": {"answer": "no"}}}
    found = reading.critique(json.dumps({"turns": [right, wrong]}), 2)["turns"]
    assert [t["label"] for t in found] == ["good", "first_error"]
    assert found[1]["turn"] == 1
    assert found[1]["correction"] == {"name": "finish", "arguments": {"answer": "no"}}
    for turns, reason in [
        ([right], "1, expected 2"),
        ([right, right], "not about turn 2"),
        ([right, {**wrong, "label": "awful"}], "awful"),
        ([right, {**wrong, "label": []}], r"called \[\]"),
        ([{**wrong, "turn": 1}, wrong], "more than one turn"),
        ([right, {**wrong, "correction": "finish"}], "is no call"),
    ]:
        with pytest.raises(Unreadable, match=reason):
            reading.critique(json.dumps({"turns": turns}), 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"keep": 3, "calls": [{"name": "finish", "arguments": {}}]}, "keep is 3"),
        ({"keep": True, "calls": [{"name": "finish"}]}, "keep is True"),
        ({"keep": 0, "calls": []}, "empty"),
        ({"keep": 0, "calls": ["finish"]}, "is no call"),
        ({"keep": 0, "calls": [None]}, "no call"),
        ({"keep": 0, "calls": [{"name": "finish", "arguments": []}]}, "is no call"),
    ],
)
def test_a_correction_needs_calls(data, reason):
    with pytest.raises(Unreadable, match=reason):
        reading.correction(json.dumps(data), 2)


def test_scores_of_calls():
    best = {"name": "finish", "arguments": {"answer": "yes"}}
    text = json.dumps({"score": {"A": 10, "B": 0}, "best": best})
    assert reading.actions(text, ["A", "B"], 10) == {"scores": [1.0, 0.0], "best": best}
    assert reading.actions(json.dumps({"score": {}, "best": best}), [], 10) == {"scores": [], "best": best}
    with pytest.raises(Unreadable, match="neither"):
        reading.actions('{"score": {}, "best": null}', [], 10)
    with pytest.raises(Unreadable, match="expected"):
        reading.actions('{"score": {"A": 1}, "best": null}', ["A", "B"], 10)


@settings(max_examples=60, deadline=None)
@given(
    st.text()
    | st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)).map(
        json.dumps
    )
)
def test_no_reply_raises_anything_else(text):
    for read in (
        lambda t: reading.scores(t, ["result"], 10),
        lambda t: reading.order(t, ["A"]),
        lambda t: reading.critique(t, 1),
        lambda t: reading.correction(t, 1),
        lambda t: reading.actions(t, ["A"], 10),
    ):
        with contextlib.suppress(Unreadable):
            read(text)
