"""The execution half of a program: never part of any content key."""

from typing import Annotated, Literal

from pydantic import Field

from specs.base import Count, Positive, Spec


class Budget(Spec):
    """What an execution may spend."""

    wall_hours: Positive | None = None
    """A run stops cleanly when it has taken this long."""


class Run(Spec):
    """How nodes are executed on this machine."""

    profile: Literal["laptop", "server"] = "laptop"
    """`server` uses every core; `laptop` is careful with them."""
    threads: Count | None = None
    """Torch threads of one node; one on a laptop, every core on a server where left out."""
    parallel: Annotated[int, Field(ge=1, le=64)] = 2
    """Nodes that may run at once."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    micro_batch_tokens: Annotated[int, Field(ge=64)] = 8192
    """Padded tokens that one forward pass holds."""
    rollout_batch: Count = 256
    """Episodes that the sampler keeps in flight."""
    checkpoint_seconds: Positive = 10.0
    """Least time between two checkpoints of a node."""
    max_memory_gb: Positive | None = None
    """Memory that a node may plan to use; the machine's where left out."""
