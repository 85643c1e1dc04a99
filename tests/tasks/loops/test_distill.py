"""On-policy distillation at toy size, through real episodes and the real learner: it draws the policy to its teacher."""

import copy
from functools import partial

import pytest
import torch

from specs.distillation import OPD, FullVocabulary, SampledTokens, StateWeights, TeacherTerm, TopTokens
from specs.errors import Interrupted, TrainingError
from specs.grpo import GRPO
from specs.optimizer import Optimizer
from tasks.episodes.local import LocalSampler
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.learner import Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.loops.distill import Distilling, train_opd
from tasks.loops.fit import Hooks
from tasks.loops.on_policy import OnPolicy, train_policy_gradient
from tasks.loops.order import ProblemOrder
from tasks.loops.teacher_terms import sentences
from tasks.loops.token_lessons import Panel
from tasks.protocols import TokenScores
from tests.tasks.loops.toy import demonstration_rows, problem, taught_policy, toy_arena

RATE = Optimizer(kind="muon", learning_rate=1e-2)


@pytest.fixture(scope="module")
def taught():
    return taught_policy()


@pytest.fixture(scope="module")
def good(taught):
    """A teacher that has learnt to say the good letters alone."""
    from specs.supervised import SFT
    from tasks.learning.algorithms import loss_for

    model = copy.deepcopy(taught.model)
    policy = copy.copy(taught)
    policy.model = model
    rows = [r for r in demonstration_rows(policy, 128) if any(f'"{c}"' in policy.tokenizer.decode(r.ids) for c in "ab")]
    learner = Learner(model, Optimizer(kind="muon", learning_rate=1e-2), 12)
    for _ in range(12):
        learner.step(rows, loss_for(SFT(type="sft")))
    return model


def local(arena):
    assert isinstance(arena.sampler, LocalSampler)
    return arena.sampler


def spec(**more):
    given = {"group_size": 2, "problems_per_step": 16, "steps": 6, "optimizer": RATE} | more
    return OPD(type="opd", **given)


def stage(policy, teachers, made, **more):
    model = policy.model
    arena = toy_arena(policy)
    weights = more.pop("weights", None)
    kept = {"step": []}

    def load(step):
        local(arena).load_weights(model, f"step{step}")
        kept["step"].append(step)

    panel = Panel(teachers, lambda t: weights(t) if weights else [1.0] * len(teachers))
    learner = Learner(model, made.optimizer, made.steps * made.updates_per_batch)
    problems = ProblemOrder({"all": [problem(i) for i in range(32)]}, 0)
    return learner, arena, Distilling(made, problems, panel, 0, policy.config.max_length, load, **more)


def student(taught):
    policy = copy.copy(taught)
    policy.model = copy.deepcopy(taught.model)
    return policy


def run(taught, teachers, made, **more):
    return train_opd(*stage(student(taught), teachers, made, **more))


OVERS = [
    FullVocabulary(),
    FullVocabulary(direction="forward"),
    FullVocabulary(direction="symmetric", loss_temperature=1.5),
    TopTokens(kind="top_k", size=4),
    SampledTokens(kind="sampled"),
    SampledTokens(kind="sampled", estimator="k2"),
    SampledTokens(kind="sampled", discount=0.5, early_coef=0.5),
]


@pytest.mark.parametrize(
    "over", OVERS, ids=lambda o: f"{o.kind}-{getattr(o, 'direction', '')}{getattr(o, 'estimator', '')}"
)
def test_the_policy_comes_near_its_teacher(taught, good, over):
    report = run(taught, [OpenTeacher("good", good)], spec(over=over))
    first, last = report.curve[0], report.curve[-1]
    assert first["success"] < 0.7
    assert last["success"] > first["success"] + 0.15
    assert last["teacher_gap"] < first["teacher_gap"]
    assert first["logprob_gap"] < 1e-5
    assert first["coverage"] == 1.0
    assert report.taught_tokens == report.trained_tokens > 0


def test_fewer_problems_than_a_step_takes_are_all_used_and_told(taught, good):
    report = run(taught, [OpenTeacher("good", good)], spec(steps=1, problems_per_step=40))
    assert report.notes == ["a step asks for 40 problems but there are 32; each uses all of them"]
    assert report.rollouts == 64


def test_a_resumed_stage_ends_with_the_same_weights(taught, good, tmp_path):
    made = spec(steps=4, over=SampledTokens(kind="sampled"))
    whole = student(taught)
    train_opd(*stage(whole, [OpenTeacher("good", good)], made))
    stopped = student(taught)
    asked = iter([False, False, False, False, True])
    hooks = partial(Hooks, checkpointer=Checkpointer(tmp_path, "n"), checkpoint_seconds=0.0)
    learner, arena, first = stage(stopped, [OpenTeacher("good", good)], made)
    with pytest.raises(Interrupted):
        train_opd(learner, arena, first, hooks(stop=lambda: next(asked, True)))
    fresh = student(taught)
    report = train_opd(*stage(fresh, [OpenTeacher("good", good)], made), hooks())
    assert len(report.curve) == 4
    for a, b in zip(whole.model.parameters(), fresh.model.parameters(), strict=True):
        assert torch.equal(a, b)


