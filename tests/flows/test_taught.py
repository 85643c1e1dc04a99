"""Plans and a run of stages that learn from a teacher's words."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.cli import main
from flows.nodes import Plan
from flows.taught import as_opd
from specs.errors import ProgramError
from specs.ladder import FromTeacher
from specs.stages import Stage
from tests.flows.programs import SMALL, changed, nodes, plan
from tests.flows.small_desk import DESK

WORDS = ["sample", "rank", "score", "critique", "action"]
CLERK: dict[str, Any] = {"kind": "scripted", "environment": "desk", "gives": WORDS}
SELF: dict[str, Any] = {"kind": "earlier_self", "of": "teach"}


def taught(*algorithms: dict[str, Any], teacher: dict[str, Any] = CLERK) -> Plan:
    """Return the plan of a program in which stages `s0`, `s1` … learn from one teacher, each from the same policy."""
    stages = [SMALL["stages"][0]]
    for i, algorithm in enumerate(algorithms):
        stages.append({"id": f"s{i}", "from": "teach", "algorithm": {"at_least": 0} | algorithm, "data": ["train"]})
    return plan(changed(changed(SMALL, "stages", stages), "teachers", {"who": teacher}))


def kinds(of: Plan, stage: str) -> list[tuple[str, str]]:
    return [(n.id, n.kind) for n in of if n.id.partition(".")[0] == stage]


def test_each_signal_has_its_own_way_to_the_policy():
    made = taught(
        {"type": "from_teacher", "signal": "sample"},
        {"type": "from_teacher", "signal": "sample", "corrections": {"learn": "both"}},
        {"type": "from_teacher", "signal": "rank"},
        {"type": "from_teacher", "signal": "score", "rounds": 2},
        {"type": "soft_label"},
        {"type": "action_distill"},
    )
    begin = [("rollouts1", "rollouts"), ("teach1", "teach")]
    lessons = [*begin, ("lessons1", "lessons")]
    for stage, middle, end in [
        ("s0", lessons, "train.corrected"),
        ("s1", [*lessons, ("imitate1", "train.corrected")], "train.preference"),
        ("s2", lessons, "train.preference"),
        (
            "s3",
            [*begin, ("fit1", "train.practised"), ("rollouts2", "rollouts"), ("teach2", "teach")],
            "train.practised",
        ),
        ("s4", begin, "train.listwise"),
        ("s5", begin, "train.listwise"),
    ]:
        wanted = [*((f"{stage}.{name}", kind) for name, kind in middle), (stage, end)]
        assert kinds(made, stage) == wanted
    found = nodes(made)
    assert found["s3.rollouts2"].inputs["policy"] == "s3.fit1"
    assert found["s1"].inputs["policy"] == "s1.imitate1"
    # the same policy, problems and number of samples: one set of rollouts for all
    assert len({found[f"s{i}.rollouts1"].plan_key for i in range(6)}) == 1
    # score and soft label ask the same
    assert found["s3.teach1"].plan_key == found["s4.teach1"].plan_key
    assert found["s0.teach1"].plan_key == found["s1.teach1"].plan_key


@pytest.mark.parametrize(
    ("gives", "goal", "signal", "missing"),
    [
        (WORDS, "imitate", "action", "logprobs"),
        (WORDS, "succeed", "critique", ""),
        (["rank", "score"], "succeed", "score", "critique"),
        (["rank", "score"], "imitate", "rank", "logprobs"),
        (["sample"], "imitate", "sample", "logprobs"),
    ],
)
def test_auto_takes_the_finest_signal_and_says_what_was_missing(gives, goal, signal, missing):
    made = taught({"type": "from_teacher", "goal": goal}, teacher=CLERK | {"gives": gives})
    assert nodes(made)["s0.teach1"].params["signal"] == signal
    words = made.details["losses"]["s0"]["words"]
    assert f"signal {signal} " in words
    assert (f"no finer signal: {missing} is not given by who" in words) is bool(missing)
    told = nodes(made)["s0.teach1"].params["downgrades"]
    assert [t.partition(" ")[0] for t in told][:1] == ([missing] if missing else [])


def test_another_teacher_makes_the_same_stage_one_of_token_level_distillation():
    made = taught({"type": "from_teacher"}, teacher=SELF)
    assert kinds(made, "s0") == [("s0", "train.opd")]
    params = nodes(made)["s0"].params["algorithm"]
    assert (params["group_size"], params["problems_per_step"], params["steps"]) == (4, 16, 6)
    assert "KL(pi || teacher)" in made.details["losses"]["s0"]["equation"]


def test_so_many_rollouts_are_drawn_where_nobody_counted_the_problems():
    spec = FromTeacher(type="from_teacher", problems=64)
    stage = Stage.model_validate({"id": "s", "algorithm": spec.model_dump(), "data": ["train"]})
    for rows, problems in (({}, 64), ({"train": 32}, 32), ({"train": 500}, 64)):
        graph: Any = SimpleNamespace(sizes=SimpleNamespace(count=lambda names, rows=rows: sum(rows.values())))
        assert as_opd(graph, stage, spec).steps * spec.per_step == problems


def test_weights_of_answers_ask_nothing_anew():
    first = taught({"type": "soft_label", "rubric": {"dimensions": {"result": 1.0, "care": 1.0}}})
    other = taught({"type": "soft_label", "rubric": {"dimensions": {"result": 1.0, "care": 9.0}}})
    assert nodes(first)["s0.teach1"].plan_key == nodes(other)["s0.teach1"].plan_key
    assert nodes(first)["s0"].plan_key != nodes(other)["s0"].plan_key
    third = taught({"type": "soft_label", "rubric": {"dimensions": {"result": 1.0}}})
    assert nodes(first)["s0.teach1"].plan_key != nodes(third)["s0.teach1"].plan_key


def test_a_plain_question_has_the_key_that_it_has_beside_other_forms():
    plain, ranked = {"type": "action_distill"}, {"type": "action_distill", "actions": {"form": "rank"}}
    made = nodes(taught(plain, ranked))
    assert "form" not in made["s0.teach1"].params["asking"]
    assert (made["s0.teach1"].params["prompt"], made["s1.teach1"].params["prompt"]) == ("action@1", "action_rank@1")
    assert made["s0.teach1"].plan_key != made["s1.teach1"].plan_key
    words = taught(plain, ranked).details["losses"]["s1"]["words"]
    assert "in order and in both orders of showing" in words


def test_an_order_of_calls_costs_two_questions_a_state():
    closed = {"kind": "openai", "model": "m", "base_url": "http://x/v1", "gives": ["action"]}
    forms = [{"type": "action_distill", "actions": {"form": f}} for f in ("score", "rank")]
    one, two = (nodes(taught(f, teacher=closed))["s0.teach1"].estimate.teacher_calls for f in forms)
    assert two == 2 * one > 0


def mixed(gives: list[str], **settings: Any) -> Plan:
    """Return a plan in which mails go to a teacher that gives the first signal, and all else to one that gives the second."""
    stage = {"id": "s0", "from": "teach", "algorithm": {"type": "from_teacher", **settings}, "data": ["train"]}
    data = changed(SMALL, "stages", [SMALL["stages"][0], stage])
    data = changed(data, "teachers", {n: CLERK | {"gives": [g]} for n, g in zip(("one", "other"), gives, strict=True)})
    rules = [{"when": "problem.type == 'mail'", "teachers": {"one": 1.0}}, {"teachers": {"other": 1.0}}]
    return plan(changed(data, "routing", rules))


def test_rules_with_signals_of_one_loss_are_asked_side_by_side():
    made = mixed(["score", "critique"], goal="succeed")
    assert kinds(made, "s0") == [
        ("s0.rollouts1", "rollouts"),
        ("s0.teach1.critique", "teach"),
        ("s0.teach1.score", "teach"),
        ("s0", "train.practised"),
    ]
    found = nodes(made)
    assert found["s0"].inputs["teach"] == "s0.teach1.critique"
    assert found["s0"].inputs["teach.score"] == "s0.teach1.score"
    assert (found["s0"].params["signal"], list(found["s0"].params["beside"])) == ("critique", ["score"])
    asked = {s: found[f"s0.teach1.{s}"].params for s in ("critique", "score")}
    assert {s: (p["rules"], list(p["teachers"])) for s, p in asked.items()} == {
        "critique": ([1], ["other"]),
        "score": ([0], ["one"]),
    }
    words = made.details["losses"]["s0"]["words"]
    assert "signal critique of" in words
    assert "and signal score of" in words
    assert "no finer signal: routing[0]: critique is not given by one" in words
    with pytest.raises(ProgramError, match="give nothing of logprobs, action, rank, sample that one loss trains on"):
        mixed(["sample", "rank"])
    pairs = mixed(["sample", "rank"], corrections={"learn": "pairs"})
    assert kinds(pairs, "s0")[1:] == [
        ("s0.teach1.rank", "teach"),
        ("s0.teach1.sample", "teach"),
        ("s0.lessons1", "lessons"),
        ("s0", "train.preference"),
    ]


def test_what_is_asked_side_by_side_is_no_history_of_one_another():
    rules = [
        {"when": "problem.type == 'mail'", "teachers": {"one": 1.0, "two": 1.0}, "history": {"kappa": 1.0}},
        {"teachers": {"other": 1.0}},
    ]
    stage = {"id": "s0", "from": "teach", "algorithm": {"type": "from_teacher", "goal": "succeed", "rounds": 2}}
    data = changed(SMALL, "stages", [SMALL["stages"][0], stage | {"data": ["train"]}])
    gives = {"one": "score", "two": "score", "other": "critique"}
    data = changed(data, "teachers", {n: CLERK | {"gives": [g]} for n, g in gives.items()})
    found = nodes(plan(changed(data, "routing", rules)))
    history = {
        n: sorted(i for k, i in found[n].inputs.items() if k.startswith("history."))
        for n in found
        if found[n].kind == "teach"
    }
    first = ["s0.teach1.critique", "s0.teach1.score"]
    assert history == {n: [] for n in first} | dict.fromkeys(("s0.teach2.critique", "s0.teach2.score"), first)


def test_what_a_critique_s_corrections_do_is_in_the_key_the_price_and_the_equation_and_asks_nothing_anew():
    rules = [{}, {"correction_coef": 0.0}, {"correction_coef": 0.5}]
    made = [taught({"type": "from_teacher", "signal": "critique", "critique": r}) for r in rules]
    found = [nodes(m)["s0"] for m in made]
    assert found[0].plan_key == found[1].plan_key != found[2].plan_key
    assert "correction_coef" not in found[0].params["rule"]
    assert found[2].estimate.seconds > found[0].estimate.seconds
    assert len({nodes(m)["s0.teach1"].plan_key for m in made}) == 1
    told = [m.details["losses"]["s0"]["words"] for m in made]
    assert "; A = 0.5 for the call that is right at the first error" in told[2]
    assert "first error" not in told[0]


def test_candidates_from_the_tool_list_are_another_question():
    rules = [{}, {"from_tools": 0}, {"from_tools": 3}]
    made = [taught({"type": "action_distill", "actions": r}) for r in rules]
    keys = [nodes(m)["s0.teach1"].plan_key for m in made]
    assert keys[0] == keys[1] != keys[2]
    assert "from_tools" not in nodes(made[0])["s0.teach1"].params["asking"]
    assert (
        "calls of the policy, 3 more from the tool list and the teacher's own"
        in made[2].details["losses"]["s0"]["words"]
    )


def test_several_corrections_of_a_failure_are_in_the_price_and_the_key():
    closed = {"kind": "openai", "model": "m", "base_url": "http://x/v1", "gives": ["sample"], "temperature": 1.0}
    rules = [{}, {"samples": 3}, {"samples": 3, "keep": "best"}]
    made = [nodes(taught({"type": "from_teacher", "corrections": r}, teacher=closed)) for r in rules]
    asked = [m["s0.teach1"] for m in made]
    assert asked[1].estimate.teacher_calls == 3 * asked[0].estimate.teacher_calls > 0
    assert asked[0].plan_key != asked[1].plan_key == asked[2].plan_key
    assert "samples" not in asked[0].params["asking"]
    assert made[0]["s0.lessons1"].params["rule"] == {"kept_turns": False}
    assert made[1]["s0.lessons1"].plan_key != made[2]["s0.lessons1"].plan_key
    assert made[1]["s0"].estimate.tokens == 3 * made[2]["s0"].estimate.tokens
    one, every, best = (m["s0.lessons1"].estimate for m in made)
    assert every.seconds == best.seconds == pytest.approx(2 + 3 * (one.seconds - 2)), "each is tried in its world"
    assert (every.disk_mb, best.disk_mb) == (pytest.approx(3 * one.disk_mb), one.disk_mb)


def test_what_is_meant_by_a_dimension_is_a_question_of_its_own_and_no_other_training():
    rubrics = [{}, {"about": {"care": "Nothing was done that was not asked for."}}]
    made = [nodes(taught({"type": "soft_label", "rubric": r})) for r in rubrics]
    assert made[0]["s0.teach1"].params["asking"]["dimensions"] == ["result", "care"]
    assert made[1]["s0.teach1"].params["asking"]["dimensions"] == {"result": "", **rubrics[1]["about"]}
    assert made[1]["s0.teach1"].params["prompt"] == "score_described@1"
    turned = {"dimensions": {"care": 0.3, "result": 0.7}, **rubrics[1]}
    again = nodes(taught({"type": "soft_label", "rubric": turned}))["s0.teach1"]
    asked = [json.dumps(n.params["asking"]["dimensions"]) for n in (made[1]["s0.teach1"], again)]
    assert asked[0] == asked[1], "one key is one question"
    assert made[0]["s0"].params == made[1]["s0"].params
    assert "about" not in made[0]["s0"].params["rule"]["rubric"]


PROGRAM = (
    f"program: ladder\n{DESK}"
    + """\
  golden: {kind: problems, environment: desk, split: golden, size: 8, role: golden}
