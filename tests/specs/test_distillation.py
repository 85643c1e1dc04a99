"""What a program may say about teachers whose probabilities are read."""

from pathlib import Path

import pytest

from specs.errors import ProgramError
from specs.loader import LoadedProgram
from tests.specs.programs import load, mistakes

LEARN = "      type: sft\n"
ROSTER = ("verifiers:\n", "teachers: {old: {kind: earlier_self, of: init}}\nverifiers:\n")


ROUND = """flywheel:
  mine: {from: [train], problems: 10}
  round: {stages: [{id: again, algorithm: {type: short_opd}, data: {train: 1.0}}]}
evaluation:"""
SHORT = "{kind: by_gap, lengths: [10, 20, 40]}"


def algorithm(text: str) -> tuple[str, str]:
    return LEARN, f"      {text}\n"


def test_a_term_that_hardly_counts_is_odd(tmp_path: Path) -> None:
    for coef, said in (("0.001", "hardly counts beside the reward"), ("2.0", "leaves the reward little to say")):
        grpo = f"type: grpo\n      distill: {{coef: {coef}}}"
        loaded = load(tmp_path, ROSTER, algorithm(grpo), ("data: [demos]", "data: [train]"))
        assert any(said in w.text for w in loaded.warnings), loaded.warnings


def test_opd_rolls_out_problems_and_reads_demonstrations_where_it_wants_some(tmp_path: Path) -> None:
    told = mistakes(tmp_path, ROSTER, algorithm("type: opd"))
    assert any("opd trains on problems" in line for line in told)
    load(tmp_path, ROSTER, algorithm("type: opd\n      demonstrations: 0.5"))


def test_a_teacher_without_probabilities_is_refused(tmp_path: Path) -> None:
    clerk = ("verifiers:\n", "teachers: {old: {kind: scripted, environment: desk, gives: [sample]}}\nverifiers:\n")
    told = mistakes(tmp_path, clerk, algorithm("type: opd"), ("data: [demos]", "data: [train]"))
    assert any("needs logprobs, but old gives sample" in line for line in told)


def test_demonstrations_are_among_the_data_where_some_are_wanted(tmp_path: Path) -> None:
    for kind in ("opd", f"short_opd\n      length: {SHORT}"):
        some = algorithm(f"type: {kind}\n      demonstrations: 0.5")
        told = mistakes(tmp_path, ROSTER, some, ("data: [demos]", "data: [train]"))
        assert any("demonstrations: found 0.5, but no set of the stage's data (train) holds dem" in t for t in told)
        load(tmp_path, ROSTER, some, ("data: [demos]", "data: [train, demos]"))
    every = algorithm("type: short_opd\n      demonstrations: 1.0")
    assert any("which leaves nothing to roll out" in t for t in mistakes(tmp_path, ROSTER, every))


def short(tmp_path: Path, length: str, more: str = "") -> LoadedProgram:
    return load(
        tmp_path,
        ROSTER,
        algorithm(f"type: short_opd\n      length: {length}{more}"),
        ("data: [demos]", "data: [train]"),
    )


@pytest.mark.parametrize(
    ("length", "said"),
    [
        ("{kind: by_gap}", "lengths: found 128, 512 or 2048, but agent.max_new_tokens is 40, so that no rollout is"),
        (
            "{kind: by_confidence, lengths: [40, 50, 60]}",
            "lengths: found 40, 50 or 60, but .*; expected less than that",
        ),
        ("{kind: by_repetition}", r"least_loop: found 64, but the longest completion has 40 tokens \(agent"),
        ("{kind: by_repetition, least: 10}", r"least_loop: found 64, but the longest completion has 40 tokens \(agent"),
        (
            "{kind: by_repetition, least: 5, start: 10, most: 20, least_loop: 21}",
            "least_loop: found 21, but the longest completion has 20 tokens .* no loop is ever found; lower it",
        ),
        ("{kind: by_repetition, least: 10, least_loop: 6, copies: 41}", "copies: found 41, but the longest"),
    ],
)
def test_lengths_that_shorten_nothing_are_refused(tmp_path: Path, length: str, said: str) -> None:
    with pytest.raises(ProgramError, match=rf"stages\[0\]\.algorithm\.length\.{said}"):
        short(tmp_path, length)


def test_lengths_of_which_some_shorten_are_taken_and_told_as_they_will_be(tmp_path: Path) -> None:
    assert not short(tmp_path, "{kind: by_repetition, least: 10, least_loop: 40}").warnings
    assert not short(tmp_path, "{kind: by_confidence, lengths: [39, 512, 2048]}").warnings
    (told,) = short(tmp_path, "{kind: by_repetition, least_loop: 12}").warnings
    assert "least: found 64, but agent.max_new_tokens is 40" in str(told)
    assert str(told).endswith("loops still do not train")
    (told,) = short(tmp_path, "{kind: by_gap}", "\n      select: {kind: tokens, share: 0.5}").warnings
    assert "no rollout is shortened; what select and horizon say still holds" in str(told)
    with pytest.raises(ProgramError, match=r"flywheel\.round\.stages\[0\]\.algorithm\.length\.lengths: found 128"):
        load(tmp_path, ROSTER, ("evaluation:", ROUND))


def test_a_teacher_comes_before_what_it_teaches(tmp_path: Path) -> None:
    for of in ("rl", "teach"):
        roster = ("verifiers:\n", f"teachers: {{old: {{kind: earlier_self, of: {of}}}}}\nverifiers:\n")
        told = mistakes(tmp_path, roster, algorithm("type: opd"), ("data: [demos]", "data: [train]"))
        assert any(
            f"teachers.old.of: found {of}, which does not come before teach, which it teaches" in t for t in told
        )


def test_a_teacher_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    nobody = algorithm("type: opd\n      teachers: {nobody: 1.0}")
    (told,) = mistakes(tmp_path, ROSTER, nobody, ("data: [demos]", "data: [train]"))
    assert "found 'nobody', expected a teacher (old)" in told
