"""The table of node kinds, and what a plan consists of. Pure data; bodies are named, never imported."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from flows import estimates, estimates_of_ladder, estimates_of_opd, estimates_of_rewards, estimates_of_teachers
from flows.estimates import Estimate, Estimator, estimate_from
from specs.errors import ProgramError

PLAN_SCHEMA = 1
_IN_ROUND = re.compile(r"^round(\d+)\.|@(\d+)(?:\.|$)")
Json = dict[str, Any]

_TRAINING_ONLY = ("algorithm.epochs", "algorithm.batch", "algorithm.optimizer", "algorithm.aggregation")
_SAMPLING = (
    "samples problems rounds temperature threshold top_k band distinct diversity max_tool_errors min_gain max_truncated"
)
_WEIGHING_ONLY = tuple(f"algorithm.{name}" for name in ("reward_temperature", "among", "max_weight", "denominator"))
_PAIRING = ("samples", "problems", "temperature", "choose", "rejected", "margin", "max_truncated")
_PAIRING_ONLY = tuple(f"algorithm.pairing.{name}" for name in _PAIRING)
_UPDATE = (
    "steps problems_per_step optimizer updates_per_batch aggregation token_budget clip_low clip_high dual_clip"
    " ratio_low ratio_high kl_coef kl entropy_coef correction resample decay replay curriculum distill adversarial best_of"
    " critic gae_lambda length_adaptive value_lambda whiten turn_rewards ratio drift_low drift_high"
    " max_flat_steps max_truncated max_logprob_gap max_missing_logprobs"
    " form privileged redistribute gated success_distill snapshot guard growth learners experience experience_per_step"
)
_SAMPLING_ONLY = tuple(f"algorithm.{name}" for name in _SAMPLING.split())
_UPDATE_ONLY = tuple(f"algorithm.{name}" for name in _UPDATE.split())
_PLACES = ("policy.init.model", "policy.init.revision", "policy.init.adapter")
"""Where weights were found; their digest is what counts."""


_WRITES = ("policy.init", "train.sft", "train.rft")
"""Kinds that write calls as the agent does and run no episode: of an agent of one's own its program is nothing to them."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """One kind of node. Raise `version` when the body's results may change for the same params."""

    kind: str
    version: int
    entry: str
    """`module:function` with `(NodeContext) -> Outcome`."""
    heavy: bool
    """Runs in a child process of its own."""
    estimate: Estimator
    unkeyed: tuple[str, ...] = ()
    """Dotted params that are no part of the key: what the body does not use, or what a digest beside them covers."""
    decides: str | None = None
    """Output file that conditions of other nodes are read from."""
    trains: bool = False
    """Its output is a new policy."""
    needs: tuple[str, ...] = ()
    """Inputs without whose output it is skipped as well."""


def _table(*kinds: NodeKind) -> dict[str, NodeKind]:
    return {k.kind: k for k in kinds}


NODE_KINDS: dict[str, NodeKind] = _table(
    NodeKind("data.demonstrations", 1, "flows.work.data:demonstrations", False, estimates.data),
    NodeKind("data.problems", 1, "flows.work.data:problems", False, estimates.data),
    NodeKind("data.file", 1, "flows.work.data:problem_file", False, estimates.data, ("path", "source.path")),
    NodeKind("data.apart", 1, "flows.work.data:apart", False, estimates.apart),
    NodeKind("policy.init", 1, "flows.work.policy:init", True, estimates.init, ("path", "adapter.path", *_PLACES)),
    NodeKind("policy.registered", 1, "flows.work.promotion:registered", False, estimates.registered, ("folder",)),
    NodeKind("train.sft", 4, "flows.work.supervised:sft", True, estimates.sft, _PLACES, trains=True),
    NodeKind(
        "collect", 4, "flows.work.supervised:collect", True, estimates.collect,
        (*_TRAINING_ONLY, *_WEIGHING_ONLY, "algorithm.rounds", *_PLACES), "collect.json",
    ),
    NodeKind(
        "train.rft", 3, "flows.work.supervised:rft", True, estimates.rft,
        (*_SAMPLING_ONLY, *_PLACES, "algorithm.require_success", "data"), trains=True, needs=("collect",),
    ),
    NodeKind(
        "train.reward_weighted", 3, "flows.work.supervised:weighted", True, estimates.weighted,
        (*_SAMPLING_ONLY, *_PLACES, "algorithm.require_success", "data"), trains=True, needs=("collect",),
    ),
    NodeKind("pairs", 2, "flows.work.preference:pairs", True, estimates.pairs, _PLACES),
    NodeKind(
        "train.preference", 3, "flows.work.preference:train", True, estimates.preference,
        (*_PAIRING_ONLY, *_PLACES, "data"), trains=True, needs=("pairs",),
    ),
    NodeKind("turns", 1, "flows.work.reward_models:turns", True, estimates_of_rewards.turns, _PLACES),
    NodeKind(
        "train.reward_model", 3, "flows.work.reward_models:train", True, estimates_of_rewards.reward_model,
        (*_PAIRING_ONLY, "algorithm.pairing.at_least", "algorithm.turns", *_PLACES, "data"),
    ),
    NodeKind(
        "preflight", 3, "flows.work.policy_gradient:preflight", True, estimates.preflight,
        (*_UPDATE_ONLY, *_PLACES),
    ),
    NodeKind(
        "choose", 1, "flows.work.choosing:choose", False, estimates.nothing, (), "decision.json",
        needs=("preflight",),
    ),
    NodeKind(
        "train.policy_gradient", 6, "flows.work.policy_gradient:train", True, estimates_of_opd.policy_gradient,
        (*_PLACES, "access"), trains=True, needs=("decision",),
    ),
    NodeKind("train.best", 1, "flows.work.choosing:best", False, estimates.started, trains=True),
    NodeKind("compress", 1, "flows.work.compression:compress", True, estimates.compress, _PLACES, trains=True),
    NodeKind(
        "teacher.model", 1, "flows.work.opd:model", True, estimates_of_opd.teacher_model,
        ("path", "shape", "teacher.model", "teacher.revision"),
    ),
    NodeKind(
        "teacher.served", 1, "flows.work.served_teachers:look", True, estimates_of_opd.teacher_served,
        ("path", "list", "access"),
    ),
    NodeKind(
        "train.opd", 5, "flows.work.opd:train", True, estimates_of_opd.opd, (*_PLACES, "access"), trains=True
    ),
    NodeKind(
        "teach", 4, "flows.work.teaching:teach", False, estimates_of_teachers.teach, ("access", "drawn", "downgrades"),
        needs=("rollouts",),
    ),
    NodeKind("rollouts", 1, "flows.work.lessons:rollouts", True, estimates_of_ladder.rollouts, _PLACES),
    NodeKind("lessons", 1, "flows.work.lessons:take", True, estimates_of_ladder.lessons, (*_PLACES, "algorithm", "draws")),
    NodeKind(
        "train.corrected", 2, "flows.work.lessons:corrected", True, estimates_of_ladder.corrected,
        (*_PLACES, "data", "draws"), trains=True, needs=("lessons",),
    ),
    NodeKind(
        "train.listwise", 4, "flows.work.lessons:listwise", True, estimates_of_ladder.listwise,
        (*_PLACES, "draws"), trains=True, needs=("teach",),
    ),
    NodeKind(
        "train.practised", 3, "flows.work.lessons:practised", True, estimates_of_ladder.listwise, _PLACES,
        trains=True, needs=("teach",),
    ),
    NodeKind("evaluate", 2, "flows.work.judging:evaluate", True, estimates.evaluate, _PLACES, needs=("policy",)),
    NodeKind("gate", 2, "flows.work.judging:gate", False, estimates.nothing, ()),
    NodeKind("promote", 2, "flows.work.promotion:promote", False, estimates.nothing),
    NodeKind("data.published", 1, "flows.work.published:published", False, estimates.nothing, ("version.path",)),
    NodeKind("round.start", 3, "flows.work.rounds:start", False, estimates.started),
    NodeKind("round.evidence", 2, "flows.work.rounds:evidence", False, estimates.started),
    NodeKind(
        "round.proceed", 1, "flows.work.rounds:proceed", False, estimates.nothing, decides="decision.json",
    ),
    NodeKind(
        "round.choose", 3, "flows.work.rounds:choose", False, estimates.nothing, decides="decision.json",
    ),
    NodeKind("mine", 1, "flows.work.mining:mine", True, estimates.mine, _PLACES),
    NodeKind("cases.attribute", 2, "flows.work.flywheel:attribute", False, estimates.attribute),
    NodeKind("cases.remedy", 3, "flows.work.remedying:remedy", False, estimates.remedy),
    NodeKind("data.pool", 2, "flows.work.remedying:pool", False, estimates.pool),
    NodeKind("pools.publish", 2, "flows.work.remedying:publish", False, estimates.nothing),
    NodeKind("report", 3, "flows.work.judging:report", False, estimates.nothing, ("about",)),
)  # fmt: skip


def canonical(data: Any) -> bytes:
    """Return the bytes that keys are made of: strict JSON, keys sorted, no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def digest(data: Any) -> str:
    """Return the sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(data)).hexdigest()


def node_seed(seed: int, name: str) -> int:
    """Return the seed of a node, 31 bits, from the program's seed and the node's name."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4]) & 0x7FFFFFFF


