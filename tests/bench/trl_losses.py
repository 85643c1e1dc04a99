"""The peer's own loss code on given logprobs: values and gradients, as JSON. It runs in the peer's environment.

Trainers are not built: their `_compute_loss` is called on what it reads of them, with a model that answers the given
logprobs, so that nothing but the loss is compared.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.sft_trainer import SFTTrainer

Case = dict[str, Any]


class Alone:
    """The accelerator of one process."""

    num_processes, device, sync_gradients, is_main_process = 1, torch.device("cpu"), True, True
    parallelism_config = None

    def gather(self, value):
        return value

    gather_for_metrics = gather

    def reduce(self, value, reduction="sum"):
        return value


def trainer(**own: Any) -> SimpleNamespace:
    """What the losses read of a trainer."""
    return SimpleNamespace(
        model=torch.nn.Identity(),
        accelerator=Alone(),
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        **own,
    )


def supervised(case: Case, logprobs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    own = trainer(
        args=SimpleNamespace(loss_type="nll", average_tokens_across_devices=True),
        compute_loss_func=None,
        label_smoother=None,
        _total_train_tokens=0,
        _tp_size=1,
        get_tp_size=lambda: 1,
    )

    def model(**kwargs):
        nothing = torch.zeros_like(logprobs)
        return SimpleNamespace(log_probs=logprobs * mask, label_mask=mask, entropy=nothing, is_top1=nothing.bool())

    inputs = {"labels": None, "attention_mask": torch.ones_like(mask)}
    return SFTTrainer.compute_loss(own, model, inputs, num_items_in_batch=mask.sum())


def policy_gradient(case: Case, logprobs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows, tokens = logprobs.shape
    own = trainer(
        _get_per_token_logps_and_entropies=lambda *a, **k: (logprobs, torch.zeros_like(logprobs), None),
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=case.get("level", "token"),
        beta=case.get("beta", 0.0),
        loss_type=case.get("loss_type", "grpo"),
        epsilon_low=case["clip_low"],
        epsilon_high=case["clip_high"],
        args=SimpleNamespace(
            delta=case.get("delta"), use_bias_correction_kl=False, steps_per_generation=1, entropy_coef=0.0
        ),
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=case.get("budget", tokens),
        _entropy_bonus_enabled=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
        "completion_ids": torch.zeros(rows, tokens, dtype=torch.long),
        "completion_mask": mask.to(logprobs.dtype),
        "advantages": torch.tensor(case["advantages"], dtype=logprobs.dtype),
        "old_per_token_logps": torch.tensor(case["old"], dtype=logprobs.dtype),
        "ref_per_token_logps": torch.tensor(case["reference"], dtype=logprobs.dtype),
        "num_items_in_batch": mask.sum(),
    }
    inputs["old_logps"] = (inputs["old_per_token_logps"] * inputs["completion_mask"]).sum(1)
    return (RLOOTrainer if case["trainer"] == "rloo" else GRPOTrainer)._compute_loss(own, None, inputs)


def preference(case: Case, logprobs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The rows are all chosen sides, then all rejected ones; the first column is a prompt."""
    inside = mask.to(logprobs.dtype)
    reference = torch.tensor(case["reference"], dtype=logprobs.dtype) * inside
    own = trainer(
        ld_alpha=None,
        precompute_ref_logps=False,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        ref_model=lambda **k: SimpleNamespace(log_probs=reference),
        f_divergence_type="reverse_kl",
        loss_types=[case["loss_type"]],
        loss_weights=[1.0],
        beta=case["beta"],
        label_smoothing=case.get("label_smoothing", 0.0),
        use_weighting=False,
        _total_train_tokens=0,
        _tp_size=1,
    )
    own.model.gradient_checkpointing_disable = own.model.gradient_checkpointing_enable = lambda **k: None
    own.model.is_gradient_checkpointing = False
    nothing = torch.zeros_like(logprobs)

    def model(**kwargs):
        return SimpleNamespace(
            log_probs=logprobs * inside, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool()
        )

    wide = torch.cat([torch.zeros(len(mask), 1, dtype=torch.long), mask.long()], 1)
    inputs = {"input_ids": torch.zeros_like(wide), "attention_mask": torch.ones_like(wide), "completion_mask": wide}
    return DPOTrainer._compute_loss(own, model, inputs, False)


LOSSES = {"sft": supervised, "dpo": preference, "grpo": policy_gradient, "rloo": policy_gradient}


def main() -> None:
    found = {}
    for case in json.loads(Path(sys.argv[1]).read_text()):
        logprobs = torch.tensor(case["logprobs"], dtype=torch.float64, requires_grad=True)
        loss = LOSSES[case["trainer"]](case, logprobs, torch.tensor(case["mask"]))
        loss.backward()
        assert logprobs.grad is not None
        found[case["name"]] = {"loss": loss.item(), "gradient": logprobs.grad.tolist()}
    print(json.dumps({"peer": {"trl": trl.__version__, "torch": torch.__version__}, "found": found}))


if __name__ == "__main__":
    main()
