"""Checks of stages that learn from a teacher's words."""

import pytest

from specs.errors import ProgramError
from tests.specs.programs import load

STAGE = "      type: grpo\n      group_size: 8\n"
CLERK = "  clerk: {kind: scripted, environment: desk, gives: [sample, rank, score, critique, action]}\n"


def taught(folder, algorithm, *, roster=CLERK, more=()):
    teachers = ("verifiers:\n", f"teachers:\n{roster}verifiers:\n")
    return load(folder, teachers, (STAGE, f"      {algorithm}\n"), *more)


@pytest.mark.parametrize(
    "algorithm",
    [
        "type: from_teacher",
        "type: from_teacher\n      goal: succeed",
        "type: from_teacher\n      signal: sample\n      corrections: {learn: both, prefer: {loss: orpo}}",
        "type: soft_label\n      listwise: {utility: ratio}",
        "type: action_distill\n      actions: {learn: best, least_score: 0.7}",
        "type: action_distill\n      actions: {least_score: 0.7, from_tools: 3}",
        "type: action_distill\n      actions: {learn: best, form: rank, from_tools: 3}",
        "type: action_distill\n      actions: {learn: best, form: rank, swaps: no}",
        "type: soft_label\n      rubric: {dimensions: {care: 1, result: 0.2}, about: {care: Were all calls taken?}}",
    ],
)
def test_sound_stages_pass(tmp_path, algorithm):
    warnings = taught(tmp_path, algorithm).warnings
    assert not [w for w in warnings if "says which turn it is about" not in str(w)]


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ("type: from_teacher\n      signal: rank\n      goal: succeed", "goal: has no effect with signal: rank"),
        (
            "type: from_teacher\n      critique: {turn_coef: 1.0}",
            "critique: is not read: the stage learns from action, and critique is about critique",
        ),
        ("type: from_teacher\n      signal: rank\n      samples: 1", "samples: found 1, expected at least 2"),
        (
            "type: from_teacher\n      signal: score\n      scoring: {weight: 1.0}",
            r"weight: found 1, but success and failure are 1 apart.*no score makes up for a failure",
        ),
        (
            "type: from_teacher\n      signal: sample\n      corrections: {prefer: {loss: ipo}}",
            "prefer: is not read with learn: sft",
        ),
        (
            "type: from_teacher\n      signal: sample\n      corrections: {keep: best}",
            "keep: is not read with samples: 1",
        ),
        (
            "type: from_teacher\n      signal: sample\n      corrections: {samples: 3}",
            "samples: found 3, but to the same question clerk always gives the same answer; ask one that varies",
        ),
        ("type: action_distill\n      samples: 1", "one sample disagrees with nothing"),
        (
            "type: action_distill\n      actions: {learn: best, listwise: {tau: 1.0}}",
            "listwise: is not read with learn: best",
        ),
        (
            "type: action_distill\n      actions: {learn: best, from_tools: 3}",
            "from_tools: has no effect with learn: best and form: score",
        ),
        ("type: action_distill\n      actions: {swaps: no}", "swaps: is not read with form: score; write form: rank"),
        (
            "type: action_distill\n      actions: {learn: best, form: rank, least_score: 0.7}",
            "least_score: is not read with form: rank, which has no scale",
        ),
        (
            "type: soft_label\n      rubric: {about: {tone: Is it polite?}}",
            "about: found tone, expected names of dimensions: result, care",
        ),
        ("type: soft_label\n      signal: rank", "found rank, expected score"),
        ("type: soft_label\n      samples: 1", "expected"),
        (
            "type: from_teacher\n      signal: action\n      over: {kind: sampled}",
            "over: is not read: the stage learns from action, and over is about logprobs",
        ),
    ],
)
def test_what_would_not_be_read_is_a_mistake(tmp_path, algorithm, sentence):
    with pytest.raises(ProgramError, match=sentence):
        taught(tmp_path, algorithm)


TONE = "rubric: {dimensions: {result: 1, tone: 0.2}, about: {tone: Is it polite?}}"


