"""Losses, one pure file each; `loss_for` is the only place where an algorithm's name becomes code."""

from functools import partial
from typing import assert_never

from specs.algorithms import GRPO, RFT, SFT, Algorithm
from tasks.tensors import Loss


def loss_for(spec: Algorithm) -> Loss:
    """Return the loss of an algorithm, bound to its own spec."""
    match spec:
        case SFT():
            from tasks.learning.algorithms import sft

            return partial(sft.loss, spec=spec)
        case RFT():
            from tasks.learning.algorithms import rft

            return partial(rft.loss, spec=spec)
        case GRPO():
            from tasks.learning.algorithms import grpo

            return partial(grpo.loss, spec=spec)
        case _:
            assert_never(spec)
