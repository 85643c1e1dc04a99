"""The flywheel section: pools that are filled and read, sets that may be mined, rounds that can begin and end."""

from pathlib import Path

import pytest

from specs.flywheel import AskPerson, Flywheel, Repair, StopForRewardFix, Ticket, default_remedy
from specs.grpo import GRPO
from specs.stages import Needs
from tests.specs.programs import load, mistakes

WHEEL = """\
flywheel:
  mine: {from: [train], problems: 20}
  causes_from: [golden]
  remedies:
    argument: {do: repair, quota: 10}
    premature_stop: {do: hard_pool}
    reward_hack: {do: stop_for_reward_fix}
  round:
    stages:
      - {id: mend, algorithm: {type: sft}, data: {anchor: 0.5, repaired: 0.3, successes: 0.2}}
      - {id: harden, algorithm: {type: grpo}, data: {hard: 0.5, train: 0.5}}
"""
GATES = "gates:\n"
WITH = (GATES, f"{WHEEL}{GATES}")
POOL = (
    "  golden: {kind: problems",
    "  regress: {kind: pool, pool: regression, role: regression}\n  golden: {kind: problems",
)
EVALUATED = ("evaluation: {sets: [golden]}", "evaluation: {sets: [golden], at_the_end: [golden, regress]}")


SPARE = [
    (
        "  golden: {kind: problems",
        "  spare: {kind: problems, environment: desk, split: golden, size: 9, role: golden}\n  golden: {kind: problems",
    ),
    ("evaluation: {sets: [golden]}", "evaluation: {sets: [golden, spare]}"),
]
SHARING = ("type: grpo", "type: self_evolve, learners: {choose_on: spare}")


def wheel(*pairs: tuple[str, str]) -> tuple[str, str]:
    """Return the replacement that adds the flywheel, changed."""
    text = WHEEL
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    return (GATES, f"{text}{GATES}")


def test_a_whole_flywheel_is_read(tmp_path: Path) -> None:
    said = load(tmp_path, WITH, POOL, EVALUATED).program.flywheel
    assert isinstance(said, Flywheel)
    assert said.mine.sources == ["train"]
    assert said.remedies["argument"] == Repair(do="repair", quota=10)
    assert isinstance(said.remedies["reward_hack"], StopForRewardFix)
    assert isinstance(default_remedy(said.default), AskPerson)
    harden = said.round.stages[1]
    assert isinstance(harden.algorithm, GRPO)
    assert harden.needs == Needs(), "what a round's stage leaves out is written out as in the main part"


def test_every_default_remedy_exists() -> None:
    assert [default_remedy(n).do for n in ("repair", "prefer", "hard_pool", "ticket", "ask_person", "stop_for_reward_fix")] == [
        "repair", "prefer", "hard_pool", "ticket", "ask_person", "stop_for_reward_fix",
    ]  # fmt: skip
    assert isinstance(default_remedy("ticket"), Ticket)


