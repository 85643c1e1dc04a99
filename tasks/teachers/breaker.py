"""Leaves a teacher alone that fails again and again: a pause, one trial, and then an end."""

from collections.abc import Callable

from specs.errors import TeacherError
from specs.teachers import Limits


class Breaker:
    """Counts calls in a row that failed for want of the teacher (not for what the question was)."""

    def __init__(self, teacher: str, limits: Limits, clock: Callable[[], float]) -> None:
        self._teacher = teacher
        self._most = limits.failures_in_a_row
        self._pause = limits.pause_seconds
        self._clock = clock
        self._failed = 0
        self._until: float | None = None
        self._trial = False
        self.pauses = 0
        self.reason = ""

    @property
    def pause(self) -> float:
        """Return for how many seconds nothing is asked; 0 where it may be."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    @property
    def open(self) -> bool:
        """Return whether it is left alone, or one call tries it."""
        return self._until is not None

    def trial(self) -> bool:
        """Return whether this call is the one that tries it after a pause; others wait for its end."""
        if self._until is None or self.pause or self._trial:
            return False
        self._trial = True
        return True

    def good(self) -> None:
        """Note that it answered."""
        self._failed, self._until, self._trial = 0, None, False

    def bad(self, reason: str) -> None:
        """Note that it did not. TeacherError where it did not after a pause either."""
        self.reason = reason
        self._failed += 1
        if self._trial:
            raise TeacherError(
                f"teacher {self._teacher}: {self._failed} calls in a row failed ({reason}), the last after a pause of "
                f"{self._pause:g} s; see that it can be reached and run again: what was answered is kept"
            )
        if self._failed >= self._most and self._until is None:
            self._until = self._clock() + self._pause
            self.pauses += 1
