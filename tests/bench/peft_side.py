"""Adapters as PEFT sees them. It runs in the peer's environment: `peft_side.py FOLDER` with base/, adapter/ and ids.json.

Writes what the base with our adapter answers, and made/, an adapter of PEFT's own whose change is not zero.
"""

# pyright: reportMissingImports=false
import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM


def base(folder: Path):
    """Return the base, a new one each time: PEFT changes what it is given."""
    return AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)


def answers(model, ids: list[int]) -> list[list[float]]:
    """Return the logprobs after each token."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].log_softmax(-1).tolist()


def main(folder: Path) -> None:
    ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    ours = PeftModel.from_pretrained(base(folder), folder / "adapter").eval()
    modules = ["q_proj", "v_proj", "down_proj"]
    theirs = get_peft_model(base(folder), LoraConfig(r=3, lora_alpha=7, target_modules=modules)).eval()
    torch.manual_seed(2)
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    theirs.save_pretrained(folder / "made")
    found = {"base": answers(base(folder), ids), "ours": answers(ours, ids), "theirs": answers(theirs, ids)}
    (folder / "answers.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