def test_a_rubric_of_its_own_needs_a_teacher_that_reads_it(tmp_path):
    closed = "  closed: {kind: openai, model: m, base_url: 'http://x/v1', gives: [score]}\n"
    both = CLERK + closed + "  two: {kind: ensemble, members: {clerk: 1, closed: 1}, gives: [score]}\n"
    soft, scored = (
        f"type: soft_label\n      {TONE}",
        f"type: from_teacher\n      signal: score\n      scoring: {{{TONE}}}",
    )
    text = "found tone, but clerk is scripted and scores result and care alone"
    taught(tmp_path, soft, roster=closed)
    with pytest.raises(ProgramError, match=rf"algorithm\.rubric\.dimensions\.tone: {text}; leave it out, or ask"):
        taught(tmp_path, soft)
    with pytest.raises(ProgramError, match=rf"scoring\.rubric\.dimensions\.tone: {text}"):
        taught(tmp_path, scored)
    with pytest.raises(ProgramError, match=text):
        taught(tmp_path, soft.replace("soft_label", "soft_label\n      teachers: {two: 1}"), roster=both)
    taught(tmp_path, soft.replace("soft_label", "soft_label\n      teachers: {closed: 1}"), roster=both)


def test_several_corrections_of_a_failure_need_a_teacher_that_varies(tmp_path):
    several = "type: from_teacher\n      signal: sample\n      corrections: {samples: 3, keep: best}"
    closed = "  closed: {kind: openai, model: m, base_url: 'http://x/v1', gives: [sample], temperature: 0.7}\n"
    assert not any("the same answer" in str(w) for w in taught(tmp_path, several, roster=closed).warnings)
    assert not any(
        "the same answer" in str(w)
        for w in taught(tmp_path, several, roster=CLERK.replace("gives", "noise: 0.2, gives")).warnings
    )
    with pytest.raises(
        ProgramError, match=r"to the same question closed always gives the same answer; write a temperature"
    ):
        taught(tmp_path, several, roster=closed.replace("0.7", "0.0"))
    both = "  two: {kind: ensemble, members: {clerk: 1, closed: 1}, gives: [sample]}\n"
    asks = several.replace("from_teacher", "from_teacher\n      teachers: {clerk: 1, closed: 1}")
    told = taught(tmp_path, asks, roster=CLERK + closed).warnings
    assert any("to the same question clerk always gives the same answer" in str(w) for w in told)
    asks = several.replace("from_teacher", "from_teacher\n      teachers: {two: 1}")
    assert not any("the same answer" in str(w) for w in taught(tmp_path, asks, roster=CLERK + closed + both).warnings)
    rules = "routing:\n  - {when: \"problem.type == 'mail'\", teachers: {closed: 1}}\n  - {teachers: {ranks: 1}}\n"
    roster = closed.replace("0.7", "0.0") + closed.replace("closed:", "ranks:").replace("[sample]", "[rank]") + rules
    asks = "type: from_teacher\n      corrections: {samples: 3, learn: pairs}"
    with pytest.raises(ProgramError, match=r"to the same question closed always gives the same answer; write"):
        taught(tmp_path, asks, roster=roster)


def test_settings_for_other_teachers_are_told_and_no_mistake_with_auto(tmp_path):
    asks = "type: from_teacher\n      ranking: {swaps: no}\n      over: {kind: sampled}"
    old = "  old: {kind: earlier_self, of: init}\n"
    for roster, unread in (
        (CLERK, {"ranking": "action, and ranking is about rank", "over": "action, and over is about logprobs"}),
        (old, {"ranking": "logprobs, and ranking is about rank"}),
    ):
        told = {w.path[-1]: w.text for w in taught(tmp_path, asks, roster=roster).warnings}
        assert {name: told.get(name) for name in ("ranking", "over")} == {
            name: f"is not read: the stage learns from {unread[name]}, which its teachers would have to give"
            if name in unread
            else None
            for name in ("ranking", "over")
        }


def test_what_probabilities_do_not_read_is_told(tmp_path):
    roster = "  old: {kind: earlier_self, of: init}\n"
    made = taught(tmp_path, "type: from_teacher\n      at_least: 0", roster=roster)
    assert any("at_least: is not read with probabilities" in str(w) for w in made.warnings)


def test_a_teacher_that_cannot_give_the_signal_is_refused(tmp_path):
    roster = "  clerk: {kind: scripted, environment: desk, gives: [rank]}\n"
    with pytest.raises(ProgramError, match="needs score, but clerk gives rank"):
        taught(tmp_path, "type: soft_label", roster=roster)
