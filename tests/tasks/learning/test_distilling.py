"""The chunked head against plain autograd, rows split any way, teachers that see part of a batch, and memory."""

import copy
import resource

import pytest
import torch

from specs.distillation import OPD, Distillation, FullVocabulary, SampledTokens, StateWeights, TeacherTerm, TopTokens
from specs.optimizer import Optimizer
from specs.records import Observation, ToolCall, Turn
from tasks.learning import distilling
from tasks.learning.algorithms import loss_for
from tasks.learning.distilling import Evidence, Hidden, Question, distill, measure_of
from tasks.learning.learner import Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.teacher_term import coefficient, length_factor
from tasks.learning.teaching import Distiller, ask, covered, first_wrong, span_of, teacher_columns, weigh
from tasks.protocols import TokenScores
from tests.tasks.learning.algorithms.test_opd import trajectory
from tests.tasks.learning.tiny import tiny_model as tiny_llama

OVERS = [
    FullVocabulary(),
    FullVocabulary(direction="forward", loss_temperature=2.0),
    FullVocabulary(direction="jsd", most=0.5),
    TopTokens(kind="top_k", size=3),
]


def problem(seed, tokens=9, vocabulary=37, teachers=2):
    torch.manual_seed(seed)
    states = torch.randn(tokens, 8, dtype=torch.double, requires_grad=True)
    head = torch.randn(vocabulary, 8, dtype=torch.double, requires_grad=True)
    weights = torch.rand(teachers, tokens, dtype=torch.double)
    states_of = [torch.randn(tokens, 6, dtype=torch.double) for _ in range(teachers)]
    heads = [torch.randn(vocabulary, 6, dtype=torch.double) for _ in range(teachers)]
    evidence = Evidence([Hidden(s, h) for s, h in zip(states_of, heads, strict=True)], weights / weights.sum(0))
    return states, head, torch.randint(vocabulary, (tokens,)), torch.rand(tokens, dtype=torch.double), evidence


def hidden(evidence) -> list[Hidden]:
    return [t for t in evidence.teachers if isinstance(t, Hidden)]


@pytest.mark.parametrize("over", OVERS, ids=str)
@pytest.mark.parametrize("combine", ["mixture", "log_linear", "sum"])
def test_chunks_change_nothing(over, combine, monkeypatch):
    measure = measure_of(Distillation(over=over, combine=combine), own_tokens=True)
    found = []
    for size in (10**9, 1):  # all at once, then sixteen tokens at a time
        monkeypatch.setattr(distilling, "CHUNK_NUMBERS", size)
        states, head, targets, weights, evidence = problem(0, tokens=40)
        result = distill(states, head, Question(targets, weights, evidence, measure))
        (3 * result.loss).backward()
        found.append((result.loss, result.divergence_N, result.logprobs_N, states.grad, head.grad))
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(whole, chunked, atol=2e-5, rtol=1e-4)


