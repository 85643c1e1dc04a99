"""What bodies of training nodes share: reading input folders, and building what rollouts need."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from flows.context import NodeContext
from specs.agents import Agent
from specs.environments import Environment as EnvironmentSpec
from specs.errors import DataError, StateError
from specs.policy import Policy
from specs.records import Demonstration, Problem, demonstration_from, problem_from
from specs.reward import Reward
from specs.run import Run
from specs.verifiers import Verifier
from tasks.episodes.agents import agent_for
from tasks.episodes.environments import environment_for
from tasks.episodes.local import LocalSampler
from tasks.evidence.verifiers import verifier_for
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.loops.collect import Arena
from tasks.loops.fit import Hooks
from tasks.policy.store import LoadedPolicy, Precision, load_policy, save_policy
from tasks.protocols import Environment

_CHECKED_ROWS = 8
"""Rows on which a saved policy must give the logprobs of the one that was trained."""
_EXPORT_TOLERANCE = 1e-4
"""Largest difference of a logprob, in nats."""


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


def dropped_ids(node: NodeContext, name: str) -> set[str]:
    """Return the ids of a data set that must not train, because an evaluation set holds the like."""
    if "apart" not in node.inputs:
        return set()
    path = node.inputs["apart"] / "apart.json"
    return set(_read_json(path)["dropped"].get(name, []))


def records(node: NodeContext, name: str) -> Iterator[Demonstration | Problem]:
    """Yield what a data set holds, without what `data.apart` dropped."""
    path = node.inputs[f"data.{name}"] / "records.jsonl"
    dropped = dropped_ids(node, name)
    with path.open(encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            try:
                data = json.loads(line)
                record = demonstration_from(data) if "turns" in data else problem_from(data)
            except (ValueError, KeyError, TypeError) as e:
                raise DataError(f"{path}:{number}: found a record that cannot be read ({e}); make the data anew") from e
            problem = record.problem if isinstance(record, Demonstration) else record
            if problem.id not in dropped:
                yield record


def problem_sets(node: NodeContext) -> dict[str, list[Problem]]:
    """Return the problems of each data set of the stage; of demonstrations, what they solve."""
    sets = {
        name: [r.problem if isinstance(r, Demonstration) else r for r in records(node, name)]
        for name in node.params["data"]
    }
    for name, problems in sets.items():
        if not problems:
            raise DataError(f"data {name!r}: no problem is left for {node.id}; see the data nodes and data.apart")
    return sets


def weights(node: NodeContext) -> dict[str, float] | None:
    """Return the weights of the data sets; None where none are given."""
    given: dict[str, float | None] = node.params["data"]
    found = {name: w for name, w in given.items() if w is not None}
    return found or None


def environments(node: NodeContext) -> dict[str, Environment]:
    """Return the environments that the stage uses."""
    adapter: TypeAdapter[EnvironmentSpec] = TypeAdapter(EnvironmentSpec)
    return {
        name: environment_for(name, adapter.validate_python(spec)) for name, spec in node.params["environments"].items()
    }


def agent_spec(node: NodeContext) -> Agent:
    """Return the agent's spec."""
    return Agent.model_validate(node.params["agent"])


def policy_spec(node: NodeContext) -> Policy:
    """Return the policy's spec."""
    return Policy.model_validate(node.params["policy"])


def precision(node: NodeContext, field: Literal["precision", "sampler_precision"]) -> Precision:
    """Return an arithmetic of the policy; what `auto` means was decided when the program was resolved."""
    found: Literal["fp32", "bf16", "auto"] = getattr(policy_spec(node), field)
    assert found != "auto", f"{field}: compile replaces auto"
    return found


def arena(node: NodeContext, policy: LoadedPolicy) -> tuple[Arena, LocalSampler]:
    """Return what rollouts need, and its sampler. VerifierError where a verifier fails its own self-test."""
    agent = agent_spec(node)
    sampler = LocalSampler(policy, f"{node.id}/start/{policy.digest[:12]}", precision(node, "sampler_precision"))
    adapter: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    specs = {name: adapter.validate_python(spec) for name, spec in node.params["verifiers"].items()}
    made = Arena(
        sampler=sampler,
        agent=agent_for(agent),
        template=policy.template,
        environments=environments(node),
        verifiers={name: verifier_for(name, spec) for name, spec in specs.items()},
        reward=Reward.model_validate(node.params["reward"]),
        max_new_tokens=agent.max_new_tokens,
        in_flight=execution(node).rollout_batch,
    )
    return made, sampler


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

    The folder is loaded again and must give the trained policy's logprobs. StateError where it does not.
    """
    probe = sorted(rows, key=lambda r: (r.length, r.id))[:_CHECKED_ROWS]
    expected = learner.logprobs(probe)
    digest = save_policy(policy, node.out / "policy")
    found = learner.logprobs(probe, load_policy(node.out / "policy", device=device(node)).model)
    pairs = [(a, b) for x, y in zip(expected, found, strict=True) for a, b in zip(x, y, strict=True)]
    worst = max((abs(a - b) for a, b in pairs), default=0.0)
    if not worst <= _EXPORT_TOLERANCE:
        raise StateError(
            f"{node.out / 'policy'}: the saved policy's logprobs differ by up to {worst:.6f} nats from the trained "
            f"one's, expected at most {_EXPORT_TOLERANCE:g}; it was not handed on. Run the node again"
        )
    return digest


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise StateError(f"{path}: cannot be read ({e}); run the node that makes it again") from e
