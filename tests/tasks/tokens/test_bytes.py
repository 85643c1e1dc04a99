"""Bytes of tokens in every kind of tokenizer, and what is found out where a tokenizer changes the text."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.errors import StateError
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.equality import difference
from tasks.tokens.tokenizer import byte_characters
from tests.tasks.tokens.kinds import KINDS, byte_level, tokenizer

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40) | st.lists(
    st.sampled_from(
        [" ", "  ", "Tokyo", "red lamp", "🗼", "é", "<|end|>", "</s>", '{"tool":', "12", "\n", "▁", "<0x41>"]
    )
).map("".join)


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece", "legacy_piece"])
def test_kinds_that_write_every_byte_are_exact(kind):
    any_tokenizer = tokenizer(kind)

    @settings(deadline=None, derandomize=True, max_examples=60)
    @given(TEXT)
    def check(text):
        if kind != "byte_level" and ("▁" in text or "<0x" in text):
            return
        found = any_tokenizer.encode(text)
        assert found.exact
        assert not set(found.ids) & set(any_tokenizer.specials)
        assert int(found.ends[-1:].sum()) == len(text.encode())
        assert (np.diff(found.ends) >= 0).all()

    check()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(TEXT)
def test_any_text_in_any_kind_gives_rising_ends_inside_the_text(text):
    for kind in KINDS:
        found = tokenizer(kind).encode(text)
        assert len(found.ids) == len(found.ends) == len(found.unknown)
        assert (np.diff(found.ends) >= 0).all()
        assert int(found.ends[-1:].sum()) <= len(text.encode())


def test_bytes_are_those_of_the_vocabulary():
    assert [tokenizer("byte_level").table[i] for i in tokenizer("byte_level").ids("🗼")] == [
        b"\xf0",
        b"\x9f",
        b"\x97",
        b"\xbc",
    ]
    piece = tokenizer("sentence_piece")
    assert [piece.table[i] for i in piece.ids("Tokyo 🗼")] == [b" Tokyo", b" ", b"\xf0", b"\x9f", b"\x97", b"\xbc"]
    assert [tokenizer("word_piece").table[i] for i in tokenizer("word_piece").ids("cancelled")] == [b"cancelled"]


@pytest.mark.parametrize("kind", ["sentence_piece", "legacy_piece"])
def test_the_space_before_every_text_is_taken_off(kind):
    found = tokenizer(kind).encode("Order 12")
    assert found.exact
    assert tokenizer(kind).bytes_of(found.ids) == b" Order 12"
    assert found.ends[-1] == 8
    assert tokenizer(kind).encode(" Order 12").ends[-1] == 9


def test_a_changed_text_is_seen_and_its_tokens_are_placed_in_the_original():
    found = tokenizer("word_piece").encode("Café  RED lamp ")
    assert not found.exact
    assert found.ends.tolist() == [5, 10, 15]
    assert not found.unknown.any()
    folded = tokenizer("unigram").encode("ﬁ x")
    assert not folded.exact
    assert folded.ends[-1] == len("ﬁ x".encode())


def test_an_unknown_token_is_marked_and_never_exact():
    for kind in ("unigram", "word_piece"):
        found = tokenizer(kind).encode("a 🗼 b")
        assert found.unknown.sum() == 1
        assert not found.exact


def test_a_character_that_no_token_stands_for_is_marked_at_the_token_after_it():
    data = json.loads(byte_level().to_str())
    lacking = [c for c, b in byte_characters().items() if b in (0x1D, 0xF1)]
    data["model"]["vocab"] = {t: i for t, i in data["model"]["vocab"].items() if t not in lacking}
    gappy = AnyTokenizer.from_json(json.dumps(data))
    assert gappy.encode("ab 🗼 c").exact
    found = gappy.encode("a\x1db \U00040000 c")
    assert not found.exact
    assert [gappy.table[i] for i in found.ids] == [b"a", b"b", b" ", *[b"\x80"] * 3, b" c"]
    assert found.unknown.tolist() == [False, True, False, False, False, True, False]
    assert gappy.encode("b\x1d").unknown.tolist() == [False], "after it there is none: it is no part of any chunk"
    cleaned = tokenizer("word_piece").encode("cancel \ufffd e\u0301  red")
    assert cleaned.unknown.tolist() == [False, True, False]


def test_ends_of_tokens_over_one_character_rise_only_with_the_last():
    found = tokenizer("byte_level")
    by_spans = AnyTokenizer(byte_level())
    encoding = by_spans._backend.encode("a🗼b", add_special_tokens=False)
    from tasks.tokens.bytes import _ends_by_spans

    assert _ends_by_spans("a🗼b", encoding.offsets).tolist() == [1, 1, 1, 1, 5, 6]
    assert found.ends_of(found.ids("a🗼b")).tolist() == [1, 2, 3, 4, 5, 6]


def test_damage_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(StateError, match=r"tokenizer\.json.*damaged"):
        AnyTokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(StateError, match="cannot be read"):
        AnyTokenizer.load(tmp_path / "none.json")


def test_equality_is_decided_by_encoding_and_not_by_size():
    one = AnyTokenizer(byte_level())
    data = json.loads(byte_level().to_str())
    assert difference(one, AnyTokenizer.from_json(json.dumps(data))) is None
    data["pre_tokenizer"]["add_prefix_space"] = True
    spaced = AnyTokenizer.from_json(json.dumps(data))
    assert spaced.size == one.size
    said = difference(one, spaced)
    assert said is not None
    assert "written as" in said
    swapped = json.loads(byte_level().to_str())
    a, b = (t for t in swapped["model"]["vocab"] if t in ("q", "~"))
    swapped["model"]["vocab"][a], swapped["model"]["vocab"][b] = (
        swapped["model"]["vocab"][b],
        swapped["model"]["vocab"][a],
    )
    assert "stands for" in (difference(one, AnyTokenizer.from_json(json.dumps(swapped))) or "")
    assert "special" in (difference(one, tokenizer("sentence_piece")) or "")
