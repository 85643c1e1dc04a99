"""Tokenizers: exact both ways, no special id from text, characters over several tokens (KP-TOK-03, 07)."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, processors

from specs.errors import ProgramError, StateError
from specs.policy import BPETokenizer
from tasks.protocols import ToolSchema
from tasks.tokens.text import CALL_ERRORS, CallFormat, call_text, compact_json, fragments
from tasks.tokens.tokenizer import Tokenizer, byte_spans, ends_inside_character, train_bpe

TOOLS = [
    ToolSchema("check_stock", "", {"properties": {"product": {"type": "string"}, "quantity": {"type": "integer"}}}),
    ToolSchema("finish", "", {"properties": {"answer": {"type": "string"}}}),
    ToolSchema("ping", "", {"properties": {}}),
]
OBSERVATIONS = [{"enough": "no", "substitute": "red lamp"}, {"ok": 1}, {"ok": 1}, {"status": "open", "quantity": 3}]
SPEC = BPETokenizer(kind="bpe", vocab_size=400)


def trained(call_format: CallFormat = "flat"):
    texts = ['Order 12 "red lamp" for "Ada Brandt".'] * 5 + [compact_json(o) for o in OBSERVATIONS]
    return train_bpe(texts, SPEC, fragments(TOOLS, call_format, OBSERVATIONS))


TOKENIZER = trained()


@settings(deadline=None, derandomize=True)
@given(st.text() | st.lists(st.sampled_from(["<|end|>", "<|call|>", '","quantity":', " ", "12", "🎯"])).map("".join))
def test_text_comes_back_exactly_and_never_holds_a_special_id(text):
    if any("\ud800" <= c <= "\udfff" for c in text):
        text = ""
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    specials = {TOKENIZER.special(f"<|{n}|>") for n in ("pad", "system", "user", "call", "result", "end")}
    assert not specials & set(ids)
    assert TOKENIZER.encode_batch([text]) == [ids]


def test_training_is_deterministic_and_files_are_the_same_bytes(tmp_path):
    again = trained()
    assert again.digest == TOKENIZER.digest
    TOKENIZER.save(tmp_path / "a.json")
    loaded = Tokenizer.load(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert loaded.digest == TOKENIZER.digest
    assert loaded.encode("<|end|> 12 red lamp") == TOKENIZER.encode("<|end|> 12 red lamp")


@pytest.mark.parametrize("call_format", ["flat", "nested", "react"])
def test_the_skeleton_of_a_call_is_one_token_a_piece(call_format):
    tokenizer = trained(call_format)
    text = call_text("check_stock", {"product": "red lamp", "quantity": 12}, call_format)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
    assert "".join(pieces) == text
    if call_format == "react":  # its thought is words, what follows is skeleton
        at = pieces.index('\nAction: check_stock\nAction Input: {"product":"')
        assert pieces[0] == "Thought:" and len(pieces[at:]) == 6, pieces  # noqa: PT018
        return
    assert len(pieces) == {"flat": 6, "nested": 7}[call_format], pieces
    assert len(tokenizer.encode(call_text("ping", {}, call_format))) == 1


def test_a_seen_observation_is_one_token_and_digits_go_in_groups():
    assert len(TOKENIZER.encode('{"ok":1}')) == 1
    assert [TOKENIZER.decode([i]) for i in TOKENIZER.encode("1212")] == ["12", "12"]
    assert '{"error":"' in fragments(TOOLS, "flat", [])
    assert all(len(TOKENIZER.encode(compact_json({"error": label}))) == 1 for label in CALL_ERRORS)


def test_a_character_over_two_tokens():
    pieces = [b"a", b"\xf0\x9f", b"\x8e\xaf", b"b"]
    assert byte_spans(pieces) == [(0, 1), (1, 3), (3, 5), (5, 6)]
    assert b"".join(pieces).decode() == "a🎯b"
    assert ends_inside_character(b"".join(pieces[:2]))
    assert not ends_inside_character(b"".join(pieces[:3]))
    assert not ends_inside_character(b"\x80\x80")
    assert not ends_inside_character(b"")


def test_byte_tokens_decode_together_and_a_cut_is_seen():
    ids = TOKENIZER.encode("a🎯b")
    assert "\ufffd" not in TOKENIZER.decode(ids)
    assert TOKENIZER.spans(ids)[-1][1] == len("a🎯b".encode())
    assert b"".join(TOKENIZER.token_bytes(i) for i in ids) == "a🎯b".encode()
    cut = ids[:2]
    assert TOKENIZER.ends_inside_character(cut)
    assert not TOKENIZER.ends_inside_character(ids)
    assert TOKENIZER.decode(cut).endswith("\ufffd")


def test_an_unknown_special_names_those_there_are():
    with pytest.raises(ProgramError, match=r"<\|im_start\|>.*<\|call\|>"):
        TOKENIZER.special("<|im_start|>")


def test_other_kinds_and_damage_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    Backend(models.WordLevel({"a": 0}, unk_token="a")).save(str(path))
    with pytest.raises(ProgramError, match="byte-level BPE"):
        Tokenizer.load(path)
    data = json.loads(TOKENIZER.to_json())
    data["normalizer"] = json.loads(normalizers.Lowercase().__getstate__())
    path.write_text(json.dumps(data))
    with pytest.raises(ProgramError, match="normalizer"):
        Tokenizer.load(path)
    for single, put in (("<|user|> $A", r"puts '<\|user\|>' around every text"), ("$A <|end|>", r"puts '<\|end\|>'")):
        backend = Backend.from_str(TOKENIZER.to_json())
        marks = [(m, backend.token_to_id(m)) for m in ("<|user|>", "<|end|>")]
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=marks)
        backend.save(str(path))
        with pytest.raises(ProgramError, match=put + r".*serves the policy .* one more than it was trained with"):
            Tokenizer.load(path)
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    backend.save(str(path))
    assert Tokenizer.load(path).encode("a b") == TOKENIZER.encode("a b")
    path.write_text(TOKENIZER.to_json()[:-200])
    with pytest.raises(StateError, match=r"tokenizer\.json.*damaged"):
        Tokenizer.load(path)
    with pytest.raises(StateError, match="cannot be read"):
        Tokenizer.load(tmp_path / "none.json")
