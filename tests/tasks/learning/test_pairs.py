"""Losses on pairs through the real learner: any split gives the same step, and a pair stays in one forward pass."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.optimizer import Optimizer
from specs.preference import DPO, IPO, KTO, ORPO, SimPO
from tasks.learning.algorithms import loss_for
from tasks.learning.batching import row_weights
from tasks.learning.microbatches import micro_batches
from tasks.learning.rows import TrainingRow
from tests.tasks.learning.tiny import learner, tiny_model

SPECS = [
    DPO(type="dpo", nll_coef=0.3), DPO(type="dpo", lengths="mean", label_smoothing=0.1), IPO(type="ipo"),
    ORPO(type="orpo"), SimPO(type="simpo"), KTO(type="kto"),
]  # fmt: skip


def pair_rows(count, seed=0, longest=12, prompt=6):
    rng = random.Random(seed)
    rows = []
    for k in range(count):
        start = [rng.randrange(32) for _ in range(rng.randint(1, prompt))]
        for preferred in (True, False):
            completion = [rng.randrange(32) for _ in range(rng.randint(1, longest))]
            ids, mask = start + completion, [False] * len(start) + [True] * len(completion)
            row = TrainingRow(id=f"{k}{preferred}", source="s", ids=ids, mask=mask, group=str(k), pair=str(k))
            row.preferred, row.weight, row.baseline = preferred, 1.0 + k % 3, 0.1
            row.reference_logprobs = [rng.uniform(-4, -1) if m else 0.0 for m in mask]
            rows.append(row)
    return rows


def gradient(rows, spec, tokens):
    made = learner(tiny_model(), optimizer=Optimizer(learning_rate=1.0, grad_norm=1e9), micro_batch_tokens=tokens)
    seen = {}

    def keep(report):
        seen["gradient"] = torch.cat([p.grad.flatten() for p in made.model.parameters() if p.grad is not None])
        seen["metrics"] = report.metrics

    report = made.step(rows, loss_for(spec), "sequence", guard=keep)
    return report.loss, seen


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.type)
@given(seed=st.integers(0, 1000), count=st.integers(1, 6), tokens=st.integers(1, 120))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_any_split_into_micro_batches_gives_the_same_gradient(spec, seed, count, tokens):
    rows = pair_rows(count, seed)
    whole_loss, whole = gradient(rows, spec, 100_000)
    loss, split = gradient(rows, spec, tokens)
    assert loss == pytest.approx(whole_loss, abs=1e-5, rel=1e-5)
    torch.testing.assert_close(split["gradient"], whole["gradient"], atol=1e-5, rtol=1e-4)
    assert split["metrics"]["accuracy"] == pytest.approx(whole["metrics"]["accuracy"], abs=1e-6)


@given(seed=st.integers(0, 1000), count=st.integers(1, 8), tokens=st.integers(1, 200), prompt=st.integers(1, 40))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_pair_stays_in_one_forward_pass_and_no_row_is_lost(seed, count, tokens, prompt):
    rows = pair_rows(count, seed, prompt=prompt)
    passes = micro_batches(rows, tokens, share=True)
    for micro in passes:
        assert sorted(i // 2 for i in micro.rows) == sorted(2 * list({i // 2 for i in micro.rows}))
        assert len(micro.ids_RL) * micro.ids_RL.shape[1] <= tokens or len({i // 2 for i in micro.rows}) == 1
    assert sorted(i for micro in passes for i in micro.rows) == list(range(2 * count))


def test_absolute_weights_stand_in_no_denominator():
    rows = pair_rows(2)
    for row, weight in zip(rows, (1.0, 2.0, 0.0, 0.5), strict=True):
        row.weight = weight
    counts = [row.trained for row in rows]
    tokens = sum(counts)
    by_token, by_row = row_weights(rows, "absolute_token").sum(-1), row_weights(rows, "sequence_sum").sum(-1)
    assert by_token.tolist() == pytest.approx([w * n / tokens for w, n in zip((1, 2, 0, 0.5), counts, strict=True)])
    assert by_row.tolist() == pytest.approx([w * n / 4 for w, n in zip((1, 2, 0, 0.5), counts, strict=True)])
    assert row_weights(rows, "absolute_sequence").sum(-1).tolist() == pytest.approx([0.25, 0.5, 0.0, 0.125])
    assert row_weights(rows, 10).sum(-1).tolist() == pytest.approx(
        [w * n / 40 for w, n in zip((1, 2, 0, 0.5), counts, strict=True)]
    )


def test_pairs_of_a_data_set_weigh_the_same_in_steps_of_one_pair_and_of_all():
    rows = pair_rows(4)
    for k, row in enumerate(rows):
        row.weight = (0.5, 0.5, 0.5, 2.5)[k // 2]  # three pairs of one problem and one of another: a mean of 1
    whole = row_weights(rows, "absolute_sequence").sum(-1)
    alone = torch.cat([row_weights(rows[k : k + 2], "absolute_sequence").sum(-1) for k in range(0, 8, 2)])
    torch.testing.assert_close(alone / 4, whole)
    assert float(whole.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("mean", ["sequence", "absolute_sequence"])
def test_the_contexts_of_a_trajectory_count_once_together(mean):
    rows = pair_rows(2)
    for row, contexts in zip(rows, (3, 3, 3, 1), strict=True):
        row.weight, row.contexts = 1.0, contexts
    assert row_weights(rows, mean).sum(-1).tolist() == pytest.approx([1 / 6] * 3 + [1 / 2])
    trained = [row.trained for row in rows]
    assert row_weights(rows, "sequence_sum").sum(-1).tolist() == pytest.approx([n / 2 for n in trained])
    assert row_weights(rows, 10).sum(-1).tolist() == pytest.approx([n / 20 for n in trained])


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.type)
def test_it_learns_to_prefer(spec):
    rows = pair_rows(4)
    made = learner(tiny_model(), steps=30, optimizer=Optimizer(learning_rate=3e-3))
    if spec.type != "orpo" and spec.type != "simpo":
        for row, values in zip(rows, made.logprobs(rows), strict=True):
            row.reference_logprobs, row.baseline = values, 0.0
    reports = [made.step(rows, loss_for(spec), "sequence") for _ in range(30)]
    assert reports[-1].loss < reports[0].loss
    assert reports[-1].metrics["accuracy"] == pytest.approx(1.0)
