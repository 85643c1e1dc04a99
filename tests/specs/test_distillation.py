"""What a program may say about teachers whose probabilities are read."""

from pathlib import Path

from tests.specs.programs import load, mistakes

LEARN = "      type: sft\n"
ROSTER = ("verifiers:\n", "teachers: {old: {kind: earlier_self, of: init}}\nverifiers:\n")


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
    for kind in ("opd", "short_opd"):
        some = algorithm(f"type: {kind}\n      demonstrations: 0.5")
        told = mistakes(tmp_path, ROSTER, some, ("data: [demos]", "data: [train]"))
        assert any("demonstrations: found 0.5, but no set of the stage's data (train) holds dem" in t for t in told)
        load(tmp_path, ROSTER, some, ("data: [demos]", "data: [train, demos]"))
    every = algorithm("type: short_opd\n      demonstrations: 1.0")
    assert any("which leaves nothing to roll out" in t for t in mistakes(tmp_path, ROSTER, every))


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
