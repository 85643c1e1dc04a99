"""This product's side of a measurement: the learner and the sampler that programs use, on what the setting file says."""

import json
import math
import resource
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from specs.distillation import OPD, FullVocabulary
from specs.grpo import GRPO
from specs.optimizer import Optimizer
from specs.records import Source, Trajectory, Turn
from specs.supervised import SFT
from tasks.episodes.local import LocalSampler
from tasks.learning import distilling
from tasks.learning.algorithms import loss_for
from tasks.learning.learner import Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.rows import TrainingRow
from tasks.loops.token_lessons import Panel, lesson, teach
from tasks.loops.updates import StepRows, update
from tasks.policy.store import LoadedPolicy, load_policy
from tasks.protocols import SampleRequest, SamplingSettings

Made = dict[str, Any]


def measured(setting: Made) -> Made:
    """Run the steps and return their seconds, what they found and the process's memory."""
    torch.set_num_threads(setting["threads"])
    torch.manual_seed(0)
    policy = load_policy(Path(setting["folder"]))
    optimizer = Optimizer(learning_rate=setting["learning_rate"], betas=(0.9, 0.999))
    learner = Learner(
        policy.model,
        optimizer,
        len(setting["steps"]),
        precision=setting["precision"],
        micro_batch_tokens=setting["micro_batch_tokens"],
        rounded_logits=setting["what"] == "sft",
    )
    made: Made = {"seconds": [], "cpu": [], "found": [], "loaded_mb": resident_mb()}
    step = {"sft": _sft, "grpo": _grpo, "opd": _opd}[setting["what"]](setting, policy, learner)
    made["loaded_mb"] = resident_mb()
    for number, given in enumerate(setting["steps"]):
        wall, cpu = time.perf_counter(), time.process_time()
        made["found"].append(step(given, number))
        if number >= setting["warm"]:
            made["seconds"].append(time.perf_counter() - wall)
            made["cpu"].append(time.process_time() - cpu)
    made["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return made


def resident_mb() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _sft(setting: Made, policy: LoadedPolicy, learner: Learner) -> Any:
    loss = loss_for(SFT(type="sft"))

    def step(rows: list[list[list[int]]], number: int) -> float:
        made = [
            TrainingRow(id=f"{number}/{i}", source="", ids=[*p, *c], mask=[False] * len(p) + [True] * len(c))
            for i, (p, c) in enumerate(rows)
        ]
        return learner.step(made, loss, "token").loss

    return step


def _opd(setting: Made, policy: LoadedPolicy, learner: Learner) -> Any:
    if setting.get("whole"):
        distilling.CHUNK_NUMBERS = 10**12  # every table as a whole
    spec = OPD(type="opd", over=FullVocabulary(direction="reverse"))
    frozen = load_policy(Path(setting["teacher"])).model
    teacher = OpenTeacher(
        "teacher", frozen, precision=setting["precision"], micro_batch_tokens=setting["micro_batch_tokens"]
    )
    panel = Panel([teacher], lambda _: [1.0])
    number = torch.zeros(1, requires_grad=True)
    number.grad = torch.ones(1)
    torch.optim.AdamW([number]).step()  # what it loads when it is first used is no memory of the models

    def step(rows: list[list[list[int]]], number: int) -> float:
        made = [_written(f"{number}/{i}", prompt, completion) for i, (prompt, completion) in enumerate(rows)]
        taught = lesson(spec, made, [], panel, max_length=policy.config.max_length, step=number)
        return teach(learner, taught, spec.model_copy(update={"max_logprob_gap": math.inf}), panel, number)["loss"]

    return step


def _written(name: str, prompt: list[int], completion: list[int]) -> Trajectory:
    """Return a trajectory of one turn; its sampler's logprobs are of no use here."""
    start, ids = len(prompt), [*prompt, *completion]
    return Trajectory(
        id=name, problem_id=name, problem_type="", environment="", environment_version="", agent="", group=name, sample=0,
        seed=0, ids=ids, sources=[int(Source.USER)] * start + [int(Source.POLICY)] * len(completion),
        logprobs=[0.0] * len(ids), policy_versions=[], turns=[Turn(start, len(ids), "", None, None)], status="finished",
        sampling={},
    )  # fmt: skip


def _grpo(setting: Made, policy: LoadedPolicy, learner: Learner) -> Any:
    group, tokens = setting["group_size"], setting["tokens"]
    spec = GRPO(
        type="grpo", group_size=group, clip_high=0.2, steps=len(setting["steps"]), problems_per_step=len(setting["steps"][0]),
        optimizer=Optimizer(learning_rate=setting["learning_rate"]),
    )  # fmt: skip
    sampler = LocalSampler(policy, "start", setting["precision"])
    asked = SamplingSettings(1.0, tokens, ())

    def step(prompts: list[list[int]], number: int) -> float:
        sampler.load_weights(policy.model)
        requests = [
            SampleRequest(i, prompts[i // group], (number << 32) + i, asked) for i in range(group * len(prompts))
        ]
        drawn = sampler.generate(requests)
        rewards = [sum(t % 2 == 0 for t in d.ids) / len(d.ids) for d in drawn]
        rows: list[TrainingRow] = []
        for i, (request, completion) in enumerate(zip(requests, drawn, strict=True)):
            own = rewards[i // group * group : (i // group + 1) * group]
            prompt = list(request.ids)
            rows.append(
                TrainingRow(
                    id=f"{number}/{i}",
                    source="",
                    trajectory=f"{number}/{i}",
                    ids=[*prompt, *completion.ids],
                    mask=[False] * len(prompt) + [True] * len(completion.ids),
                    group=f"{number}/{i // group}",
                    advantage=(rewards[i] - mean(own)) / (stdev(own) + spec.std_floor),
                    sampler_logprobs=[0.0] * len(prompt) + list(completion.logprobs),
                )
            )
        update(learner, StepRows(rows), spec, None, max_length=policy.config.max_length, step=number)
        return mean(rewards)

    return step


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(Path(sys.argv[1]).read_text()))))
