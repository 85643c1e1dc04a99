"""A teacher with its own tokenizer that the program trains first: plan, mistakes, and a whole run by the command line."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from flows.cli import main
from flows.compile import compile
from flows.context import MetricSpool, NodeContext
from flows.resolve import resolve
from flows.smoke import smoke
from flows.work.judging import evaluate
from flows.work.lines import write_rows
from specs.errors import ProgramError
from specs.loader import load_program
from specs.trained_teacher import TrainedTeacher
from tasks.episodes.environments import environment_for
from tasks.episodes.shards import read_shards
from tasks.episodes.token_signals import read_signals
from tests.flows.programs import SMALL, Json, changed, moved, nodes, plan, program, resolution
from tests.flows.small_desk import DESK, OTHER_TOKENS

ELDER: Json = {
    "kind": "trained",
    "template": "builtin/chatml@1",
    "init": {
        "kind": "scratch",
        "hidden_size": 64,
        "max_length": 512,
        "tokenizer": {"kind": "bpe", "train_on": "clean"},
    },
    "data": ["clean"],
}
PUPIL: Json = {
    "id": "pupil",
    "from": "teach",
    "algorithm": {"type": "opd", "teachers": {"elder": 1.0}, "over": {"kind": "sampled"}},
    "data": ["train"],
}


def with_teacher(teacher: Json = ELDER) -> Json:
    data = changed(SMALL, "stages", [SMALL["stages"][0], PUPIL])
    data = changed(data, "data.clean", {"kind": "demonstrations", "environment": "desk", "size": 150})
    return changed(data, "teachers", {"elder": teacher})


def test_the_teacher_is_made_and_trained_in_its_own_tokens():
    made = nodes(plan(with_teacher()))
    init, trained, pupil = made["teacher.elder.init"], made["teacher.elder"], made["pupil"]
    assert (init.kind, trained.kind) == ("policy.init", "train.sft")
    assert init.inputs == {"texts": "data.clean"}
    assert trained.inputs == {"policy": "teacher.elder.init", "data.clean": "data.clean", "apart": "data.apart"}
    assert trained.params["policy"]["template"] == "builtin/chatml@1"
    assert pupil.inputs["teacher.elder"] == "teacher.elder"
    assert made["data.apart"].inputs["train.clean"] == "data.clean"
    assert pupil.estimate.memory_parts["teachers"] > 0
    other = nodes(plan(with_teacher({**ELDER, "algorithm": {"type": "sft", "epochs": 3}})))
    assert other["pupil"].plan_key != pupil.plan_key
    assert other["teach"].plan_key == made["teach"].plan_key
    small = smoke(program(with_teacher())).teachers["elder"]
    assert isinstance(small, TrainedTeacher)
    assert small.algorithm.epochs == 1.0


def test_an_adapter_of_a_checkpoint_is_added_to_the_teachers_first_weights():
    init = {"kind": "pretrained", "model": "a", "adapter": "small"}
    data = with_teacher({**ELDER, "init": init})
    shape = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 128, "vocab": 512}
    small = {"path": "/small", "digest": "2"}
    found = {"digest": "1", "path": "/a", "shape": shape, "adapter": small}
    made = nodes(compile(program(data), resolution(teachers={"elder": found})))
    assert made["teacher.elder.init"].params["adapter"] == small


def test_its_own_success_is_measured_as_that_of_a_policy_and_moves_no_key_but_the_reports():
    before, after = (
        plan(with_teacher({**ELDER, **more})) for more in ({}, {"evaluate": ["golden"], "max_new_tokens": 60})
    )
    made = nodes(after)
    assert moved(before, after) == {"eval.teacher-elder.golden", "report"}
    own, policys = made["eval.teacher-elder.golden"], made["eval.teach.golden"]
    assert own.inputs == {"policy": "teacher.elder", "problems": "data.golden"}
    assert own.seed == policys.seed, "they are paired"
    assert own.params["policy"] == made["teacher.elder"].params["policy"]
    assert own.params["agent"] == policys.params["agent"] | {"max_new_tokens": 60}
    same = ("evaluation", "verifiers", "reward", "environments", "set")
    assert all(own.params[k] == policys.params[k] for k in same)
    assert own.estimate.memory_parts["weights"] < policys.estimate.memory_parts["weights"]
    assert "eval.teacher-elder.golden" in made["report"].inputs


def test_a_gate_compares_a_pupil_with_its_teacher():
    data = changed(with_teacher({**ELDER, "evaluate": ["golden"]}), "gates.ship.baseline", {"stage": "teacher-elder"})
    gate = nodes(plan(data))["gate.ship"]
    assert gate.inputs["baseline.golden"] == "eval.teacher-elder.golden"


def test_a_requirement_that_reads_no_baseline_may_be_of_another_set(tmp_path: Path):
    data = changed(with_teacher({**ELDER, "evaluate": ["golden"]}), "gates.ship.baseline", {"stage": "teacher-elder"})
    path = tmp_path / "p.yaml"
    asked = [{"set": "golden", "better_by": 0.0}, {"set": "hidden", "at_least": 0.1}]
    path.write_text(json.dumps(changed(data, "gates.ship.require", asked)))
    assert load_program(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"evaluate": ["train"]},
            r"teachers.elder.evaluate\[0\]: found train, which is not evaluated; add it to evaluation",
        ),
        ({"evaluate": ["goldn"]}, r"teachers.elder.evaluate\[0\]: found 'goldn'.*did you mean golden"),
        ({"evaluate": ["golden", "golden"]}, "golden is named twice"),
        ({"max_new_tokens": 9}, "teachers.elder.max_new_tokens: is read where its success is measured alone"),
        ({"data": ["train"]}, "teachers.elder.*found train, which holds problems; expected demonstrations"),
        ({"data": ["clear"]}, "teachers.elder.*'clear'.*clean"),
        ({"gives": ["score"]}, "kind trained cannot give"),
    ],
)
def test_mistakes_are_told_at_check_time(tmp_path: Path, change: Json, said: str):
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps(with_teacher({**ELDER, **change})))
    with pytest.raises(ProgramError, match=said):
        load_program(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            with_teacher({"kind": "model", "model": "a", "template": "builtin/plain@1", "evaluate": ["golden"]}),
            "teachers.elder.evaluate: .*builtin/plain@1, which marks no call",
        ),
        (
            with_teacher(
                {"kind": "served_model", "model": "m", "url": "http://127.0.0.1:8000", "evaluate": ["golden"]}
            ),
            "teachers.elder.evaluate: unknown key here; it belongs to .*kind: model.* or .*kind: trained",
        ),
        (
            changed(with_teacher({**ELDER, "evaluate": ["golden"]}), "stages.1.id", "teacher-elder"),
            "teachers.elder.evaluate: .*a stage is called so",
        ),
        (
            changed(
                changed(
                    with_teacher({**ELDER, "evaluate": ["golden"]}), "gates.ship.baseline", {"stage": "teacher-elder"}
                ),
                "gates.ship.require",
                [{"metric": "success", "set": "hidden", "better_by": 0.0}],
            ),
            r"gates.ship.require\[0\].set: found hidden, but the baseline teacher-elder is measured on golden alone",
        ),
        (
            changed(
                changed(with_teacher(), "teachers.spare", {**ELDER, "evaluate": ["golden"]}),
                "gates.ship.baseline",
                {"stage": "teacher-spare"},
            ),
            "gates.ship.baseline.stage: found 'teacher-spare', expected a stage or init",
        ),
        (
            changed(with_teacher(), "gates.ship.baseline", {"stage": "teacher-elder"}),
            "gates.ship.baseline.stage: found 'teacher-elder', expected a stage or init",
        ),
    ],
)
def test_a_teacher_that_cannot_be_measured_is_refused_at_check_time(tmp_path: Path, data: Json, said: str):
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps(data))
    with pytest.raises(ProgramError, match=said):
        load_program(path)


def test_a_teacher_that_nobody_asks_is_not_made(tmp_path: Path):
    data = changed(with_teacher(), "stages", [SMALL["stages"][0]])
    assert not {"teacher.elder", "data.clean"} & set(nodes(plan(data)))


PROGRAM = (
    f"program: across\n{DESK}"
    + """\
  clean: {kind: demonstrations, environment: desk, size: 60}
