import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.errors import StateError, TrainingError
from specs.grpo import GRPO
from specs.optimizer import Optimizer
from specs.supervised import SFT
from tasks.learning.algorithms import loss_for
from tasks.learning.batching import Mean, row_weights
from tasks.learning.head import selected_logprobs
from tasks.learning.microbatches import micro_batches
from tasks.learning.optimizers import learning_rate_at
from tasks.learning.rows import TrainingRow
from tasks.loops.updates import mean_of
from tasks.tensors import LossOutput, token_weights
from tests.tasks.learning.algorithms.gradients import ALL
from tests.tasks.learning.tiny import learner, random_rows, tiny_model

NLL = loss_for(SFT(type="sft"))
FLAT_STEP = Optimizer(learning_rate=1e-9, grad_norm=1e9)


def flat_gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gradient(rows, loss, aggregation: Mean = "token", micro_batch_tokens=8192):
    """Return loss and flat gradient of a step, caught before the update."""
    model = tiny_model()
    caught = {}

    def look(report):
        caught["loss"] = report.loss
        caught["gradient"] = flat_gradient(model)

    made = learner(model, optimizer=FLAT_STEP, micro_batch_tokens=micro_batch_tokens)
    made.step(rows, loss, aggregation, guard=look)
    return caught["loss"], caught["gradient"]


def plain_gradient(rows, aggregation):
    """The same without selection, padding, micro-batches or custom gradients: one row at a time."""
    model = tiny_model()
    counts = [sum(r.mask) for r in rows]
    total = torch.zeros(())
    for row, n in zip(rows, counts, strict=True):
        logits = model.head(model.hidden(torch.tensor([row.ids])))[0].log_softmax(-1)
        for t in range(1, len(row.ids)):
            if row.mask[t]:
                weight = 1 / sum(counts) if aggregation == "token" else 1 / n / len(rows)
                total = total - weight * logits[t - 1, row.ids[t]]
    total.backward()
    return float(total.detach()), flat_gradient(model)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_gradient_equals_the_plain_one(aggregation):
    rows = random_rows(7)
    loss, found = gradient(rows, NLL, aggregation)
    expected_loss, expected = plain_gradient(rows, aggregation)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 9),
    micro_batch_tokens=st.integers(1, 200),
    aggregation=st.sampled_from(["token", "sequence"]),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_split_into_micro_batches_gives_the_same_gradient(seed, count, micro_batch_tokens, aggregation):
    rows = random_rows(count, seed)
    whole_loss, whole = gradient(rows, NLL, aggregation)
    loss, split = gradient(rows, NLL, aggregation, micro_batch_tokens)
    assert loss == pytest.approx(whole_loss, abs=1e-5)
    torch.testing.assert_close(split, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("spec", ALL, ids=lambda s: s.type)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 6), micro_batch_tokens=st.integers(1, 90))
@settings(max_examples=4, deadline=None, derandomize=True)
def test_policy_gradients_add_up_over_any_split(spec, seed, count, micro_batch_tokens):
    rng = random.Random(seed)
    rows = random_rows(count, seed)
    near = learner(tiny_model()).logprobs(rows)
    for row, values in zip(rows, near, strict=True):
        row.sampler_logprobs = [v + rng.uniform(-0.4, 0.4) if m else 0.0 for v, m in zip(values, row.mask, strict=True)]
        row.reference_logprobs = [
            v + rng.uniform(-0.4, 0.4) if m else 0.0 for v, m in zip(values, row.mask, strict=True)
        ]
        row.corrections = [rng.uniform(0, 2) for _ in row.ids]
        row.advantages = [rng.uniform(-1, 1)] * len(row.ids)
    loss = loss_for(spec.model_copy(update={"kl_coef": 0.1}))
    mean = mean_of(spec, 16)
    whole_loss, whole = gradient(rows, loss, mean)
    split_loss, split = gradient(rows, loss, mean, micro_batch_tokens)
    assert split_loss == pytest.approx(whole_loss, abs=1e-5)
    torch.testing.assert_close(split, whole, atol=1e-5, rtol=1e-4)


def test_metrics_are_means_over_tokens_whatever_the_aggregation():
    rows = random_rows(5, 3)
    for row in rows:
        row.sampler_logprobs, row.advantage = [-9.0] * len(row.ids), 1.0
    loss = loss_for(GRPO(type="grpo"))
    shares = [learner(tiny_model()).step(rows, loss, mean).metrics["clip_fraction"] for mean in ("sequence_sum", 7)]
    assert shares == pytest.approx([1.0, 1.0])


def test_known_token_losses_are_averaged_over_the_step_and_not_by_micro_batch():
    rows = [TrainingRow(id=str(i), source="s", ids=[1, 2], mask=[False, True]) for i in range(10)]
    losses = torch.tensor([1.0] * 8 + [3.0] * 2)
    taken = 0

    def fixed(batch):
        nonlocal taken
        part = losses[taken : taken + len(batch.weights_BT)]
        taken += len(part)
        return LossOutput((batch.weights_BT[:, 1] * part).sum() + 0 * batch.logprobs_BT.sum(), {})

    assert len(micro_batches(rows, 16, share=False)) == 2
    assert gradient(rows, fixed, micro_batch_tokens=16)[0] == pytest.approx(1.4)