teachers: {clerk: {kind: scripted, environment: desk, gives: [sample, critique]}}
verifiers: {state: {kind: environment_state, answer: no}}
stages:
  - id: teach
    algorithm: {type: sft, epochs: 6, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}}
    data: [demos]
  - {id: fix, from: teach, algorithm: {type: from_teacher, at_least: 1}, data: [train]}
  - {id: credit, from: teach, algorithm: {type: from_teacher, goal: succeed, at_least: 2}, data: [train]}
evaluation: {at_the_end: [golden]}
"""
)


def test_a_program_learns_from_its_clerk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ladder.yaml"
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    file.write_text(PROGRAM)
    assert main(["plan", str(file)]) == 0
    assert "signal critique of 4 rollouts of each problem: A of a turn" in " ".join(capsys.readouterr().out.split())
    code = main(["run", str(file), "--no-services", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0, told
    found = {n["node"]: n for n in told["nodes"]}
    assert found["credit.rollouts1"]["run_key"] == found["fix.rollouts1"]["run_key"]
    assert found["fix.lessons1"]["metrics"]["pairs"] >= 1
    assert found["credit"]["metrics"]["critiques"] > 10
    page = next((tmp_path / "home" / "nodes" / found["report"]["run_key"] / "out").rglob("report.html")).read_text()
    learnt = page.partition("per answer that is learnt from")[2].partition("</table>")[0]
    assert "fix.lessons1" in learnt
    assert "credit" in learnt
    assert main(["run", str(file), "--no-services", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {n["status"] for n in again["nodes"]} == {"reused"}
