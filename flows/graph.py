"""The graph while it is built: nodes in topological order, with what every part of the compiler needs. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flows.estimates import Sizes, shape_of
from flows.memory import limit, must_fit
from flows.nodes import NODE_KINDS, Json, Node, content_key, node_seed
from flows.resolution import Resolution, environments_of, filled, main_data, used_data
from specs.data import PoolData, ProblemFile
from specs.environments import Environment
from specs.errors import ProgramError
from specs.flywheel import HardPool, Prefer, Repair, pools_read, remedies_in_use
from specs.gates import Evaluation
from specs.program import Program
from specs.reward import Reward
from specs.reward_models import RewardModel
from specs.stages import Stage
from specs.verifiers import RewardModelVerifier, learnt


def dump(spec: Any) -> Json:
    """Return a spec as plain JSON, as it goes into params."""
    return spec.model_dump(mode="json", by_alias=True)


def effective_reward(program: Program) -> Reward:
    """Return the reward in use: a single verifier is the outcome where none is named."""
    if program.reward.outcome:
        return program.reward
    fixed = [n for n in program.verifiers if n not in learnt(program.verifiers)]
    if len(fixed) == 1:
        return program.reward.model_copy(update={"outcome": dict.fromkeys(fixed, 1.0)})
    raise ProgramError(
        f"{program.program}: reward.outcome names no verifier; expected at least one of {', '.join(program.verifiers)}"
    )


def _with_precision(policy: Json, meant: str) -> Json:
    """Return the policy's params with `auto` replaced by what it was resolved to."""
    auto = [k for k in ("precision", "sampler_precision") if policy[k] == "auto"]
    return policy | dict.fromkeys(auto, meant)


@dataclass(frozen=True, slots=True)
class Part:
    """What is being added: the main part, or a round, in which names mean something else."""

    number: int = 0
    """The round; 0 is the main part."""
    start: str = "init"
    """What a first stage starts from where it does not say."""
    pools: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pool -> node that holds it in this round."""
    apart: str = "data.apart"
    """Node that keeps training and evaluation data apart."""
    when: Json | None = None
    """Condition of every node that has none of its own."""

    def name(self, stage: str) -> str:
        """Return the policy's name: `mend@1` is that of stage `mend` in the first round."""
        return f"{stage}@{self.number}" if self.number else stage