class Stopped(OpenTeacher):
    """Is asked to stop in the third step."""

    calls = 0

    def score(self, spans):
        self.calls += 1
        if self.calls == 3:
            raise Interrupted("asked to stop")
        return super().score(spans)


def test_a_stage_that_is_stopped_while_a_teacher_is_asked_goes_on_from_that_step(taught, good, tmp_path):
    made = spec(steps=4, over=SampledTokens(kind="sampled"))
    whole, stopped, fresh = (student(taught) for _ in range(3))
    train_opd(*stage(whole, [OpenTeacher("good", good)], made))
    hooks = Hooks(checkpointer=Checkpointer(tmp_path, "n"), checkpoint_seconds=1e9)
    with pytest.raises(Interrupted):
        train_opd(*stage(stopped, [Stopped("good", good)], made), hooks)
    resumed = OpenTeacher("good", good)
    asked: list[int] = []
    resumed.score = lambda spans: (asked.append(len(spans)), OpenTeacher.score(resumed, spans))[1]
    train_opd(*stage(fresh, [resumed], made), hooks)
    assert len(asked) == 2
    for a, b in zip(whole.model.parameters(), fresh.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_teacher_that_is_the_policy_leaves_it_as_it_is(taught):
    for over in (FullVocabulary(), SampledTokens(kind="sampled", estimator="k2")):
        policy, made = student(taught), spec(steps=1, over=over, min_coverage=0.0)
        report = train_opd(*stage(policy, [OpenTeacher("self", copy.deepcopy(taught.model))], made))
        assert report.curve[0]["teacher_gap"] == pytest.approx(0.0, abs=1e-6)
        assert report.curve[0]["grad_norm"] < 1e-4


def test_a_stage_without_an_update_says_so(taught, good):
    made = spec(steps=2, over=SampledTokens(kind="sampled", ratio_band=(1.5, 2.0)))
    with pytest.raises(TrainingError, match=r"none of 2 steps made an update: .*outside over\.ratio_band"):
        run(taught, [OpenTeacher("good", good)], made)


def test_problems_go_to_their_teachers(taught, good):
    """Of two teachers each has half of the problems; the one that nobody is sent to is not asked."""
    other = OpenTeacher("same", copy.deepcopy(taught.model))
    asked = {"good": 0, "same": 0}

    class Counted(OpenTeacher):
        def states(self, spans):
            asked[self.name] += len(spans)
            return super().states(spans)

    teachers = [Counted("good", good), Counted("same", other._model)]
    weights = lambda t: [1.0, 0.0] if int(t.problem_id[1:]) % 2 else [0.0, 1.0]  # noqa: E731
    report = run(taught, teachers, spec(steps=1), weights=weights)
    assert asked["good"] + asked["same"] == 32
    assert 0 < asked["good"] < 32
    both = run(taught, teachers, spec(steps=2, combine="log_linear", by_confidence=True))
    assert both.curve[1]["divergence"] < report.curve[0]["divergence"] * 2


def test_silent_teachers_stop_the_stage(taught):
    class Silent:
        name = "silent"

        def score(self, spans):
            return [TokenScores([float("nan")] * len(s.ids)) for s in spans]

    with pytest.raises(TrainingError, match=r"say something about 0 of \d+ tokens.*min_coverage"):
        run(taught, [Silent()], spec(over=SampledTokens(kind="sampled")))


@pytest.mark.parametrize("over", [FullVocabulary(), SampledTokens(kind="sampled")], ids=lambda o: o.kind)
def test_a_row_that_is_too_long_for_a_teacher_has_none(taught, good, over):
    short = copy.deepcopy(good)
    names = short.config.__class__.__slots__
    lengths = sorted(len(t.ids) for t in demonstration_trajectories(taught))
    settings = {f: getattr(short.config, f) for f in names} | {"max_length": lengths[len(lengths) // 2]}
    short.config = short.config.__class__(**settings)
    report = run(taught, [OpenTeacher("short", short)], spec(steps=1, over=over, min_coverage=0.0))
    assert 0.0 < report.curve[0]["coverage"] < 1.0
    assert report.curve[0]["updated"] == 1.0
    short.config = short.config.__class__(**settings | {"max_length": 4})
    with pytest.raises(TrainingError, match=r"\(its max_length\)"):
        run(taught, [OpenTeacher("short", short)], spec(steps=1, over=over))


def test_demonstrations_stand_beside_rollouts(taught, good):
    rows = demonstration_trajectories(taught)
    report = run(taught, [OpenTeacher("good", good)], spec(demonstrations=0.5), demonstrations=rows)
    assert report.rollouts == 6 * 16
    assert report.draws == [8] * 6
    assert report.curve[-1]["success"] > report.curve[0]["success"]


def demonstration_trajectories(policy):
    from specs.agents import ToolLoop
    from tasks.episodes.agents import agent_for
    from tasks.episodes.render import render_demonstration
    from tests.tasks.loops.toy import TOOL, ToyEnvironment

    made = [ToyEnvironment().demonstrate(problem(i), 0) for i in range(32)]
    return [render_demonstration(d, agent_for(ToolLoop()), policy.template, [TOOL]) for d in made]


def test_rewards_and_outcomes_count(taught, good):
    by_reward = run(taught, [OpenTeacher("good", good)], spec(steps=2, token_weights="reward", states=StateWeights()))
    assert by_reward.curve[0]["updated"] == 1.0
    outcome = spec(steps=4, over=SampledTokens(kind="sampled"), outcome_coef=1.0, group_size=4)
    self_taught = run(taught, [OpenTeacher("self", copy.deepcopy(taught.model))], outcome)
    assert self_taught.curve[-1]["success"] > self_taught.curve[0]["success"]  # the verifier alone moves it


def beside(taught, teacher, term, **more):
    """Run GRPO with a teacher beside the reward."""
    policy = student(taught)
    arena = toy_arena(policy)
    never = more.pop("never", False)
    given = {"group_size": 4, "problems_per_step": 8, "steps": 4, "optimizer": RATE, "max_flat_steps": 2} | more
    made = GRPO(type="grpo", distill=term, **given)
    stage = OnPolicy(
        spec=made,
        problems=ProblemOrder({"all": [problem(i, **({"never": True} if never else {})) for i in range(32)]}, 0),
        seed=0,
        max_length=policy.config.max_length,
        load_weights=lambda step: local(arena).load_weights(policy.model, f"step{step}"),
        panel=Panel([teacher], lambda _: [1.0]),
    )
    learner = Learner(policy.model, made.optimizer, made.steps * made.updates_per_batch)
    return policy, train_policy_gradient(learner, arena, stage)


@pytest.mark.parametrize("over", [FullVocabulary(), TopTokens(kind="top_k"), SampledTokens(kind="sampled")])
def test_a_teacher_beside_the_reward(taught, good, over):
    """Where the verifier never passes anything, the teacher alone moves the policy, and the stage goes on."""
    term = TeacherTerm(over=over, coef=0.5, coef_end=0.25)
    _, never = beside(taught, OpenTeacher("good", good), term, never=True)
    assert never.curve[-1]["teacher_gap"] < never.curve[0]["teacher_gap"]
    assert never.flat_run == 0
    _, alone = beside(taught, OpenTeacher("good", good), term)
    assert [round(line["teacher_coef"], 3) for line in alone.curve] == [0.5, 0.417, 0.333, 0.25]
    assert alone.curve[-1]["success"] > alone.curve[0]["success"]
    assert alone.curve[0]["coverage"] == 1.0
    assert alone.skipped_steps == 0


def test_what_teachers_beside_a_reward_leave_unsaid_is_told(taught, good):
    class Silent:
        name = "silent"

        def score(self, spans):
            return [TokenScores([float("nan")] * len(s.ids)) for s in spans]

    with pytest.raises(
        TrainingError, match=r"step 0: teachers say something about 0 of \d+ tokens.*min_coverage is 0\.5"
    ):
        beside(taught, Silent(), TeacherTerm(over=SampledTokens(kind="sampled")), steps=1)
    term = TeacherTerm(over=SampledTokens(kind="sampled"), min_coverage=0.0)
    _, report = beside(taught, Silent(), term, steps=1)
    assert "said nothing about 100.0 % of the tokens" in sentences(report.curve)[0]
    _, report = beside(taught, OpenTeacher("good", good), term, steps=1)
    assert sentences(report.curve) == []


def test_a_term_without_a_difference_leaves_the_policy_gradient_as_it_is(taught):
    same = OpenTeacher("self", copy.deepcopy(taught.model))
    term = TeacherTerm(over=SampledTokens(kind="sampled", estimator="k2"), coef=0.01, full_length=1)
    with_term, _ = beside(taught, same, term, steps=1, problems_per_step=4)
    policy = student(taught)
    arena = toy_arena(policy)
    made = GRPO(type="grpo", group_size=4, problems_per_step=4, steps=1, optimizer=RATE, max_flat_steps=100)
    stage = OnPolicy(
        spec=made,
        problems=ProblemOrder({"all": [problem(i) for i in range(32)]}, 0),
        seed=0,
        max_length=policy.config.max_length,
        load_weights=lambda step: local(arena).load_weights(policy.model, f"step{step}"),
    )
    train_policy_gradient(Learner(policy.model, made.optimizer, 1), arena, stage)
    for a, b in zip(with_term.model.parameters(), policy.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3)