def round_of(node_id: str) -> int:
    """Return the round that a node belongs to, by its id; 0 is the main part."""
    found = _IN_ROUND.search(node_id)
    return int(found[1] or found[2]) if found else 0


def outside_name(node_id: str) -> str:
    """Return a node's id as it is told to services, where `@` means something else: `gate.ship.round1`."""
    return node_id.replace("@", ".round")


def _without(params: Mapping[str, Any], path: tuple[str, ...]) -> Json:
    head, rest = path[0], path[1:]
    if head not in params:
        return dict(params)
    if not rest:
        return {k: v for k, v in params.items() if k != head}
    inner = params[head]
    return {**params, head: _without(cast(Json, inner), rest)} if isinstance(inner, dict) else dict(params)


def _without_folders(params: Mapping[str, Any]) -> Json:
    """Return params in which programs of the user's own say what they are and not in which folder they lie."""

    kept = dict(params)
    for one in ("environment", "agent"):
        kept = _without(kept, (one, "resolved", "folder"))
    for many in ("environments", "verifiers"):
        for name in cast(Json, kept.get(many) or {}):
            kept = _without(kept, (many, name, "resolved", "folder"))
    return kept


def key_params(kind: str, params: Mapping[str, Any]) -> Json:
    """Return the params that are part of the key."""
    kept = _without_folders(params)
    if kind in _WRITES and "command" in kept.get("agent", {}):
        kept["agent"] = {name: kept["agent"][name] for name in ("kind", "call_format")}
    for path in NODE_KINDS[kind].unkeyed:
        kept = _without(kept, tuple(path.split(".")))
    return kept