MEND = "data: {anchor: 0.5, repaired: 0.3, successes: 0.2}"
HARDEN = "data: {hard: 0.5, train: 0.5}"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([wheel(("argument:", "argumnt:"))], "flywheel.remedies.argumnt: unknown key, expected infrastructure, environment"),
        ([wheel(("argument:", "argumnt:"))], "did you mean argument?"),
        ([wheel(("type: grpo", "type: self_evolve, growth: {}"))], "flywheel.round.stages[1].algorithm.growth: is not for programs with a flywheel"),
        ([WITH, ("type: grpo\n", "type: self_evolve\n      growth: {}\n")], "stages[1].algorithm.growth: is not for programs with a flywheel"),
        ([wheel(SHARING, ("  round:", "  rounds: 2\n  stop: {gain_on: spare}\n  round:")), *SPARE], "flywheel.round.stages[1].algorithm.learners.choose_on: found spare, which judges by flywheel.stop.gain_on"),
        ([POOL, EVALUATED, ("type: grpo\n", "type: self_evolve\n      learners: {choose_on: regress}\n")], "stages[1].algorithm.learners.choose_on: found regress, a pool of single cases"),
        ([wheel(SHARING, ("id: mend,", "id: harden_1,")), *SPARE], "flywheel.round.stages[1].id: found harden, whose learner 1 is called harden_1 as a stage is"),
        ([wheel(("do: repair", "do: repare"))], "flywheel.remedies.argument.do: found 'repare', expected repair, prefer, hard_pool"),
        ([wheel(("quota: 10", "qota: 10"))], "flywheel.remedies.argument.qota: unknown key; did you mean quota?"),
        ([wheel((MEND, "data: [anchor]"))], "flywheel.remedies.argument: repair fills the pool repaired, which no stage of the round reads"),
        ([wheel((HARDEN, "data: [train]"))], "flywheel.remedies.premature_stop: hard_pool fills the pool hard, which no stage of the round reads; name hard in the data of a stage that rolls out (rft, grpo, dpo and so on)"),
        ([wheel((MEND, "data: [anchor]"), ("    argument: {do: repair, quota: 10}\n", ""), ("  round:", "  default: repair\n  round:"))], "flywheel.default: repair fills the pool repaired"),
        ([wheel(("    argument: {do: repair, quota: 10}\n", ""))], "flywheel.round.stages[0].data.repaired: found repaired, which nothing fills; write a remedy"),
        ([wheel(("    premature_stop: {do: hard_pool}\n", ""))], "flywheel.round.stages[1].data.hard: found hard, which nothing fills"),
        ([wheel((MEND, "data: [repaired, regression]"))], "found regression, which judges policies and never trains them"),
        ([wheel((MEND, "data: [repaired, hard]"))], "flywheel.round.stages[0].data[1]: found hard, which holds problems; sft trains on repaired, successes or anchor"),
        ([wheel((HARDEN, "data: [hard, pairs]"))], "flywheel.round.stages[1].data[1]: found pairs, which is for stages on pairs (dpo, ipo, orpo, simpo or kto); grpo is none"),
        ([wheel((MEND, "data: [repaired, pairs]"))], "flywheel.round.stages[0].data[1]: found pairs, which holds problems; sft trains on repaired, successes or anchor"),
        ([wheel(("premature_stop: {do: hard_pool}", "premature_stop: {do: prefer}"))], "flywheel.remedies.premature_stop: prefer fills the pool pairs, which no stage of the round reads; name pairs in the data of a stage on pairs (dpo, ipo, orpo, simpo or kto)"),
        ([wheel(("id: harden, algorithm: {type: grpo}", "id: harden, algorithm: {type: quantize}"), (HARDEN, "data: [hard]"))], "flywheel.round.stages[1].data[0]: found hard, which holds problems; quantize trains on repaired, successes or anchor"),
        ([wheel((HARDEN, "data: [hard, repaired]"))], "flywheel.round.stages[1].data[1]: found repaired, which holds solutions; grpo trains on problems"),
        ([wheel((MEND, "data: [repaird]"))], "flywheel.round.stages[0].data[0]: found 'repaird', expected a pool (repaired, pairs, hard, successes or anchor) or a data set; did you mean repaired?"),
        ([wheel((HARDEN, "data: [hard, trian]"))], "found 'trian', expected a data set (demos, train, golden"),
        ([wheel((HARDEN, "data: [hard, golden]"))], "found golden, whose role is golden: it judges policies and never trains them"),
        ([wheel((HARDEN, "data: [hard, demos]"))], "found demos, which holds demonstrations; grpo trains on problems"),
        ([wheel((HARDEN, "data: []"))], "flywheel.round.stages[1].data: found no pool and no data set"),
        ([wheel(("from: [train]", "from: [golden]"))], "flywheel.mine.from[0]: found golden, whose role is golden"),
        ([wheel(("from: [train]", "from: [hard]"))], "flywheel.mine.from[0]: found hard, which is a pool"),
        ([wheel(("from: [train]", "from: [train, train]"))], "flywheel.mine.from[1]: train is named twice"),
        ([wheel(("from: [train]", "from: []"))], "flywheel.mine.from: found an empty list, expected at least 1 entry"),
        ([wheel(("from: [train]", "from: [regress]")), POOL, EVALUATED], "flywheel.mine.from[0]: found regress, whose role is regression"),
        ([wheel(("causes_from: [golden]", "causes_from: [desk.hidden]"))], "flywheel.causes_from[0]: found desk.hidden, which is not evaluated"),
        ([wheel(("causes_from: [golden]", "causes_from: [demos]"))], "flywheel.causes_from[0]: found demos, which holds demonstrations"),
        ([wheel(("causes_from: [golden]", "causes_from: [regress]")), POOL, EVALUATED], "flywheel.causes_from[0]: found regress, whose cases have causes already"),
        ([wheel(("id: mend", "id: teach"))], "flywheel.round.stages[0].id: found teach, which is a stage of the main part"),
        ([wheel(("id: harden", "id: mend"))], "flywheel.round.stages[1].id: found mend a second time"),
        ([wheel(("id: mend,", "id: mend, from: teach,"))], "flywheel.round.stages[0].from: found 'teach', which is no earlier stage of the round"),
        ([wheel(("id: mend,", "id: mend, tries: 2,"))], "flywheel.round.stages[0].tries: is not read by sft"),
        ([wheel(("stages:\n", "start_from: last\n    stages:\n"))], "flywheel.round.start_from: found 'last', expected one of candidate_or_champion or candidate"),
        ([wheel(("  round:", "  rounds: 2\n  stop: {gain_on: goldn}\n  round:"))], "flywheel.stop.gain_on: found 'goldn', expected a data set"),
        ([wheel(("  round:", "  rounds: 2\n  stop: {gain_on: train}\n  round:"))], "flywheel.stop.gain_on: found train, which is not evaluated"),
        ([wheel(("  round:", "  rounds: 2\n  stop: {gain_on: regress}\n  round:")), POOL, EVALUATED], "flywheel.stop.gain_on: found regress, a pool of single cases"),
        ([wheel(("  round:", "  rounds: 2\n  round:")), ("sets: [golden]", "at_the_end: [golden]")], "flywheel: which set's success must rise for another round?"),
        ([("  train: {", "  hard: {kind: problems, environment: desk, size: 4}\n  train: {")], "data.hard: this name is a pool's (repaired, pairs, hard, successes, anchor or regression); choose another"),
        ([("  train: {kind: problems", "  train: {kind: pool")], "data.train.environment: unknown key here"),
        ([POOL, ("evaluation: {sets: [golden]}", "evaluation: {sets: [golden, regress]}"), ("set: golden,", "set: regress,")], "gates.ship.require[0].metric: found success, but regress is a pool of single cases, judged by count: regressed_cases"),
        ([POOL, ("data: [train]", "data: [regress]")], "stages[1].data[0]: found regress, whose role is regression: it judges policies and never trains them"),
        ([POOL, ("train_on: demos", "train_on: regress")], "policy.init.tokenizer.train_on: found regress, which holds problems"),
        ([WITH, (GATES, "gates:\n  second: {require: [{metric: success, set: golden, at_least: 0.9}]}\n")], "gates.ship.on_pass: found promote, but second promotes already, and rounds start from and are compared with what one gate promotes; write on_pass: nothing, or move the requirements of ship into second"),
        ([("id: teach", "id: round1"), ("from: teach", "from: round1")], "stages[0].id: found round1, which has another meaning"),
    ],
)  # fmt: skip
def test_mistakes_of_a_flywheel(tmp_path: Path, pairs: list[tuple[str, str]], message: str) -> None:
    lines = mistakes(tmp_path, *pairs)
    assert any(message in line for line in lines), lines


