"""The learner of a node, with the adapter, arithmetic and memory that the program asks for."""

from flows.context import NodeContext
from flows.work import inputs
from specs.optimizer import Optimizer
from tasks.learning.learner import Learner
from tasks.learning.shared_critic import ActorCritic
from tasks.learning.values import ValueLearner, ValueModel, value_model
from tasks.policy.llama import Llama
from tasks.policy.lora import adapted
from tasks.policy.store import LoadedPolicy


def learner_for(
    node: NodeContext,
    policy: LoadedPolicy,
    optimizer: Optimizer,
    steps: int,
    *,
    values: bool = False,
    rounded_logits: bool = False,
) -> Learner:
    """Return the learner of a policy; `values`: with a head for them. With an adapter, `policy.model` stays what the stage starts from.

    `rounded_logits`: see `Learner`.
    `learner.plain()` is the model for samplers; `inputs.save_result` writes what was trained.
    """
    run, spec = inputs.execution(node), inputs.policy_spec(node).adapter
    policy.model.checkpointing = run.gradient_checkpointing
    kind = ActorCritic if values else Learner
    return kind(
        policy.model if spec is None else adapted(policy.model, spec, node.seed),
        optimizer,
        steps,
        precision=inputs.precision(node, "precision"),
        micro_batch_tokens=run.micro_batch_tokens,
        device=inputs.device(node),
        rounded_logits=rounded_logits,
    )


def value_learner_for(node: NodeContext, policy: LoadedPolicy, optimizer: Optimizer, steps: int) -> ValueLearner:
    """Return the learner of a model with one number per position, on the policy's own weights: these change."""
    run, spec = inputs.execution(node), inputs.policy_spec(node).adapter
    policy.model.checkpointing = run.gradient_checkpointing
    return ValueLearner(
        ValueModel(policy.model, share=True) if spec is None else value_model(policy.model, spec, node.seed),
        optimizer,
        steps,
        precision=inputs.precision(node, "precision"),
        micro_batch_tokens=run.micro_batch_tokens,
        device=inputs.device(node),
    )


def reference(node: NodeContext, policy: LoadedPolicy) -> Llama:
    """Return the policy that the stage starts from, frozen: with an adapter it is there already, else it is read again."""
    adapter = inputs.policy_spec(node).adapter
    return inputs.start_policy(node).model if adapter is None else policy.model


def critic_model(node: NodeContext, policy: LoadedPolicy) -> ValueModel:
    """Return the model of a critic; with an adapter it shares the policy's frozen weights."""
    spec = inputs.policy_spec(node).adapter
    return value_model(policy.model, spec, node.seed + 1)
