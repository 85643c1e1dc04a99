import logging
from dataclasses import replace

import pytest
import torch

from specs.errors import Interrupted, TrainingError
from specs.optimizer import Optimizer
from specs.supervised import SFT, RewardWeighted, SupervisedBatch
from tasks.learning.algorithms import loss_for
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.learner import Learner
from tasks.loops.batches import batch_plan
from tasks.loops.fit import Hooks, fit_supervised
from tasks.tensors import LossOutput
from tests.tasks.learning.tiny import random_rows, tiny_model

ROWS = random_rows(20)
PLAN = batch_plan([r.length for r in ROWS], SupervisedBatch(rows=4), 2, 0)
LOSS = loss_for(SFT(type="sft"))
MUON = Optimizer(kind="muon", learning_rate=1e-2, schedule="linear", warmup_steps=3)


def fit(folder=None, stop_after=None, seed=0, seconds=0.0):
    learner = Learner(tiny_model(seed), MUON, len(PLAN))
    lines = []
    hooks = Hooks(metrics=lambda step, **values: lines.append((step, values["loss"])), checkpoint_seconds=seconds)
    hooks.stop = lambda: stop_after is not None and len(lines) >= stop_after
    hooks.checkpointer = Checkpointer(folder) if folder else None
    hooks.resume_metrics = lambda step: lines.clear()
    return learner, lines, lambda: fit_supervised(learner, ROWS, PLAN, LOSS, hooks=hooks)


def weights(learner):
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def test_a_stopped_fit_ends_with_the_same_bits(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    whole, lines, run = fit()
    report = run()
    assert (report.steps, report.updates) == (len(PLAN), len(PLAN))
    first, _, run = fit(tmp_path, stop_after=3, seconds=999)
    with pytest.raises(Interrupted, match=f"after step 3 of {len(PLAN)}"):
        run()
    assert not torch.equal(weights(first), weights(whole))
    second, resumed, run = fit(tmp_path, seed=5)
    again = run()
    assert torch.equal(weights(second), weights(whole))
    assert resumed == lines[3:]
    assert (again.tokens, again.first_loss, again.last_loss) == (report.tokens, report.first_loss, report.last_loss)
    assert "went on from step 3" in caplog.messages
    assert again.notes == report.notes


def test_a_damaged_checkpoint_costs_one_interval_and_nothing_else(tmp_path):
    whole, _, run = fit()
    run()
    _, _, run = fit(tmp_path, stop_after=5)
    with pytest.raises(Interrupted):
        run()
    newest = max(tmp_path.glob("step-*/tensors.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-7])
    second, _, run = fit(tmp_path, seed=5)
    report = run()
    assert "is damaged" in report.notes[0]
    assert torch.equal(weights(second), weights(whole))


def test_an_empty_plan_is_refused():
    learner, _, _ = fit()
    with pytest.raises(TrainingError, match="no training step"):
        fit_supervised(learner, [], [], LOSS)


def test_steps_whose_rows_weigh_nothing_are_named_and_have_no_loss(tmp_path):
    rows = [replace(row, weight=2.0 if i % 2 else 0.0) for i, row in enumerate(random_rows(10))]
    plan, loss = [[i] for i in range(10)], loss_for(RewardWeighted(type="reward_weighted"))
    lines = {}
    hooks = Hooks(metrics=lambda step, **values: lines.update({step: values}), checkpoint_seconds=0.0)
    hooks.checkpointer, hooks.stop = Checkpointer(tmp_path), lambda: len(lines) == 5
    with pytest.raises(Interrupted):
        fit_supervised(Learner(tiny_model(), MUON, 10), rows, plan, loss, "absolute_token", hooks=hooks)
    hooks.stop = lambda: False
    report = fit_supervised(Learner(tiny_model(), MUON, 10), rows, plan, loss, "absolute_token", hooks=hooks)
    assert report.notes == ["5 of 10 steps made no update: 5 had rows that weigh nothing"]
    assert (report.steps, report.updates) == (10, 5)
    assert [step for step, values in lines.items() if "loss" in values] == [2, 4, 6, 8, 10]
    assert report.first_loss == lines[2]["loss"] > 1.0
    assert report.last_loss == lines[10]["loss"] > 1.0


def flat(batch):
    """A loss that has a value and no gradient."""
    return LossOutput((batch.weights_BT * (batch.logprobs_BT * 0 + 1)).sum(), {})


def test_steps_without_a_gradient_are_named_and_keep_their_loss():
    rows, taken = random_rows(4), iter([LOSS, flat, LOSS, flat, flat])  # and once after the last update
    report = fit_supervised(
        Learner(tiny_model(), MUON, 4), rows, [[0], [1], [2], [3]], lambda batch: next(taken)(batch)
    )
    assert report.notes == ["2 of 4 steps made no update: 2 had a gradient of zero"]
    assert report.last_loss == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("loss", "weight", "why"),
    [(LOSS, 0.0, "2 had rows that weigh nothing"), (flat, 1.0, "2 had a gradient of zero")],
)
def test_a_stage_without_an_update_is_refused(loss, weight, why):
    rows = [replace(row, weight=weight) for row in random_rows(2)]
    with pytest.raises(TrainingError, match=f"none of 2 steps made an update: {why}. Ways out"):
        fit_supervised(Learner(tiny_model(), MUON, 2), rows, [[0], [1]], loss)