NIGHTLY = ("verifiers:", 'schedule: {nightly: {cron: "0 3 * * *", rounds_only: yes}}\nverifiers:')
JUDGE = (
    ("  - id: rl\n", "  - {id: judge, algorithm: {type: reward_model}, data: [train]}\n  - id: rl\n"),
    (
        "stages:\n",
        "  likes: {kind: reward_model, stage: judge}\nreward: {outcome: {order_state: 1.0}, soft: {likes: 0.1}}\nstages:\n",
    ),
)
HARVEST = (
    "  - id: teach\n    algorithm:\n      type: sft\n    data: [demos]\n",
    "  - {id: teach, algorithm: {type: rft}, data: [train]}\n",
)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "the program has no flywheel, so that there are no rounds; declare one, or run all of it"),
        ([WITH, ("    require:", "    baseline: {stage: teach}\n    require:")], "gate ship compares with teach, a policy of the main part, which is left out; compare with {alias: champion}"),
        ([WITH, *JUDGE], "the verifier likes is made by judge, a stage of the main part, which is left out"),
        ([WITH, HARVEST], "the pool anchor holds verified rollouts of the main part here, which is left out; read another pool"),
        ([wheel(("{type: grpo}", "{type: self_evolve, experience: [rl]}"))], "stage harden has experience of rl, a stage of the main part, which is left out"),
        ([wheel(("{type: grpo}", "{type: opd}")), ("verifiers:", "teachers: {old: {kind: earlier_self, of: teach}}\nverifiers:")], "the teacher old is the policy of teach, a stage of the main part, which is left out"),
    ],
)  # fmt: skip
def test_a_schedule_of_rounds_only_needs_nothing_of_the_main_part(
    tmp_path: Path, pairs: list[tuple[str, str]], message: str
) -> None:
    lines = mistakes(tmp_path, *pairs, NIGHTLY)
    assert any(f"schedule.nightly.rounds_only: found yes, but {message}" in line for line in lines), lines
    assert load(tmp_path, WITH, NIGHTLY).program.schedule["nightly"].rounds_only


