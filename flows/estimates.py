"""What a node will take: rollouts, tokens, memory, disk and seconds. Pure, torch-free arithmetic.

Rates were measured in fp32 on one CPU thread at 0.8 M and at 135 M parameters, with a power of that number between and
beyond; they are for planning, not promises.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

GB = 1e9
PROCESS_GB = 0.35
"""Resident size of a process that has torch loaded."""

# environment kind -> (tokens of a trajectory, of them written by the policy)
_OWN_TOKENIZER = {"order_desk": (50, 18), "bfcl": (170, 45), "process": (100, 30)}
_PRETRAINED = {"order_desk": (420, 130), "bfcl": (160, 40), "process": (420, 130)}
_TRAJECTORY_BYTES = 1500
_SCHEMA_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a node is expected to take; `memory_parts` add up to `memory_gb`."""

    rollouts: int = 0
    tokens: int = 0
    teacher_calls: int = 0
    teacher_usd: float = 0.0
    """Dollars that the calls may cost; left out of the data where it is nothing."""
    by_teacher: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Calls and dollars of each teacher at most; left out of the data where no call is paid for."""
    memory_gb: float = 0.0
    disk_mb: float = 0.0
    seconds: float = 0.0
    memory_parts: dict[str, float] = field(default_factory=dict[str, float])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, rounded so that its bytes are stable."""
        data = asdict(self)
        for key in ("memory_gb", "disk_mb", "seconds"):
            data[key] = round(data[key], 3)
        data["memory_parts"] = {k: round(v, 3) for k, v in self.memory_parts.items()}
        if usd := round(data.pop("teacher_usd"), 4):
            data["teacher_usd"] = usd
        if asked := data.pop("by_teacher"):
            data["by_teacher"] = {k: [round(calls, 1), round(usd, 4)] for k, (calls, usd) in asked.items()}
        return data


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a llama-shaped model with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    @property
    def parameters(self) -> int:
        """Return the number of weights."""
        kv = self.hidden // self.heads * self.kv_heads
        layer = 2 * self.hidden**2 + 2 * self.hidden * kv + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.vocab * self.hidden + self.layers * layer + self.hidden


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known before a run about the size of things."""

    rows: Mapping[str, int]
    """Records by data set."""
    environments: Mapping[str, str]
    """Environment kind by data set."""
    shape: Shape
    pretrained: bool = False
    micro_batch_tokens: int = 8192
    rollout_batch: int = 256
    checkpointing: bool = False

    def count(self, names: Any) -> int:
        """Return the records of several data sets."""
        return sum(self.rows.get(name, 0) for name in names)

    def trajectory(self, names: Any) -> tuple[float, float]:
        """Return mean (tokens, policy tokens) of trajectories on these data sets."""
        table = _PRETRAINED if self.pretrained else _OWN_TOKENIZER
        known = [table[self.environments[n]] for n in names if n in self.environments] or [(100, 30)]
        return sum(k[0] for k in known) / len(known), sum(k[1] for k in known) / len(known)


def shape_of(init: Mapping[str, Any], found: Mapping[str, Any] | None) -> Shape:
    """Return the model's sizes: of the spec where it starts from nothing, else as found by the resolution."""
    if init["kind"] == "scratch":
        vocab = init["tokenizer"]["vocab_size"] + (_SCHEMA_TOKENS if init["tokenizer"]["schema_tokens"] else 0)
        names = ("hidden_size", "layers", "heads", "kv_heads", "intermediate_size")
        return Shape(*(int(init[n]) for n in names), vocab=vocab)
    names = ("hidden", "layers", "heads", "kv_heads", "intermediate", "vocab")
    shape = (found or {}).get("shape") or dict(zip(names, (576, 30, 9, 3, 1536, 49152), strict=True))
    return Shape(**{n: int(shape[n]) for n in names})


def train_rate(shape: Shape) -> float:
    """Return tokens a second of forward, backward and step."""
    return 25_000 * (0.85e6 / shape.parameters) ** 1.07


def sample_rate(shape: Shape) -> float:
    """Return policy tokens a second of rollouts, prompts and environment included."""
    return 4_000 * (0.74e6 / shape.parameters) ** 0.84


def _step_seconds(shape: Shape) -> float:
    return 0.02 * max(1.0, shape.parameters / 0.85e6) ** 0.5


