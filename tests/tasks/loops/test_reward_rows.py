"""A reward model from rollouts to verdicts, on the toy world: labels, rows, training, the folder, the verifier."""

import copy
import json
from dataclasses import replace

import pytest

from specs.errors import StateError, TrainingError, VerifierError
from specs.optimizer import Optimizer
from specs.records import Observation, Pair, ToolCall
from specs.reward_models import RewardModel, TurnLabels
from specs.verifiers import RewardModelVerifier
from tasks.evidence.judge import turn_scores
from tasks.evidence.verifiers import build, verifier_for
from tasks.evidence.verifiers.reward_model import one_score
from tasks.learning.algorithms import loss_for
from tasks.learning.values import ValueLearner, ValueModel
from tasks.loops.collect import Draw, rollouts
from tasks.loops.fit import fit_supervised
from tasks.loops.reward_rows import (
    Order,
    held_out,
    judged,
    label_turns,
    pair_order,
    require_order,
    side_rows,
    turn_order,
    turn_rows,
)
from tasks.policy.reward_model import Scale, load_reward_model, save_reward_model
from tests.tasks.judging.builders import trajectory
from tests.tasks.loops.toy import problem, taught_policy, toy_arena

SPEC = RewardModelVerifier(kind="reward_model", stage="rm")


@pytest.fixture(scope="module")
def rolled():
    """Return a policy and its judged rollouts: about half of them say a good letter."""
    policy = taught_policy()
    drawn = Draw(8, 1.0, 3, "toy")
    return policy, rollouts(toy_arena(copy.deepcopy(policy)), [problem(i) for i in range(10)], drawn)


def pairs_of(trajectories):
    by_problem = {}
    for t in trajectories:
        by_problem.setdefault(t.problem_id, ([], []))[0 if t.success else 1].append(t)
    return [
        Pair(f"{a.id}>{b.id}", p, a.id, b.id, 1.0, 1 / max(1, len(good) * len(bad)))
        for p, (good, bad) in by_problem.items()
        for a in good
        for b in bad
    ]


