from pathlib import Path

import pytest

from specs.errors import ProgramError
from specs.grpo import GRPO
from specs.loader import dump_program, load_program
from specs.positions import Position
from specs.supervised import RFT, SFT
from tests.specs.programs import BASE, changed, load, mistakes, refused, write

LEARN = "      type: sft\n"


def rate(written: str) -> tuple[str, str]:
    return LEARN, f"{LEARN}      optimizer: {{learning_rate: {written}}}\n"


def test_exponents_give_numbers_and_one_spec(tmp_path: Path) -> None:
    programs = [load(tmp_path, rate(w)).program for w in ("2e-5", "2.0e-5", "0.00002")]
    assert programs[0] == programs[1] == programs[2]
    algorithm = programs[0].stages[0].algorithm
    assert isinstance(algorithm, SFT)
    assert algorithm.optimizer.learning_rate == 0.00002
    assert len({p.model_dump_json() for p in programs}) == 1


def test_what_a_constant_schedule_leaves_of_the_learning_rate_is_refused(tmp_path: Path):
    def optimizer(text: str) -> tuple[str, str]:
        return LEARN, f"{LEARN}      optimizer: {{learning_rate: 1e-3, {text}}}\n"

    (told,) = mistakes(tmp_path, optimizer("final_fraction: 0.1"))
    assert "final_fraction is not read with schedule: constant; only linear and cosine fall" in told
    load(tmp_path, optimizer("schedule: cosine, final_fraction: 0.1"))
    load(tmp_path, optimizer("final_fraction: 0.05"))


def test_whole_exponents_fit_whole_numbers(tmp_path: Path) -> None:
    def tokens(written: str) -> tuple[str, str]:
        return LEARN, f"{LEARN}      batch: {{tokens: {written}}}\n"

    algorithms = [load(tmp_path, tokens(w)).program.stages[0].algorithm for w in ("3e4", "3.5e4")]
    assert [a.batch.tokens for a in algorithms if isinstance(a, SFT)] == [30000, 35000]
    assert mistakes(tmp_path, tokens("3.5e0")) == [
        "x.yaml:17:15 stages[0].algorithm.batch.tokens: found 3.5, expected a whole number of at least 1"
    ]


def test_a_word_is_no_number(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, rate('"fast"'))
    assert line.endswith("learning_rate: found 'fast', expected a number above 0")
    (line,) = mistakes(tmp_path, ("group_size: 8", "group_size: yes"))
    assert line == "x.yaml:22:7 stages[1].algorithm.group_size: found 'yes', expected a whole number of at least 2"
    (line,) = mistakes(tmp_path, ("group_size: 8", "group_size: '8'"))
    assert line.endswith("found '8', expected a whole number of at least 2; remove the quotes")
    (line,) = mistakes(tmp_path, ("group_size: 8", "group_size: true"))
    assert "found true, expected a whole number" in line


def test_switches_read_words_and_nothing_else_does(tmp_path: Path) -> None:
    program = load(tmp_path, ("sets: [golden]", "sets: [golden], greedy: off")).program
    assert program.evaluation.greedy is False
    (line,) = mistakes(tmp_path, ("sets: [golden]", "sets: [golden], greedy: 1"))
    assert line.endswith("evaluation.greedy: found 1, expected true or false")


def test_misspelt_and_misplaced_keys_are_told_together(tmp_path: Path) -> None:
    lines = mistakes(
        tmp_path, ("seed: 17\n", "seed: 17\ngroup_size: 30\ntimeout_s: 30\n"), ("group_size: 8", "group_sise: 8")
    )
    assert len(lines) == 3
    assert lines[0].startswith("x.yaml:3:1 group_size: unknown key here; it belongs to stages[].algorithm (type: ")
    assert lines[1].startswith("x.yaml:4:1 timeout_s: unknown key, expected program, about, schema, seed, policy")
    assert lines[2].endswith("stages[1].algorithm.group_sise: unknown key; did you mean group_size?")


def test_repeated_key_in_a_program(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, ("size: 50}", "size: 50, size: 60}"))
    assert line == "x.yaml:8:62 data.demos.size: the key is written twice, first at x.yaml:8:52; keep one"


