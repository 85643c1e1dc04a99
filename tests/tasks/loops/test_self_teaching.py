import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from specs.errors import Interrupted, TrainingError
from specs.optimizer import Optimizer
from specs.records import Observation, ToolCall, Trajectory, Turn, Verdict
from specs.self_teaching import (
    RLSD,
    CollapseGuard,
    Gated,
    Privileged,
    Redistribute,
    SelfDistilled,
    SelfEvolve,
    SelfTaughtAlgorithm,
    Snapshot,
    SuccessDistill,
)
from tasks.episodes.local import LocalSampler
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.learner import Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.privileged import ShownTeacher
from tasks.learning.rows import rows_from
from tasks.loops.collapse import Guarded, watch
from tasks.loops.contexts import Contexts, solver
from tasks.loops.fit import Hooks
from tasks.loops.on_policy import OnPolicy, train_policy_gradient
from tasks.loops.order import ProblemOrder
from tasks.loops.self_teaching import SelfTeaching, verified
from tasks.loops.taught_tokens import action_tokens, call_tokens
from tasks.loops.token_lessons import Panel
from tasks.loops.updates import policy_updates
from tasks.protocols import Span
from tests.tasks.loops.toy import problem, taught_policy, toy_arena

PROBLEMS = [problem(i) for i in range(10)]
COMMON: dict[str, Any] = {
    "group_size": 6,
    "problems_per_step": 8,
    "steps": 4,
    "optimizer": Optimizer(learning_rate=1e-2, schedule="linear"),
}
SUCCESS = RLSD(type="rlsd", success_distill=SuccessDistill(coef=0.5), snapshot=Snapshot(every=2), **COMMON)
REDISTRIBUTE = RLSD(type="rlsd", form="redistribute", redistribute=Redistribute(decay_steps=8), **COMMON)
GATED = SelfDistilled(
    type="self_distilled", form="gated", gated=Gated(coef=0.1), privileged=Privileged(sync_every=2), **COMMON
)
ALL = [SUCCESS, REDISTRIBUTE, GATED]


@pytest.fixture(scope="module")
def taught():
    return taught_policy()


def stage(taught, spec: SelfTaughtAlgorithm, folder=None, stop_after=None, experience=(), keep=None):
    policy = copy.deepcopy(taught)
    arena = replace(toy_arena(policy), max_new_tokens=8)
    sampler = arena.sampler
    assert isinstance(sampler, LocalSampler)
    learner = Learner(policy.model, spec.optimizer, policy_updates(spec))
    lines = []
    hooks = Hooks(metrics=lambda step, **values: lines.append(values), checkpoint_seconds=0.0)
    hooks.stop = lambda: stop_after is not None and len(lines) >= stop_after
    hooks.checkpointer = Checkpointer(folder) if folder else None
    shows = spec.privileged.shows if spec.form != "success_distill" else ()
    contexts = Contexts(policy.template, shows, spec.privileged.max_tokens)
    loads = iter(range(10**6))

    def frozen(model, version):
        sampler.load_weights(model, f"frozen{version}/{next(loads)}")

    teaching = SelfTeaching(spec, copy.deepcopy(taught).model, contexts, frozen, experience=experience)
    fixed = OnPolicy(
        spec=spec,
        problems=ProblemOrder({"a": PROBLEMS}, 5),
        seed=5,
        max_length=policy.config.max_length,
        load_weights=lambda step: sampler.load_weights(policy.model, f"step{step}/{next(loads)}"),
        teaching=teaching,
        keep=None if keep is None else lambda step, found: keep.extend(found),
    )
    return learner, teaching, lambda: train_policy_gradient(learner, arena, fixed, hooks)


