import time
from typing import Any

import pytest

from specs.errors import ProgramError
from specs.reader import Document, read_yaml


def read(text: str | bytes) -> Document:
    return read_yaml(text if isinstance(text, bytes) else text.encode(), "x.yaml")


def data_of(text: str | bytes) -> Any:
    document = read(text)
    assert document.mistakes == []
    return document.data


def told(text: str | bytes) -> list[str]:
    return [str(m) for m in read(text).mistakes]


def refusal(text: str | bytes) -> str:
    with pytest.raises(ProgramError) as e:
        read(text)
    return str(e.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2e-5", 0.00002),
        ("2.0e-5", 0.00002),
        ("0.00002", 0.00002),
        ("1e-3", 0.001),
        ("3e4", 30000),
        ("3.5e4", 35000),
        ("3.5e0", 3.5),
        ("1.0", 1.0),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("-4", -4),
        (".5", 0.5),
        ("+1.5", 1.5),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("0.1.0e", "0.1.0e"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("on", "on"),
        ("no", "no"),
        ("yes", "yes"),
        ("off", "off"),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("!!int 5", 5),
    ],
)
def test_scalars_after_the_core_schema(written: str, value: Any) -> None:
    found = data_of(f"a: {written}")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "written",
    [
        ".nan",
        ".inf",
        "-.Inf",
        "1e400",
        "1e-400",
        "9" * 30,
        "0x" + "f" * 30,
        "!!python/name:os.system x",
        "!!int x",
        '"\\0"',
    ],
)
def test_scalars_that_cannot_stand(written: str) -> None:
    assert len(told(f"b: 1\na: {written}")) == 1
    assert told(f"b: 1\na: {written}")[0].startswith("x.yaml:2:4 a: found ")


def test_same_key_twice_is_told_with_path_and_both_positions() -> None:
    assert told("data: {pack_len: 300, pack_len: 700}") == [
        "x.yaml:1:23 data.pack_len: the key is written twice, first at x.yaml:1:8; keep one"
    ]


def test_same_key_twice_at_every_depth_all_at_once() -> None:
    lines = told("a: 1\nl:\n  - {b: {c: 1, d: [{e: 1, e: 2}], c: 2}}\na: 2\n")
    assert sorted(line.split(": ")[0] for line in lines) == [
        "x.yaml:3:27 l[0].b.d[0].e",
        "x.yaml:3:35 l[0].b.c",
        "x.yaml:4:1 a",
    ]


def test_merge_key_is_overridden_by_the_local_value() -> None:
    document = read("base: &b {batch_size: 4, seed: 1}\nstage: {<<: *b, batch_size: 8}")
    assert document.mistakes == []
    assert document.data["stage"] == {"batch_size": 8, "seed": 1}
    assert str(document.positions["stage", "batch_size"]) == "x.yaml:2:17"
    assert str(document.positions["stage", "seed"]) == "x.yaml:1:26"


def test_merge_of_several_maps_and_of_no_map() -> None:
    assert data_of("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b]}")["c"] == {"x": 1, "y": 2}
    assert told("a: {<<: 5}") == ["x.yaml:1:9 a: found no map behind `<<`, expected `<<: *name` of a map"]


def test_words_and_keys_stay_words() -> None:
    data = data_of("languages: [en, no, de]\ntriggers: {on: regression}\ngroup_size: yes\nshuffle: off")
    assert data == {
        "languages": ["en", "no", "de"],
        "triggers": {"on": "regression"},
        "group_size": "yes",
        "shuffle": "off",
    }


def test_keys_that_are_no_text_are_told() -> None:
    lines = told("true: 1\n5: 2\nnull: 3\n? [a]\n: 4\n")
    assert len(lines) == 4
    assert lines[0] == "x.yaml:1:1: found the key true, expected text; quote it"


def test_aliases_of_aliases_are_refused_in_a_second() -> None:
    text = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True))
    start = time.monotonic()
    message = refusal(text)
    assert time.monotonic() - start < 1.0
    assert "too large" in message
    assert "66,430 values, expected at most 20,000" in message


def test_alias_of_itself_and_of_nothing() -> None:
    assert "part of" in refusal("a: &a [*a]")
    assert refusal("a: *b") == "x.yaml:1:4: not YAML: no `&name` above defines this `*name`"


def test_mark_and_line_ends_at_the_start_change_nothing() -> None:
    raw = b"\xef\xbb\xbfa: 1\r\nb:\r\n  - c: 2\r\n"
    assert data_of(raw) == {"a": 1, "b": [{"c": 2}]}
    assert read(raw).positions == read(b"a: 1\nb:\n  - c: 2\n").positions


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.yaml:1:1: the file is empty; `tutelage init` writes a first program"),
        (b"# only a comment\n", "x.yaml:1:1: the file is empty"),
        (b"a:\n\tb: 1", "x.yaml:2:1: not YAML: a tab"),
        (b"a: 1\nb: c: d", "x.yaml:2:5: not YAML: `:` is not possible here"),
        (b"a: [1, 2", "not YAML: expected `,` or `]`"),
        (b"a: 'x", "not YAML: a quote is not closed"),
        (b"a: 1\n---\nb: 2", "x.yaml:2:1: not YAML: one program a file"),
        (b"a: 1\nb: \xff", "x.yaml:2:4: found bytes that are not UTF-8; save the file as UTF-8"),
        ("a: 1".encode("utf-16"), "x.yaml:1:1: found UTF-16"),
        ("a: 1\nb\ufeff: 2".encode(), "x.yaml:2:2: found a byte-order mark inside the file"),
        (b"a: \x00", "found a character that a program cannot hold"),
        (b"[" * 200 + b"]" * 200, "nested more than 40 levels deep"),
        (b"[" * 100_000, "nested too deeply"),
        (b"a: " + b"x" * 1_100_000, "expected a program of at most 1,000,000"),
    ],
)
def test_what_is_no_program_file(content: bytes, message: str) -> None:
    assert message in refusal(content)