def test_free_form_tags_hold_any_key(tmp_path: Path) -> None:
    assert load(tmp_path, ("seed: 17\n", "seed: 17\ntags: {anything: goes, 'on': x}\n")).program.tags["on"] == "x"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type: grpo", "type: grop", "x.yaml:21:7 stages[1].algorithm.type: found 'grop', expected sft, rft, "),
        ("type: grpo", "type: grop", "; did you mean grpo?"),
        ("type: grpo", "typ: grpo", "stages[1].algorithm: found typ, expected type: sft, rft, "),
        ("kind: order_desk", "max_turns: 8", "environments.desk: kind is missing, expected kind: order_desk, bfcl or process"),
        ("program: desk", "programm: desk", "x.yaml:1:1 programm: unknown key; did you mean program?"),
        ("program: desk", "program: order desk", "program: found 'order desk', expected a name (a letter"),
        ("program: desk\n", "", "x.yaml:1:1 program: is missing, expected a name"),
        ("data: [demos]", "data: 5", "stages[0].data: found 5, expected a list of names"),
        ("data: [demos]", "data: {demos: -1}", "stages[0].data.demos: found -1, expected a number above 0"),
        ("data: [demos]", "data: [5]", "stages[0].data[0]: found 5, expected a name"),
        ("data: [train]", "data: [desk.trian]", "data[0]: found 'desk.trian', expected a name of data (a declared one, or ENVIRONMENT.demonstrations,"),
        ("data: [train]", "data: [trian]", "expected a data set (demos, train, golden, desk.demonstrations, desk.train, desk.golden or desk.hidden); did you mean train?"),
        ("data: [train]", "data: [train]\n    else_first: rtf", "stages[1].else_first: found 'rtf', expected rft; did you mean rft?"),
        ("data: [train]", "data: [train]\n    else_first: {type: rft, sampels: 2}", "else_first.sampels: unknown key; did you mean samples?"),
        ("data: [train]", "data: [train]\n    else_first: 3", "stages[1].else_first: found 3, expected rft or a map with type"),
        ("type: sft", "type: sft\n      batch: {rows: 2, tokens: 2}", "batch: expected exactly one of tokens and rows"),
        ("type: sft", "type: sft\n      batch: [1]", "stages[0].algorithm.batch: found a list, expected a map with tokens or rows"),
        ("type: sft", "type: rft\n      band: [0.5, 0.1]", "found the band [0.5, 0.1], expected the lower share first"),
        ("type: sft", "type: rft\n      band: [0.5, 2]", "algorithm.band[1]: found 2, expected a number from 0 to 1"),
        ("type: sft", "type: rft\n      band: [0.1, 0.2, 0.3]", "algorithm.band: found 3 entries, expected at most 2"),
        ("stages:\n", "tags: {a: 1}\nstages:\n", "tags.a: found 1, expected text"),
        ("  order_state: {kind: environment_state}", "  {}", "verifiers: found an empty map, expected at least 1 entry"),
        ("  desk: {kind: order_desk}", "  'de sk': {kind: order_desk}", "environments.de sk: this key is no name"),
        ("group_size: 8", "group_size: ${env:SIZE}", "group_size: a reference to the environment is not read here"),
        ("seed: 17", "seed: -1", "seed: found -1, expected a whole number of at least 0 and below 2147483648"),
        ("role: golden", "role: gold", "data.golden.role: found 'gold', expected one of train, golden"),
    ],
)  # fmt: skip
def test_messages(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refused(tmp_path, changed((old, new)))


def test_mistakes_come_in_the_order_of_the_file_and_names_are_checked_too(tmp_path: Path) -> None:
    lines = mistakes(
        tmp_path,
        ("program: desk", "programm: desk"),
        ("data: [demos]", "data: [demoss]"),
        ("group_size: 8", "group_size: 1"),
    )
    assert [line.split(" ")[1] for line in lines] == [
        "programm:",
        "stages[0].data[0]:",
        "stages[1].algorithm.group_size:",
    ]
    assert lines[1].endswith("did you mean demos?")


@pytest.mark.parametrize(
    ("typo", "at"),
    [
        (("group_size: 8", "group_sise: 8"), "stages[1].algorithm.group_sise: unknown key; did you mean group_size?"),
        (("seed: 17\n", "seed: 17\nnonsense: 1\n"), "nonsense: unknown key, expected program"),
        (("type: sft", "type: sft\n      xyzzy: 1"), "stages[0].algorithm.xyzzy: unknown key, expected type"),
    ],
)
def test_an_unknown_key_alone_hides_no_mistake_across_sections(tmp_path: Path, typo: tuple[str, str], at: str) -> None:
    lines = mistakes(
        tmp_path,
        typo,
        ("data: [demos]", "data: [demos]\n    else_first: rft"),
        ("data: [train]", "data: [golden]"),
        ("set: golden", "set: desk.hidden"),
    )
    assert any(at in line for line in lines)
    told = [line for line in lines if "unknown key" not in line]
    assert [line.split(" ")[1] for line in told] == [
        "stages[0].else_first:",
        "stages[1].data[0]:",
        "gates.ship.require[0].set:",
    ]
    assert "whose role is golden" in told[1]
    assert "which is not evaluated" in told[2]


def test_a_misspelt_section_is_looked_at_under_the_name_that_it_has(tmp_path: Path) -> None:
    lines = mistakes(tmp_path, ("stages:", "stagse:"), ("data: [train]", "data: [golden]"))
    assert [line.split(" ")[1] for line in lines] == ["stagse:", "stagse[1].data[0]:"]
    assert "x.yaml:23:12 " in lines[1]


def test_what_was_left_out_with_a_key_is_no_mistake_of_its_map(tmp_path: Path) -> None:
    two = ("verifiers:\n", "verifiers:\n  tools: {kind: tool_trace}\n")
    alone = mistakes(tmp_path, two, ("stages:", "reward: {floor: -1}\nstages:"))
    assert any("reward: outcome is missing" in line for line in alone)
    lines = mistakes(tmp_path, two, ("stages:", "reward: {floor: -1, decides: {tools: 1}}\nstages:"))
    assert [line.split(" ")[1] for line in lines] == ["reward.decides:"]


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"nope.yaml: no such file; check the path"):
        load_program(tmp_path / "nope.yaml")
    with pytest.raises(ProgramError, match="found a directory, expected a program file"):
        load_program(tmp_path)
    assert "found no map, expected program, policy" in refused(tmp_path, "[1, 2]")