def trained(policy, rows, learns, both):
    """Return the learner of a reward model after some steps."""
    spec = RewardModel(type="reward_model", learns=learns, optimizer=Optimizer(learning_rate=1e-2))
    learner = ValueLearner(ValueModel(copy.deepcopy(policy.model), share=True), spec.optimizer, 60)
    units = [[both * i + k for k in range(both)] for i in range(len(rows) // both)]
    plan = [[row for unit in units for row in unit]] * 60
    mean = "absolute_sequence" if learns == "pairs" else "token"
    done = fit_supervised(learner, rows, plan, loss_for(spec), mean)
    assert done.last_loss < done.first_loss
    return learner


def written(policy, learner, folder, learns, order):
    policy = replace(policy)
    policy.model, head, bias = learner.parts()
    about = {"learns": learns, "least_accuracy": 0.55, "held_out": order.to_json()}
    save_reward_model(policy, head, bias, about, Scale(0.1, 2.0), folder)
    return folder


def test_pairs_teach_what_was_judged_and_a_verifier_says_so(rolled, tmp_path):
    policy, found = rolled
    away = held_out((t.problem_id for t in found), 0.3, 1)
    assert len(away) == 3
    by_id = {t.id: t for t in found}
    length = policy.config.max_length
    own, other = (
        side_rows([p for p in pairs_of(found) if (p.problem_id in away) is held], by_id, length)[0]
        for held in (False, True)
    )
    assert sum(row.weight for row in own) == pytest.approx(len(own))
    learner = trained(policy, own, "pairs", 2)
    order = pair_order(other, learner.values(other))
    assert order.share > 0.9, "it knows good letters in problems that it never saw"
    folder = written(policy, learner, tmp_path / "reward", "pairs", order)

    verifier = verifier_for("taste", SPEC, folder)
    assert verifier.version.startswith("reward_model@1/")
    verdicts = {t.id: verifier.verify(t, problem(0)) for t in found}
    assert {t.id: verifier.verify(t, problem(0)) for t in found} == verdicts, "the same verdict twice"
    good = [v.score or 0.0 for t, v in zip(found, verdicts.values(), strict=True) if t.success]
    bad = [v.score or 0.0 for t, v in zip(found, verdicts.values(), strict=True) if not t.success]
    assert sum(good) / len(good) > sum(bad) / len(bad) + 0.2
    for t in found[:5]:
        row = judged(t, [len(t.ids)], [0.0], length)
        assert row is not None
        number = learner.values([row])[0][-1]
        assert verdicts[t.id].score == pytest.approx(Scale(0.1, 2.0).score(number), abs=1e-5)


def test_turns_learn_their_labels(rolled, tmp_path):
    policy, found = rolled
    labels = label_turns(found, TurnLabels(by="outcome"))
    rows, dropped = turn_rows(found, labels.labels, policy.config.max_length)
    assert not dropped
    learner = trained(policy, rows, "turns", 1)
    order = turn_order(rows, learner.values(rows))
    assert order.share > 0.9
    folder = written(policy, learner, tmp_path / "reward", "turns", order)
    verdict = verifier_for("steps", SPEC, folder).verify(found[0], problem(0))
    assert len(verdict.evidence["scores"]) == len(found[0].turns)
    assert verdict.passed is ((verdict.score or 0) >= 0.5)
    assert turn_scores(verdict, len(found[0].turns)) == []
    mean = verifier_for("steps", SPEC.model_copy(update={"turns": "mean"}), folder).verify(found[0], problem(0))
    assert turn_scores(mean, len(found[0].turns)) == verdict.evidence["scores"]


def turns_of(*seen, success, id="t", problem_id="p", **more):
    """Return a trajectory that wrote one token a turn, with these texts."""
    made = trajectory(0, success=success, ids=list(range(2 * len(seen))))
    made.id, made.problem_id = id, problem_id
    turn = made.turns[0]
    made.turns = [
        replace(
            turn,
            start=2 * k,
            end=2 * k + 1,
            text=text,
            call=ToolCall(text, {}, text),
            observation=Observation({}, **more),
        )
        for k, text in enumerate(seen)
    ]
    return made


def test_labels_of_turns():
    found = [
        turns_of("a", "b", success=True, id="1"),
        turns_of("a", "c", success=False, id="2"),
        turns_of("d", success=False, id="3"),
        turns_of("a", success=False, id="4", problem_id="q"),
    ]
    assert label_turns(found, TurnLabels()).labels == {"1": [0.5, 1.0], "2": [0.5, 0.0], "3": [0.0], "4": [0.0]}
    assert label_turns(found, TurnLabels(by="outcome")).labels["2"] == [0.0, 0.0]
    seen = [
        turns_of("a", success=False, id="1", changed=True),
        turns_of("a", success=False, id="2", informed=True, is_error=True),
        turns_of("a", success=True, id="3", done=True),
        turns_of("a", success=False, id="4", done=True),
    ]
    assert label_turns(seen, TurnLabels(by="calls")).labels == {"1": [1.0], "2": [0.0], "3": [1.0], "4": [0.0]}


def test_what_has_no_label_is_counted():
    odd = [turns_of("a", success=None, id=str(i)) for i in range(2)]
    odd += [
        replace(turns_of("a", success=False, id="cut"), status="truncated"),
        replace(turns_of(success=True, id="n"), turns=[]),
    ]
    odd[1].success, odd[1].sampling = True, {"segments": [0, 1]}
    found = label_turns(odd, TurnLabels())
    assert (found.turns, found.dropped) == (0, {"invalid": 1, "several_contexts": 1, "truncated": 1, "no_turn": 1})


def test_rows_are_judged_after_the_turn_and_within_the_length():
    made = turns_of("a", "b", success=True)
    row = judged(made, [1, 3], [0.2, 0.8], 99)
    assert row is not None
    assert (row.ids, row.mask, row.advantages) == ([0, 1, 2, 3], [False, True, False, True], [0, 0.2, 0, 0.8])
    at_the_end = judged(made, [4], [0.0], 99)
    assert at_the_end is not None
    assert (at_the_end.ids, at_the_end.mask) == ([0, 1, 2, 3, 0], [False] * 4 + [True])
    assert judged(made, [4], [0.0], 4) is None
    assert side_rows([Pair("p", "p", "t", "t", 1.0)], {"t": made}, 4) == ([], {"too_long": 1})


def test_a_model_that_guesses_is_not_handed_on(tmp_path, rolled):
    with pytest.raises(
        TrainingError, match=r"on 20 held-out pairs the reward model is right 50% .* least_accuracy, 55%"
    ):
        require_order(Order(10.0, 20), 0.55, "rm", "pairs")
    with pytest.raises(TrainingError, match="no held-out problem has pairs"):
        require_order(Order(0.0, 0), 0.55, "rm", "pairs")
    require_order(Order(0.0, 0), 0.0, "rm", "pairs")
    require_order(Order(11.0, 20), 0.55, "rm", "pairs")
    policy, _ = rolled
    learner = ValueLearner(ValueModel(copy.deepcopy(policy.model)), Optimizer(learning_rate=1e-3), 1)
    folder = written(policy, learner, tmp_path / "reward", "pairs", Order(9.0, 20))
    with pytest.raises(VerifierError, match="right 45% of the time on 20 held-out comparisons"):
        verifier_for("taste", SPEC, folder)


def test_a_damaged_model_and_a_missing_one_are_refused(tmp_path, rolled):
    policy, found = rolled
    learner = ValueLearner(ValueModel(copy.deepcopy(policy.model)), Optimizer(learning_rate=1e-3), 1)
    folder = written(policy, learner, tmp_path / "reward", "pairs", Order(20.0, 20))
    verifier = build("taste", SPEC, folder)
    for odd in (
        replace(found[0], ids=[]),
        replace(found[0], ids=[1] * 999),
        replace(found[0], sampling={"segments": [0, 2]}),
        replace(found[0], status="infrastructure"),
    ):
        assert verifier.verify(odd, problem(0)).score is None
    with pytest.raises(VerifierError, match="no model of stage rm here"):
        build("taste", SPEC)
    about = json.loads((folder / "reward.json").read_text())
    (folder / "reward.json").write_text(json.dumps(about | {"head": "0" * 64}))
    with pytest.raises(StateError, match="body or head are not those"):
        load_reward_model(folder)


def test_turns_become_one_score():
    scores = [0.5, 0.2, 0.8]
    found = [one_score(scores, how) for how in ("min", "mean", "product", "last")]
    assert found == pytest.approx([0.2, 0.5, 0.08, 0.8])
    with pytest.raises(VerifierError):
        one_score(scores, "median")


def test_equal_seeds_hold_out_equal_problems_and_one_at_least():
    names = [f"p{i}" for i in range(20)]
    assert held_out(names, 0.25, 1) == held_out(reversed(names), 0.25, 1) != held_out(names, 0.25, 2)
    assert len(held_out(names, 0.25, 1)) == 5
    assert len(held_out(names[:2], 0.01, 1)) == 1
