import copy
import logging
from dataclasses import replace

import pytest
import torch

from specs.algorithms import PolicyGradientAlgorithm
from specs.errors import Interrupted, TrainingError, VerifierError
from specs.grpo import GRPO
from specs.optimizer import Optimizer
from specs.value_based import ValueBased
from tasks.episodes.local import LocalSampler
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.critic import CriticLearner
from tasks.learning.learner import Learner
from tasks.learning.shared_critic import ActorCritic
from tasks.loops.fit import Hooks
from tasks.loops.on_policy import OnPolicy, train_policy_gradient
from tasks.loops.order import ProblemOrder
from tasks.loops.stepping import check_cut, fallen
from tasks.loops.updates import policy_updates
from tasks.policy.lora import adapted
from tests.tasks.loops.toy import problem, taught_policy, toy_arena

PROBLEMS = [problem(i) for i in range(6)]
SPEC = GRPO(
    type="grpo",
    group_size=6,
    problems_per_step=4,
    steps=4,
    optimizer=Optimizer(learning_rate=1e-2, schedule="linear"),
)


@pytest.fixture(scope="module")
def taught():
    return taught_policy()


def stage(
    taught,
    spec: PolicyGradientAlgorithm = SPEC,
    problems=PROBLEMS,
    folder=None,
    stop_after=None,
    spoil=None,
    max_new_tokens=8,
    **more,
):
    """Return the learner of a stage and what runs it; `more`: a mixture, order, adapter, precision, or the reward's."""
    mixture, order, adapter = (more.pop(name, None) for name in ("mixture", "order", "adapter"))
    precision = more.pop("precision", "fp32")
    policy = copy.deepcopy(taught)
    arena = toy_arena(policy, **more)
    sampler = LocalSampler(policy, "start", precision)
    arena = replace(arena, max_new_tokens=max_new_tokens, sampler=sampler)
    shared = isinstance(spec, ValueBased) and spec.critic.backbone == "shared"
    model = policy.model if adapter is None else adapted(policy.model, adapter, 3)
    learner = (ActorCritic if shared else Learner)(model, spec.optimizer, policy_updates(spec))
    critic = None
    if isinstance(spec, ValueBased) and not shared:
        critic = CriticLearner(copy.deepcopy(taught).model, spec.critic, spec.steps)
    lines = []
    hooks = Hooks(metrics=lambda step, **values: lines.append(values), checkpoint_seconds=0.0)
    hooks.stop = lambda: stop_after is not None and len(lines) >= stop_after
    hooks.checkpointer = Checkpointer(folder) if folder else None

    def load(step):
        sampler.load_weights(learner.plain(), f"step{step}")
        if spoil is not None:
            spoil(sampler)

    fixed = OnPolicy(
        spec=spec,
        problems=order or ProblemOrder({"a": problems}, 5),
        seed=5,
        max_length=policy.config.max_length,
        load_weights=load,
        reference=copy.deepcopy(taught).model,
        critic=critic,
        mixture=mixture,
    )
    return learner, lambda: train_policy_gradient(learner, arena, fixed, hooks)


def weights(learner):
    return torch.cat([p.detach().flatten() for p in learner.model.parameters()])


def test_it_learns_what_is_rewarded(taught):
    spec = SPEC.model_copy(update={"steps": 12, "kl_coef": 0.001, "updates_per_batch": 2})
    _, run = stage(taught, spec)
    report = run()
    curve = report.curve
    assert 0.3 < curve[0]["success"] < 0.7
    assert sum(line["success"] for line in curve[-3:]) / 3 > 0.8
    assert curve[0]["logprob_gap"] < 1e-4
    assert curve[0]["ess"] == pytest.approx(1.0, abs=1e-3)
    assert curve[0]["reference_kl_k3"] == pytest.approx(0.0, abs=1e-6)
    assert curve[-1]["reference_kl_k3"] > 0.01
    assert report.rollouts == 12 * 4 * 6