def test_weights_of_rows_shift_the_mean():
    rows = random_rows(4)
    rows[0].weight = 3.0
    weights = row_weights(rows, "token")
    assert float(weights.sum()) == pytest.approx(1)
    counts = [r.trained for r in rows]
    assert float(weights[0].sum()) == pytest.approx(3 * counts[0] / (3 * counts[0] + sum(counts[1:])))


def test_the_end_token_trains_even_where_it_equals_padding():
    row = TrainingRow(id="a", source="s", ids=[5, 6, 7, 0], mask=[False, True, True, True])
    longer = TrainingRow(id="b", source="s", ids=[5] + [9] * 9, mask=[False] + [True] * 9)
    micro = micro_batches([row, longer], 999, share=False)[0]
    assert micro.targets_N.tolist()[:3] == [6, 7, 0]
    assert len(micro.targets_N) == 12


def group_rows(prompt, completions, group="g"):
    return [
        TrainingRow(
            id=f"{group}{i}",
            source="s",
            ids=[*prompt, *c],
            mask=[False] * len(prompt) + [t % 3 != 1 for t in range(len(c))],
            group=group,
            sampler_logprobs=[-1.0] * (len(prompt) + len(c)),
            advantage=0.5 - i,
        )
        for i, c in enumerate(completions)
    ]


