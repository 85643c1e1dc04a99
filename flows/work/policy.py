"""Body of `policy.init`: the policy that a program starts from."""

import json
from collections.abc import Iterator
from pathlib import Path

from flows.context import NodeContext, Outcome
from flows.work.inputs import agent_spec, policy_spec
from flows.work.reading import environments
from specs.errors import DataError
from specs.policy import PretrainedPolicy, ScratchPolicy
from specs.records import Demonstration, Problem, ToolCall, demonstration_from, problem_from
from tasks.episodes.agents import ToolLoopAgent, agent_for
from tasks.episodes.render import render_demonstration
from tasks.policy.adapter_files import with_adapter
from tasks.policy.initial import from_pretrained, from_scratch
from tasks.policy.store import LoadedPolicy, digest_of, read_json, save_policy
from tasks.protocols import Environment
from tasks.tokens.text import compact_json, fragments

_RENDERED = 500
"""Demonstrations that are rendered to say how long they are."""


def init(node: NodeContext) -> Outcome:
    """Make the first policy, from random weights or from a model that exists; writes `policy/`."""
    spec = policy_spec(node)
    agent = agent_for(agent_spec(node))
    outcome = Outcome()
    if isinstance(spec.init, ScratchPolicy):
        found = list(_records(node.inputs["texts"] / "records.jsonl"))
        worlds = environments(node)
        node.progress("tokenizer", None, {"texts": float(len(found))})
        policy = _scratch(spec.init, spec.template, found, worlds, agent, node.seed)
        _describe(outcome, policy, found, worlds, agent)
    else:
        node.progress("loading the model", None, {})
        policy = from_pretrained(_pinned(spec.init, node), spec.template)
        if spec.init.adapter is not None:
            _add_adapter(policy, Path(node.params["adapter"]["path"]), _pinned(spec.init, node).model)
    save_policy(policy, node.out / "policy")
    outcome.notes += policy.notes
    outcome.metrics |= {
        "parameters": float(sum(p.numel() for p in policy.model.parameters())),
        "vocabulary": float(policy.tokenizer.size),
    }
    return outcome


def _pinned(spec: PretrainedPolicy, node: NodeContext) -> PretrainedPolicy:
    """Return the spec with the place and digest that were resolved before the run."""
    model = spec.model if spec.model.startswith("package:") else node.params.get("path", spec.model)
    return spec.model_copy(update={"model": model, "revision": node.params.get("digest", spec.revision)})


def _add_adapter(policy: LoadedPolicy, adapter: Path, model: str) -> None:
    """Add an adapter to the weights; where the base is a policy folder, it must be the one that the adapter names."""
    manifest = Path(model) / "manifest.json"
    base = digest_of(read_json(manifest)) if not model.startswith("package:") and manifest.is_file() else ""
    policy.model = with_adapter(policy.model, adapter, base)
    policy.notes.append(f"the adapter {adapter.name} was added to its weights")


def _records(path: Path) -> Iterator[Demonstration | Problem]:
    with path.open(encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            try:
                data = json.loads(line)
                yield demonstration_from(data) if "turns" in data else problem_from(data)
            except (ValueError, KeyError, TypeError) as e:
                raise DataError(f"{path}:{number}: found a record that cannot be read ({e}); make the data anew") from e


def _scratch(
    spec: ScratchPolicy,
    template: str,
    records: list[Demonstration | Problem],
    worlds: dict[str, Environment],
    agent: ToolLoopAgent,
    seed: int,
) -> LoadedPolicy:
    turns = [turn for r in records if isinstance(r, Demonstration) for turn in r.turns]
    tools = [tool for world in worlds.values() for tool in world.tools()]
    pieces = fragments(tools, agent.spec.call_format, (o.data for _, o in turns))
    return from_scratch(spec, template, _texts(records, agent), pieces, seed)


def _texts(records: list[Demonstration | Problem], agent: ToolLoopAgent) -> Iterator[str]:
    """Yield every text that the tokenizer should know: requests, calls and observations."""
    for record in records:
        if isinstance(record, Problem):
            yield record.text
            continue
        yield record.problem.text
        for call, observation in record.turns:
            yield agent.write(call)
            yield compact_json(observation.data)


def _describe(
    outcome: Outcome,
    policy: LoadedPolicy,
    records: list[Demonstration | Problem],
    worlds: dict[str, Environment],
    agent: ToolLoopAgent,
) -> None:
    """Say how long demonstrations are. DataError where a demonstrated call could not be read back."""
    demonstrations = [r for r in records if isinstance(r, Demonstration)][:_RENDERED]
    lengths: list[int] = []
    for d in demonstrations:
        tools = worlds[d.problem.environment].tools(d.problem)
        rendered = render_demonstration(d, agent, policy.template, tools)
        lengths.append(len(rendered.ids))
        for turn in rendered.turns:
            read: ToolCall = agent.parse(turn.text, tools)
            if read.error is not None and not (turn.call and turn.call.error):
                raise DataError(
                    f"demonstration of {d.problem.id}: its call {turn.text!r} is {read.error}; "
                    "the policy could never make it. Mend the demonstration or the tool's schema"
                )
    if not lengths:
        return
    outcome.metrics["tokens_per_demonstration"] = sum(lengths) / len(lengths)
    over = sum(n > policy.config.max_length for n in lengths)
    if over:
        outcome.notes.append(
            f"{over} of {len(lengths)} demonstrations are longer than policy.init.max_length "
            f"{policy.config.max_length} (longest {max(lengths)}); they will be cut or dropped"
        )
