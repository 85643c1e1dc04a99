"""A policy's conversation told in a teacher's marks and tokens: what it reads, what is aligned, what is refused."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from specs.alignment import Alignment, Strategy
from specs.errors import ProgramError
from specs.records import Source
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.frames import frame_for, parts
from tasks.tokens.retelling import Reteller
from tests.tasks.tokens.conversations import CALLS, conversation, plain, side, span, template
from tests.tasks.tokens.kinds import KINDS, tokenizer

COMPACT, CHATML = template(), template("builtin/chatml@1", 320)
POLICY, TEACHER = side("builtin/compact@1", COMPACT), side("builtin/chatml@1", CHATML)


def told(policy, teacher, trajectory, **settings):
    return Reteller(policy, teacher, Alignment(**settings)).tell(span(trajectory))


def judged(retold, trajectory, teacher=None, **settings):
    scores = np.full(len(retold.ids), -0.7) if teacher is None else teacher
    return retold.judge(np.array(trajectory.logprobs), scores, Alignment(**settings))


def test_another_template_reads_the_same_messages_in_its_own_marks():
    trajectory = conversation(COMPACT)
    retold = told(POLICY, TEACHER, trajectory)
    marks, table = TEACHER[0].specials, TEACHER[0].table
    assert b"".join(marks[i].encode() if i in marks else table[i] for i in retold.ids).decode() == (
        "<|im_start|>user\nIs the red lamp at the Tokyo tower there?<|im_end|>\n"
        f"<|im_start|>assistant\n{CALLS[0]}<|im_end|>\n"
        '<|im_start|>tool\n{"in stock":0,"note":"über"}<|im_end|>\n'
        f"<|im_start|>assistant\n{CALLS[1]}<|im_end|>"
    )
    good, coverage = judged(retold, trajectory)
    assert good.all()
    assert coverage.share == 1.0
    assert coverage.strategies == {"byte_span": 2}


@pytest.mark.parametrize("name", ["builtin/compact@1", "builtin/chatml@1"])
def test_the_same_tokenizer_and_template_give_the_same_tokens_back(name):
    made = template(name)
    own = side(name, made)
    trajectory = conversation(made)
    retold = told(own, own, trajectory)
    assert retold.ids == trajectory.ids
    asked = [i for i, s in enumerate(trajectory.sources) if s == Source.POLICY]
    assert retold.chunks.policy_C2[:, 0].tolist() == retold.chunks.teacher_C2[:, 0].tolist() == asked
    assert (retold.chunks.policy_sizes_C == 1).all()


def test_chunks_hold_the_same_bytes_on_both_sides():
    trajectory = conversation(COMPACT)
    retold = told(POLICY, TEACHER, trajectory)
    for (low, high), (i, j), (k, m) in zip(
        retold.chunks.bytes_C2, retold.chunks.policy_C2, retold.chunks.teacher_C2, strict=True
    ):
        own, theirs = POLICY[0].bytes_of(trajectory.ids[i:j]), TEACHER[0].bytes_of(retold.ids[k:m])
        assert own == theirs
        assert len(own) == high - low
    stops = [TEACHER[0].specials.get(retold.ids[k]) for k in retold.chunks.teacher_C2[:, 0].tolist()]
    assert [s for s in stops if s] == ["<|im_end|>"] * 2


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("sentence_piece", "byte_span"),
        ("legacy_piece", "byte_span"),
        ("unigram", "text_span"),
        ("word_piece", "text_span"),
    ],
)
def test_teachers_of_every_kind_cover_what_they_can_write(kind, strategy):
    trajectory = conversation(
        COMPACT, ['{"tool":"check_stock","product":"red lamp"}', '{"tool":"Order","customer":"ada"}']
    )
    retold = told(POLICY, plain(kind), trajectory)
    _, coverage = judged(retold, trajectory)
    expected = {strategy} if kind != "unigram" else {"byte_span", "text_span"}
    assert set(coverage.strategies) <= expected
    assert coverage.share > 0.6
    assert coverage.aligned + coverage.merged + coverage.dropped.total() == coverage.tokens


def test_a_changed_text_is_refused_where_no_strategy_may_map_it():
    trajectory = conversation(COMPACT, ["Red LAMP", "red lamp"])
    retold = told(POLICY, plain("word_piece"), trajectory, strategies=["byte_span"])
    _, coverage = judged(retold, trajectory, strategies=["byte_span"])
    assert coverage.dropped["normalised"] == coverage.tokens - 2
    assert coverage.share == pytest.approx(2 / coverage.tokens)  # its separator is the end of a turn
    mapped = told(POLICY, plain("word_piece"), trajectory)
    assert mapped.strategies == ["text_span", "text_span"]


def test_sequence_mapping_pairs_what_the_spans_would_have_placed():
    trajectory = conversation(COMPACT, ["the red lamp for the customer"])
    retold = told(POLICY, plain("word_piece"), trajectory, strategies=["sequence_mapping"])
    spans = told(POLICY, plain("word_piece"), trajectory, strategies=["text_span"])
    assert retold.strategies == ["sequence_mapping"]
    assert retold.ids == spans.ids
    assert retold.chunks.teacher_C2.tolist() == spans.chunks.teacher_C2.tolist()


class WithoutSpans(AnyTokenizer):
    """A tokenizer whose normaliser does not say what became of what: its tokens have no place."""

    def encode(self, text):
        found = super().encode(text)
        return found if found.exact else replace(found, ends=found.ends * 0)


@pytest.mark.parametrize(
    ("calls", "strategy"),
    [
        (["red  lamp for Ada Brandt"], "sequence_mapping"),
        (["red  lamp for Ada Brandt " * 400], "vocabulary_projection"),
    ],
)
def test_in_the_documented_order_what_has_no_spans_is_mapped_or_projected(calls, strategy):
    """The second text is longer than what is mapped."""
    teacher = WithoutSpans(KINDS["unigram"](), "unigram")
    side = (teacher, frame_for("builtin/plain@1", teacher, "here"))
    trajectory = conversation(COMPACT, calls)
    assert told(POLICY, plain("unigram"), trajectory, strategies=list(get_args(Strategy))).strategies == ["text_span"]
    retold = told(POLICY, side, trajectory, strategies=list(get_args(Strategy)))
    assert retold.strategies == [strategy]
    assert judged(retold, trajectory, max_chunk_tokens=999)[1].share > 0.5
    _, coverage = judged(told(POLICY, side, trajectory), trajectory)
    assert coverage.dropped["normalised"] == coverage.tokens - 1, (
        "the strategies that are allowed by default do not fit"
    )


def test_spaces_at_the_end_that_a_tokenizer_leaves_out_are_all_that_is_lost():
    trajectory = conversation(COMPACT, ["Red lamp  "])
    retold = told(POLICY, plain("word_piece"), trajectory)
    assert retold.strategies == ["text_span"]
    assert judged(retold, trajectory)[1].share > 0.5


def test_a_token_is_written_alone_by_vocabulary_projection():
    broken = [*POLICY[0].ids("red 🗼")[:-1], POLICY[0].ids("a")[0], COMPACT.stop_ids[0]]
    trajectory = conversation(COMPACT, [broken])
    retold = told(POLICY, TEACHER, trajectory)
    assert retold.refused == {"not_text": len(broken) - 1}
    projected = told(POLICY, TEACHER, trajectory, strategies=["byte_span", "vocabulary_projection"])
    assert projected.strategies == ["vocabulary_projection"]
    assert (projected.chunks.policy_sizes_C == 1).all()
    _, coverage = judged(projected, trajectory)
    assert coverage.share == 1.0
    none = told(POLICY, plain("word_piece"), trajectory, strategies=["vocabulary_projection"])
    assert none.refused == {"not_text": len(broken) - 1}


def test_a_cut_completion_keeps_all_but_its_last_chunk():
    whole = conversation(COMPACT, ["red lamp 🗼"])
    ids = whole.ids[whole.turns[0].start : whole.turns[0].end]
    trajectory = conversation(COMPACT, [ids[:-2]], cut=False)
    retold = told(POLICY, TEACHER, trajectory)
    _, coverage = judged(retold, trajectory)
    assert coverage.dropped["cut"] == 1
    assert coverage.dropped["no_teacher_token"] == 3  # the bytes of half a character
    assert coverage.strategies == {"byte_span": 1}


def test_a_reply_that_was_cut_in_the_middle_keeps_all_but_its_last_chunk():
    """A stop token that stands there for the policy does not end what it wrote."""
    calls = [*CALLS, '{"tool":"finish","answer":"red lamp"}']
    ended = conversation(COMPACT, calls)
    closed = conversation(COMPACT, calls)
    turn = closed.turns[1]
    closed.sources[turn.end - 1] = int(Source.TEMPLATE)
    closed.logprobs[turn.end - 1] = 0.0
    (_, whole), (_, coverage) = (judged(told(POLICY, TEACHER, t), t) for t in (ended, closed))
    assert whole.dropped == {}
    assert coverage.dropped["cut"] == 1
    assert coverage.tokens == whole.tokens - 1
    retold = told(POLICY, TEACHER, closed)
    (at,) = np.flatnonzero(retold.cut).tolist()
    assert int(retold.chunks.policy_C2[at, 1]) == turn.end - 1


def test_a_special_token_inside_a_completion_is_no_mark_and_is_dropped():
    user = next(i for i, c in POLICY[0].specials.items() if c == "<|user|>")
    ids = [*POLICY[0].ids("red"), user, *POLICY[0].ids(" lamp"), COMPACT.stop_ids[0]]
    trajectory = conversation(COMPACT, [ids])
    found = parts(trajectory.ids, trajectory.sources, POLICY[1], POLICY[0])
    assert [p.role for p in found] == ["user", "assistant"]
    _, coverage = judged(told(POLICY, TEACHER, trajectory), trajectory)
    assert coverage.dropped["special_token"] >= 1
    assert coverage.share > 0


def test_an_empty_completion_and_one_without_tokens_to_ask_about():
    trajectory = conversation(COMPACT, [[COMPACT.stop_ids[0]]])
    _, coverage = judged(told(POLICY, TEACHER, trajectory), trajectory)
    assert (coverage.tokens, coverage.aligned) == (1, 1)
    silent = conversation(COMPACT)
    retold = Reteller(POLICY, TEACHER, Alignment()).tell(
        type(span(silent))(silent, 0, silent.ids, [False] * len(silent.ids))
    )
    assert len(retold.chunks) == 0
    assert judged(retold, silent)[1].share == 1.0


def test_a_teacher_without_the_marks_is_refused_with_the_way_out():
    with pytest.raises(ProgramError, match=r"teachers\.big.*<\|im_end\|>.*builtin/plain@1"):
        frame_for("builtin/chatml@1", tokenizer("sentence_piece"), "teachers.big")


def test_a_long_completion_is_aligned_to_its_end():
    long = conversation(COMPACT, ["red lamp for Ada Brandt " * 400])
    retold = told(POLICY, TEACHER, long)
    assert judged(retold, long)[1].share == 1.0
