"""What a batch of rollouts becomes before its first pass: what ratios are to, who is rejected, over whom the policy's mean is."""

from dataclasses import replace

import pytest
import torch

from specs.algorithms import policy_gradient_from
from specs.distillation import SampledTokens, TeacherTerm
from specs.errors import TrainingError
from specs.optimizer import Optimizer
from tasks.learning.batching import row_weights
from tasks.learning.correction import correct
from tasks.learning.learner import Learner
from tasks.loops.teacher_terms import Term
from tasks.loops.token_lessons import Panel
from tasks.loops.updates import StepRows, update
from tasks.protocols import TokenScores
from tests.tasks.learning.tiny import random_rows, tiny_model
from tests.tasks.loops.test_on_policy import stage, taught
from tests.tasks.loops.test_policy_gradients import spec_of
from tests.tasks.loops.test_self_teaching import said

__all__ = ["taught"]


# -- what ratios are to


def test_the_ratio_of_gspo_begins_at_one_where_the_sampler_has_another_precision(taught):
    narrow = spec_of("gspo", steps=2, updates_per_batch=1, clip_low=1e-6, clip_high=1e-6)
    _, run = stage(taught, narrow, precision="bf16")
    report = run()
    assert min(line["logprob_gap"] for line in report.curve) > 1e-4, "the sampler's noise is far beyond the clip"
    assert [line["clip_fraction"] for line in report.curve] == [0.0, 0.0]
    assert report.skipped_steps == 0


def step(spec, rows, model=None, *, reference=None, term=None, tokens=8192, **batch):
    """Update once and return the policy's gradient and what came of it."""
    model = model or tiny_model()
    learner = Learner(model, Optimizer(learning_rate=1e-3, grad_norm=1e9), 9, micro_batch_tokens=tokens)
    for row, values in zip(rows, learner.logprobs(rows), strict=True):
        row.sampler_logprobs = row.sampler_logprobs or values
    found = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: found.append((p, p.grad.clone())))
    done = update(learner, StepRows(rows, term=term, **batch), spec, reference, max_length=64, step=0)
    last = {id(p): g for p, g in found}
    gradients = [last[id(p)].flatten() for p in model.parameters() if id(p) in last]
    return torch.cat([*gradients, torch.zeros(0)]), done


def gspo(**more):
    return policy_gradient_from({"type": "gspo", **more})


def test_stale_rows_keep_the_samplers_ratio_and_an_exact_sampler_its_own():
    def rows():
        made = random_rows(4, advantage=1.0)
        for i, row in enumerate(made):
            row.trajectory, row.stale = str(i), i == 3
            row.sampler_logprobs = [-1.0] * len(row.ids)
        return made

    found = rows()
    learner = Learner(tiny_model(), Optimizer(learning_rate=1e-3), 9)
    expected = learner.logprobs(found)
    update(learner, StepRows(found), gspo(max_logprob_gap=99.0), None, max_length=64, step=0)
    assert [r.old_logprobs for r in found] == [*expected[:3], found[3].sampler_logprobs]
    exact = rows()
    update(learner, StepRows(exact, exact=True), gspo(max_logprob_gap=99.0), None, max_length=64, step=0)
    assert [r.old_logprobs for r in exact] == [None] * 4


# -- what is checked before anything is rejected


def test_a_sampler_with_other_weights_stops_the_stage_before_it_is_rejected():
    def rows(drift):
        made = random_rows(4, advantage=1.0)
        exact = Learner(tiny_model(), Optimizer(learning_rate=1), 1).logprobs(made)
        for i, (row, values) in enumerate(zip(made, exact, strict=True)):
            row.trajectory, row.sampler_logprobs = str(i), [v - drift for v in values]
        return made

    spec = policy_gradient_from({"type": "grpo", "correction": {"reject_mean": [0.99, 1.01]}})
    with pytest.raises(TrainingError, match=r"fresh batch differ by 0\.3000 nats a token, max_logprob_gap is 0\.1"):
        step(spec, rows(0.3))
    _, done = step(spec, rows(0.05))
    assert (done.updated, done.dropped) == (False, {"outside_reject_mean": 4})
    stale = [replace(row) for row in rows(0.3)]
    for row in stale:
        row.stale = True
    assert step(spec, stale)[1].dropped == {"outside_reject_mean": 4}, "what is not fresh may be far away"


# -- over whom the policy's mean is