class Graph:
    """Nodes in the order in which they are added, which is topological."""

    def __init__(self, program: Program, resolution: Resolution) -> None:
        program = filled(program, resolution.commands)
        self.program = program
        self.resolution = resolution
        self.nodes: dict[str, Node] = {}
        self.policies: dict[str, str] = {}
        self.part = Part()
        self.used = used_data(program)
        self.main = main_data(program)
        self.whole_reward = effective_reward(program)
        made = learnt(program.verifiers)
        self.reward = without(self.whole_reward, made)
        """Without what a stage is still to learn: the reward of evaluations, and of stages before it."""
        self.models: dict[str, str] = {}
        """Learnt verifier -> node that has made its model."""
        self.threads = _threads(program, resolution)
        self.sizes = _sizes(program, resolution, self.used)
        self.policy = _with_precision(dump(program.policy), resolution.precision)
        self.agent = dump(program.agent)
        read = {*self.reward.must, *self.reward.outcome, *self.reward.soft}
        self.verifiers = {name: dump(v) for name, v in program.verifiers.items() if name in read}

    def add(
        self,
        node_id: str,
        kind: str,
        params: Json,
        inputs: Mapping[str, str],
        *,
        when: Json | None = None,
        passthrough: str | None = None,
        seed: int | None = None,
    ) -> str:
        """Add a node and return its id."""
        known = NODE_KINDS[kind]
        if kind == "gate" and (said := self.resolution.answers.get(node_id)):
            params = params | {"answers": said}
        when = when or self.part.when
        params = _with_own_adapter(params, node_id, trains=kind.startswith("train."))
        reads = dict(inputs) | ({"condition": when["node"]} if when is not None else {})
        reads |= {f"verifier.{n}": made for n, made in self.models.items() if n in (params.get("verifiers") or {})}
        node = Node(
            id=node_id,
            kind=kind,
            version=known.version,
            params=params,
            seed=node_seed(self.program.seed, node_id) if seed is None else seed,
            inputs=reads,
            estimate=known.estimate(params, self.sizes),
            when=when,
            passthrough=passthrough,
            threads=self.threads if known.heavy else 1,
        )
        key = content_key(node, {name: self.nodes[source].plan_key for name, source in reads.items()})
        self.nodes[node_id] = replace(node, plan_key=key)
        return node_id

    def environment(self, name: str) -> Json:
        """Return an environment's spec; ProgramError where there is none of that name."""
        return dump(_environment(self.program, name))

    def environments(self, sets: Iterable[str]) -> Json:
        """Return the specs of the environments that data sets come from."""
        names = {e for s in sets for e in environments_of(self.program, s)}
        return {n: self.environment(n) for n in self.program.environments if n in names}

    def common(self, stage: Stage) -> Json:
        """Return the params of every node of a stage."""
        weights = dict.fromkeys(stage.data) if isinstance(stage.data, list) else dict(stage.data)
        environments = self.environments(stage.data)
        pools = [name for name in weights if name in self.part.pools]
        return {
            "policy": self.policy,
            "agent": self.agent,
            "environments": environments,
            "versions": self.versions(environments),
            "data": weights,
            **({"of_round": pools} if pools else {}),
        }

    def versions(self, environments: Iterable[str], verifiers: Iterable[str] = ()) -> Json:
        """Return the versions of the implementations that a node relies on: they are part of its key."""
        used = {f"environments.{n}": self.program.environments[n] for n in environments}
        used |= {f"verifiers.{n}": self.program.verifiers[n] for n in verifiers}
        return {name: f"{spec.kind}@{spec.version}" for name, spec in used.items()}

    def judged(self, stage: Stage) -> Json:
        """Return the params of a stage's nodes that need verdicts; what earlier stages have learnt judges too."""
        common = self.common(stage)
        models = [] if isinstance(stage.algorithm, RewardModel) else list(self.models)
        verifiers = self.verifiers | {name: dump(self.program.verifiers[name]) for name in models}
        unmade = [name for name in learnt(self.program.verifiers) if name not in models]
        return {
            **common,
            "versions": self.versions(common["environments"], verifiers),
            "verifiers": verifiers,
            "reward": dump(without(self.whole_reward, unmade)),
        }

    def learn(self, stage: str, node_id: str) -> None:
        """Let the verifiers of a reward-model stage judge from here on."""
        named = {n: v for n, v in self.program.verifiers.items() if isinstance(v, RewardModelVerifier)}
        used = {n for n, v in named.items() if v.stage == stage and n in self.whole_reward.soft}
        self.models |= dict.fromkeys(sorted(used), node_id)

    def stage_inputs(self, stage: Stage, policy: str, **more: str) -> dict[str, str]:
        """Return the inputs of a stage's node: policy, data and `more`."""
        return {"policy": policy, **{f"data.{n}": self.part.pools.get(n, f"data.{n}") for n in stage.data}, **more}

    def check_memory(self) -> None:
        """Raise ProgramError where the neediest node does not fit."""
        neediest = max(self.nodes.values(), key=lambda n: n.estimate.memory_gb)
        must_fit(neediest, self.sizes, limit(dump(self.program.run), self.resolution.machine))

    def registered(self, alias: str) -> bool:
        """Add the policy that a registry alias names; return whether there is one."""
        version = self.resolution.aliases.get(alias)
        if version is None:
            return False
        if alias not in self.policies:
            params = {k: version[k] for k in ("version", "digest", "folder")}
            self.policies[alias] = self.add(f"policy.{alias}", "policy.registered", params, {})
            self.evaluate(alias, self.program.evaluation.at_the_end)
        return True

    def evaluate(self, policy: str, sets: Iterable[str], own: Json | None = None) -> None:
        """Add evaluations of a policy that are not there yet. The seed is the set's, so that policies are paired.

        `own`: params that are not the program's, of a teacher.
        """
        spec: Evaluation = self.program.evaluation
        asked = {k: v for k, v in dump(spec).items() if k not in ("sets", "at_the_end")}
        for name in once(sets):
            node_id = f"eval.{policy}.{name}"
            if node_id in self.nodes:
                continue
            environments = self.environments([name])
            params: Json = {
                "evaluation": asked,
                "policy": self.policy,
                "verifiers": self.verifiers,
                "reward": dump(self.reward),
                "agent": self.agent,
                "environments": environments,
                "versions": self.versions(environments, self.verifiers),
                "set": name,
                "role": self.program.data[name].role,
                **(own or {}),
            }
            inputs = {"policy": self.policies[policy], "problems": f"data.{name}"}
            self.add(node_id, "evaluate", params, inputs, seed=node_seed(self.program.seed, f"eval.{name}"))