def content_key(node: "Node", inputs: Mapping[str, str]) -> str:
    """Return a key: with the inputs' plan keys it is the plan key, with their outputs' digests the run key."""
    return digest([node.kind, node.version, node.key_params, node.seed, dict(inputs)])


@dataclass(frozen=True, slots=True)
class Node:
    """A vertex of a plan. `inputs` name the nodes whose output folders the body reads."""

    id: str
    kind: str
    version: int
    params: Json
    seed: int
    inputs: dict[str, str]
    estimate: Estimate
    when: Json | None = None
    """`{"node": id, "go" | "continue": bool}`: skipped unless the decision says so; the node is input `condition`."""
    passthrough: str | None = None
    """Input whose output stands in for this one's when it is skipped."""
    threads: int = 1
    plan_key: str = ""

    @property
    def key_params(self) -> Json:
        """Return the params that are part of the key."""
        return key_params(self.kind, self.params)

    @property
    def heavy(self) -> bool:
        """Return whether it runs in a child process."""
        return NODE_KINDS[self.kind].heavy

    def to_dict(self) -> Json:
        """Return JSON-ready data."""
        data: Json = {
            "id": self.id,
            "kind": self.kind,
            "version": self.version,
            "params": self.params,
            "seed": self.seed,
            "inputs": self.inputs,
            "resources": {"heavy": self.heavy, "threads": self.threads},
            "estimate": self.estimate.to_dict(),
            "plan_key": self.plan_key,
        }
        if self.when is not None:
            data["when"] = self.when
        if self.passthrough is not None:
            data["passthrough"] = self.passthrough
        return data


