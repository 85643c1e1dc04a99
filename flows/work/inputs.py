"""What bodies of training nodes share: reading input folders, and building what rollouts need."""

from typing import Literal

from pydantic import TypeAdapter

from flows.conditions import pool_rows
from flows.context import NodeContext
from flows.work.reading import environments, problems
from flows.work.serving import AnySampler, sampler_for
from specs.agents import Agent, ExternalAgent
from specs.errors import DataError, StateError, VerifierError
from specs.policy import Policy
from specs.records import Problem, Trajectory
from specs.reward import Reward
from specs.run import LocalSampling, Run
from specs.verifiers import Verifier
from tasks.episodes.agents import agent_for
from tasks.episodes.shards import read_shards
from tasks.evidence.verifiers import verifier_for
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.loops.collect import Arena
from tasks.loops.fit import Hooks
from tasks.policy.adapter_files import save_adapter, with_adapter
from tasks.policy.llama import Llama
from tasks.policy.lora import difference
from tasks.policy.store import LoadedPolicy, Precision, load_policy, save_policy
from tasks.protocols import VerifierRun

_CHECKED_ROWS = 8
"""Rows on which a saved policy must give the logprobs of the one that was trained."""
_EXPORT_TOLERANCE = 1e-4
"""Largest difference of a logprob, in nats."""
_ADAPTER_TOLERANCE = 1e-3
"""The same between an adapter and the sum of it and its base, of any token of the vocabulary."""


def execution(node: NodeContext) -> Run:
    """Return how the node is executed."""
    return Run.model_validate(node.execution)


def device(node: NodeContext) -> str:
    """Return the device; `auto` is the accelerator where there is one."""
    asked = execution(node).device
    if asked != "auto":
        return asked
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def start_policy(node: NodeContext) -> LoadedPolicy:
    """Return the policy that the node starts from, its digests checked."""
    return load_policy(node.inputs["policy"] / "policy", device=device(node))


def filled(node: NodeContext) -> list[str]:
    """Return the data sets of the stage that hold something; only a pool of a round may be empty."""
    pools: list[str] = node.params.get("of_round", [])
    return [name for name in node.params["data"] or () if name not in pools or pool_rows(node.inputs[f"data.{name}"])]


def empty_notes(node: NodeContext) -> list[str]:
    """Return a sentence for each pool that is empty: its share goes to the others."""
    left = filled(node)
    return [
        f"pool {name} is empty: its share goes to {', '.join(left)}"
        for name in node.params["data"] or ()
        if name not in left
    ]


def pool_trajectories(node: NodeContext, name: str, policy: LoadedPolicy) -> list[Trajectory]:
    """Return the trajectories of a pool, whose tokens train as they are. DataError for one that must not train."""
    folder = node.inputs[f"data.{name}"] / "trajectories"
    if not folder.is_dir():
        return []
    found = list(read_shards(folder))
    for trajectory in found:
        if trajectory.success is not True or trajectory.status != "finished":
            raise DataError(
                f"data {name!r}: trajectory {trajectory.id} did not succeed (success {trajectory.success}, "
                f"{trajectory.status}); only verified trajectories are examples. Run the round again"
            )
        _check_tokens(name, trajectory, policy)
    return found


def _check_tokens(name: str, trajectory: Trajectory, policy: LoadedPolicy) -> None:
    tokenizer, stops = policy.template.tokenizer, policy.template.stop_ids
    for number, turn in enumerate(trajectory.turns, 1):
        ids = trajectory.ids[turn.start : turn.end]
        if turn.finish == "length" or (turn.start == turn.end and not turn.text):
            continue  # cut, or a call that an agent of one's own made without a reply
        if not ids or ids[-1] not in stops or tokenizer.decode(ids[:-1]) != turn.text:
            raise DataError(
                f"data {name!r}: the tokens of trajectory {trajectory.id}, turn {number}, do not say what it says; they "
                "are of another tokenizer or template than the policy's. Run the round again"
            )


def problem_sets(node: NodeContext) -> dict[str, list[Problem]]:
    """Return the problems of each data set of the stage that holds some; of demonstrations, what they solve."""
    sets = {name: problems(node, name) for name in filled(node)}
    for name, found in sets.items():
        if not found:
            raise DataError(f"data {name!r}: no problem is left for {node.id}; see the data nodes and data.apart")
    return sets


def weights(node: NodeContext) -> dict[str, float] | None:
    """Return the weights of the data sets; None where none are given."""
    given: dict[str, float | None] = node.params["data"]
    found = {name: w for name in filled(node) if (w := given[name]) is not None}
    return found or None


def agent_spec(node: NodeContext) -> Agent:
    """Return the agent's spec."""
    agent: TypeAdapter[Agent] = TypeAdapter(Agent)
    return agent.validate_python(node.params["agent"])


def policy_spec(node: NodeContext) -> Policy:
    """Return the policy's spec."""
    return Policy.model_validate(node.params["policy"])


def precision(node: NodeContext, field: Literal["precision", "sampler_precision"]) -> Precision:
    """Return an arithmetic of the policy; what `auto` means was decided when the program was resolved."""
    found: Literal["fp32", "bf16", "auto"] = getattr(policy_spec(node), field)
    assert found != "auto", f"{field}: compile replaces auto"
    return found