def grouped(silent=True, by_turn=False):
    """Return rows of four groups of four, of which the first varies."""
    rows = random_rows(16)
    for i, row in enumerate(rows):
        row.trajectory, row.silent = str(2 if i == 3 else i), i >= 4
        row.contexts = 2 if i in (2, 3) else 1
        row.advantage = (0.87, -0.87, 0.6, 0.6)[i] if i < 4 else 0.0
        if by_turn:
            row.advantages = [row.advantage * (1 + t % 2) for t in range(len(row.ids))]
    return rows if silent else rows[:4]


MEANS = ["token", "sequence", "turn"]


@pytest.mark.parametrize("mean", [*MEANS, "constant", "sequence_sum"])
@pytest.mark.parametrize("by_turn", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {"kl_coef": 1e-9},
        {"kl_coef": 1e-9, "kl": "k1_in_reward"},
        {"entropy_coef": 1e-9},
        {"kl_coef": 1e-9, "correction": {"normalize": True}, "max_logprob_gap": 9.0},
    ],
)
def test_a_vanishing_further_term_changes_nothing(mean, by_turn, more):
    same = {k: v for k, v in more.items() if k in ("correction", "max_logprob_gap")}
    common = {"type": "grpo", "aggregation": mean} | ({"token_budget": 9} if mean == "constant" else {})
    alone, wide = policy_gradient_from(common | same), policy_gradient_from(common | more)

    def rows(silent):
        made = grouped(silent, by_turn)
        for i, row in enumerate(made if same else ()):
            row.sampler_logprobs = [-3.4 - 0.1 * (i % 3)] * len(row.ids)
        return made

    expected, _ = step(alone, rows(False), unmoved=12)
    found, _ = step(wide, rows(True), reference=tiny_model(1) if "kl_coef" in more else None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_vanishing_teacher_beside_the_reward_changes_nothing():
    class Teacher:
        name = "teacher"

        def score(self, spans):
            return [TokenScores([-1.0] * len(s.ids)) for s in spans]

    spec = policy_gradient_from({"type": "grpo", "aggregation": "sequence"})
    term = TeacherTerm(over=SampledTokens(kind="sampled"), coef=1e-9)
    rows = grouped()
    told = Term(
        term,
        Panel([Teacher()], lambda _: [1.0]),
        {r.trajectory: replace(said("a", 0, True), id=r.trajectory) for r in rows},
        0,
        9,
    )
    expected, _ = step(spec, grouped(False))
    found, _ = step(spec, rows, term=told)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mean", MEANS)
def test_the_other_terms_keep_the_mean_over_all_rows(mean):
    """The gradient is that of the policy over what varies plus that of KL over everything."""
    common = {"type": "grpo", "aggregation": mean, "kl_coef": 0.5, "kl": "k2"}
    both, _ = step(policy_gradient_from(common), grouped(), reference=tiny_model(1))
    policy, _ = step(policy_gradient_from({"type": "grpo", "aggregation": mean}), grouped(False))
    still = grouped()
    for row in still:
        row.advantage = 0.0
    kl, _ = step(policy_gradient_from(common), still, reference=tiny_model(1))
    torch.testing.assert_close(both, policy + kl, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mean", MEANS)
def test_it_is_the_same_however_the_step_is_split(mean):
    spec = policy_gradient_from({"type": "grpo", "aggregation": mean, "kl_coef": 0.1, "kl": "k1_in_reward"})
    whole, _ = step(spec, grouped(), reference=tiny_model(1))
    parts, _ = step(spec, grouped(), reference=tiny_model(1), tokens=8)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


def test_rows_are_left_as_they_are_for_the_buffer():
    rows = grouped()
    step(policy_gradient_from({"type": "grpo", "kl_coef": 0.1}), rows, reference=tiny_model(1))
    assert [row.advantage for row in rows[:4]] == [0.87, -0.87, 0.6, 0.6]
    assert float(row_weights(rows, "token").sum()) == pytest.approx(1.0)


def test_mean_weights_of_a_correction_are_over_what_varies():
    spec = policy_gradient_from({"type": "grpo", "correction": {"normalize": True}}).correction
    assert spec is not None

    def rows(silent):
        made = grouped(silent)
        for i, row in enumerate(made):
            row.sampler_logprobs = [-0.1 * i] * len(row.ids)
        return made

    found, alone = (correct(r, [[0.0] * len(row.ids) for row in r], spec) for r in (rows(True), rows(False)))
    assert [r.corrections for r in found.rows[:4]] == [pytest.approx(r.corrections) for r in alone.rows]
