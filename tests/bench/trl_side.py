"""The peer's side of a measurement. It runs in the peer's environment and imports nothing of this product."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
import json
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback

warnings.filterwarnings("ignore")
Made = dict[str, Any]


class Clock(TrainerCallback):
    """Seconds from the end of one step to the end of the next."""

    def __init__(self, warm: int) -> None:
        self.warm, self.done = warm, 0
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.wall, self.process = time.perf_counter(), time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        wall, process = time.perf_counter(), time.process_time()
        if self.done >= self.warm:
            self.seconds.append(wall - self.wall)
            self.cpu.append(process - self.process)
        self.done += 1
        self.wall, self.process = wall, process


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def common(setting: Made) -> Made:
    return {
        "output_dir": tempfile.mkdtemp(),
        "use_cpu": True,
        "bf16": setting["precision"] == "bf16",
        "fp16": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10**6,
        "disable_tqdm": True,
        "max_steps": len(setting["steps"]),
        "learning_rate": setting["learning_rate"],
        "lr_scheduler_type": "constant",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "gradient_checkpointing": False,
        "dataloader_num_workers": 0,
        "seed": 0,
    }


def sft(setting: Made, model: Any, tokenizer: Any, clock: Clock, found: list[float]) -> Any:
    """The same batches in the same order; nothing is packed, as that is slower here."""
    rows = [
        {"input_ids": p + c, "completion_mask": [0] * len(p) + [1] * len(c)}
        for step in setting["steps"]
        for p, c in step
    ]
    config = trl.SFTConfig(
        per_device_train_batch_size=len(setting["steps"][0]),
        train_sampling_strategy="sequential",
        completion_only_loss=True,
        max_length=None,
        **common(setting),
    )
    trainer = trl.SFTTrainer(
        model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, callbacks=[clock]
    )
    own = trainer.training_step

    def training_step(*args, **kwargs):
        loss = own(*args, **kwargs)
        found.append(float(loss.detach()))
        return loss

    trainer.training_step = training_step
    return trainer


def grpo(setting: Made, model: Any, tokenizer: Any, clock: Clock, found: list[float]) -> Any:
    """Groups of a prompt, the reward a share of tokens; every completion has its full length."""
    texts = [tokenizer.decode(ids) for step in setting["steps"] for ids in step]
    for ids, text in zip((ids for step in setting["steps"] for ids in step), texts, strict=True):
        assert tokenizer(text, add_special_tokens=False).input_ids == ids, "both sides need the same prompts"
    tokens, group, prompts = setting["tokens"], setting["group_size"], len(setting["steps"][0])
    rows = min(setting["peer_rows"], group * prompts)

    def reward(completion_ids, **kwargs):
        values = [sum(t % 2 == 0 for t in ids) / len(ids) for ids in completion_ids]
        found.append(sum(values) / len(values))
        assert {len(ids) for ids in completion_ids} == {tokens}, "both sides need completions of the same length"
        return values

    config = trl.GRPOConfig(
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=group * prompts // rows,
        num_generations=group,
        max_completion_length=tokens,
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        loss_type="grpo",
        shuffle_dataset=False,
        generation_kwargs={"min_new_tokens": tokens},
        **common(setting),
    )
    return trl.GRPOTrainer(
        model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
        processing_class=tokenizer,
        callbacks=[clock],
    )


def opd(setting: Made, model: Any, tokenizer: Any, clock: Clock, found: list[float]) -> Any:
    """The trainer of the stable API, on completions that are given to it instead of being generated."""
    teacher = AutoModelForCausalLM.from_pretrained(setting["teacher"], dtype=torch.float32)
    rows = [row for step in setting["steps"] for row in step]
    config = trl.DistillationConfig(
        per_device_train_batch_size=len(setting["steps"][0]),
        max_completion_length=max(len(c) for _, c in rows),
        beta=1.0,
        shuffle_dataset=False,
        **common(setting),
    )
    trainer = trl.DistillationTrainer(
        model, teacher_model=teacher, args=config, train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(len(rows))]),
        processing_class=tokenizer, callbacks=[clock],
    )  # fmt: skip

    def given(prompts):
        chosen = [rows[int(p)] for p in prompts]
        return [p for p, _ in chosen], [c for _, c in chosen], None, None, None

    trainer._generate = given
    return _kept(trainer, found)


def gkd(setting: Made, model: Any, tokenizer: Any, clock: Clock, found: list[float]) -> Any:
    """The experimental trainer, on rows of the data set."""
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    teacher = AutoModelForCausalLM.from_pretrained(setting["teacher"], dtype=torch.float32)
    rows = [row for step in setting["steps"] for row in step]

    def together(chosen):
        pairs = [rows[int(c["row"])] for c in chosen]
        width = max(len(p) + len(c) for p, c in pairs)
        ids = [[*p, *c] + [tokenizer.pad_token_id] * (width - len(p) - len(c)) for p, c in pairs]
        seen = [[1] * (len(p) + len(c)) + [0] * (width - len(p) - len(c)) for p, c in pairs]
        labels = [[-100] * len(p) + c + [-100] * (width - len(p) - len(c)) for p, c in pairs]
        tensors = {"input_ids": ids, "attention_mask": seen, "labels": labels}
        return {name: torch.tensor(values) for name, values in tensors.items()}

    config = GKDConfig(
        per_device_train_batch_size=len(setting["steps"][0]), lmbda=0.0, beta=1.0, temperature=1.0,
        train_sampling_strategy="sequential", **common(setting),
    )  # fmt: skip
    trainer = GKDTrainer(
        model, teacher_model=teacher, args=config, data_collator=together,
        train_dataset=Dataset.from_list([{"row": i} for i in range(len(rows))]), processing_class=tokenizer, callbacks=[clock],
    )  # fmt: skip
    return _kept(trainer, found)


def _kept(trainer: Any, found: list[float]) -> Any:
    """Return the trainer; it notes the loss of every step."""
    own = trainer.training_step

    def training_step(*args, **kwargs):
        loss = own(*args, **kwargs)
        found.append(float(loss.detach()))
        return loss

    trainer.training_step = training_step
    return trainer


def measured(setting: Made) -> Made:
    torch.set_num_threads(setting["threads"])
    model = AutoModelForCausalLM.from_pretrained(setting["folder"], dtype=torch.float32)
    end = setting["end"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(setting["folder"]) / "tokenizer.json"), pad_token=end, eos_token=end
    )
    found: list[float] = []
    clock = Clock(setting["warm"])
    trainer = {"sft": sft, "grpo": grpo, "opd": opd, "gkd": gkd}[setting["what"]](
        setting, model, tokenizer, clock, found
    )
    for loaded_model in (model, getattr(trainer, "teacher_model", None)):
        for parameter in [] if loaded_model is None else loaded_model.parameters():
            parameter.sum()  # a file that is mapped comes into memory when it is first read
    loaded = resident_mb()
    trainer.train()
    return {
        "seconds": clock.seconds,
        "cpu": clock.cpu,
        "found": found,
        "loaded_mb": loaded,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "version": trl.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(Path(sys.argv[1]).read_text()))))
