"""Bodies of stages that learn from a teacher's words, with the order desk's clerk as the teacher."""

import json

import pytest
import torch

from flows.work import lessons, preference
from flows.work.lines import read_rows, write_rows
from specs.errors import TrainingError
from specs.ladder import (
    Actions,
    Asking,
    Corrections,
    Critique,
    Draws,
    Fit,
    Listwise,
    Preferring,
    Ranking,
    Rubric,
    Scoring,
)  # fmt: skip
from specs.optimizer import Optimizer
from specs.preference import DPO, Pairing
from specs.records import TeacherSignal, pair_from, problem_from
from tasks.episodes.environments import environment_for
from tasks.episodes.seeds import world_seed
from tasks.episodes.shards import read_shards, write_shards
from tasks.teachers.asking import asks_for
from tasks.teachers.asks import Unreadable
from tasks.teachers.clerk import answer
from tests.flows.test_stages import DESK, JUDGED, POLICY, ROLL, base, node, read, weights

__all__ = ["base"]

FAST = Optimizer(learning_rate=1e-3)
DRAWS = Draws(samples=6)


@pytest.fixture(scope="module")
def drawn(base, tmp_path_factory):
    """Return the taught policy's rollouts, which all signals are about."""
    _, at = base
    inputs = {"policy": at["taught"], "data.train": at["data.train"]}
    made = node(tmp_path_factory.mktemp("drawn"), "rollouts", inputs, JUDGED | ROLL | {"draws": DRAWS})
    lessons.rollouts(made)
    return made.out


def taught(folder, at, rollouts, signal, spoil=lambda text: text, **asking):
    """Return a folder of signals: the clerk's answers in words, read as any teacher's are."""
    desk = environment_for("desk", DESK)
    problems = [problem_from(line) for line in read_rows(at["data.train"] / "records.jsonl")]
    asked = Asking(signal=signal, **asking).model_dump()
    trajectories = list(read_shards(rollouts / "trajectories"))
    asks, _ = asks_for(asked, trajectories, {p.id: p for p in problems}, desk.tools)
    signals = []
    for ask in asks:
        made = TeacherSignal(
            ask.id, signal, "clerk", "clerk", f"{signal}@1", ask.problem.id, ask.problem.type,
            [t.id for t in ask.candidates], ask.turn, ask.sample,
        )  # fmt: skip
        try:
            made.content = ask.read(spoil(json.dumps(answer(ask, desk, world_seed))))
        except Unreadable as e:
            made.failure = f"unreadable: {e}"
        signals.append(made)
    folder.mkdir(exist_ok=True, parents=True)
    write_rows(folder / "signals.jsonl", signals)
    return folder


def run(body, folder, at, name, signal, rule, **more):
    fit, beside = more.pop("fit", None), more.pop("beside", None)
    inputs = {"policy": at["taught"], "data.train": at["data.train"], **more}
    params = JUDGED | ROLL | {"signal": signal, "rule": rule, "draws": DRAWS} | ({"beside": beside} if beside else {})
    params |= {
        "algorithm": fit or Fit(at_least=2, epochs=12 if signal == "sample" else 3, per_step=8, optimizer=FAST),
        "policy": POLICY,
    }
    made = node(folder, name, inputs, params)
    return made, body(made)


