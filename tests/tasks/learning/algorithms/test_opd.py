"""The loss of on-policy distillation on sampled tokens: closed form, gradient, chunks, several teachers, bad numbers."""

import math
import random

import pytest
import torch

from specs.distillation import OPD, SampledTokens
from specs.records import Source, Trajectory, Turn
from tasks.learning.algorithms import opd
from tasks.learning.sampled import early_weights, gaps, return_to_go, spread
from tasks.tensors import Batch


def trajectory(number, *, reward=1.0, turns=2, vocabulary=32):
    """Return a trajectory of a prompt and some turns, each with a tool's reply before the next."""
    rng = random.Random(number)
    ids, sources = [rng.randrange(vocabulary) for _ in range(3)], [int(Source.USER)] * 3
    made: list[Turn] = []
    for _ in range(turns):
        made.append(Turn(len(ids) + 2, len(ids) + 5, "", None, None))
        ids += [rng.randrange(vocabulary) for _ in range(5)]
        sources += [int(Source.TOOL)] * 2 + [int(Source.POLICY)] * 3
    return Trajectory(
        id=f"t{number}", problem_id="p", problem_type="kind", environment="e", environment_version="1", agent="a",
        group="g", sample=number, seed=0, ids=ids, sources=sources,
        logprobs=[-1.0 if s == Source.POLICY else 0.0 for s in sources], policy_versions=[], turns=made,
        status="finished", sampling={"temperature": 1.0}, reward=reward, success=reward > 0,
    )  # fmt: skip


def slope(logprobs):
    assert logprobs.grad is not None
    return logprobs.grad


def sampled(**more):
    return OPD(type="opd", over=SampledTokens(kind="sampled", **more))


def batch(teachers, policy, *, weights=None, asked=None, chunks=None, **more):
    logprobs = torch.tensor([policy], dtype=torch.double, requires_grad=True)
    even = torch.tensor([weights or [1 / len(policy)] * len(policy)], dtype=torch.double)
    said = torch.tensor([[t] for t in teachers], dtype=torch.double)
    return logprobs, Batch(
        logprobs_BT=logprobs,
        weights_BT=even,
        distill_weights_BT=even,
        teacher_logprobs_MBT=said,
        teacher_weights_MB=torch.tensor([[w] for w in asked or [1.0] * len(teachers)], dtype=torch.double),
        teacher_chunks_MBT=None if chunks is None else torch.tensor([[c] for c in chunks]),
        **more,
    )


POLICY, TEACHER = [-1.0, -0.2, -2.0], [-0.5, -0.7, -2.0]


def test_both_estimators_have_the_gradient_of_the_reverse_kl():
    expected = [-(t - p) / 3 for t, p in zip(TEACHER, POLICY, strict=True)]
    for estimator in ("k1", "k2"):
        logprobs, made = batch([TEACHER], POLICY)
        found = opd.loss(made, sampled(estimator=estimator))
        found.loss.backward()
        assert slope(logprobs)[0].tolist() == pytest.approx(expected)
        assert found.own["teacher_gap"].item() == pytest.approx(
            -sum(t - p for t, p in zip(TEACHER, POLICY, strict=True)) / 3
        )


def test_tokens_outside_the_band_have_no_gradient_and_are_counted():
    behaviour = torch.tensor([[-1.0, -2.0, -0.5]], dtype=torch.double)
    logprobs, made = batch([TEACHER], POLICY, sampler_logprobs_BT=behaviour)
    found = opd.loss(made, sampled(ratio_band=(0.5, 2.0)))
    found.loss.backward()
    assert slope(logprobs)[0].tolist() == pytest.approx([-0.5 / 3, 0.0, 0.0])
    assert found.own["outside_band"].item() == pytest.approx(2 / 3)
    logprobs, made = batch([TEACHER], POLICY, sampler_logprobs_BT=behaviour)
    opd.loss(made, sampled(ratio_band=None)).loss.backward()
    assert slope(logprobs)[0, 1].item() == pytest.approx(0.5 / 3 * math.exp(1.8))


