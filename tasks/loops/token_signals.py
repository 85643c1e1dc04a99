"""What teachers said of a batch's rows, as it is kept beside the trajectories."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from specs.records import Trajectory
from tasks.episodes.token_signals import TokenSignal
from tasks.learning.rows import TrainingRow
from tasks.loops.token_lessons import Panel
from tasks.protocols import ListingTeacher


def signals_of(
    rows: Sequence[TrainingRow], trajectories: Mapping[str, Trajectory], panel: Panel
) -> Iterator[TokenSignal]:
    """Yield what each teacher said of each row, in the order of the rows; nothing where it had no score for it."""
    for row in rows:
        for m, weight in enumerate(row.teacher_weights or ()):
            tokens, columns = _said(row, m, panel)
            if weight > 0 and tokens:
                name = panel.teachers[m].name
                yield TokenSignal(
                    id=row.trajectory,
                    problem_type=trajectories[row.trajectory].problem_type,
                    start=row.start,
                    teacher=name,
                    revision=panel.revisions.get(name, ""),
                    weight=weight,
                    tokens=tokens,
                    **columns,
                )


def _said(row: TrainingRow, m: int, panel: Panel) -> tuple[int, dict[str, np.ndarray | None]]:
    """Return the tokens that a teacher said something of, and its columns where its logprobs of them are at hand."""
    mask = np.array(row.mask)
    if row.scores is not None:
        scores = row.scores[m]
        logprobs = np.where(mask, np.array(scores.logprobs, np.float32), np.float32("nan"))
        chunks = None if scores.chunks is None else np.array(scores.chunks, np.int32)
        return int(np.isfinite(logprobs).sum()), {"logprobs": logprobs, "chunks": chunks}
    if not isinstance(panel.teachers[m], ListingTeacher):
        return row.trained, {}
    listed = (row.lists or [])[m]
    if listed is None:
        return 0, {}
    logprobs = np.full(len(mask), np.nan, np.float32)
    logprobs[mask] = listed.targets_N
    return row.trained, {"logprobs": logprobs}