def test_corrections_hold_in_the_world_and_train(base, drawn, tmp_path):
    _, at = base
    said = taught(tmp_path / "teach", at, drawn, "sample")
    kept, _ = run(lessons.take, tmp_path, at, "take", "sample", Corrections(), rollouts=drawn, teach=said)
    figures = read(kept.out / "lessons.json")
    assert figures["trajectories"] > 4
    made = {t.id: t for t in read_shards(kept.out / "trajectories")}
    for pair in (pair_from(line) for line in read_rows(kept.out / "pairs.jsonl")):
        right, own = made[pair.chosen], made[pair.rejected]
        assert (right.success, right.status, own.success) == (True, "finished", False)
        start = right.turns[right.sampling["kept_turns"]].start
        assert right.ids[:start] == own.ids[:start]
        assert pair.by == "clerk"
    trained, outcome = run(
        lessons.corrected, tmp_path, at, "fit", "sample", Corrections(), rollouts=drawn, teach=said, lessons=kept.out
    )
    assert outcome.metrics["loss"] < outcome.metrics["first_loss"]
    assert not torch.equal(weights(trained.out), weights(at["taught"]))
    prefer = node(
        tmp_path, "prefer", {"policy": at["taught"], "pairs": kept.out},
        {"algorithm": DPO(type="dpo", pairing=Pairing(at_least=2), epochs=4, optimizer=FAST), "policy": POLICY, "data": None},
    )  # fmt: skip
    assert (preference.train(prefer).metrics["accuracy"] or 0) > 0.7


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"calls": [{"name": "finish", "arguments": {"answer": "done"}}] * 9}, "no_room"),
        ({"calls": [{"name": "fly", "arguments": {}}]}, "call_refused"),
        ({"calls": [{"name": "finish", "arguments": {"reply": "done"}}]}, "call_refused"),
        (
            {"keep": 0, "calls": [{"name": "check_stock", "arguments": {"product": "x", "quantity": 1}}]},
            "correction_failed",
        ),
        ({"calls": "do better"}, "unreadable"),
    ],
)
def test_a_correction_that_does_not_hold_is_counted_and_never_trains(base, drawn, tmp_path, change, reason):
    _, at = base
    said = taught(tmp_path / "teach", at, drawn, "sample", spoil=lambda text: json.dumps(json.loads(text) | change))
    kept, outcome = run(lessons.take, tmp_path, at, "take", "sample", Corrections(), rollouts=drawn, teach=said)
    figures = read(kept.out / "lessons.json")
    assert figures["left_out"] == {reason: figures["signals"]}
    assert figures["trajectories"] == figures["pairs"] == 0
    assert read(kept.out / "notes" / "used.json")["clerk"]["used"] == 0
    assert f"{figures['signals']} left out: {reason}" in outcome.notes


def test_of_several_corrections_those_that_differ_are_kept_or_the_best(base, drawn, tmp_path):
    """The clerk's, with a look at the stock before its last call in the second of three."""
    _, at = base
    said = taught(tmp_path / "teach", at, drawn, "sample", samples=3)
    lines = list(read_rows(said / "signals.jsonl"))
    detour = {"name": "check_stock", "arguments": {"product": "lamp", "quantity": 1}}
    for line in lines:
        if line["sample"] == 1 and line["content"]:
            calls = line["content"]["calls"]
            line["content"] = line["content"] | {"calls": [*calls[:-1], detour, calls[-1]]}
    write_rows(said / "signals.jsonl", [TeacherSignal(**line) for line in lines])
    figures = {}
    for keep in ("all", "best"):
        rule = Corrections(samples=3, keep=keep)
        kept, _ = run(lessons.take, tmp_path, at, keep, "sample", rule, rollouts=drawn, teach=said)
        figures[keep] = read(kept.out / "lessons.json")
        pairs = [pair_from(line) for line in read_rows(kept.out / "pairs.jsonl")]
        made = {t.id: t for t in read_shards(kept.out / "trajectories")}
        failures = {p.rejected for p in pairs}
        assert len({p.chosen for p in pairs}) == len(pairs)
    assert {len(made[p.chosen].turns) for p in pairs} <= {len(made[f"corrected/{f}"].turns) for f in failures}
    assert len(pairs) == len(failures) == figures["best"]["pairs"] < figures["all"]["pairs"]
    assert figures["all"]["left_out"]["repeated"] >= len(failures)
    assert figures["best"]["left_out"]["not_the_best"] == figures["all"]["pairs"] - len(pairs)


def test_an_order_becomes_pairs_where_both_ways_of_showing_agree(base, drawn, tmp_path):
    _, at = base
    said = taught(tmp_path / "teach", at, drawn, "rank")
    kept, outcome = run(lessons.take, tmp_path, at, "take", "rank", Ranking(), rollouts=drawn, teach=said)
    made = {t.id: t for t in read_shards(kept.out / "trajectories")}
    pairs = [pair_from(line) for line in read_rows(kept.out / "pairs.jsonl")]
    assert len(pairs) > 8
    assert outcome.metrics["order_dependent"] == 0.0
    assert not any(made[p.rejected].success and not made[p.chosen].success for p in pairs)
    shares = {}
    for pair in pairs:
        shares[pair.problem_id] = shares.get(pair.problem_id, 0.0) + pair.weight
    assert all(abs(s - 1) < 1e-9 for s in shares.values())


