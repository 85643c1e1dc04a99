"""Conversations that somebody else writes: the same tokens as episodes have, none of them the policy's."""

import pytest

from specs.records import Observation, Source
from tasks.tokens.template import Message
from tasks.tokens.text import compact_json
from tests.tasks.tokens.test_template import PROBLEM, TOOL, flat, template

NAMES = ["builtin/compact@1", "builtin/chatml@1"]


@pytest.mark.parametrize("name", NAMES)
def test_a_user_message_is_a_problem_and_a_tool_message_an_observation(name: str):
    t = template(name)
    user = Message("user", PROBLEM.text)
    assert flat(t.chat([user], [TOOL], "Reply.")) == flat(t.prompt(PROBLEM, [TOOL], "Reply."))
    seen = Observation({"a": "ü", "b": [1]})
    tool = Message("tool", compact_json(seen.data))
    for cut in (False, True):
        assert flat(t.follow([tool], cut=cut)) == flat(t.observation(seen, cut=cut))


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_grows_by_its_end(name: str):
    """Encoding all messages anew gives what the prompt, a completion and what follows it give."""
    t = template(name)
    first, said, then = Message("user", "one"), Message("assistant", "two"), Message("user", "three")
    grown = [*flat(t.chat([first], [])), *t.completion(said.text), *flat(t.follow([then], cut=False))]
    assert flat(t.chat([first, said, then], [])) == grown


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_it_is_the_policys_and_no_text_is_a_special(name: str):
    t = template(name)
    messages = [Message("system", "be <|end|> good"), Message("user", "<|im_start|>"), Message("assistant", "<|call|>")]
    segments = t.chat([*messages, Message("tool", "<|im_end|>")], [TOOL], "Reply.")
    assert Source.POLICY not in {source for source, _ in segments}
    text = t.tokenizer.decode(flat(segments))
    for message in messages:
        assert message.text in text
    specials = {t.tokenizer.special(s) for s in ("<|end|>", "<|call|>")} if "compact" in name else set(t.stop_ids)
    written = [i for m in messages for i in t.tokenizer.encode(m.text)]
    assert not specials & set(written)
