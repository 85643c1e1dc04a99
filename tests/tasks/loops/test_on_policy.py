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
    assert resumed.curve == expected.curve
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
        sampler._model = model

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
