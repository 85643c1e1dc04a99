"""A Llama of about five thousand parameters and rows for it."""

import random

import torch

from specs.optimizer import Optimizer
from tasks.learning.learner import Learner
from tasks.learning.rows import TrainingRow
from tasks.policy.config import LlamaConfig
from tasks.policy.llama import Llama


def tiny_model(seed=0, vocab=32, max_length=64):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        layers=2,
        heads=2,
        kv_heads=1,
        intermediate_size=24,
        rope_theta=1000.0,
        max_length=max_length,
    )
    model = Llama(config)
    for p in model.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.2)
    return model


def random_rows(count, seed=0, vocab=32, longest=24, **extra):
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        length = rng.randint(3, longest)
        mask = [False] + [rng.random() < 0.5 for _ in range(length - 1)]
        mask[rng.randrange(1, length)] = True
        ids = [rng.randrange(vocab) for _ in range(length)]
        rows.append(TrainingRow(id=str(i), source="s", ids=ids, mask=mask, **extra))
    return rows


def learner(model, steps=10, **more):
    optimizer = more.pop("optimizer", Optimizer(learning_rate=1e-2))
    return Learner(model, optimizer, steps, **more)