def test_a_teacher_that_prefers_the_first_gives_no_pair(base, drawn, tmp_path):
    _, at = base
    said = taught(
        tmp_path / "teach", at, drawn, "rank",
        spoil=lambda text: json.dumps({"order": sorted(n for e in json.loads(text)["order"] for n in (e if isinstance(e, list) else [e]))}),
    )  # fmt: skip
    kept, outcome = run(lessons.take, tmp_path, at, "take", "rank", Ranking(), rollouts=drawn, teach=said)
    assert read(kept.out / "lessons.json")["pairs"] == 0
    assert outcome.metrics["order_dependent"] == 1.0
    assert any("depended on how they were shown" in n for n in outcome.notes)


@pytest.mark.parametrize("utility", ["mean", "sum", "ratio"])
def test_scores_become_a_soft_label(base, drawn, tmp_path, utility):
    _, at = base
    rubric = Rubric(dimensions={"result": 1.0, "care": 0.5})
    said = taught(tmp_path / "teach", at, drawn, "score", dimensions=list(rubric.dimensions))
    rule = {"rubric": rubric, "listwise": Listwise(utility=utility, kappa=1.0)}
    made, outcome = run(lessons.listwise, tmp_path, at, "fit", "score", rule, rollouts=drawn, teach=said)
    assert outcome.metrics["loss"] < outcome.metrics["first_loss"]
    assert outcome.metrics["units"] > 4
    assert not torch.equal(weights(made.out), weights(at["taught"]))


@pytest.mark.parametrize("form", ["score", "rank"])
@pytest.mark.parametrize("learn", ["listwise", "best"])
def test_judged_calls_of_a_state_become_action_distillation(base, drawn, tmp_path, learn, form):
    _, at = base
    said = taught(tmp_path / "teach", at, drawn, "action", form=form)
    rule = Actions(learn=learn, form=form)
    made, outcome = run(lessons.listwise, tmp_path, at, "fit", "action", rule, rollouts=drawn, teach=said)
    assert outcome.metrics["loss"] < outcome.metrics["first_loss"]
    assert read(made.out / "rows.json")["sources"]["action"]["rows"] > 4


def test_calls_that_no_rollout_made_are_judged_and_their_scores_learnt(base, drawn, tmp_path):
    """Rollouts in which the right call alone was made in every state: nothing to choose from, but for the tool list."""
    _, at = base
    said = taught(tmp_path / "fixes", at, drawn, "sample")
    kept, _ = run(lessons.take, tmp_path, at, "take", "sample", Corrections(), rollouts=drawn, teach=said)
    right = [t for t in read_shards(kept.out / "trajectories") if t.tags[-1:] == ["corrected"]]
    write_shards(tmp_path / "right" / "trajectories", right)
    units = {}
    for more in (0, 3):
        said = taught(tmp_path / f"teach{more}", at, tmp_path / "right", "action", from_tools=more)
        made, outcome = run(
            lessons.listwise, tmp_path, at, f"fit{more}", "action", Actions(), rollouts=tmp_path / "right", teach=said,
            fit=Fit(at_least=0, epochs=3, optimizer=FAST),
        )  # fmt: skip
        units[more] = outcome.metrics.get("units", 0.0)
        assert not any("call_refused" in note for note in outcome.notes), "each is well formed"
    assert units[3] > 4 > units[0] == 0
    assert outcome.metrics["loss"] < outcome.metrics["first_loss"]
    assert not torch.equal(weights(made.out), weights(at["taught"]))