def weights(learner):
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def test_verified_successes_of_a_frozen_self_teach(taught):
    spec = SUCCESS.model_copy(update={"steps": 10, "success_distill": SuccessDistill(coef=1.0, exploration=0.25)})
    _, teaching, run = stage(taught, spec)
    curve = run().curve
    assert sum(line["success"] for line in curve[-3:]) / 3 > curve[0]["success"] + 0.2
    assert curve[0]["frozen_version"] == 0
    assert teaching.kept.version >= 2, "the frozen self was renewed"
    assert curve[0]["taught"] == pytest.approx(36 * curve[0]["frozen_success"])
    assert curve[-1]["frozen_success"] > curve[0]["frozen_success"]
    assert all(line["taught_loss"] > 0 for line in curve)


def test_all_problems_are_paid_for_and_only_the_policys_own_carry_the_gradient(taught):
    _, _, run = stage(taught, SUCCESS)
    report = run()
    assert report.rollouts == 4 * 8 * 6
    assert report.draws == [[8]] * 4
    assert report.dropped["not taught: no verified success"] > 0


@pytest.mark.parametrize("spec", ALL, ids=lambda s: s.form)
def test_a_stopped_stage_ends_with_the_same_bits(taught, tmp_path, spec):
    whole, own, run = stage(taught, spec)
    expected = run()
    _, _, run = stage(taught, spec, folder=tmp_path, stop_after=3)
    with pytest.raises(Interrupted):
        run()
    second, again, run = stage(taught, spec, folder=tmp_path)
    assert run().curve == expected.curve
    assert torch.equal(weights(second), weights(whole))
    assert again.state()[1] == own.state()[1]
    assert all(torch.equal(a, b) for a, b in zip(again.state()[0].values(), own.state()[0].values(), strict=True))


@pytest.mark.parametrize("spec", [REDISTRIBUTE, GATED], ids=lambda s: s.form)
def test_a_privileged_self_scores_the_same_tokens(taught, spec):
    _, teaching, run = stage(taught, spec)
    curve = run().curve
    assert 0 < curve[0]["privileged"] <= 1
    assert "teacher_gap" in curve[0]
    own = {t: v for t, v in curve[-1].items() if t in ("gate", "redistributed")}
    assert own
    assert teaching.kept.version == (1 if spec.form == "redistribute" else 2)


def test_shown_nothing_the_synchronised_self_agrees_with_the_policy(taught):
    spec = GATED.model_copy(update={"privileged": Privileged(shows=[], sync_every=1), "steps": 2})
    _, _, run = stage(taught, spec)
    curve = run().curve
    assert [line["privileged"] for line in curve] == [1.0, 1.0]
    assert [line["teacher_gap"] for line in curve] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert [line["gate"] for line in curve] == pytest.approx([0.5, 0.5], abs=1e-5)


def said(letter, number, success, group="g", **more):
    call = ToolCall("say", {"letter": letter}, "")
    turn = Turn(1, 3, f'{{"tool":"say","letter":"{letter}"}}', call, Observation({"ok": 1}))
    return Trajectory(
        id=f"t{number}", problem_id="p1", problem_type="say", environment="toy", environment_version="", agent="",
        group=group, sample=number, seed=0, ids=[1, 2, ord(letter)], sources=[1, 2, 2], logprobs=[0.0] * 3,
        policy_versions=[], turns=[turn], status="finished", sampling={}, success=success, reward=float(bool(success)), **more,
    )  # fmt: skip


def test_a_sibling_is_shown_and_never_the_rows_own(taught):
    contexts = Contexts(taught.template, ["sibling"], 40)
    found = contexts.prefixes([said("a", 0, True), said("a", 1, True), said("b", 2, True), said("c", 3, False)])
    decode = taught.tokenizer.decode
    assert '"letter":"b"' in decode(found.ids["t0"]).replace(" ", "")
    assert '"letter":"a"' in decode(found.ids["t2"]).replace(" ", "")
    assert set(found.ids) == {"t0", "t1", "t2", "t3"}
    alone = contexts.prefixes([said("a", 0, True), said("c", 1, False)])
    assert set(alone.ids) == {"t1"}
    assert alone.left_out == {"there is nothing to show": 1}
    short = Contexts(taught.template, ["sibling"], 2).prefixes([said("a", 0, True), said("b", 1, True)])
    assert short.left_out == {"what could be shown is longer than 2 tokens": 2}