def _training_memory(params: Mapping[str, Any], sizes: Sizes, step_tokens: float) -> dict[str, float]:
    shape, algorithm = sizes.shape, params["algorithm"]
    weights = 4 * shape.parameters / GB
    states = 1 if algorithm["optimizer"]["kind"] == "muon" else 2
    width = 2 if params["policy"]["precision"] == "bf16" else 4
    per_layer = (14 * shape.hidden + 4 * shape.intermediate) * (width + 2) / 2
    per_token = per_layer + 4 * shape.layers * shape.hidden if sizes.checkpointing else shape.layers * per_layer
    adapter = params["policy"].get("adapter")
    trained = weights if adapter is None else 4 * adapter_parameters(shape, adapter) / GB
    held = min(sizes.micro_batch_tokens, step_tokens)
    logits = min(held, 1024) * shape.vocab * 4 * 3
    return {
        "weights": weights,
        "adapter": 0.0 if adapter is None else trained,
        "gradients": trained,
        "optimizer": states * trained,
        "reference": weights if algorithm.get("kl_coef", 0.0) > 0 and adapter is None else 0.0,
        "critic": _critic_memory(trained, algorithm.get("critic")),
        "activations": (held * per_token + logits) / GB,
        "process": PROCESS_GB,
    }


def adapter_parameters(shape: Shape, adapter: Mapping[str, Any]) -> int:
    """Return the number of weights of an adapter: rank x (inputs + outputs) of each matrix it changes."""
    keys = shape.hidden // shape.heads * shape.kv_heads
    sides = {
        "qkv": 2 * shape.hidden + 2 * keys,
        "o": 2 * shape.hidden,
        "gate_up": shape.hidden + 2 * shape.intermediate,
        "down": shape.hidden + shape.intermediate,
    }
    return shape.layers * adapter["rank"] * sum(sides[name] for name in set(adapter["targets"]))


def _critic_memory(weights: float, critic: Mapping[str, Any] | None) -> float:
    """Return the memory of a critic's weights, gradients and optimiser."""
    if critic is None or critic["backbone"] == "shared":
        return 0.0
    return (2 + (1 if critic["optimizer"]["kind"] == "muon" else 2)) * weights