def test_a_second_gate_may_judge_and_promote_nothing(tmp_path: Path) -> None:
    second = "gates:\n  second: {require: [{metric: success, set: golden, at_least: 0.9}]%s}\n"
    assert load(tmp_path, WITH, (GATES, second % ", on_pass: nothing")).program.flywheel is not None
    assert load(tmp_path, (GATES, second % "")).program.flywheel is None, "without rounds two gates may promote"


def test_an_anchor_needs_something_that_was_verified(tmp_path: Path) -> None:
    only_grpo = ("  - id: teach\n    algorithm:\n      type: sft\n    data: [demos]\n", "")
    lines = mistakes(tmp_path, WITH, only_grpo, ("    from: teach\n", ""))
    assert any(
        "found anchor, which nothing fills: no stage of the main part is of type sft, rft or reward_weighted" in x
        for x in lines
    )


def test_an_environment_without_siblings_cannot_be_repaired(tmp_path: Path) -> None:
    other = ("  desk: {kind: order_desk}\n", "  desk: {kind: order_desk}\n  calls: {kind: bfcl}\n")
    data = ("  train: {", "  fc: {kind: problems, environment: calls, size: 4}\n  train: {")
    nested = ("verifiers:", "agent: {call_format: nested}\nverifiers:")
    lines = mistakes(tmp_path, other, data, nested, wheel(("from: [train]", "from: [train, fc]")))
    said = "flywheel.mine.from[1]: found fc, but an environment of kind bfcl makes no siblings, which repair, prefer and hard_pool"
    assert any(said in line for line in lines), lines
    asks = wheel(
        ("    argument: {do: repair, quota: 10}\n    premature_stop: {do: hard_pool}\n", ""),
        (MEND, "data: [anchor]"), (HARDEN, "data: [train]"), ("from: [train]", "from: [train, fc]"),
    )  # fmt: skip
    any_world = ("kind: environment_state", "kind: tool_trace")
    assert load(tmp_path, other, data, nested, any_world, asks).program.flywheel is not None


def test_what_is_odd_about_a_flywheel_is_a_warning(tmp_path: Path) -> None:
    odd = wheel(
        (MEND, "data: [repaired]"), ("  round:", "  stop: {no_gain_rounds: 2}\n  pools: {anchor: 5}\n  round:")
    )  # fmt: skip
    told = [m.text for m in load(tmp_path, odd, POOL, EVALUATED).warnings]
    assert any("there is one round" in t for t in told)
    assert any("no stage of the round reads anchor" in t for t in told)
    assert any("found 1, but one run asks this gate's sets 2 times" in t for t in told)
    no_siblings = wheel(
        ("    argument: {do: repair, quota: 10}\n    premature_stop: {do: hard_pool}\n", ""),
        (MEND, "data: [anchor]"), (HARDEN, "data: [train]"), ("  round:", "  siblings: {tries: 3}\n  round:"),
    )  # fmt: skip
    assert any("no remedy makes siblings" in m.text for m in load(tmp_path, no_siblings).warnings)
    assert any("has no flywheel" in m.text for m in load(tmp_path, POOL, EVALUATED).warnings)


def test_sets_that_only_a_round_reads_are_implicit_and_used(tmp_path: Path) -> None:
    loaded = load(tmp_path, wheel(("from: [train]", "from: [desk.train]")))
    assert "desk.train" in loaded.program.data
    assert not [m for m in loaded.warnings if "is used by no" in m.text]