def test_evidence_and_solutions_are_shown_in_the_order_that_is_asked(taught):
    failed = said("c", 0, False, verdicts=[Verdict("good", "1", 0.0, passed=False, evidence={"said": "c"})])
    arena = toy_arena(copy.deepcopy(taught))
    solve = solver(arena.environments, {"p1": problem(1)}, arena.agent, 3)
    shown = Contexts(taught.template, ["sibling", "feedback", "reference"], 90, solve).prefixes([failed])
    assert shown.shown == {"feedback": 1}
    reference = Contexts(taught.template, ["reference"], 40, solve).prefixes([failed])
    assert '{"tool":"say","letter":"' in taught.tokenizer.decode(reference.ids["t0"])
    assert solve(said("a", 0, True)) == solve(failed)


def test_which_tokens_of_a_call_are_taught(taught):
    _, _, run = stage(taught, SUCCESS.model_copy(update={"steps": 1}))
    run()
    arena = toy_arena(copy.deepcopy(taught))
    text = '{"tool":"say","letter":"a"}'
    ids = taught.template.completion(text)
    made = said("a", 0, True)
    made.ids, made.sources = [1, *ids], [1] + [2] * len(ids)
    made.turns = [Turn(1, 1 + len(ids), text, ToolCall("say", {"letter": "a"}, text), Observation({"ok": 1}))]
    assert action_tokens(made) == [False] + [True] * len(ids)
    inside = call_tokens(made, taught.tokenizer)
    assert any(inside)
    assert not all(inside[1:])
    assert "a" in taught.tokenizer.decode([i for i, m in zip(made.ids, inside, strict=True) if m])
    made.turns[0].call = ToolCall("say", {}, text, "missing_argument")
    assert not any(action_tokens(made) + call_tokens(made, taught.tokenizer))
    assert arena.max_new_tokens > 0


@pytest.mark.parametrize("tokens", ["action", "tool_call", "top_k"])
def test_every_choice_of_tokens_trains(taught, tokens):
    spec = SUCCESS.model_copy(update={"steps": 2, "success_distill": SuccessDistill(tokens=tokens)})
    _, _, run = stage(taught, spec)
    losses = [line["taught_loss"] for line in run().curve]
    if tokens == "top_k":  # the policy is the frozen self at first, and has moved away at the second step
        assert losses[0] == pytest.approx(0.0, abs=1e-6)
        losses = losses[1:]
    assert all(loss > 0 for loss in losses)


def test_experience_of_others_teaches_too(taught):
    seen: list[Trajectory] = []
    _, _, run = stage(taught, SUCCESS.model_copy(update={"steps": 1, "problems_per_step": 4}), keep=seen)
    run()
    shared = [t for t in seen if t.success][:3]
    shape: dict[str, Any] = COMMON | {"steps": 2, "problems_per_step": 4}
    spec = SelfEvolve(
        type="self_evolve", experience=["other"], experience_per_step=2,
        success_distill=SuccessDistill(exploration=1.0), **shape,
    )  # fmt: skip
    _, teaching, run = stage(taught, spec, experience=shared)
    curve = run().curve
    assert [line["taught"] for line in curve] == [2, 2], "nothing but what others did teaches here"
    assert curve[0]["taught_loss"] > 0
    assert [t.id for t in teaching.shared(1)] == [shared[2].id, shared[0].id]
    assert "frozen_success" not in curve[0]