@pytest.mark.parametrize("micro_batch_tokens", [40, 8192])
def test_a_shared_prompt_gives_the_same_gradient(micro_batch_tokens):
    rng = random.Random(3)
    draw = lambda n: [rng.randrange(32) for _ in range(n)]  # noqa: E731
    rows = group_rows(draw(25), [draw(rng.randint(2, 6)) for _ in range(5)])
    rows += group_rows(draw(20), [draw(4) for _ in range(4)], "h")
    rows += group_rows(draw(3), [draw(9)], "alone")
    assert any(m.attention_RLL is not None for m in micro_batches(rows, micro_batch_tokens, share=True))
    assert sum(m.tokens for m in micro_batches(rows, 8192, share=True)) < 0.5 * sum(r.length for r in rows)
    loss = loss_for(GRPO(type="grpo", clip_low=0.99, clip_high=1e6))
    shared = gradient(rows, loss, micro_batch_tokens=micro_batch_tokens)
    for row in rows:
        row.group = ""
    apart = gradient(rows, loss)
    assert shared[0] == pytest.approx(apart[0], abs=1e-5)
    torch.testing.assert_close(shared[1], apart[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("vocabulary", [9, 5000])
def test_entropies_have_a_gradient_where_asked(vocabulary):
    torch.manual_seed(1)
    hidden = torch.randn(300, 8, requires_grad=True)
    weight = torch.randn(vocabulary, 8, requires_grad=True)
    targets, outer = torch.randint(vocabulary, (300,)), torch.randn(2, 300)
    logprobs, entropy = selected_logprobs(hidden, weight, targets, entropy_gradient=True)
    found = torch.autograd.grad((logprobs * outer[0]).sum() + (entropy * outer[1]).sum(), (hidden, weight))
    alone = torch.autograd.grad(selected_logprobs(hidden, weight, targets, entropy_gradient=True)[1].sum(), hidden)[0]
    whole = (hidden @ weight.t()).log_softmax(-1)
    by_hand = -(whole.exp() * whole).sum(-1)
    expected = (whole.gather(1, targets[:, None])[:, 0] * outer[0]).sum() + (by_hand * outer[1]).sum()
    for got, wanted in zip(found, torch.autograd.grad(expected, (hidden, weight), retain_graph=True), strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(alone, torch.autograd.grad(by_hand.sum(), hidden)[0], atol=1e-4, rtol=1e-3)
    assert not selected_logprobs(hidden, weight, targets)[1].requires_grad


@pytest.mark.parametrize("count", [1, 300])
def test_chunked_head_equals_the_whole_one(count):
    torch.manual_seed(0)
    hidden = torch.randn(count, 8, requires_grad=True)
    weight = torch.randn(5000, 8, requires_grad=True)
    targets = torch.randint(5000, (count,))
    outer = torch.randn(count)
    logprobs, entropy = selected_logprobs(hidden, weight, targets)
    (logprobs * outer).sum().backward()
    found = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    whole = (hidden @ weight.t()).log_softmax(-1)
    (whole.gather(1, targets[:, None])[:, 0] * outer).sum().backward()
    torch.testing.assert_close(logprobs, whole.gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(entropy, -(whole.exp() * whole).sum(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[0], hidden.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[1], weight.grad, atol=1e-5, rtol=1e-4)


def test_logprobs_are_those_at_the_rows_temperature():
    model = tiny_model()
    row = TrainingRow(id="a", source="s", ids=[3, 4, 5], mask=[False, False, True], temperature=0.5)
    expected = (model.head(model.hidden(torch.tensor([[3, 4]])))[0, 1] / 0.5).log_softmax(-1)[5]
    assert learner(model).logprobs([row])[0] == pytest.approx([0, 0, expected.item()], abs=1e-5)


def drill(kind, precision, steps=60):
    model = tiny_model()
    rows = [
        TrainingRow(id=str(i), source="s", ids=[i, 3 + i, 20, 31], mask=[False, True, True, True]) for i in range(8)
    ]
    made = learner(model, steps, optimizer=Optimizer(kind=kind, learning_rate=2e-2), precision=precision)
    return [made.step(rows, NLL).loss for _ in range(steps)]


@pytest.mark.parametrize(("kind", "precision"), [("adamw", "fp32"), ("muon", "fp32"), ("muon", "bf16")])
def test_it_learns(kind, precision):
    losses = drill(kind, precision)
    assert losses[0] > 2.5
    assert losses[-1] < 0.3


def test_nothing_to_train_on_is_no_update():
    model = tiny_model()
    before = [p.clone() for p in model.parameters()]
    made = learner(model)
    made.step(random_rows(3), NLL)
    moved = [p.clone() for p in model.parameters()]
    assert not torch.equal(before[0], moved[0])
    still = GRPO(type="grpo")
    flat = random_rows(3, sampler_logprobs=[0.0] * 24, advantage=0.0)
    for rows, loss in (([], NLL), (flat, loss_for(still))):
        report = made.step(rows, loss)
        assert not report.updated
        assert all(torch.equal(a, b) for a, b in zip(moved, model.parameters(), strict=True))
    assert (made.step_index, made.updates) == (3, 1)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_stops_before_the_weights_move(where):
    model = tiny_model()
    made = learner(model)
    before = [p.clone() for p in model.parameters()]

    def broken(batch):
        if where == "loss":
            return LossOutput(batch.logprobs_BT.sum() * math.nan, {})
        zero = batch.logprobs_BT - batch.logprobs_BT.detach()
        return LossOutput((zero * 0).sqrt().sum(), {})

    with pytest.raises(TrainingError, match=f"the {where}"):
        made.step(random_rows(2), broken)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_is_complete(kind):
    def made(seed):
        spec = Optimizer(kind=kind, learning_rate=1e-2, schedule="linear", warmup_steps=2)
        return learner(tiny_model(seed), 6, optimizer=spec)

    batches = [random_rows(3, s) for s in range(6)]
    whole = made(0)
    for batch in batches:
        whole.step(batch, NLL)
    first = made(0)
    for batch in batches[:3]:
        first.step(batch, NLL)
    tensors, data = first.state()
    tensors = {n: t.clone() for n, t in tensors.items()}
    second = made(1)
    second.load_state(tensors, data)
    for batch in batches[3:]:
        second.step(batch, NLL)
    pairs = zip(whole.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_state_of_another_stage_is_refused():
    tensors, data = learner(tiny_model(), 5).state()
    with pytest.raises(StateError, match="made for another stage"):
        learner(tiny_model(), 6).load_state(tensors, data)
    with pytest.raises(StateError, match="embed"):
        learner(tiny_model(vocab=40), 5).load_state(tensors, data)


def test_schedules():
    def at(step, **more):
        return learning_rate_at(Optimizer(learning_rate=1.0, **more), step, 10)

    assert [at(s) for s in (0, 5, 9)] == [1, 1, 1]
    assert [at(s, warmup_steps=4) for s in (0, 1, 3, 4)] == [0.25, 0.5, 1, 1]
    assert at(5, schedule="linear", final_fraction=0.2) == pytest.approx(0.6)
    assert at(5, schedule="cosine", final_fraction=0.2) == pytest.approx(0.6)
    assert at(10, schedule="cosine", final_fraction=0.2) == pytest.approx(0.2)


def test_drift_figures_are_those_of_the_formulas():
    model = tiny_model()
    made = learner(model)
    rows = random_rows(3, 5)
    for row, values in zip(rows, made.logprobs(rows), strict=True):
        row.sampler_logprobs = [v - 0.1 if m else 0.0 for v, m in zip(values, row.mask, strict=True)]
        row.advantage = 1.0
    metrics = made.step(rows, loss_for(GRPO(type="grpo"))).metrics
    assert metrics["logprob_gap"] == pytest.approx(0.1, abs=1e-5)
    assert metrics["sampler_kl_k3"] == pytest.approx(math.exp(0.1) - 1 - 0.1, abs=1e-5)
    assert metrics["ess"] == pytest.approx(1.0, abs=1e-5)
    assert 0 < metrics["entropy"] < math.log(32)


def test_weights_of_a_step_are_those_of_token_weights():
    rows = random_rows(3)
    mask = torch.zeros(3, max(len(r.ids) for r in rows), dtype=torch.bool)
    for i, r in enumerate(rows):
        mask[i, : len(r.mask)] = torch.tensor(r.mask)
    torch.testing.assert_close(row_weights(rows, "sequence"), token_weights(mask, "sequence"))
