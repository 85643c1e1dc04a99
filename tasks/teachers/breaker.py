"""Leaves a teacher alone that fails again and again: a pause, one trial, and then an end."""

from specs.errors import TeacherError
from tasks.leases import Lease
from tasks.teachers.common import Common


class Breaker:
    """Counts calls in a row, of all nodes that ask, that failed for want of the teacher (not for what the question was)."""

    def __init__(self, teacher: str, common: Common) -> None:
        self._teacher = teacher
        self._common = common
        self._most, self._pause = common.limits.failures_in_a_row, common.limits.pause_seconds
        self._trial: Lease | None = None
        self._who: object = None
        """The call that tries it."""

    @property
    def pause(self) -> float:
        """Return for how many seconds nothing is asked; 0 where it may be."""
        until = self._common.read().pause
        return 0.0 if until is None else max(0.0, until - self._common.clock())

    @property
    def open(self) -> bool:
        """Return whether it is left alone, or one call tries it."""
        return self._common.read().pause is not None

    def trial(self, who: object = None) -> bool:
        """Return whether this call is the one that tries it after a pause; others wait for its end."""
        if self._trial is not None or not self._due():
            return False
        lease = self._common.lease("trial")
        if not lease.try_acquire():
            return False
        if not self._due():  # who tried it just now is told by the state alone
            lease.release()
            return False
        self._trial, self._who = lease, who
        return True

    def leave(self, who: object) -> None:
        """Note that a call has ended: where it was to try the teacher and never came to, another one may."""
        if self._who is who:
            self._end_trial()

    def _due(self) -> bool:
        return self.open and not self.pause

    def good(self) -> None:
        """Note that it answered."""
        state = self._common.read()
        if state.failed or state.pause is not None:
            with self._common.change() as state:
                state.failed, state.pause = 0, None
        self._end_trial()

    def bad(self, reason: str, who: object = None) -> None:
        """Note that it did not answer a call. TeacherError where that call tried it after a pause; other nodes pause once more."""
        with self._common.change() as state:
            tried = self._trial is not None and self._who is who and state.pause is not None
            state.failed += 1
            if tried or (state.failed >= self._most and state.pause is None):
                state.pause = self._common.clock() + self._pause
        if tried:
            self._end_trial()
            raise TeacherError(
                f"teacher {self._teacher}: {state.failed} calls in a row failed ({reason}), the last after a pause of "
                f"{self._pause:g} s; see that it can be reached and run again: what was answered is kept"
            )

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.release()
            self._trial = self._who = None