@pytest.mark.parametrize(
    ("learn", "best", "score", "reason"),
    [
        ("best", None, 9, "no_best"),
        ("best", "first", 4, "below_least_score"),
        ("best", "first", 6, None),
        ("best", "other", 0, None),
        ("listwise", "first", 4, "below_least_score"),
        ("listwise", "other", 0, None),
    ],
)
def test_a_call_that_the_teacher_scored_low_is_not_followed(base, drawn, tmp_path, learn, best, score, reason):
    """`first` is the first candidate of a state, `other` a call that none of the samples made."""
    _, at = base
    other = {"name": "finish", "arguments": {"answer": "as the teacher says"}}

    def spoiled(text):
        scores = dict.fromkeys(json.loads(text)["score"], score)
        return json.dumps({"score": scores, "best": other if best == "other" else None})

    said = taught(tmp_path / "teach", at, drawn, "action", spoil=spoiled)
    lines = list(read_rows(said / "signals.jsonl"))
    for line in lines if best == "first" else ():
        line["content"] = line["content"] and line["content"] | {"best": line["content"]["candidates"][0]}
    write_rows(said / "signals.jsonl", [TeacherSignal(**line) for line in lines])
    asked = sum(1 for line in lines if line["content"] and line["content"]["candidates"])
    made, outcome = run(
        lessons.listwise, tmp_path, at, "fit", "action", Actions(learn=learn), rollouts=drawn, teach=said,
        fit=Fit(at_least=0, optimizer=FAST),
    )  # fmt: skip
    if reason is None:
        assert outcome.metrics["units"] == asked
        return
    assert any(f"{asked} left out: {reason}" in n for n in outcome.notes)
    assert torch.equal(weights(made.out), weights(at["taught"]))


def test_calls_whose_order_depends_on_how_they_are_shown_teach_nothing(base, drawn, tmp_path):
    _, at = base

    def first_as_shown(text):
        order = [n for e in json.loads(text)["order"] for n in (e if isinstance(e, list) else [e])]
        return json.dumps({"order": sorted(order), "best": None if order else {"name": "finish"}})

    said = taught(tmp_path / "teach", at, drawn, "action", spoil=first_as_shown, form="rank")
    made, outcome = run(
        lessons.listwise, tmp_path, at, "fit", "action", Actions(form="rank"), rollouts=drawn, teach=said,
        fit=Fit(at_least=0, optimizer=FAST),
    )  # fmt: skip
    assert any("pairs of calls depended on how they were shown: they count as even" in n for n in outcome.notes)
    assert any("left out: tie" in n for n in outcome.notes)
    assert torch.equal(weights(made.out), weights(at["taught"]))


@pytest.mark.parametrize(
    ("body", "signal", "rule", "asking"),
    [
        (lessons.take, "sample", Corrections(), {"per_problem": 2}),
        (lessons.take, "rank", Ranking(), {}),
        (lessons.listwise, "action", Actions(), {}),
        (lessons.listwise, "score", {"rubric": Rubric(dimensions={"result": 1.0}), "listwise": Listwise()}, {"dimensions": ["result"]}),
        (lessons.practised, "score", Scoring(rubric=Rubric(dimensions={"result": 1.0})), {"dimensions": ["result"]}),
        (lessons.practised, "critique", Critique(), {}),
    ],
    ids=["corrections", "orders", "calls", "soft labels", "scores", "critiques"],
)  # fmt: skip
def test_a_stage_tells_how_many_answers_it_learnt_from_and_what_each_cost(
    base, drawn, tmp_path, body, signal, rule, asking
):
    """Half of the answers are none, a fifth of the dollars is theirs; what is not judged is not learnt from."""
    _, at = base
    said = taught(tmp_path / "teach", at, drawn, signal, **asking)
    lines = [line for line in read_rows(said / "signals.jsonl") if line["content"]]
    for i, line in enumerate(lines):
        line["id"], line["usd"] = f"{line['id']}/{i}", 1.0
        if i >= len(lines) // 2:
            line["content"], line["failure"], line["usd"] = None, "refused", 0.25
    write_rows(said / "signals.jsonl", [TeacherSignal(**line) for line in lines])
    made, outcome = run(
        body, tmp_path, at, "learn", signal, rule, rollouts=drawn, teach=said, fit=Fit(at_least=0, optimizer=FAST)
    )
    card = read(made.out / "notes" / "used.json")["clerk"]
    half = len(lines) // 2
    assert card["answered"] == half
    assert 0 < card["used"] <= half
    assert card["usd"] == half + 0.25 * (len(lines) - half)
    assert card["usd_per_used"] == pytest.approx(card["usd"] / card["used"], abs=1e-6)
    assert any(note.startswith(f"learnt from {card['used']} of {half} answers of clerk, $") for note in outcome.notes)
    if signal == "sample":
        assert card["used"] == outcome.metrics["pairs"]