def node_from(data: Json) -> Node:
    """Return the node that `to_dict` wrote."""
    plain = ("id", "kind", "version", "params", "seed", "inputs", "plan_key")
    return Node(
        **{name: data[name] for name in plain},
        estimate=estimate_from(data["estimate"]),
        when=data.get("when"),
        passthrough=data.get("passthrough"),
        threads=data["resources"]["threads"],
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled program: nodes in topological order, and what the outside was resolved to."""

    program: str
    about: str
    seed: int
    program_digest: str
    resolution: Json
    nodes: tuple[Node, ...]
    policies: dict[str, str]
    """Stage id -> node whose `policy/` is its result; `init`, and `champion` or `previous` where one is used."""
    stages: tuple[str, ...]
    execution: Json
    """`specs.run.Run` as JSON; never part of a key."""
    budget: Json
    tags: dict[str, str]
    rows: dict[str, int]
    """Records by data set, as far as known."""
    details: Json = field(default_factory=dict[str, Any])
    """What a reader is told: effective losses, gates."""
    schema: int = PLAN_SCHEMA

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def node(self, node_id: str) -> Node:
        """Return a node by id; ProgramError with near names where there is none."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise ProgramError(f"{self.program}: no node is called {node_id!r}{_near(node_id, [n.id for n in self.nodes])}")

    def downstream(self, node_id: str) -> list[str]:
        """Return the nodes that depend on a node, itself first, in order."""
        reached = {node_id}
        for node in self.nodes:
            if reached.intersection(node.inputs.values()):
                reached.add(node.id)
        return [n.id for n in self.nodes if n.id in reached]

    def upstream(self, node_id: str) -> list[str]:
        """Return the nodes that a node depends on, itself last, in order."""
        needed = {node_id}
        for node in reversed(self.nodes):
            if node.id in needed:
                needed.update(node.inputs.values())
        return [n.id for n in self.nodes if n.id in needed]

    def to_dict(self) -> Json:
        """Return JSON-ready data; the same plan gives the same bytes."""
        plain = [f.name for f in fields(Plan) if f.name not in ("nodes", "stages", "schema")]
        return {
            "schema": self.schema,
            **{name: getattr(self, name) for name in plain},
            "stages": list(self.stages),
            "nodes": [n.to_dict() for n in self.nodes],
        }


def _near(name: str, names: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, names, n=3)
    return f"; did you mean {' or '.join(close)}?" if close else f"; expected one of {', '.join(names)}"


def plan_from(data: Json) -> Plan:
    """Return the plan that `to_dict` wrote. ProgramError where its schema is another one."""
    if data.get("schema") != PLAN_SCHEMA:
        raise ProgramError(
            f"plan: schema {data.get('schema')!r} found, {PLAN_SCHEMA} expected; write the plan anew with `tutelage plan`"
        )
    try:
        parts: Json = {**data, "nodes": tuple(node_from(n) for n in data["nodes"]), "stages": tuple(data["stages"])}
        return Plan(**parts)
    except (KeyError, TypeError) as e:
        raise ProgramError(f"plan: damaged ({e}); write it anew with `tutelage plan --save`") from e
