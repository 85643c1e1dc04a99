"""Calls as written and read: every malformed one is labelled, none raises (KP-ROLL-05, KP-TOK-04, AT-38)."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.agents import ToolLoop
from specs.errors import DataError, ProgramError
from specs.records import ToolCall
from tasks.episodes.agents import ToolLoopAgent, arguments_of
from tasks.episodes.schemas import argument_error, check_tools
from tasks.protocols import ToolSchema

FLAT, NESTED, REACT = (ToolLoopAgent(ToolLoop(call_format=f)) for f in ("flat", "nested", "react"))
SEARCH = ToolSchema("search", "", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]})
WIDE = ToolSchema(
    "wide",
    "",
    {
        "properties": {
            "i": {"type": "integer", "minimum": 1, "maximum": 9},
            "x": {"type": "number"},
            "b": {"type": "boolean"},
            "e": {"type": "string", "enum": ["on", "off"]},
            "a": {"type": "array", "items": {"type": "integer"}},
            "o": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]},
            "n": {"type": ["string", "null"]},
            "free": {},
        },
        "additionalProperties": True,
    },
)
LABELS = {
    None, "malformed_json", "not_an_object", "missing_argument", "unknown_argument", "wrong_type", "unknown_tool"
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"tool":"search","q":"x"}', None),
        (' {"tool": "search", "q": "x"}\n', None),
        ('{"tool":"search","q":"x"', "malformed_json"),
        ('"{\\"tool\\": \\"search\\", \\"q\\": 1}"', "not_an_object"),
        ("[1, 2]", "not_an_object"),
        ("3", "not_an_object"),
        ("", "malformed_json"),
        ('{"tool":"search","q":"x","zzz":1}', "unknown_argument"),
        ('{"tool":"serch","q":"x"}', "unknown_tool"),
        ('{"tool":["search"],"q":"x"}', "unknown_tool"),
        ('{"q":"x"}', "unknown_tool"),
        ('{"tool":"search"}', "missing_argument"),
        ('{"tool":"search","q":1}', "wrong_type"),
        ('{"tool":"search","q":null}', "wrong_type"),
        ('{"tool":"search","q":"x","q":"y"}', "malformed_json"),
        ('{"tool":"search","q":NaN}', "malformed_json"),
        ('{"tool":"search","q":1e309}', "malformed_json"),
        ('{"tool":"search","q":-Infinity}', "malformed_json"),
        ('{"tool":"search","q":' + "9" * 5000 + "}", "malformed_json"),
        ('{"tool":"search","q":"\\ud800"}', "malformed_json"),
        ('{"tool":"search","q":"x"} and more', "malformed_json"),
        ("[" * 65 + "]" * 65, "malformed_json"),
        ('{"tool":"search","q":"' + "[" * 200 + '"}', None),
    ],
)
def test_every_malformed_flat_call_has_its_label(text, error):
    call = FLAT.parse(text, [SEARCH])
    assert (call.error, call.written) == (error, text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "search", "arguments": {"q": "x"}}', None),
        ('{"name": "search", "arguments": "{\\"q\\": \\"x\\"}"}', "not_an_object"),
        ('{"name": "search", "arguments": [1]}', "not_an_object"),
        ('{"name": "search", "arguments": {"q": "x"}, "id": 1}', "unknown_argument"),
        ('{"name": "search"}', "missing_argument"),
        ('{"tool": "search", "q": "x"}', "unknown_tool"),
        ("null", "not_an_object"),
    ],
)
def test_every_malformed_nested_call_has_its_label(text, error):
    assert NESTED.parse(text, [SEARCH]).error == error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('Thought: look it up\nAction: search\nAction Input: {"q": "x"}', None),
        ('Action: search\nAction Input:{"q":"x"}\n', None),
        ('Thought: Action: is next\nAction: serch\nAction: search\nAction Input: {"q": "x"}', None),
        ('Thought: look it up\nAction: serch\nAction Input: {"q": "x"}', "unknown_tool"),
        ("Thought: look it up\nAction: search\nAction Input: {}", "missing_argument"),
        ("Thought: look it up\nAction: search\nAction Input: [1]", "not_an_object"),
        ('Thought: look it up\nAction: search\nAction Input: {"q": "x"', "malformed_json"),
        ('Thought: look it up\nAction: search {"q": "x"}', "malformed_json"),
        ('{"tool":"search","q":"x"}', "malformed_json"),
        ("", "malformed_json"),
    ],
)
def test_every_malformed_action_of_a_text_has_its_label(text, error):
    call = REACT.parse(text, [SEARCH])
    assert (call.error, call.written) == (error, text)
    assert call.error is not None or call.arguments == {"q": "x"}


WRITTEN = {
    FLAT: '{"tool":"search","q":"x"}',
    NESTED: '{"name": "search", "arguments": {"q": "x"}}',
    REACT: 'Thought: look it up\nAction: search\nAction Input: {"q": "x"}',
}


@pytest.mark.parametrize("agent", WRITTEN, ids=lambda a: a.spec.call_format)
@pytest.mark.parametrize("around", ["```json\n{}\n```", "For example:\n```\n{}\n```\nDone.", "`{}`", "{}\n```"])
def test_a_call_that_is_shown_in_a_fence_is_no_call(agent, around):
    """KP-VER-11: no format declares fences, so that what stands in one is an example."""
    call = agent.parse(around.replace("{}", WRITTEN[agent]), [SEARCH])
    assert (call.name, call.arguments, call.error) == ("", {}, "malformed_json")
    assert agent.parse(WRITTEN[agent], [SEARCH]).error is None


def test_huge_inputs_are_refused_at_once():
    start = time.perf_counter()
    for text in ("[" * 1_000_000, '{"a":' * 300_000, '{"tool":"search","q":' + "1" * 10_000_000 + "}", '"' * 3_000_000):
        assert FLAT.parse(text, [SEARCH]).error == "malformed_json"
    for text in ("Action:" * 200_000, "Action: a\n" * 200_000, "\nAction: a\nAction Input:" * 100_000):
        assert REACT.parse(text, [SEARCH]).error == "malformed_json"
    assert time.perf_counter() - start < 2


@settings(deadline=None, derandomize=True, max_examples=120)
@given(
    st.text()
    | st.text(alphabet='{}[]",:\\ntoelsarchqu0189.-+eE \ud800')
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    ).map(lambda v: json.dumps(v))
)
def test_parse_never_raises(text):
    for agent in (FLAT, NESTED, REACT):
        assert agent.parse(text, [SEARCH, WIDE]).error in LABELS


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(["q", "ü", "a b"]), st.text(st.characters(exclude_categories=["Cs"]))))
def test_what_is_written_is_read_back(arguments):
    tool = ToolSchema("search", "", {"properties": {}, "additionalProperties": True})
    for agent in (FLAT, NESTED, REACT):
        call = agent.parse(agent.write(ToolCall("search", arguments, "")), [tool])
        assert (call.name, call.arguments, call.error) == ("search", arguments, None)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"i": 1, "x": 1, "b": False, "e": "on", "a": [1], "o": {"k": ""}, "n": None, "free": [{}], "more": 1}, None),
        ({"i": True}, "wrong_type"),
        ({"i": 1.0}, "wrong_type"),
        ({"i": 0}, "wrong_type"),
        ({"i": 10}, "wrong_type"),
        ({"x": "1"}, "wrong_type"),
        ({"b": 0}, "wrong_type"),
        ({"e": "ON"}, "wrong_type"),
        ({"a": [1, "2"]}, "wrong_type"),
        ({"o": {}}, "wrong_type"),
        ({"o": {"k": 1}}, "wrong_type"),
        ({"n": 1}, "wrong_type"),
    ],
)
def test_types(arguments, error):
    assert argument_error(arguments, WIDE.parameters) == error


def test_arguments_as_object_or_as_text_are_written_the_same():
    """KP-TOK-04: one level of JSON, characters as characters."""
    as_object = NESTED.write(ToolCall("lookup", {"city": "Zürich", "n": 1}, ""))
    as_text = NESTED.write(ToolCall("lookup", '{"city": "Z\\u00fcrich", "n": 1}', ""))  # type: ignore[arg-type]
    assert as_object == as_text == '{"name": "lookup", "arguments": {"city": "Zürich", "n": 1}}'
    for bad in ("[1]", "{", 3):
        with pytest.raises(DataError, match="record 7"):
            arguments_of(bad, "record 7")


def test_tools_that_cannot_be_checked_are_refused():
    check_tools([SEARCH, WIDE], "flat")
    with pytest.raises(ProgramError, match=r"a\.k: found type 'date'"):
        check_tools([ToolSchema("t", "", {"properties": {"a": {"properties": {"k": {"type": "date"}}}}})], "flat")
    with pytest.raises(ProgramError, match="call_format to nested"):
        check_tools([ToolSchema("t", "", {"properties": {"tool": {"type": "string"}}})], "flat")