def test_what_the_teacher_rules_out_is_bounded():
    for said in (-math.inf, -1e30):
        logprobs, made = batch([[said, -0.7, -2.0]], POLICY)
        found = opd.loss(made, sampled(most=5.0))
        found.loss.backward()
        assert bool(slope(logprobs).isfinite().all())
    assert slope(logprobs)[0, 0].item() == pytest.approx(5.0 / 3)
    assert found.own["bounded"].item() == pytest.approx(1 / 3)


def test_silent_and_masked_tokens_have_no_part():
    weights = [0.5, 0.5, 0.0]
    logprobs, made = batch([[math.nan, -0.7, 5.0], [-0.5, math.nan, 5.0]], [-1.0, -0.2, math.nan], weights=weights)
    opd.loss(made, sampled()).loss.backward()
    assert slope(logprobs)[0].tolist() == pytest.approx([-0.25, 0.25, 0.0])


def test_several_teachers_mix_probabilities_or_add_up_logprobs():
    one, other = [math.log(0.5)], [math.log(0.25)]
    policy, asked = [math.log(0.4)], [0.75, 0.25]
    _, made = batch([one, other], policy, asked=asked)
    mixed = gaps(made, OPD(type="opd", combine="mixture", over=SampledTokens(kind="sampled")), "equal")
    assert mixed.item() == pytest.approx(math.log(0.75 * 0.5 + 0.25 * 0.25) - policy[0])
    summed = gaps(made, OPD(type="opd", combine="sum", over=SampledTokens(kind="sampled")), "equal")
    assert summed.item() == pytest.approx(0.75 * one[0] + 0.25 * other[0] - policy[0])


CHUNKS = [-1, 0, 0, 0, 1, -1, 2, 2]


def by_hand(teacher, policy, chunks, mode):
    """Return what `spread` should, chunk by chunk."""
    found = [0.0] * len(chunks)
    for chunk in {c for c in chunks if c >= 0}:
        inside = [t for t, c in enumerate(chunks) if c == chunk]
        told, said = sum(teacher[t] for t in inside), sum(policy[t] for t in inside)
        for k, t in enumerate(inside):
            found[t] = {
                "equal": (told - said) / len(inside),
                "broadcast": told - said,
                "last": told - said,
                "teacher_share": told / len(inside) - policy[t],
                "causal": told - sum(policy[s] for s in inside[k:]),
            }[mode]
    return found


@pytest.mark.parametrize("mode", ["equal", "broadcast", "teacher_share", "last", "causal"])
def test_a_chunks_difference_is_spread_over_its_tokens(mode):
    rng = random.Random(0)
    for _ in range(20):
        teacher, policy = ([-rng.random() for _ in CHUNKS] for _ in range(2))
        said, own = (torch.tensor([x], dtype=torch.double) for x in (teacher, policy))
        found = spread(said, own, torch.tensor([CHUNKS]), mode)
        assert found[0].tolist() == pytest.approx(by_hand(teacher, policy, CHUNKS, mode))


def test_chunks_enter_the_loss_by_their_sum():
    """Where in a chunk the teacher's logprobs stand makes no difference."""
    policy, chunks = [-1.0, -0.5, -0.25], [[0, 0, 1]]
    grads = []
    for said in ([0.0, -1.2, -0.5], [-0.7, -0.5, -0.5]):
        logprobs, made = batch([said], policy, chunks=chunks)
        opd.loss(made, sampled()).loss.backward()
        grads.append(slope(logprobs)[0].tolist())
    assert grads[0] == pytest.approx(grads[1])
    assert grads[0] == pytest.approx([-0.05, -0.05, 0.25 / 3])


def test_a_chunk_of_which_only_some_tokens_weigh_keeps_its_difference():
    policy, chunks = [-1.0, -0.5, -0.25], [[0, 0, 1]]
    logprobs, made = batch([[0.0, -1.2, -0.5]], policy, chunks=chunks)
    made.distill_weights_BT = torch.tensor([[0.5, 0.0, 0.5]], dtype=torch.double)
    opd.loss(made, sampled()).loss.backward()
    assert slope(logprobs)[0].tolist() == pytest.approx([-0.075, 0.0, 0.125])


def test_later_advantages_reach_back_over_masked_tokens():
    values, mask = torch.tensor([[1.0, 9.0, 2.0]]), torch.tensor([[True, False, True]])
    assert return_to_go(values, mask, 0.5)[0].tolist() == [2.0, 0.0, 2.0]
    flat = early_weights(torch.zeros(1, 3), mask, 0.5)
    assert flat[0].tolist() == [1.5, 1.5, 1.5]