def test_gradients_are_those_of_plain_autograd():
    measure = measure_of(Distillation(over=FullVocabulary(), combine="mixture"), own_tokens=True)
    states, head, targets, weights, evidence = problem(1)
    distill(states, head, Question(targets, weights, evidence, measure)).loss.backward()
    plain_states, plain_head = (t.detach().clone().requires_grad_() for t in (states, head))
    policy = (plain_states @ plain_head.t()).log_softmax(-1)
    teachers = torch.stack([(t.states_ND @ t.head_VD.t()).log_softmax(-1).exp() for t in hidden(evidence)])
    target = (teachers * evidence.weights_MN[:, :, None]).sum(0).log()
    (weights * (policy.exp() * (policy - target)).sum(-1)).sum().backward()
    torch.testing.assert_close(states.grad, plain_states.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(head.grad, plain_head.grad, atol=1e-5, rtol=1e-4)


def test_a_padded_vocabulary_is_compared_where_both_have_ids():
    measure = measure_of(Distillation(), own_tokens=True)
    states, head, targets, weights, evidence = problem(2, teachers=1)
    result = distill(states, head, Question(targets.clamp(max=29), weights, evidence, measure))
    evidence.teachers = [Hidden(t.states_ND, t.head_VD[:30]) for t in hidden(evidence)]
    shorter = distill(states, head, Question(targets.clamp(max=29), weights, evidence, measure))
    assert bool(shorter.divergence_N.isfinite().all())
    assert not torch.allclose(shorter.divergence_N, result.divergence_N)
    shorter.loss.backward()
    assert head.grad is not None
    assert bool((head.grad[30:] == 0).all())


def rows_and_trajectories(count=6):
    found = [trajectory(i, reward=float(i % 2)) for i in range(count)]
    from tasks.learning.rows import rows_from

    rows, _ = rows_from(found, max_length=64, behaviour=True)
    return rows, {t.id: t for t in found}


@pytest.mark.parametrize("over", [FullVocabulary(), TopTokens(kind="top_k", size=3), SampledTokens(kind="sampled")])
def test_any_split_into_micro_batches_gives_the_same_gradient(over):
    spec = OPD(type="opd", over=over)
    grads = []
    for tokens in (10_000, 40, 1):
        model, teacher = tiny_llama(0), OpenTeacher("t", tiny_llama(1), micro_batch_tokens=tokens)
        rows, trajectories = rows_and_trajectories()
        for row in rows:
            row.teacher_weights = [1.0]
        if isinstance(over, SampledTokens):
            ask(rows, [teacher], trajectories)
        coverage = weigh(rows, spec, trajectories)
        assert coverage.share == 1.0
        assert sum(sum(r.distill or []) for r in rows) == pytest.approx(1.0)
        learner = Learner(model, Optimizer(learning_rate=1e-3), 1, micro_batch_tokens=tokens)
        if not isinstance(over, SampledTokens):
            learner.distiller = Distiller(spec, [teacher], trajectories, alone=True)
        kept = {}

        def keep(report, model=model, kept=kept):
            kept.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

        report = learner.step(rows, loss_for(spec), guard=keep)
        assert report.metrics["teacher_gap"] != 0
        grads.append(kept)
    for other in grads[1:]:
        for name, value in grads[0].items():
            torch.testing.assert_close(other[name], value, atol=1e-6, rtol=1e-4)


def test_scores_are_the_teachers_logprobs_and_long_spans_are_silent():
    rows, trajectories = rows_and_trajectories(2)
    model = tiny_llama(3)
    learner = Learner(copy.deepcopy(model), Optimizer(learning_rate=1e-3), 1)
    teacher = OpenTeacher("t", model)
    spans = [span_of(r, trajectories[r.trajectory]) for r in rows]
    for row, scores, expected in zip(rows, teacher.score(spans), learner.logprobs(rows), strict=True):
        for t, asked in enumerate(row.mask):
            assert (
                scores.logprobs[t] == pytest.approx(expected[t], abs=1e-5)
                if asked
                else scores.logprobs[t] != scores.logprobs[t]
            )
    model.config = model.config.__class__(
        **{**{f: getattr(model.config, f) for f in model.config.__slots__}, "max_length": 4}
    )
    assert all(p != p for p in teacher.score(spans)[0].logprobs)


UNHEARD = [
    FullVocabulary(),
    *[TopTokens(kind="top_k", size=3, direction=d) for d in ("reverse", "forward", "symmetric", "jsd")],
    TopTokens(kind="top_k", size=3, rest="renormalize"),
]


@pytest.mark.parametrize("over", UNHEARD, ids=str)
@pytest.mark.parametrize("combine", ["mixture", "log_linear", "sum"])
def test_rows_that_no_teacher_is_asked_about_change_nothing(over, combine):
    spec, found = OPD(type="opd", over=over, combine=combine), []
    for asked in (6, 3):
        rows, trajectories = rows_and_trajectories(asked)
        for i, row in enumerate(rows):
            row.teacher_weights = [0.5, 0.5] if i < 3 else [0.0, 0.0]
        weigh(rows, spec, trajectories)
        learner = Learner(tiny_llama(0), Optimizer(learning_rate=1e-3), 1)
        teachers = [OpenTeacher("a", tiny_llama(1)), OpenTeacher("b", tiny_llama(2))]
        learner.distiller = Distiller(spec, teachers, trajectories, alone=True)
        report = learner.step(rows, loss_for(spec))
        found.append((report.loss, report.grad_norm, report.metrics["teacher_gap"], report.metrics["divergence"]))
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@pytest.mark.parametrize("combine", ["mixture", "log_linear", "sum"])
def test_teachers_with_tables_of_different_sizes_are_compared_where_all_have_ids(combine):
    measure = measure_of(Distillation(combine=combine), own_tokens=True)
    found = []
    for sizes in ((37, 30), (30, 30)):
        states, head, targets, weights, evidence = problem(2)
        evidence.teachers = [Hidden(t.states_ND, t.head_VD[:n]) for t, n in zip(hidden(evidence), sizes, strict=True)]
        found.append(distill(states, head, Question(targets.clamp(max=29), weights, evidence, measure)).loss.item())
    assert found[0] == pytest.approx(found[1])


def test_a_teacher_that_is_the_policy_agrees_at_any_temperature():
    rows, trajectories = rows_and_trajectories(3)
    model = tiny_llama(0)
    learner = Learner(copy.deepcopy(model), Optimizer(learning_rate=1e-3), 1)
    for row in rows:
        row.teacher_weights, row.temperature = [1.0], 0.6
        trajectories[row.trajectory].sampling["temperature"] = 0.6
    spec = OPD(type="opd", over=SampledTokens(kind="sampled"), temperature=0.6)
    ask(rows, [OpenTeacher("t", model)], trajectories)
    weigh(rows, spec, trajectories)
    assert learner.step(rows, loss_for(spec)).metrics["teacher_gap"] == pytest.approx(0.0, abs=1e-5)


def test_what_a_broken_chunk_says_reaches_no_loss():
    row, trajectories = rows_and_trajectories(1)[0][0], rows_and_trajectories(1)[1]
    inside = [t for t, m in enumerate(row.mask) if m]

    class Told:
        name = "told"

        def score(self, spans):
            chunks = [0 if t in inside[:2] else 1 if t in inside else -1 for t in range(len(row.ids))]
            return [TokenScores([-1.0] * len(row.ids), chunks)]

    row.teacher_weights, row.mask[inside[1]] = [1.0], False
    ask([row], [Told()], trajectories)
    assert row.scores is not None
    assert row.scores[0].chunks is not None
    assert [t for t, c in enumerate(row.scores[0].chunks) if c >= 0] == inside[2:]
    assert [t for t, p in enumerate(row.scores[0].logprobs) if p == p] == inside[2:]


def test_tokens_of_a_broken_chunk_do_not_count():
    row = rows_and_trajectories(1)[0][0]
    inside = [t for t, m in enumerate(row.mask) if m]
    said = [0.0 if m else float("nan") for m in row.mask]
    chunks = [-1] * len(said)
    for t in inside[:2]:
        chunks[t] = 0
    for t in inside[2:]:
        chunks[t] = 1
    row.teacher_weights, row.scores = [1.0], [TokenScores(said, chunks)]
    assert [t for t, c in enumerate(covered(row)) if c] == inside
    row.mask[inside[0]] = False
    assert [t for t, c in enumerate(covered(row)) if c] == inside[2:]
    logprobs, numbers, weights = teacher_columns([row], len(row.ids), torch.device("cpu"))
    assert logprobs is not None
    assert numbers is not None
    assert weights is not None
    assert numbers[0, 0].tolist() == chunks


def test_turns_around_an_error_weigh_differently():
    failed = trajectory(1, reward=0.0, turns=4)
    bad, good = Observation({}, is_error=True), Observation({})
    call = ToolCall("a", {}, "")
    size = len(failed.ids) // 5
    failed.turns = [Turn(size * (n + 1), size * (n + 2), "", call, bad if n == 1 else good) for n in range(4)]
    assert first_wrong(failed) == 1
    row = rows_and_trajectories(1)[0][0]
    row.trajectory, row.ids, row.mask = failed.id, failed.ids, [t >= size for t in range(len(failed.ids))]
    row.teacher_weights = [1.0]
    weigh([row], OPD(type="opd", states=StateWeights(later=0.5, recovery=3.0)), {failed.id: failed})
    assert row.distill is not None
    by_turn = [row.distill[t.start] / row.distill[size] for t in failed.turns]
    assert by_turn == pytest.approx([1.0, 2.0, 3.0, 0.25])
    failed.success = True
    assert first_wrong(failed) is None


def test_rewards_and_lengths_weigh_trajectories():
    rows, trajectories = rows_and_trajectories(4)
    for row in rows:
        row.teacher_weights = [1.0]
    weigh(rows, OPD(type="opd", token_weights="reward"), trajectories, by_trajectory=True)
    assert [round(sum(r.distill or []), 6) for r in rows] == [0.0, 0.5, 0.0, 0.5]
    term = TeacherTerm(coef=0.4, coef_end=0.0, full_length=2)
    assert [coefficient(term, s, 5) for s in range(5)] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0])
    assert coefficient(TeacherTerm(coef=0.4), 3, 5) == 0.4
    some = next(iter(trajectories.values()))
    assert length_factor(term, some) == pytest.approx(2 / some.policy_tokens)


def test_no_whole_table_of_logits_exists():
    """The whole form would hold at least four tables of 2,000 x 20,000 numbers: 640 MB."""
    tokens, vocabulary, width = 2000, 20_000, 8
    states = torch.randn(tokens, width, requires_grad=True)
    head = torch.randn(vocabulary, width, requires_grad=True)
    teacher = Hidden(torch.randn(tokens, width), torch.randn(vocabulary, width))
    evidence = Evidence([teacher], torch.ones(1, tokens))
    measure = measure_of(Distillation(), own_tokens=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    weights = torch.full((tokens,), 1 / tokens)
    distill(states, head, Question(torch.zeros(tokens, dtype=torch.long), weights, evidence, measure)).loss.backward()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6 < 0.2
