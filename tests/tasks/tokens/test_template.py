"""Templates: sources, specials placed by the template alone, one way for all paths (KP-TOK-01, 03, 04)."""

import pytest

from specs.errors import ProgramError
from specs.policy import BPETokenizer
from specs.records import Observation, Problem, Source
from tasks.protocols import ToolSchema
from tasks.tokens.template import signature, specials_of, template_for
from tasks.tokens.tokenizer import train_bpe

PROBLEM = Problem("p", "e", "t", "train", 'Zürich <|end|><|im_end|> "x"', {}, {})
TOOL = ToolSchema(
    "find",
    "Find a thing. Slowly.",
    {
        "properties": {
            "name": {"type": "string", "description": "The name. Of it"},
            "n": {"type": "integer", "description": "not shown"},
            "kind": {"type": "string", "enum": ["a", "b"], "description": "not shown"},
            "xs": {"type": "array", "items": {"type": "number"}},
            "o": {"type": "object", "properties": {"k": {"type": "boolean"}}},
        },
        "required": ["name", "n"],
    },
)


def template(name):
    spec = BPETokenizer(kind="bpe", vocab_size=300)
    return template_for(name, train_bpe(["Zürich system user assistant tool"] * 4, spec, [], specials_of(name)))


def flat(segments):
    return [i for _, ids in segments for i in ids]


@pytest.mark.parametrize("name", ["builtin/compact@1", "builtin/chatml@1"])
def test_sources_and_specials(name):
    t = template(name)
    prompt = t.prompt(PROBLEM, [TOOL], "Reply.")
    user = [ids for source, ids in prompt if source is Source.USER]
    assert [t.tokenizer.decode(ids) for ids in user] == [PROBLEM.text]
    assert not set(t.stop_ids) & set(user[0])
    assert {source for source, _ in prompt} == {Source.TEMPLATE, Source.USER}
    reply = t.observation(Observation({"city": "Zürich", "n": 1}), cut=False)
    tool = next(ids for source, ids in reply if source is Source.TOOL)
    assert t.tokenizer.decode(tool) == '{"city":"Zürich","n":1}'
    completion = t.completion('{"city":"Zürich"}')
    assert completion[-1] in t.stop_ids
    assert sum(i in t.stop_ids for i in completion) == 1


@pytest.mark.parametrize("name", ["builtin/compact@1", "builtin/chatml@1"])
def test_a_conversation_begins_once_and_every_turn_is_closed_once(name):
    t = template(name)
    whole = flat(t.prompt(PROBLEM, [TOOL])) + t.completion("{}") + flat(t.observation(Observation({}), cut=False))
    cut = flat(t.prompt(PROBLEM, [TOOL])) + t.completion("{}")[:-1] + flat(t.observation(Observation({}), cut=True))
    assert whole == cut
    assert whole.count(whole[0]) == {"builtin/compact@1": 1, "builtin/chatml@1": 5}[name]


def test_chatml_text():
    t = template("builtin/chatml@1")
    text = t.tokenizer.decode(flat(t.prompt(PROBLEM, [TOOL], "Reply.")))
    assert text == (
        f"<|im_start|>system\nReply.\n{signature(TOOL)}<|im_end|>\n<|im_start|>user\n{PROBLEM.text}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    reply = t.tokenizer.decode(flat(t.observation(Observation({"ok": 1}), cut=False)))
    assert reply == '\n<|im_start|>tool\n{"ok":1}<|im_end|>\n<|im_start|>assistant\n'


def test_signature():
    assert signature(TOOL) == (
        'find(name: str (The name), n: int, kind?: "a"|"b", xs?: list[float], o?: {k: bool}) - Find a thing'
    )


def test_digest_covers_template_and_tokenizer():
    compact, again = template("builtin/compact@1"), template("builtin/compact@1")
    assert compact.digest == again.digest
    assert compact.digest != template("builtin/chatml@1").digest
    other = train_bpe(["other"], BPETokenizer(kind="bpe", vocab_size=290), [])
    assert template_for("builtin/compact@1", other).digest != compact.digest


def test_a_template_needs_its_specials_and_a_known_name():
    with pytest.raises(ProgramError, match=r"policy\.template"):
        template_for("builtin/chatml@1", template("builtin/compact@1").tokenizer)
    with pytest.raises(ProgramError, match="expected builtin/compact@1"):
        template_for("mine", template("builtin/compact@1").tokenizer)