def test_only_what_was_verified_teaches():
    dropped = {}
    cut = said("a", 3, True)
    cut.status = "truncated"
    found = verified(
        [said("a", 0, True), said("c", 1, False), said("b", 2, None), cut], SuccessDistill(min_reward=0.5), dropped
    )
    assert [t.id for t in found] == ["t0"]
    assert dropped == {"not taught: no verified success": 3}
    assert verified([said("a", 0, True)], SuccessDistill(min_reward=2.0), dropped) == []
    assert dropped["not taught: below min_reward"] == 1


def test_the_guard_switches_off_and_then_stops():
    spec = CollapseGuard(patience=2, max_drop=0.2)
    known = Guarded()
    for step, success in enumerate([0.8, 0.8, 0.7]):
        watch(known, spec, {"success": success, "repeated": 0.0, "entropy": 1.0}, step)
    assert (known.run, known.strength) == (0, 1.0)
    watch(known, spec, {"success": 0.3, "repeated": 0.0, "entropy": 1.0}, 3)
    assert (known.run, known.strength) == (1, 0.0)
    with pytest.raises(TrainingError, match=r"success fell from 0\.80 to 0\.25"):
        watch(known, spec, {"success": 0.2, "repeated": 0.0, "entropy": 1.0}, 4)
    known = Guarded()
    strict = CollapseGuard(patience=1, min_entropy=0.5, max_repeated=0.5)
    with pytest.raises(TrainingError, match=r"the entropy is 0\.1.*100% of the trajectories repeat"):
        watch(known, strict, {"success": 0.8, "repeated": 1.0, "entropy": 0.1}, 0)
    assert Guarded(**known.to_json()) == known


def test_a_collapsed_stage_stops(taught):
    guard = CollapseGuard(patience=2, max_repeated=0.0)
    _, _, run = stage(taught, SUCCESS.model_copy(update={"guard": guard}))
    with pytest.raises(TrainingError, match="self-teaching has collapsed for 2 steps"):
        run()


def test_teacher_logprobs_reach_the_loss(taught):
    row = rows_from([said("a", 0, True)], max_length=9)[0][0]
    assert row.teacher_logprobs is None
    row.teacher_logprobs = [math.nan, -1.0, -2.0]
    seen = []
    learner = Learner(copy.deepcopy(taught).model, Optimizer(learning_rate=1e-9), 1)

    def loss(batch):
        from tasks.tensors import LossOutput

        seen.append(batch.teacher_logprobs_BT)
        return LossOutput((batch.weights_BT * batch.logprobs_BT).sum(), {})

    learner.step([row], loss)
    assert seen[0][0].tolist()[1:] == [-1.0, -2.0]


def test_a_privileged_teacher_reads_the_same_tokens_behind_its_message(taught):
    model = OpenTeacher("self", copy.deepcopy(taught.model))
    contexts = Contexts(taught.template, ["sibling"], 40)
    teacher = ShownTeacher(model, lambda found: contexts.prefixes(found).ids)
    one, other, failed = said("a", 0, True), said("b", 1, True), said("c", 2, False, group="alone")
    teacher.prepare([one, other, failed])
    assert [teacher.can_say(t) for t in (one, other, failed)] == [True, True, False]
    spans = [Span(t, 0, t.ids, [False, False, True]) for t in (one, other)]
    prefix = contexts.prefixes([one, other]).ids
    scores = teacher.score(spans)
    for span, score in zip(spans, scores, strict=True):
        whole = [*prefix[span.trajectory.id], *span.ids]
        alone = model.score([Span(span.trajectory, 0, whole, [False] * (len(whole) - 1) + [True])])[0]
        assert score.logprobs[-1] == pytest.approx(alone.logprobs[-1], abs=1e-5)
        assert math.isnan(score.logprobs[0])
    assert teacher.states(spans).shape == (2, taught.config.hidden_size)
    panel = Panel([teacher], lambda t: [1.0])
    assert [panel.heard(t) for t in (one, failed)] == [[1.0], [0.0]]
