"""Compression: a smaller policy, by pruning or by fewer bits. Weights change without a loss; a later stage recovers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specs.base import Count, Flag, Spec

Removed = Annotated[float, Field(ge=0.0, lt=1.0)]


class Prune(Spec):
    """Remove whole layers, neurons or heads, those first that matter least on calibration data."""

    type: Literal["prune"]
    layers: Annotated[int, Field(ge=0)] = 0
    """Layers that are removed; at least one stays."""
    layers_by: Literal["influence", "loss", "last"] = "influence"
    """`influence`: those that turn what they read the least (mean 1 - cosine). `loss`: one after another, each time the
    one without which the calibration loss is lowest. `last`: the last but the final one."""
    neurons: Removed = 0.0
    """Share of each layer's inner neurons that is removed, by mean |activation| times the size of what it writes."""
    heads: Removed = 0.0
    """Share of each layer's key-value heads, with their queries, that is removed, by the size of what they write."""
    calibration: Count = 64
    """Demonstrations on which this is measured."""

    @model_validator(mode="after")
    def _removes_something(self) -> Self:
        if not (self.layers or self.neurons or self.heads):
            raise ValueError("nothing is removed; give layers, neurons or heads a number")
        if not self.layers and self.layers_by != "influence":
            raise ValueError("layers_by is not read with layers: 0")
        return self


class Quantize(Spec):
    """Round weights to a grid of few bits. They are kept in full precision on that grid, as a policy that trains on."""

    type: Literal["quantize"]
    bits: Annotated[int, Field(ge=2, le=8)] = 4
    group: Count | None = 32
    """Weights in a row that share a scale; a whole row shares one where null."""
    scale: Literal["largest", "least_error"] = "least_error"
    """The largest weight of a group sets its scale, or the scale of the least squared error among 20 smaller ones."""
    embedding: Flag = False
    """Round the embedding too, which is often the output layer as well."""
    calibration: Count = 64
    """Demonstrations on which the loss before and after is measured."""


Compression = Prune | Quantize