def test_positions_and_places_in_words(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    assert loaded.positions["stages", 1, "algorithm", "group_size"] == Position(str(tmp_path / "x.yaml"), 22, 7)
    assert loaded.where("stages[1].algorithm.clip_low").endswith("x.yaml:20:5 stages[1].algorithm.clip_low")
    assert loaded.sources == (tmp_path / "x.yaml",)


def test_the_shortest_program_is_made_explicit(tmp_path: Path) -> None:
    text = (
        "program: small\npolicy: {init: {kind: scratch, tokenizer: {kind: bpe}}}\nenvironments: {desk: {kind: order_desk}}\n"
        "verifiers: {right: {kind: environment_state}}\nstages:\n"
        "  - {id: teach, algorithm: {type: sft}, data: [desk.demonstrations]}\n"
        "  - {id: rl, algorithm: {type: grpo}, data: [desk.train]}\n"
        "gates: {ship: {require: [{set: desk.hidden, at_least: 0.5}, {set: desk.golden, at_least: 0.5}]}}\n"
    )
    program = load_program(write(tmp_path, text)).program
    assert {n: s.kind for n, s in program.data.items()} == {
        "desk.demonstrations": "demonstrations",
        "desk.train": "problems",
        "desk.golden": "problems",
        "desk.hidden": "problems",
    }
    assert program.data["desk.hidden"].role == "hidden"
    assert program.reward.outcome == {"right": 1.0}
    assert program.evaluation.sets == ["desk.golden"]
    assert program.evaluation.at_the_end == ["desk.hidden", "desk.golden"]
    assert program.stages[1].needs is not None
    assert program.policy.init.kind == "scratch"
    assert program.policy.init.tokenizer.train_on == "desk.demonstrations"
    path = write(tmp_path, dump_program(program), "explicit.yaml")
    assert load_program(path).program == program


def test_roles_follow_splits(tmp_path: Path) -> None:
    data = "  audit: {kind: problems, environment: desk, split: audit, size: 5}\n  hid: {kind: problems, environment: desk, split: hidden, size: 5}\n"
    program = load(tmp_path, ("data:\n", f"data:\n{data}")).program
    assert [program.data[n].role for n in ("audit", "hid", "train")] == ["golden", "hidden", "train"]


def test_references_stay_references(tmp_path: Path) -> None:
    loaded = load(tmp_path, ("seed: 17\n", 'seed: 17\ntags: {owner: "${env:OWNER}"}\n'))
    (reference,) = loaded.references
    assert (reference.name, reference.path, reference.position.line) == ("OWNER", ("tags", "owner"), 3)
    assert loaded.program.tags["owner"] == "${env:OWNER}"
    (line,) = mistakes(tmp_path, ("seed: 17\n", 'seed: 17\nabout: "${env:OWNER}"\n'))
    assert "a reference to the environment is not read here, only in data.*.path" in line
    (line,) = mistakes(tmp_path, ("seed: 17\n", 'seed: 17\ntags: {a: "${HOME}"}\n'))
    assert line == "x.yaml:3:8 tags.a: found `${` without env:NAME}, expected ${env:NAME}"


def test_dump_keeps_what_yaml_would_misread(tmp_path: Path) -> None:
    odd = ["on", "2e-5", "null", "", " x", "a: b", "'", '"', "\u2028", "é", "#", "1_0", "-", "\t", "\x7f"]
    tags = {f"t{i}": v for i, v in enumerate(odd)}
    program = load(tmp_path).program.model_copy(update={"tags": tags})
    assert load_program(write(tmp_path, dump_program(program))).program.tags == tags


def test_algorithms_have_their_classes(tmp_path: Path) -> None:
    program = load(tmp_path, ("data: [train]", "data: [train]\n    else_first: {type: rft, top_k: null}")).program
    assert isinstance(program.stages[1].algorithm, GRPO)
    assert isinstance(program.stages[1].else_first, RFT)
    assert program.stages[1].else_first.top_k is None
    assert load_program(write(tmp_path, dump_program(program))).program == program
    assert BASE.startswith("program")
