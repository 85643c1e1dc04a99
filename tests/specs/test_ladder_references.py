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
    ],
)
def test_sound_stages_pass(tmp_path, algorithm):
    warnings = taught(tmp_path, algorithm).warnings
    assert not [w for w in warnings if "says which turn it is about" not in str(w)]


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        ("type: from_teacher\n      signal: rank\n      goal: succeed", "goal: has no effect with signal: rank"),
        ("type: from_teacher\n      ranking: {swaps: no}", "ranking: is not read: the stage learns from action"),
        ("type: from_teacher\n      signal: rank\n      samples: 1", "samples: found 1, expected at least 2"),
        (
            "type: from_teacher\n      signal: score\n      scoring: {weight: 1.0}",
            r"weight: found 1, but success and failure are 1 apart.*no score makes up for a failure",
        ),
        (
            "type: from_teacher\n      signal: sample\n      corrections: {prefer: {loss: ipo}}",
            "prefer: is not read with learn: sft",
        ),
        ("type: action_distill\n      samples: 1", "one sample disagrees with nothing"),
        (
            "type: action_distill\n      actions: {learn: best, listwise: {tau: 1.0}}",
            "listwise: is not read with learn: best",
        ),
        (
            "type: action_distill\n      actions: {least_score: 0.7}",
            "least_score: is not read with learn: listwise",
        ),
        ("type: soft_label\n      signal: rank", "found rank, expected score"),
        ("type: soft_label\n      samples: 1", "expected"),
        ("type: from_teacher\n      over: {kind: sampled}", "over: is not read: the stage learns from action"),
    ],
)
def test_what_would_not_be_read_is_a_mistake(tmp_path, algorithm, sentence):
    with pytest.raises(ProgramError, match=sentence):
        taught(tmp_path, algorithm)


def test_what_probabilities_do_not_read_is_told(tmp_path):
    roster = "  old: {kind: earlier_self, of: init}\n"
    made = taught(tmp_path, "type: from_teacher\n      at_least: 0", roster=roster)
    assert any("at_least: is not read with probabilities" in str(w) for w in made.warnings)


def test_a_teacher_that_cannot_give_the_signal_is_refused(tmp_path):
    roster = "  clerk: {kind: scripted, environment: desk, gives: [rank]}\n"
    with pytest.raises(ProgramError, match="needs score, but clerk gives rank"):
        taught(tmp_path, "type: soft_label", roster=roster)