def halves(folder, at, drawn, signals):
    """Return folders of two signals, each about every other problem, and the problems of each."""
    names = sorted({t.problem_id for t in read_shards(drawn / "trajectories")})
    folders = []
    for i, (signal, more) in enumerate(signals.items()):
        said = taught(folder / signal, at, drawn, signal, **more)
        kept = [line for line in read_rows(said / "signals.jsonl") if line["problem_id"] in names[i::2]]
        write_rows(said / "signals.jsonl", [TeacherSignal(**line) for line in kept])
        (said / "signals.json").write_text(json.dumps({"problems": names[i::2]}))
        folders.append(said)
    return folders, [set(names[i::2]) for i in range(2)]


def test_critiques_and_scores_of_different_problems_are_one_policy_gradient(base, drawn, tmp_path):
    _, at = base
    folders, (ours, theirs) = halves(tmp_path, at, drawn, {"critique": {}, "score": {"dimensions": ["result", "care"]}})
    given = {"rollouts": drawn, "teach": folders[0], "teach.score": folders[1]}
    made, outcome = run(
        lessons.practised, tmp_path, at, "fit", "critique", Critique(), beside={"score": Scoring()}, **given
    )
    assert outcome.metrics["critiques"] > 20
    assert outcome.metrics["score_of_successes"] > outcome.metrics["score_of_failures"]
    alone = [
        run(lessons.practised, tmp_path, at, f"alone{i}", signal, rule, rollouts=only, teach=folders[i])[1]
        for i, (signal, rule, only) in enumerate(
            [("critique", Critique(), part(tmp_path, drawn, ours)), ("score", Scoring(), part(tmp_path, drawn, theirs))]
        )
    ]
    assert outcome.metrics["units"] == sum(a.metrics["units"] for a in alone)
    assert outcome.metrics["teaching_groups"] == sum(a.metrics["teaching_groups"] for a in alone)
    assert not torch.equal(weights(made.out), weights(at["taught"]))


def part(folder, drawn, problems):
    """Return a folder with the rollouts of some problems."""
    out = folder / f"part{len(list(folder.glob('part*')))}"
    write_shards(out / "trajectories", [t for t in read_shards(drawn / "trajectories") if t.problem_id in problems])
    return out


def test_corrections_and_orders_of_different_problems_make_pairs_together(base, drawn, tmp_path):
    _, at = base
    folders, (ours, theirs) = halves(tmp_path, at, drawn, {"rank": {}, "sample": {}})
    given = {"rollouts": drawn, "teach": folders[0], "teach.sample": folders[1]}
    beside = {"sample": Corrections(learn="pairs")}
    kept, _ = run(lessons.take, tmp_path, at, "take", "rank", Ranking(), beside=beside, **given)
    pairs = [pair_from(line) for line in read_rows(kept.out / "pairs.jsonl")]
    corrected = {p.problem_id for p in pairs if p.chosen.startswith("corrected/")}
    assert corrected
    assert corrected <= theirs
    assert {p.problem_id for p in pairs} - corrected <= ours
    known = {t.id for t in read_shards(kept.out / "trajectories")}
    assert {side for p in pairs for side in (p.chosen, p.rejected)} <= known


def test_a_teacher_that_says_nothing_stops_the_stage_with_the_reason(base, drawn, tmp_path):
    _, at = base
    silent = taught(tmp_path / "teach", at, drawn, "score", spoil=lambda text: "8/10", dimensions=["result"])
    rule = {"rubric": Rubric(dimensions={"result": 1.0}), "listwise": Listwise()}
    with pytest.raises(TrainingError, match=r"0 are left to train on.*left out: unreadable"):
        run(lessons.listwise, tmp_path, at, "fit", "score", rule, rollouts=drawn, teach=silent)
    made, outcome = run(
        lessons.listwise, tmp_path, at, "again", "score", rule, rollouts=drawn, teach=silent, fit=Fit(at_least=0)
    )
    assert any("handed on as it is" in n for n in outcome.notes)
    assert torch.equal(weights(made.out), weights(at["taught"]))


def test_preferring_says_what_it_reads():
    with pytest.raises(ValueError, match="nll_coef is not read"):
        Preferring(loss="ipo", nll_coef=0.1)