verifiers: {state: {kind: environment_state, answer: no}}
teachers:
  elder:
"""
    + OTHER_TOKENS
    + """\
  own: {kind: earlier_self, of: start}
routing: # a type that there is none of
  - {when: "problem.type == 'stok'", teachers: {own: 1.0}}
  - {teachers: {elder: 1.0}}
stages:
  - id: teach
    algorithm: {type: sft, epochs: 6, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}}
    data: [demos]
  - id: pupil
    algorithm: {type: opd, over: {kind: sampled}, group_size: 1, problems_per_step: 8, steps: 2, max_truncated: 1.0, min_coverage: 0.1}
    data: [train]
  - id: mixed
    algorithm:
      type: grpo
      group_size: 2
      problems_per_step: 8
      steps: 1
      max_flat_steps: null
      max_truncated: 1.0
      distill: {over: {kind: sampled}}
    data: [train]
    needs: {success: 0.0}
    preflight: {problems: 2, samples: 2}
"""
)


def test_a_small_program_learns_from_a_teacher_with_other_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    home, file = tmp_path / "home", tmp_path / "across.yaml"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    file.write_text(PROGRAM)
    code = main(["run", str(file), "--no-services", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 0, told
    done = {n["node"]: n for n in told["nodes"]}
    assert {done[n]["status"] for n in ("teacher.elder", "pupil", "mixed")} == {"completed"}
    out = {n: home / "nodes" / done[n]["run_key"] / "out" for n in ("pupil", "mixed")}
    curve = json.loads((out["pupil"] / "curve.json").read_text())["steps"]
    assert curve[0]["alignment_coverage"] == pytest.approx(curve[0]["coverage"])
    assert curve[0]["alignment_merged"] > 0
    assert curve[0]["alignment_byte_span"] > 0.5
    for node, folder in out.items():
        check_what_was_said(folder, done[node]["notes"])
    check_its_own_success(home / "nodes" / done["teacher.elder"]["run_key"] / "out", file, tmp_path)


def check_its_own_success(elder: Path, file: Path, folder: Path) -> None:
    """The teacher that was trained acts with its own tokens, and with the room that it was given, not the agent's."""
    hidden = "  hidden: {kind: problems, environment: desk, split: hidden, size: 6, role: hidden}\nverifiers:"
    asked = PROGRAM.replace("verifiers:", hidden) + "evaluation: {at_the_end: [hidden], greedy: false}\n"
    file.write_text(asked.replace("max_gap: 1000}", "max_gap: 1000}\n    evaluate: [hidden]\n    max_new_tokens: 40"))
    loaded = load_program(file)
    made = nodes(compile(loaded.program, resolve(loaded, environ={})))["eval.teacher-elder.hidden"]
    desk = environment_for("desk", loaded.program.environments["desk"])
    write_rows(folder / "records.jsonl", desk.problems("hidden", 6, 0))
    context = NodeContext(
        id=made.id, kind=made.kind, params=made.params, execution={}, seed=made.seed or 0,
        inputs={"policy": elder, "problems": folder}, out=folder / "out", checkpoints=folder / "ckpt",
        metrics=MetricSpool(folder / "metrics.jsonl"), stop=lambda: False, progress=lambda what, share, figures: None,
    )  # fmt: skip
    found = evaluate(context)
    assert {"success", "success_low", "truncated_rate"} <= found.metrics.keys()
    tried = list(read_shards(context.out / "trajectories"))
    assert len(tried) == 6
    assert 24 < max(turn.end - turn.start for t in tried for turn in t.turns) <= 40