def returned(teachers, chunks, discount, mode="last", *, weights=None, **more):
    """Return the advantages that a loss takes: the slope of minus it, by token, where all weigh the same or nothing."""
    policy = [-1.0, -0.5, -0.25, -0.75, -0.3]
    logprobs, made = batch(teachers, policy, chunks=chunks, **more)
    if weights is not None:
        made.distill_weights_BT = torch.tensor([weights], dtype=torch.double)
    opd.loss(made, sampled(spread=mode, discount=discount)).loss.backward()
    return (-5 * slope(logprobs)[0]).tolist()


def test_the_last_token_of_a_chunk_earns_its_difference_and_those_before_have_it_whole():
    one, chunks = [0.0, -1.2, -0.5, 0.0, -0.4], [0, 0, 1, 2, 2]
    first, second, third = 0.3, -0.25, 0.65
    for discount in (0.0, 0.5, 1.0):
        middle = second + discount * third
        start = first + discount * middle
        found = returned([one], [chunks], discount)
        assert found == pytest.approx([start, start, middle, third, third])
    assert returned([one], [chunks], 0.0) == pytest.approx(returned([one], [chunks], 0.0, "broadcast"))
    single = [[-1, 0, 1, 2, 3]]
    assert returned([one], single, 0.5) == pytest.approx(returned([one], single, 0.5, "equal"))
    assert returned([one], None, 0.5) == pytest.approx(returned([one], None, 0.5, "equal"))


def test_what_is_earned_last_reaches_the_tokens_that_weigh_and_pieces_end_where_all_teachers_end():
    one, chunks = [0.0, -1.2, -0.5, 0.0, -0.4], [0, 0, 1, 2, 2]
    found = returned([one], [chunks], 1.0, weights=[0.2, 0.0, 0.2, 0.2, 0.0])
    assert found == pytest.approx([0.7, 0.0, 0.4, 0.65, 0.0])
    both, said = [chunks, [0, 0, 0, 1, 2]], [one, one]
    whole = returned(said, both, 0.0)
    assert whole == pytest.approx(returned(said, both, 0.0, "broadcast"))
    assert returned(said, both, 1.0) == pytest.approx([w + (whole[3] if t < 3 else 0.0) for t, w in enumerate(whole)])
    assert returned(said, both, 1.0, asked=[1.0, 0.0]) == pytest.approx(returned([one], [chunks], 1.0))


def test_an_outcome_is_added():
    outcome = torch.full((1, 3), 2.0, dtype=torch.double)
    logprobs, made = batch([POLICY], POLICY, advantages_BT=outcome)
    spec = OPD(type="opd", over=SampledTokens(kind="sampled"), outcome_coef=0.5)
    opd.loss(made, spec).loss.backward()
    assert slope(logprobs)[0].tolist() == pytest.approx([-1 / 3] * 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"outcome_coef": 0.2}, "outcome_coef adds to the advantage of a sampled token"),
        ({"outcome_coef": 0.2, "over": {"kind": "sampled"}, "group_size": 1}, "group_size needs at least 2"),
        ({"over": {"kind": "sampled", "estimator": "k2", "discount": 0.5}}, "discount is not read with estimator: k2"),
        ({"over": {"kind": "sampled", "ratio_band": [2.0, 0.5]}}, "expected the lower ratio first"),
        ({"over": {"kind": "full", "beta": 0.3}}, "beta is not read with direction: auto"),
        ({"over": {"kind": "full", "direction": "forward", "floor": -5.0}}, "floor is not read"),
        ({"teachers": {"a": 1.0}, "by_confidence": True}, "by_confidence is not read with one teacher"),
        ({"teachers": {"a": 1.0}, "combine": "sum"}, "combine is not read with one teacher"),
        ({"over": {"kind": "sampled"}, "by_confidence": True}, "by_confidence needs the whole distribution"),
        ({"over": {"kind": "sampled"}, "demonstrations": 0.2}, "demonstrations were not sampled by the policy"),
    ],
)
def test_settings_without_effect_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        OPD.model_validate({"type": "opd", **fields})
