"""Rosters and routings that cannot be meant, and what is said of them."""

from pathlib import Path

import pytest

from specs.errors import ProgramError
from specs.policy import ScratchPolicy
from specs.prompting import CURRENT, prompt
from specs.routing import BLACK_BOX
from specs.teacher_choice import choice, used_teachers
from specs.trained_teacher import TrainedTeacher
from tests.specs.programs import load, mistakes

OPENAI = "kind: openai, model: m, base_url: 'http://x/v1'"
CLERK = "clerk: {kind: scripted, environment: desk, gives: [sample, rank, score]}"
CLOSED = f"closed: {{{OPENAI}, gives: [sample, score]}}"
STAGE = "    data: [train]\n"
LEARNS = "  - {id: learn, algorithm: {type: from_teacher}, data: [train]}\n"


def teachers(*roster: str, routing: str = "", learns: str = LEARNS) -> list[tuple[str, str]]:
    lines = "".join(f"  {line}\n" for line in roster)
    rules = f"routing:\n{routing}" if routing else ""
    return [("verifiers:", f"teachers:\n{lines}{rules}verifiers:"), (STAGE, STAGE + learns)]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (teachers("clerk: {kind: scripted, environment: desk, gives: [logprobs]}"), "teachers.clerk.gives[0]: found logprobs, which a teacher of kind scripted cannot give"),
        (teachers("clerk: {kind: scripted, environment: dest, gives: [rank]}"), "teachers.clerk.environment: found 'dest', expected an environment (desk)"),
        (teachers("closed: {kind: openai, model: m, base_url: ftp://x, gives: [rank]}"), "teachers.closed.base_url"),
        (teachers(f"closed: {{{OPENAI}, gives: [score], cap_usd: 3}}"), "teachers.closed.cap_usd: needs price"),
        (teachers(f"closed: {{{OPENAI}, gives: [score], max_tokens: 9, max_tokens_limit: 8}}"), "teachers.closed.max_tokens_limit: found 8, expected at least max_tokens (9)"),
        (teachers("closed: {kind: openai, model: '${env:M}', base_url: 'http://x', gives: [score]}"), "teachers.closed.model: found a reference"),
        (teachers(f"closed: {{{OPENAI}, gives: [score], api_key: sk-canary}}"), 'expected a reference: put the value into an environment variable and write "${env:API_KEY}"'),
        (teachers("closed: {kind: openai, model: m, base_url: 'http://x/v1?key=1', gives: [score]}"), "teachers.closed.base_url: found ? or #"),
        (teachers(CLOSED, "other: {kind: openai, model: m, base_url: 'http://y/v1', gives: [score]}"), "teachers.other: asks the same model in the same way as closed"),
        (teachers(CLOSED, CLOSED.replace("closed", "other"), "two: {kind: ensemble, members: {closed: 1, other: 1}, gives: [score]}"), "teachers.other: asks the same model in the same way as closed"),
        ([*teachers(CLOSED), ("verifiers:", "budget: {teacher_usd: 3}\nverifiers:")], "teachers.closed.price: is needed"),
        (teachers("big: {kind: model, model: x, gives: [rank]}"), "teachers.big.gives[0]: found rank, which a teacher of kind model cannot give; it can give logprobs"),
        (teachers("old: {kind: earlier_self, of: tech}", CLERK), "teachers.old.of: found 'tech', expected a stage, or a frozen policy"),
        (teachers("two: {kind: ensemble, members: {clerk: 1, clsed: 1}, gives: [score]}", CLERK, CLOSED), "teachers.two.members.clsed: found 'clsed', expected a teacher"),
        (teachers("two: {kind: ensemble, members: {clerk: 1, closed: 1}, gives: [rank]}", CLERK, CLOSED), "teachers.two.members.closed: closed does not give rank"),
        (teachers("two: {kind: ensemble, members: {clerk: 1, closed: 1}, combine: best, gives: [score]}", CLERK, CLOSED), "teachers.two.combine: found best, which chooses among corrections"),
        (teachers("two: {kind: ensemble, members: {clerk: 1, old: 1}, gives: [score]}", CLERK, "old: {kind: earlier_self}"), "teachers.two.members.old: found old, which is of kind earlier_self"),
        (teachers(CLERK, routing="  - {when: \"problem.type == 'mail'\", teachers: {clerk: 1}}\n"), "routing[0].when: the last rule has a condition"),
        (teachers(CLERK, CLOSED, routing="  - {teachers: {closed: 1}}\n  - {teachers: {clerk: 1}}\n"), "routing[0]: has no condition, so no later rule is ever reached"),
        (teachers(CLERK, routing="  - {teachers: {clrk: 1}}\n"), "routing[0].teachers.clrk: found 'clrk', expected a teacher (clerk)"),
        (teachers(CLERK, routing="  - {when: \"problem.kind == 'mail'\", reject: true}\n  - {teachers: {clerk: 1}}\n"), "routing[0].when: column 1: unknown name problem.kind"),
        (teachers(CLERK, routing="  - {when: \"problem.type == 'mail'\", reject: true}\n  - {teachers: {clerk: 1}}\n"), "routing[0].reject: only the last rule may reject"),
        (teachers(CLERK, routing="  - {teachers: {clerk: 1}, reject: true}\n"), "routing[0]: expected either teachers, or reject: true"),
        (teachers(CLERK, routing="  - {teachers: {clerk: 1}, history: {}}\n"), "routing[0].history: has no effect with one teacher"),
        (teachers(CLERK, CLOSED, routing="  - {teachers: {clerk: 1, closed: 1}, history: {}}\n"), "routing[0].history: moves nothing: no stage asks by these rules, in words, after others were asked"),
        (teachers("old: {kind: earlier_self}", "older: {kind: earlier_self}", routing="  - {teachers: {old: 1, older: 1}, history: {}}\n"), "routing[0].history: moves nothing"),
        (teachers(CLERK, CLOSED), "stages[2].algorithm: which teacher is asked? Write routing, or teachers: {clerk: 1.0}"),
        (teachers(CLERK, learns="  - {id: learn, algorithm: {type: from_teacher, teachers: {clrk: 1}}, data: [train]}\n"), "stages[2].algorithm.teachers.clrk: found 'clrk'"),
        (teachers(CLERK, learns="  - {id: learn, algorithm: {type: from_teacher, signal: action}, data: [train]}\n"), "stages[2].algorithm: needs action, but clerk gives sample, rank, score; ask others, or write signal: rank"),
        (teachers(CLOSED.replace("sample, ", "")), "but closed gives score; ask others, or write goal: succeed, which learns from score"),
        ([(STAGE, STAGE + LEARNS)], "stages[2].algorithm: needs a teacher; write teachers:"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(tmp_path: Path, pairs: list[tuple[str, str]], message: str) -> None:
    assert message in "\n".join(mistakes(tmp_path, *pairs))


def test_a_trained_teacher_has_the_tokens_of_its_own_demonstrations(tmp_path: Path) -> None:
    elder = "elder: {kind: trained, init: {kind: scratch, tokenizer: {kind: bpe}}, data: [desk.demonstrations]}"
    named = [("train_on: demos}", "train_on: shown}"), ("  demos: {", "  shown: {"), ("data: [demos]", "data: [shown]")]
    learns = "  - {id: learn, algorithm: {type: opd, over: {kind: sampled}}, data: [train]}\n"
    found = load(tmp_path, *named, *teachers(elder, learns=learns)).program.teachers["elder"]
    assert isinstance(found, TrainedTeacher)
    assert isinstance(found.init, ScratchPolicy)
    assert found.init.tokenizer.train_on == "desk.demonstrations"


def test_distributions_over_other_tokens_are_warned_of(tmp_path: Path) -> None:
    elder = "elder: {kind: trained, init: {kind: scratch, tokenizer: {kind: bpe, vocab_size: 480, train_on: demos}}, data: [demos]}"
    learns = "  - {id: learn, algorithm: {type: opd, teachers: {elder: 1.0}}, data: [train]}\n"
    (told,) = load(tmp_path, *teachers(elder, learns=learns)).warnings
    assert "elder has a tokenizer of its own, so that over: {kind: full} is refused as the stage starts" in str(told)
    same = elder.replace("vocab_size: 480, ", "")
    assert not load(tmp_path, *teachers(same, learns=learns)).warnings
    assert not load(tmp_path, *teachers(elder, learns=learns.replace("opd,", "opd, over: {kind: sampled},"))).warnings


def test_distributions_after_another_template_are_refused(tmp_path: Path) -> None:
    big = "big: {kind: model, model: big, template: builtin/chatml@1}"
    learns = "  - {id: learn, algorithm: {type: opd}, data: [train]}\n"
    told = "\n".join(mistakes(tmp_path, *teachers(big, learns=learns)))
    assert "stages[2].algorithm.over: found full, but the template of big is builtin/chatml@1, the policy's" in told
    assert load(tmp_path, *teachers(big, learns=learns.replace("opd", "opd, over: {kind: sampled}"))).program
    assert load(tmp_path, *teachers(big.replace("builtin/chatml@1", "policy"), learns=learns)).program


def test_a_written_key_is_never_repeated(tmp_path: Path) -> None:
    for value in ("sk-canary", "[sk-canary]", "{x: sk-canary}"):
        told = "\n".join(
            mistakes(tmp_path, *teachers(f"closed: {{{OPENAI}, gives: [score], api_key: {value}, extra: 1}}"))
        )
        assert "sk-canary" not in told
        assert "${env:API_KEY}" in told


@pytest.mark.parametrize(
    "learns",
    [
        LEARNS.replace("from_teacher", "from_teacher, rounds: 2"),
        LEARNS + LEARNS.replace("learn", "again").replace("again,", "again, from: learn,"),
    ],
)
def test_a_history_of_earlier_answers_may_move_weights(tmp_path: Path, learns: str) -> None:
    routing = "  - {teachers: {clerk: 1, closed: 1}, history: {}}\n"
    assert load(tmp_path, *teachers(CLERK, CLOSED, routing=routing, learns=learns)).program.routing[0].history


def test_a_share_of_failures_that_no_ensemble_reads_is_told(tmp_path: Path) -> None:
    two = "two: {kind: ensemble, members: {clerk: 1, closed: 1}, gives: [score]}"
    asks_two = LEARNS.replace("from_teacher", "from_teacher, signal: score, teachers: {two: 1}")
    shared = CLOSED.replace("gives", "failure_share: 0.5, gives")
    told = load(tmp_path, *teachers(CLERK, shared, two, learns=asks_two)).warnings
    assert any(
        "teachers.closed.failure_share: is not read: closed is asked as a member of two alone" in str(w) for w in told
    )
    alone = LEARNS.replace("from_teacher", "from_teacher, teachers: {closed: 1}").replace("learn", "again")
    told = load(tmp_path, *teachers(CLERK, shared, two, learns=asks_two + alone)).warnings
    assert not any("failure_share" in str(w) for w in told)


def test_teachers_that_nobody_asks_are_named(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        *teachers(
            CLERK,
            CLOSED,
            learns="  - {id: learn, algorithm: {type: from_teacher, teachers: {clerk: 1}}, data: [train]}\n",
        ),
    )
    assert any("teachers.closed: is asked by no stage" in str(w) for w in loaded.warnings)
    assert used_teachers(loaded.program) == ["clerk"]


ROUTING = "  - {when: \"problem.type == 'mail'\", teachers: {closed: 1}}\n  - {teachers: {clerk: 1}}\n"


def test_the_finest_signal_that_all_teachers_of_a_rule_give_is_taken(tmp_path: Path) -> None:
    roster = (CLERK, CLOSED.replace("[sample", "[rank, sample"))
    program = load(tmp_path, *teachers(*roster, routing=ROUTING)).program
    found = choice(program, program.stages[2].algorithm)
    assert (found.signal, found.teachers) == ("rank", ("closed", "clerk"))
    assert [(r.place, r.teachers, r.signal) for r in found.rules] == [
        ("routing[0]", ("closed",), "rank"),
        ("routing[1]", ("clerk",), "rank"),
    ]
    assert "routing[1]: action is not given by clerk" in found.downgrades()
    assert used_teachers(program) == ["clerk", "closed"]
    both = ROUTING.replace("{clerk: 1}", "{clerk: 1, closed: 1}")
    program = load(tmp_path, *teachers(CLERK, CLOSED, routing=both)).program
    found = choice(program, program.stages[2].algorithm)
    assert found.signal == "sample"
    assert "routing[1]: rank is not given by closed" in found.downgrades()


def test_rules_that_give_different_signals_are_no_one_loss(tmp_path: Path) -> None:
    told = "\n".join(mistakes(tmp_path, *teachers(CLERK, CLOSED, routing=ROUTING)))
    assert (
        "no one loss: routing[0] gives sample (of closed), routing[1] gives rank (of clerk); write corrections:" in told
    )
    assert "so that both make pairs, or write signal: sample, which all of them give, or write a stage for each" in told
    old = "old: {kind: earlier_self}"
    told = "\n".join(mistakes(tmp_path, *teachers(CLERK, old, routing=ROUTING.replace("closed", "old"))))
    assert "routing[0] gives logprobs (of old), routing[1] gives rank (of clerk); write a stage for each" in told
    same = LEARNS.replace("from_teacher", "from_teacher, signal: sample")
    program = load(tmp_path, *teachers(CLERK, CLOSED, routing=ROUTING, learns=same)).program
    assert choice(program, program.stages[2].algorithm).signal == "sample"


@pytest.mark.parametrize(
    ("gives", "settings", "signals", "way"),
    [
        (("critique", "score"), "goal: succeed", ("critique", "score"), None),
        (
            ("critique", "score"),
            "goal: succeed, critique: {practice: {kl_coef: 0.1}}",
            (),
            "write the same practice for",
        ),
        (("sample", "rank"), "corrections: {learn: pairs}", ("rank", "sample"), None),
        (("sample", "rank"), "corrections: {learn: pairs, prefer: {loss: orpo}}", (), "with the prefer of ranking"),
        (("action", "rank"), "samples: 4", (), "write a stage for each"),
    ],
)
def test_signals_that_one_loss_trains_on_stand_side_by_side(
    tmp_path: Path, gives: tuple[str, str], settings: str, signals: tuple[str, ...], way: str | None
) -> None:
    roster = [
        f"{n}: {{kind: scripted, environment: desk, gives: [{g}]}}"
        for n, g in zip(("closed", "clerk"), gives, strict=True)
    ]
    learns = LEARNS.replace("from_teacher", f"from_teacher, {settings}")
    if way is None:
        program = load(tmp_path, *teachers(*roster, routing=ROUTING, learns=learns)).program
        assert choice(program, program.stages[2].algorithm).signals == signals
    else:
        assert way in "\n".join(mistakes(tmp_path, *teachers(*roster, routing=ROUTING, learns=learns)))


def test_a_rule_whose_teachers_give_nothing_is_named(tmp_path: Path) -> None:
    lame = CLOSED.replace("sample, ", "")
    told = "\n".join(mistakes(tmp_path, *teachers(CLERK, lame, routing=ROUTING)))
    assert "routing[0]: needs logprobs, action, rank or sample, but closed gives score; ask others" in told
    assert "no one loss" not in told


@pytest.mark.parametrize(
    ("gives", "when", "told"),
    [
        ("[action]", "state.last_tool_failed and history.type_success < 0.5", None),
        ("[score, rank]", "history.problem_success == 0", None),
        ("[rank]", "state.turn > 2", "names state.turn, but the attempts of a problem are put in order in learn"),
        ("[logprobs]", "history.problem_success == 0", "names history.problem_success, but tokens are scored problem"),
        ("[action]", "state.turns > 2", "unknown name state.turns, expected"),
    ],
)
def test_a_rule_names_what_is_known_where_the_stage_asks(
    tmp_path: Path, gives: str, when: str, told: str | None
) -> None:
    kind = "earlier_self" if "logprobs" in gives else "scripted, environment: desk"
    roster = [f"{name}: {{kind: {kind}, gives: {gives}}}" for name in ("one", "other")]
    routing = f'  - {{when: "{when}", teachers: {{one: 1}}}}\n  - {{teachers: {{other: 1}}}}\n'
    if told is None:
        assert load(tmp_path, *teachers(*roster, routing=routing)).program.routing[0].when == when
        return
    assert f"routing[0].when: {'column 1: ' if 'unknown' in told else ''}{told}" in "\n".join(
        mistakes(tmp_path, *teachers(*roster, routing=routing))
    )
    own = LEARNS.replace("from_teacher", "from_teacher, teachers: {one: 1}")
    if "unknown" not in told:
        assert load(tmp_path, *teachers(*roster, routing=routing, learns=own)).program.routing[0].when == when


def test_a_signal_about_the_whole_is_warned_of_where_trajectories_are_long(tmp_path: Path) -> None:
    loaded = load(tmp_path, *teachers(CLERK))
    assert any(
        "stages[2].algorithm: learns from rank, which says one thing about up to 8 turns" in str(w)
        for w in loaded.warnings
    )


@pytest.mark.parametrize("signal", BLACK_BOX)
def test_every_signal_has_its_instruction(signal: str) -> None:
    found = prompt(CURRENT[signal])  # type: ignore[index]
    assert "JSON" in found.text
    assert found.version.startswith(f"{signal}@")


def test_an_unknown_instruction_is_named() -> None:
    with pytest.raises(ProgramError, match=r"prompt 'score@99': there is none"):
        prompt("score@99")