def without(reward: Reward, names: Iterable[str]) -> Reward:
    """Return a reward without some of its soft parts."""
    left = {n: w for n, w in reward.soft.items() if n not in set(names)}
    return reward if len(left) == len(reward.soft) else reward.model_copy(update={"soft": left})


def _with_own_adapter(params: Json, node_id: str, *, trains: bool) -> Json:
    """Return params in which only nodes that train, of stages that do so by an adapter, have one: it is in their keys."""
    if not isinstance(params.get("policy"), dict) or not params["policy"].get("adapter"):
        return params
    policy: Json = params["policy"]
    adapter: Json = policy["adapter"]
    stages, stage = adapter["stages"], re.split(r"[.@]", node_id)[0]
    own = {**adapter, "stages": None} if trains and (stages is None or stage in stages) else None
    return params | {"policy": {**policy, "adapter": own}}


def once(names: Iterable[str]) -> Iterable[str]:
    """Return names in order, each once."""
    return dict.fromkeys(names)


def _environment(program: Program, name: str) -> Environment:
    if name not in program.environments:
        raise ProgramError(
            f"{program.program}: no environment is called {name!r}; expected one of {', '.join(program.environments)}"
        )
    return program.environments[name]


def _threads(program: Program, resolution: Resolution) -> int:
    if program.run.threads is not None:
        return program.run.threads
    return max(1, int(resolution.machine.get("cores", 1))) if program.run.profile == "server" else 1


def _sizes(program: Program, resolution: Resolution, used: list[str]) -> Sizes:
    pools = [] if program.flywheel is None else pools_read(program.flywheel)
    named = {n: environments_of(program, n) for n in [*used, *pools]}
    return Sizes(
        rows={n: _rows(program, resolution, n) for n in used} | pool_rows(program),
        environments={n: _environment(program, e).kind for n, known in named.items() for e in known[:1]},
        shape=shape_of(dump(program.policy.init), resolution.weights),
        pretrained=program.policy.init.kind == "pretrained",
        micro_batch_tokens=program.run.micro_batch_tokens,
        rollout_batch=program.run.rollout_batch,
        checkpointing=program.run.gradient_checkpointing,
    )


def _rows(program: Program, resolution: Resolution, name: str) -> int:
    source = program.data[name]
    if isinstance(source, ProblemFile):
        return int(resolution.files[name]["rows"])
    if isinstance(source, PoolData):
        return int((resolution.pools.get(source.pool) or {"rows": 0})["rows"])
    return source.size


def pool_rows(program: Program) -> dict[str, int]:
    """Return how many rows the pools of a round hold at most."""
    said = program.flywheel
    if said is None:
        return {}
    filling = (Repair, Prefer, HardPool)
    quotas = {kind: sum(r.quota for r in remedies_in_use(said) if isinstance(r, kind)) for kind in filling}
    tried = said.mine.problems * said.mine.samples
    most = {
        "repaired": quotas[Repair],
        "pairs": quotas[Prefer],
        "hard": quotas[HardPool],
        "successes": min(tried, said.pools.successes),
        "anchor": said.pools.anchor,
    }
    return {pool: most[pool] for pool in pools_read(said) if pool in most}
