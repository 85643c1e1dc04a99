"""Scoring between sampler and learner: what has ended waits in a bounded queue and is scored while the rest is sampled.

Batches are made of rows in the order in which their trajectories end, and of nothing else. The learner asks for the scores of
a whole step afterwards, in the order of its problems, and finds them.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Literal, Self

from specs.distillation import FullVocabulary, Over, SampledTokens, TopTokens
from specs.errors import Interrupted
from specs.records import Trajectory
from tasks.learning.rows import TrainingRow, rows_from
from tasks.learning.teaching import span_of
from tasks.loops.token_lessons import Panel
from tasks.loops.updates import without_missing
from tasks.protocols import EarlyTeacher, ListingTeacher, Span

_log = logging.getLogger(__name__)
BATCH = 16
"""Rows that go to a teacher together, the longest first; fewer where the queue holds fewer, or none will come."""
_LOOK = 0.05
Rows = Callable[[Trajectory], Sequence[TrainingRow]]


def early_rows(
    trajectory: Trajectory, *, max_length: int, truncated: Literal["mask", "score"], whole_turns: bool = False
) -> list[TrainingRow]:
    """Return the rows of a trajectory that has just ended as the learner will have them."""
    cut = "drop" if truncated == "mask" else "score"
    rows, _ = rows_from([trajectory], max_length=max_length, truncated=cut, behaviour=True)
    return without_missing(rows, 1.0, 0, whole_turns=whole_turns)[0]


def early_teachers(panel: Panel, over: Over, *, near: bool) -> dict[int, EarlyTeacher]:
    """Return by place the teachers that score single tokens, or list the likeliest, before a step's rollouts have all ended.

    `near`: also those of this process; there they take the time of a sampler that computes here as well. What is shown a whole
    step, or compared over a vocabulary within the learner's pass, is not among them.
    """
    found = {m: t for m, t in enumerate(panel.teachers) if isinstance(t, EarlyTeacher) and (near or t.elsewhere)}
    match over:
        case SampledTokens():
            return found
        case TopTokens():
            return {m: t for m, t in found.items() if isinstance(t, ListingTeacher)}
        case FullVocabulary():
            return {}


class _Lane:
    """The feed of one teacher."""

    def __init__(self, most: int, changed: threading.Condition) -> None:
        self.waiting = 0
        """Rows that were put and are not done."""
        self.closed = self.given_up = False
        self._size = min(BATCH, most)
        self._rows: list[Span] = []
        self._batches: deque[list[Span]] = deque()
        self._changed = changed

    def put(self, span: Span) -> None:
        self.waiting += 1
        self._rows.append(span)
        if len(self._rows) == self._size:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._batches.append(sorted(self._rows, key=lambda s: -len(s.ids)))
            self._rows = []
            self._changed.notify_all()

    def take(self, seconds: float = 0.0) -> Sequence[Span] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self.closed or self.given_up, seconds)
            if self.given_up:
                raise Interrupted("the step is given up; what was scored is kept")
            if self._batches:
                return self._batches.popleft()
            return None if self.closed else []

    def done(self, count: int) -> None:
        with self._changed:
            self.waiting -= count
            self._changed.notify_all()


class ScoringQueue:
    """Stands around the rollouts of a step; at its end all is scored that was put, or it raises what a teacher raised."""

    def __init__(
        self, panel: Panel | None, over: Over, rows: Rows, stop: Callable[[], bool], *, near: bool = False
    ) -> None:
        """`rows`: those of a trajectory that teachers are asked about. `stop`: the step is to be given up."""
        self._panel = panel or Panel((), lambda _: ())
        self._rows, self._stop = rows, stop
        self._size = over.size if isinstance(over, TopTokens) else 0
        self._teachers = early_teachers(self._panel, over, near=near)
        self._changed = threading.Condition()
        self._lanes = {m: _Lane(self._panel.queue, self._changed) for m in self._teachers}
        self._pool = ThreadPoolExecutor(max(1, len(self._lanes)), "scoring")
        self._running: list[Future[None]] = []

    def __enter__(self) -> Self:
        for m, teacher in self._teachers.items():
            running = self._pool.submit(teacher.ahead, self._lanes[m], self._size)
            running.add_done_callback(self._wake)
            self._running.append(running)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            for lane in self._lanes.values():
                lane.given_up = True
            self._wake()
            self._pool.shutdown()
        for future in self._running if error is not None else ():
            other = future.exception()
            if other is not None and other is not error and not isinstance(other, Interrupted):
                _log.warning("while the step was given up for another reason (%s), a teacher failed: %s", error, other)

    def put(self, trajectory: Trajectory) -> None:
        """Have a trajectory scored that has just ended; waits while one of its teachers has as much to do as may wait."""
        if not self._lanes:
            return
        for row in self._rows(trajectory):
            weights = self._panel.heard(trajectory, len(row.ids))
            for m, lane in self._lanes.items():
                if row.trained and weights[m] > 0:
                    with self._changed:
                        while lane.waiting >= self._panel.queue:
                            self._heed_all()
                            self._changed.wait(_LOOK)
                        lane.put(span_of(row, trajectory))

    def heed(self) -> bool:
        """Return whether the step is to be given up; raises what a teacher raised meanwhile."""
        self._raise()
        return self._stop()

    def _raise(self) -> None:
        for future in self._running:
            if future.done():
                future.result()

    def _wake(self, _: object = None) -> None:
        with self._changed:
            self._changed.notify_all()

    def _heed_all(self) -> None:
        if self.heed():
            raise Interrupted("stopped while rollouts were scored; run the same command to go on")

    def _finish(self) -> None:
        """Wait until all is scored."""
        with self._changed:
            for lane in self._lanes.values():
                lane.flush()
                lane.closed = True
            self._wake()
            while not all(future.done() for future in self._running):
                self._heed_all()
                self._changed.wait(_LOOK)
        self._raise()