def test_a_stopped_stage_ends_with_the_same_bits(taught, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    whole, run = stage(taught)
    expected = run()
    first, run = stage(taught, folder=tmp_path, stop_after=2)
    with pytest.raises(Interrupted):
        run()
    second, run = stage(taught, folder=tmp_path)
    resumed = run()
    assert "went on from step 2" in caplog.messages
    assert resumed.notes == expected.notes
    assert torch.equal(weights(second), weights(whole))
    assert (resumed.curve, resumed.solved) == (expected.curve, expected.solved)
    assert not torch.equal(weights(first), weights(whole))


def test_steps_without_variance_make_no_update_and_stop_the_stage(taught):
    spec = SPEC.model_copy(update={"max_flat_steps": 3, "steps": 9})
    # nothing is good about a policy that is judged by a verifier it cannot please
    learner, run = stage(taught, spec, problems=[problem(i, never=True) for i in range(6)])
    before = weights(learner)
    with pytest.raises(TrainingError, match=r"3 steps in a row.*4 all wrong.*sft or rft first"):
        run()
    assert torch.equal(before, weights(learner))
    assert (learner.step_index, learner.updates) == (3, 0)


def test_a_sampler_with_other_weights_is_found_before_the_update(taught):
    def spoil(sampler):
        model = copy.deepcopy(sampler._model)
        with torch.no_grad():
            model.embed.weight.mul_(0.7)
        sampler._model, sampler._head_VD = model, model.head_weight

    learner, run = stage(taught, spoil=spoil)
    before = weights(learner)
    with pytest.raises(TrainingError, match=r"step 0: .*nats a token.*max_logprob_gap"):
        run()
    assert torch.equal(before, weights(learner))


def test_too_many_without_a_verdict_stop_the_stage(taught):
    _, run = stage(taught, problems=[problem(i, broken=True) for i in range(6)])
    with pytest.raises(VerifierError, match=r"24 of 24.*asked to fail"):
        run()


def test_some_without_a_verdict_take_no_part(taught):
    mixed = [problem(0, broken=True), *PROBLEMS[1:]]
    spec = SPEC.model_copy(update={"steps": 1, "problems_per_step": 6})
    _, run = stage(taught, spec, problems=mixed, max_invalid=0.5)
    figures = run().curve[0]
    assert figures["invalid"] == pytest.approx(1 / 6)
    assert figures["too_few_valid_groups"] == pytest.approx(1 / 6)


def test_fewer_problems_than_a_step_takes_are_all_used_and_told(taught):
    spec = SPEC.model_copy(update={"steps": 2, "problems_per_step": 7})
    _, run = stage(taught, spec)
    report = run()
    assert report.notes == ["problems_per_step is 7 but there are 6 problems; each step uses all of them"]
    assert report.rollouts == 2 * 6 * spec.group_size
    assert not stage(taught, spec.model_copy(update={"problems_per_step": 6}))[1]().notes


def test_cut_trajectories_are_left_out_or_stop_the_stage(taught):
    spec = SPEC.model_copy(update={"steps": 1, "truncated": "mask", "max_truncated": 0.01})
    _, run = stage(taught, spec, max_new_tokens=2)
    with pytest.raises(TrainingError, match=r"100 % of the trajectories were cut.*max_new_tokens"):
        run()
    spec = SPEC.model_copy(update={"steps": 1, "truncated": "mask", "temperature": 2.0})
    _, run = stage(taught, spec, max_new_tokens=4)
    report = run()
    cut = report.curve[0]["truncated"]
    assert 0 < cut < 0.9
    assert 0 < report.dropped["truncated"] <= round(cut * 24)


def test_the_rows_to_try_the_policy_on_are_of_any_trajectory_and_of_any_step(taught):
    def probe(place, **more):
        """Return the rows where the prompt of the problem that is drawn at this place fills the length."""
        long = ProblemOrder({"a": PROBLEMS}, 5).draw(4)[place].id
        problems = [replace(p, text="say " * 60) if p.id == long else p for p in PROBLEMS]
        return stage(taught, SPEC.model_copy(update=more), problems=problems)[1]().probe

    assert len(probe(0, group_size=8, steps=1)) == 8
    last = probe(1, problems_per_step=1, steps=2, max_truncated=1.0, max_flat_steps=None)
    assert {row.trajectory.split("/")[0] for row in last} == {"step0"}


def test_a_policy_that_an_update_broke_is_not_told_to_write_more(taught):
    wild = Optimizer(kind="adamw", learning_rate=30.0)
    _, run = stage(taught, SPEC.model_copy(update={"optimizer": wild}))
    told = (
        r"step 1: \d+ % of the trajectories were cut.*; it was \d % in step 0, before the update of step 0\. .*lower "
        r"optimizer\.learning_rate \(now 30\)"
    )
    with pytest.raises(TrainingError, match=told):
        run()


def _curve(*cut, updated=True):
    return [{"truncated": share, "updated": float(updated)} for share in cut]


@pytest.mark.parametrize(
    ("curve", "told"),
    [
        ([], "raise agent.max_new_tokens"),
        (_curve(0.05), "it was 5 % in step 0, before the update of step 0"),
        (_curve(0.0, 0.02, 0.05, 0.6), "it was 2 % in step 1, before the updates of step 1, 2, 3"),
        (_curve(0.02, updated=False), "raise agent.max_new_tokens"),
        (_curve(0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8), "raise agent.max_new_tokens"),
    ],
    ids=["first step", "one update", "some", "none", "slowly"],
)
def test_what_cut_trajectories_are_blamed_on(curve, told):
    with pytest.raises(TrainingError, match=f"step {len(curve)}: 95 % .* cut, max_truncated is 0.9; .*{told}") as found:
        check_cut({"truncated": 0.95}, SPEC, curve, 0.1)
    assert ("learning_rate (now 0.1)" in str(found.value)) == told.startswith("it was")
    check_cut({"truncated": 0.8}, SPEC, curve, 0.1)


def test_a_stage_that_came_to_nothing_by_its_updates_says_so(taught):
    told = ". Success was 0.80 in step 1 and is 0.10, after updates: before any of that, lower optimizer.learning_rate (now 0.5)"
    steps = [{"success": s, "updated": float(u)} for s, u in ((0.5, 1), (0.8, 1), (0.2, 1), (0.1, 0))]
    assert fallen(steps, 0.5).startswith(told)
    assert fallen([line | {"updated": 0.0} for line in steps], 0.5) == fallen(steps[:2], 0.5) == ""
    assert fallen([{"success": 0.0, "updated": 1.0}] * 2, 0.5) == ""
    wild = Optimizer(kind="muon", learning_rate=0.1)
    _, run = stage(taught, SPEC.model_copy(update={"optimizer": wild, "steps": 9, "max_flat_steps": 2}))
    with pytest.raises(TrainingError, match=r"so there is nothing to learn.*Success was 0\.\d+ in step 0 and is 0\.00"):
        run()