def exact(node: NodeContext) -> bool:
    """Return whether the sampler's logprobs are the trainer's up to rounding: the same engine, in fp32 both."""
    precisions = {precision(node, "precision"), precision(node, "sampler_precision")}
    return isinstance(execution(node).sampler, LocalSampling) and precisions == {"fp32"}


def arena(node: NodeContext, policy: LoadedPolicy) -> tuple[Arena, AnySampler]:
    """Return what rollouts need, and its sampler. VerifierError where a verifier fails its own self-test."""
    agent = agent_spec(node)
    sampler = sampler_for(node, policy, precision(node, "sampler_precision"))
    adapter: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    specs = {name: adapter.validate_python(spec) for name, spec in node.params["verifiers"].items()}
    made = Arena(
        sampler=sampler,
        agent=agent_for(agent),
        template=policy.template,
        environments=environments(node),
        verifiers=_verifiers(node, specs, policy),
        reward=Reward.model_validate(node.params["reward"]),
        max_new_tokens=agent.max_new_tokens,
        in_flight=_in_flight(agent, execution(node)),
        repeatable=isinstance(execution(node).sampler, LocalSampling) and not isinstance(agent, ExternalAgent),
    )
    return made, sampler


def _verifiers(node: NodeContext, specs: dict[str, Verifier], policy: LoadedPolicy) -> dict[str, VerifierRun]:
    """Return the verifiers; a learnt one must read the very tokens that the policy writes."""
    made = {
        n: verifier_for(n, s, folder / "reward" if (folder := node.inputs.get(f"verifier.{n}")) else None)
        for n, s in specs.items()
    }
    for name, verifier in made.items():
        digest = getattr(verifier, "template_digest", None)
        if digest not in (None, policy.template.digest):
            raise VerifierError(
                f"verifiers.{name}: its model reads tokens of the template {digest[:12]}, the policy writes those of "
                f"{policy.template.digest[:12]}; train the reward model from this policy"
            )
    return made


def _in_flight(agent: Agent, run: Run) -> int:
    """Return how many episodes run at once; those of an agent of one's own are a process each."""
    return min(run.rollout_batch, run.agent_processes) if isinstance(agent, ExternalAgent) else run.rollout_batch


def precision_notes(node: NodeContext) -> list[str]:
    """Return a warning where the policy's bf16 is emulated by this processor, which makes it many times slower."""
    import torch

    spec = policy_spec(node)
    slow = device(node) == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not slow or "bf16" not in (spec.precision, spec.sampler_precision):
        return []
    return ["this CPU has no bf16 arithmetic and emulates it, many times slower: set policy.precision to fp32"]


def hooks(node: NodeContext) -> Hooks:
    """Return hooks that write the node's metrics, progress and checkpoints."""
    return Hooks(
        metrics=node.metrics.log,
        resume_metrics=node.metrics.resume_from,
        progress=node.progress,
        stop=node.stop,
        checkpointer=Checkpointer(node.checkpoints / "state", node.id),
        checkpoint_seconds=execution(node).checkpoint_seconds,
    )


def save_result(node: NodeContext, policy: LoadedPolicy, learner: Learner, rows: list[TrainingRow]) -> str:
    """Write the trained policy to `out/policy` and return its digest.

    The folder is loaded again and must give the trained policy's logprobs. StateError where it does not, or where there is
    no row to compare them on.
    """
    if not rows:
        raise StateError(
            f"{node.id}: no trajectory of the stage has a token of the policy, so that the saved policy cannot be compared "
            "with the trained one; it was not handed on. Shorten the prompts or raise policy.init.max_length; see the log "
            "for episodes that could not be run"
        )
    probe = sorted(rows, key=lambda r: (r.length, r.id))[:_CHECKED_ROWS]
    base, base_digest = policy.model, policy.digest
    policy.model = learner.plain()
    expected = learner.logprobs(probe, policy.model)
    digest = save_policy(policy, node.out / "policy")
    found = learner.logprobs(probe, load_policy(node.out / "policy", device=device(node)).model)
    pairs = [(a, b) for x, y in zip(expected, found, strict=True) for a, b in zip(x, y, strict=True)]
    worst = max((abs(a - b) for a, b in pairs), default=0.0)
    if not worst <= _EXPORT_TOLERANCE:
        raise StateError(
            f"{node.out / 'policy'}: the saved policy's logprobs differ by up to {worst:.6f} nats from the trained "
            f"one's, expected at most {_EXPORT_TOLERANCE:g}; it was not handed on. Run the node again"
        )
    if policy_spec(node).adapter is not None:
        _save_adapter(node, learner, base, base_digest, policy, probe[0].ids)
    return digest


def _save_adapter(
    node: NodeContext, learner: Learner, base: Llama, base_digest: str, policy: LoadedPolicy, ids: list[int]
) -> None:
    """Write the adapter beside the policy; added to the base, as a reader would, it must give the policy."""
    spec = policy_spec(node).adapter
    assert spec is not None, "a learner has adapters where the program says so"
    save_adapter(learner.model, spec, base_digest, node.out / "adapter")
    worst = max(
        difference(policy.model, learner.model, ids),
        difference(policy.model, with_adapter(base, node.out / "adapter", base_digest), ids),
    )
    if not worst <= _ADAPTER_TOLERANCE:
        raise StateError(
            f"{node.out / 'adapter'}: with it the base gives logprobs that differ by up to {worst:.6f} nats from the "
            f"policy's, expected at most {_ADAPTER_TOLERANCE:g}; nothing was handed on. Run the node again"
        )
