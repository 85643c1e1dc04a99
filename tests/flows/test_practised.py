"""Policy gradients on a teacher's scores and critiques: advantages, and the calls that it names as right."""

from statistics import fmean

import pytest
import torch

from flows.work import inputs, lessons, training
from flows.work.lines import read_rows, write_rows
from specs.ladder import Critique, Fit, Practice, Scoring
from specs.records import TeacherSignal
from tasks.episodes.shards import read_shards
from tasks.loops import feedback
from tasks.loops.state_calls import states_of
from tests.flows.test_lessons import FAST, drawn, run, taught
from tests.flows.test_stages import JUDGED, ROLL, base, node, weights

__all__ = ["base", "drawn"]


def test_scores_and_critiques_become_advantages(base, drawn, tmp_path):
    _, at = base
    scores = taught(tmp_path / "scores", at, drawn, "score", dimensions=["result", "care"])
    made, outcome = run(
        lessons.practised, tmp_path, at, "score", "score", Scoring(practice=Practice(kl_coef=0.01)),
        rollouts=drawn, teach=scores,
    )  # fmt: skip
    assert outcome.metrics["score_of_successes"] > outcome.metrics["score_of_failures"]
    assert not torch.equal(weights(made.out), weights(at["taught"]))
    critiques = taught(tmp_path / "critiques", at, drawn, "critique")
    made, outcome = run(
        lessons.practised, tmp_path, at, "critique", "critique", Critique(), rollouts=drawn, teach=critiques
    )
    assert outcome.metrics["critiques"] > 50
    assert not torch.equal(weights(made.out), weights(at["taught"]))


def likelihood(folder, at, drawn, said, policy):
    """Return the mean logprob, by a policy, of the calls that critiques name as right at the first errors of failures."""
    seen = node(
        folder, f"seen{len(list(folder.iterdir()))}", {"policy": policy, "data.train": at["data.train"]}, JUDGED | ROLL
    )
    known = {t.id: t for t in read_shards(drawn / "trajectories")}
    loaded = inputs.start_policy(seen)
    states = states_of(known, lessons._problems(seen), inputs.arena(seen, loaded)[0])
    made = feedback.Feedback()
    answers = [TeacherSignal(**line) for line in read_rows(said / "signals.jsonl")]
    feedback.add_right_calls(made, answers, states, 1.0, loaded.config.max_length)
    found = training.learner_for(seen, loaded, FAST, 1).logprobs(made.rows)
    return fmean(
        v for row, values in zip(made.rows, found, strict=True) for v, m in zip(values, row.mask, strict=True) if m
    )


def test_the_call_that_is_right_at_the_first_error_becomes_likelier(base, drawn, tmp_path):
    _, at = base
    said = taught(tmp_path / "teach", at, drawn, "critique")
    after = {}
    fit = Fit(at_least=2, epochs=6, per_step=8, optimizer=FAST)
    for coef in (0.0, 1.0):
        rule = Critique(correction_coef=coef)
        made, outcome = run(
            lessons.practised, tmp_path, at, f"fit{coef}", "critique", rule, rollouts=drawn, teach=said, fit=fit
        )
        after[coef] = likelihood(tmp_path, at, drawn, said, made.out)
        assert (outcome.metrics.get("right_calls", 0) >= 20) is (coef > 0)
    before = likelihood(tmp_path, at, drawn, said, at["taught"])
    assert after[1.0] > max(before + 0.03, after[0.0] + 0.1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda own, turn: None, "no_correction"),
        (lambda own, turn: {"name": turn.call.name, "arguments": turn.call.arguments}, "correction_is_the_call"),
        (lambda own, turn: {"name": "fly", "arguments": {}}, "call_refused"),
    ],
    ids=["none", "the same", "unknown"],
)
def test_a_correction_of_a_turn_that_says_nothing_is_counted_and_never_trains(base, drawn, tmp_path, change, reason):
    """In the first turn of every attempt, whatever the clerk says of it; in a success, nothing is right but what was done."""
    _, at = base
    said = taught(tmp_path / "teach", at, drawn, "critique")
    known = {t.id: t for t in read_shards(drawn / "trajectories")}
    lines = [line for line in read_rows(said / "signals.jsonl") if line["content"]]
    lines = [line for line in lines if (call := known[line["trajectories"][0]].turns[0].call) and not call.error]
    for line in lines:
        own = known[line["trajectories"][0]]
        wrong = {"turn": 0, "label": "first_error", "correction": change(own, own.turns[0])}
        line["content"] = {"turns": [wrong, *({**t, "label": "bad"} for t in line["content"]["turns"][1:])]}
    write_rows(said / "signals.jsonl", [TeacherSignal(**line) for line in lines])
    made, outcome = run(
        lessons.practised, tmp_path, at, "fit", "critique", Critique(correction_coef=1.0), rollouts=drawn, teach=said
    )
    plain, _ = run(lessons.practised, tmp_path, at, "plain", "critique", Critique(), rollouts=drawn, teach=said)
    won = sum(bool(known[line["trajectories"][0]].success) for line in lines)
    counts = (
        {reason: len(lines)} if reason == "no_correction" else {reason: len(lines) - won, "error_in_a_success": won}
    )
    assert won > 0
    assert outcome.metrics["right_calls"] == 0
    assert all(f"{n} left out: {why}" in outcome.notes for why, n in counts.items())
    assert torch.equal(weights(made.out), weights(plain.out))