def check_what_was_said(folder: Path, notes: list[str]) -> None:
    """KP-TEACH-05: every scored row names its teacher, the last rule is counted, and who was asked nothing is named."""
    trajectories = {t.id: t for t in read_shards(folder / "trajectories")}
    signals = list(read_signals(folder / "trajectories"))
    assert {s.teacher for s in signals} == {"elder"}
    (revision,) = {s.revision for s in signals}
    assert re.fullmatch("trained [0-9a-f]{12}", revision)
    assert len({s.id for s in signals}) == len(signals) > 0
    for s in signals:
        assert s.chunks is not None
        assert s.logprobs is not None
        assert len(s.chunks) == len(s.logprobs) == len(trajectories[s.id].ids)
        assert (s.chunks >= 0).sum() == s.tokens
    told = json.loads((folder / "signals.json").read_text())
    problems = Counter({t.problem_id: t.problem_type for t in trajectories.values()}.values())
    assert told["by_default"] == dict(problems)
    card = told["scorecard"]["elder"]
    assert (card["revision"], card["trajectories"]) == (revision, len(signals))
    assert (card["tokens"], card["by_type"].keys()) == (sum(s.tokens for s in signals), problems.keys())
    assert told["scorecard"]["own"]["trajectories"] == 0
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(problems.items()))
    first = [f"routing: the last rule decided for {kinds}", "no problem went to own"]
    assert notes[:2] == first, "a terminal shows two"
    assert any(n.startswith(f"elder ({revision}): scored {card['tokens']} tokens of {len(signals)}") for n in notes)