def _sampling_memory(params: Mapping[str, Any], sizes: Sizes, names: Any) -> dict[str, float]:
    shape = sizes.shape
    width = 2 if params["policy"]["sampler_precision"] == "bf16" else 4
    length = min(1.5 * sizes.trajectory(names)[0] + 32, params["policy"]["init"]["max_length"])
    per_token = 2 * shape.layers * (shape.hidden // shape.heads) * shape.kv_heads * width
    exact = 4 * shape.vocab * shape.hidden if width == 2 else 0  # the output layer once more, in fp32
    return {
        "weights": (width * shape.parameters + exact) / GB,
        "cache": sizes.rollout_batch * length * per_token / GB,
        "logits": sizes.rollout_batch * shape.vocab * 4 * 3 / GB,
        "process": PROCESS_GB,
    }


def _made(parts: dict[str, float], **figures: Any) -> Estimate:
    kept = {k: v for k, v in parts.items() if v > 0}
    return Estimate(memory_gb=sum(kept.values()), memory_parts=kept, **figures)


def _policy_mb(sizes: Sizes) -> float:
    return 4 * sizes.shape.parameters / 1e6 + 0.2


def _supervised(params: Mapping[str, Any], sizes: Sizes, rows: float) -> Estimate:
    """Estimate maximum likelihood on so many rows, repeats counted."""
    batch, shape = params["algorithm"]["batch"], sizes.shape
    length = sizes.trajectory(params["data"])[0]
    tokens = rows * length
    step_tokens = batch["tokens"] or batch["rows"] * length
    seconds = 1.5 + tokens / train_rate(shape) + max(1.0, tokens / step_tokens) * _step_seconds(shape)
    parts = _training_memory(params, sizes, step_tokens)
    return _made(parts, tokens=int(tokens), disk_mb=_policy_mb(sizes), seconds=seconds)


def data(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the making or reading of a data set."""
    rows = params["source"].get("size") or sizes.count([params["name"]])
    solved = params["source"]["kind"] == "demonstrations"
    return _made({"process": 0.1}, disk_mb=rows * 1e-3, seconds=0.1 + rows / (1_500 if solved else 8_000))


def apart(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the comparison of training with evaluation texts."""
    return _made({"process": 0.15}, seconds=0.1 + sum(sizes.rows.values()) / 20_000)


def init(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the first weights: a tokenizer to train, or a checkpoint to read."""
    parts = {"weights": 4 * sizes.shape.parameters * (2 if sizes.pretrained else 1) / GB, "process": PROCESS_GB}
    return _made(parts, disk_mb=_policy_mb(sizes), seconds=14.0 if sizes.pretrained else 2.0)


def sft(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate supervised training."""
    return _supervised(params, sizes, sizes.count(params["data"]) * params["algorithm"]["epochs"])


def collect(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate one round of sampling with verdicts."""
    algorithm, names = params["algorithm"], params["data"]
    problems = min(algorithm["problems"] or sizes.count(names), sizes.count(names))
    return _rollouts(params, sizes, names, problems * algorithm["samples"])


def rft(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate training on the policy's own successes; the worst case is that all that may be used is used."""
    algorithm, names = params["algorithm"], params["data"]
    problems = min(algorithm["problems"] or sizes.count(names), sizes.count(names))
    used = min(algorithm["samples"], algorithm["top_k"] or algorithm["samples"])
    return _supervised(params, sizes, problems * used * algorithm["epochs"])


def weighted(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate training on all that was collected, by weight."""
    algorithm, names = params["algorithm"], params["data"]
    problems = min(algorithm["problems"] or sizes.count(names), sizes.count(names))
    return _supervised(params, sizes, problems * algorithm["samples"] * algorithm["epochs"])


def compress(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate pruning or rounding: some forward passes over calibration rows, twice the weights in memory."""
    rows = min(params["algorithm"]["calibration"], sizes.count(params["data"]))
    tokens = rows * sizes.trajectory(params["data"])[0] * (3 + sizes.shape.layers)
    parts = {"weights": 8 * sizes.shape.parameters / GB, "process": PROCESS_GB}
    seconds = 1.5 + tokens / (3 * train_rate(sizes.shape)) + sizes.shape.parameters / 2e7
    return _made(parts, tokens=int(tokens), disk_mb=_policy_mb(sizes), seconds=seconds)


def pairs(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the rollouts that are paired."""
    asked, names = params["pairing"], params["data"]
    problems = min(asked["problems"] or sizes.count(names), sizes.count(names))
    return _rollouts(params, sizes, names, problems * asked["samples"])


def _most_pairs(asked: Mapping[str, Any]) -> float:
    """Return how many pairs a problem gives at most; two single trajectories count as one."""
    if asked["choose"] == "alone":
        return asked["samples"] / 2
    return (
        1 if asked["choose"] == "best_worst" else asked["samples"] ** 2 // (4 if asked["rejected"] == "failed" else 2)
    )


def preference(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate training on pairs, as many as there may be: both sides, and the reference's pass over them."""
    algorithm, names, shape = params["algorithm"], params["data"], sizes.shape
    asked = algorithm["pairing"]
    problems = min(asked["problems"] or sizes.count(names), sizes.count(names))
    most = _most_pairs(asked)
    rows, length = 2 * problems * most, sizes.trajectory(names)[0]
    passes = algorithm["epochs"] + (0.0 if algorithm["type"] in ("orpo", "simpo") else 0.35)
    step_tokens = 2 * algorithm["pairs_per_step"] * length
    steps = max(1.0, rows * algorithm["epochs"] / (2 * algorithm["pairs_per_step"]))
    seconds = 1.5 + rows * passes * length / train_rate(shape) + steps * _step_seconds(shape)
    parts = _training_memory(params, sizes, step_tokens)
    tokens = int(rows * algorithm["epochs"] * length)
    return _made(parts, tokens=tokens, disk_mb=_policy_mb(sizes), seconds=seconds)


def preflight(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the rollouts before a policy-gradient stage."""
    names = params["data"]
    problems = min(params["preflight"]["problems"], sizes.count(names) or params["preflight"]["problems"])
    return _rollouts(params, sizes, names, problems * params["preflight"]["samples"])


def policy_gradient(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate a policy-gradient stage: rollouts (all rounds of dynamic sampling), updates, and both in memory."""
    algorithm, names = params["algorithm"], params["data"]
    rounds = (algorithm.get("resample") or {"max_rounds": 1})["max_rounds"]
    fresh = algorithm["steps"] * algorithm["problems_per_step"] * algorithm["group_size"]
    sampled = _rollouts(params, sizes, names, rounds * algorithm.get("best_of", 1) * fresh)
    updates = algorithm["updates_per_batch"]
    noisy = algorithm["type"] == "gspo" and "bf16" in (params["policy"][n] for n in ("precision", "sampler_precision"))
    passes = updates + (1 / 3 if noisy or algorithm.get("correction") is not None else 0)
    if critic := algorithm.get("critic"):
        passes += 1 / 3 + (critic["updates_per_batch"] if critic["backbone"] == "own" else 0)
    if algorithm.get("form"):
        passes += 1 / 3
    if algorithm.get("kl_coef", 0.0) > 0:
        passes += 1 / 3
    trained = fresh + algorithm["steps"] * _replayed(algorithm)
    tokens = trained * sizes.trajectory(names)[0] * passes
    seconds = (
        sampled.seconds + tokens / train_rate(sizes.shape) + algorithm["steps"] * updates * _step_seconds(sizes.shape)
    )
    sampling = _sampling_memory(params, sizes, names)
    step_tokens = algorithm["problems_per_step"] * algorithm["group_size"] * sizes.trajectory(names)[0]
    parts = _training_memory(params, sizes, step_tokens) | {k: sampling[k] for k in ("cache", "logits")}
    if params["policy"]["sampler_precision"] == "bf16" or params["policy"].get("adapter") is not None:
        parts["sampler weights"] = sampling["weights"]
    if algorithm.get("form"):
        parts["frozen self"] = parts["weights"]
    disk = _policy_mb(sizes) + sampled.disk_mb
    return _made(parts, rollouts=sampled.rollouts, tokens=int(tokens), disk_mb=disk, seconds=seconds)


def _replayed(algorithm: Mapping[str, Any]) -> int:
    """Return the trajectories of earlier steps and the demonstrations that a step trains on beside its rollouts."""
    replay = algorithm.get("replay") or {}
    return sum(part["per_step"] for part in (replay.get("history"), replay.get("demonstrations")) if part)


def evaluate(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate asking one policy one set."""
    names = [params["set"]]
    asked = params["evaluation"]["samples"] + (1 if params["evaluation"]["greedy"] else 0)
    return _rollouts(params, sizes, names, sizes.count(names) * asked)


def started(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the choice of a round's first policy: its files are linked where they can be."""
    return _made({"process": 0.1}, disk_mb=_policy_mb(sizes), seconds=0.3)


def mine(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the rollouts in which a round looks for failures."""
    names, asked = params["data"], params["mine"]
    return _rollouts(params, sizes, names, min(asked["problems"], sizes.count(names)) * asked["samples"])


def attribute(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the attribution of failures, each world opened again; the worst case is that everything failed."""
    failures = sizes.count([*params["sources"], *params["causes_from"]])
    return _made({"process": 0.2}, disk_mb=failures * 2e-3, seconds=0.3 + failures / 1_500)


def remedy(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate siblings, drawn and solved, as many as the pools may hold."""
    rows = sizes.count(params["fills"])
    return _made({"process": 0.3}, disk_mb=rows * 3e-3, seconds=0.3 + rows / 300)


def pool(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate one pool of a round."""
    rows = sizes.count([params["pool"]])
    return _made({"process": 0.1}, disk_mb=rows * _TRAJECTORY_BYTES / 1e6, seconds=0.1 + rows / 20_000)


def registered(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate taking in a policy of the registry."""
    return _made({"process": 0.1}, disk_mb=_policy_mb(sizes), seconds=0.2)


def nothing(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate what only reads small files."""
    return _made({"process": 0.1}, disk_mb=0.01, seconds=0.05)


def _rollouts(params: Mapping[str, Any], sizes: Sizes, names: Any, count: int) -> Estimate:
    tokens, written = sizes.trajectory(names)
    return _made(
        _sampling_memory(params, sizes, names),
        rollouts=count,
        tokens=int(count * tokens),
        disk_mb=count * _TRAJECTORY_BYTES / 1e6,
        seconds=1.0 + count * written / sample_rate(sizes.shape),
    )


rollouts_of = _rollouts
"""What is expected of so many rollouts."""
Estimator = Callable[[Mapping[str, Any], Sizes], Estimate]


def estimate_from(data: Mapping[str, Any]) -> Estimate:
    """Return the estimate that `to_dict` wrote."""
    return Estimate(**{f.name: data[f.name] for f in fields(Estimate) if f.name in data})
