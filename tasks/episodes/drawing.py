"""Drawing the next token by its inverse distribution function, with the exact logprob of what was drawn."""

import torch
from torch import Tensor


def draw(logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens (B) and their fp32 logprobs (B) under softmax(logits / temperature).

    Temperature 0 takes the most probable token, with logprob 0: all probability is on it. `uniforms_B` are fp64 in
    (0, 1). A row's token depends on its own row alone.
    """
    greedy_B = temperatures_B == 0
    if bool(greedy_B.all()):
        return logits_BV.argmax(-1), torch.zeros(len(logits_BV), device=logits_BV.device)
    scale_B = torch.where(greedy_B, 1.0, temperatures_B)
    logprobs_BV = (logits_BV.float() / scale_B[:, None]).log_softmax(-1)
    mass_BV = logprobs_BV.exp().cumsum(-1, dtype=torch.float64)
    at_B1 = (uniforms_B * mass_BV[:, -1])[:, None]
    tokens_B1 = torch.searchsorted(mass_BV, at_B1, right=True)
    if bool(greedy_B.any()):
        tokens_B1 = torch.where(greedy_B[:, None], logits_BV.argmax(-1, keepdim=True), tokens_B1)
    chosen_B = logprobs_BV.gather(-1, tokens_B1)[:, 0]
    return tokens_B1[:, 0], torch.where(greedy_B, 0.0, chosen_B)
