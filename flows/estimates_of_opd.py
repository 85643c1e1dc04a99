"""Expected sizes of distillation from a teacher's probabilities. Pure arithmetic, torch-free."""

from collections.abc import Mapping
from typing import Any

from flows.estimates import GB, PROCESS_GB, Estimate, Shape, Sizes
from flows.estimates import policy_gradient as _policy_gradient

_CALL_SECONDS = 0.05
"""Of a row that a server scores, with others under way beside it."""
_CHUNK = 2e6
"""Logits of one model that exist at a time."""


def opd(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the rollouts, the updates, and what each teacher takes, at its own size, to score every step."""
    made = _policy_gradient(params, sizes)
    algorithm = params["algorithm"]
    teachers = teacher_memory(params, sizes)
    third = made.tokens / algorithm["updates_per_batch"] / 3
    passes = algorithm["updates_per_batch"] if algorithm["over"]["kind"] != "sampled" else 1
    here = _in_process(params)
    calls = made.rollouts * (len(params["teachers"]) - len(here))
    scored = sum((passes + _cover_passes(t)) * third / max(1.0, _rate(_shape(t, sizes))) for t in here)
    seconds = made.seconds + scored + calls * _CALL_SECONDS
    parts = made.memory_parts | teachers
    return Estimate(
        rollouts=made.rollouts, tokens=made.tokens, teacher_calls=calls, disk_mb=made.disk_mb, seconds=seconds,
        memory_gb=sum(parts.values()), memory_parts=parts,
    )  # fmt: skip


def policy_gradient(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate a policy-gradient stage, with the teachers of its distillation term where it has one."""
    term = params["algorithm"].get("distill")
    if term is None:
        return _policy_gradient(params, sizes)
    algorithm = {**params["algorithm"], "over": term["over"]}
    return opd({**params, "algorithm": algorithm}, sizes)


def _rate(shape: Shape) -> float:
    return 25_000 * (0.85e6 / shape.parameters) ** 0.8


def _shape(teacher: Mapping[str, Any], sizes: Sizes) -> Shape:
    return Shape(**teacher["shape"]) if teacher.get("shape") else sizes.shape


def _cover_passes(teacher: Mapping[str, Any]) -> float:
    """Return the most passes over a whole trajectory that other ways of writing it take; each reads about half of one."""
    align: Mapping[str, Any] = teacher.get("align") or {"score": "canonical"}
    return align["max_cover_passes"] / 2 if align["score"] == "covers" else 0.0


def teacher_memory(params: Mapping[str, Any], sizes: Sizes) -> dict[str, float]:
    """Return what the teachers of a node hold: weights, and the logits of a chunk."""
    shapes = [_shape(t, sizes) for t in _in_process(params)]
    if not shapes:
        return {}
    return {
        "teachers": sum(4 * s.parameters for s in shapes) / GB,
        "chunks": (len(shapes) + 4) * _CHUNK * 4 / GB,
    }


def _in_process(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the teachers whose weights the node holds."""
    return [t for t in params["teachers"].values() if t["kind"] != "served_model"]


def teacher_served(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the look at a server."""
    return Estimate(memory_gb=PROCESS_GB, memory_parts={"process": PROCESS_GB}, disk_mb=4.0, seconds=5.0)


def teacher_model(params: Mapping[str, Any], sizes: Sizes) -> Estimate:
    """Estimate the reading of a checkpoint."""
    parameters = Shape(**params["shape"]).parameters
    parts = {"weights": 8 * parameters / GB, "process": PROCESS_GB}
    return Estimate(
        memory_gb=sum(parts.values()), memory_parts=parts, disk_mb=4 * parameters / 1e6, seconds=2.0 + parameters / 1e7
    )
