"""How fast a teacher is asked: calls at once, calls in a minute, and the wait that its server demands of everybody."""

import asyncio
from collections.abc import Callable

from specs.teachers import Limits


class Pace:
    """Holds calls back. `clock` gives seconds; all waits are sleeps, never polls."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.places = asyncio.Semaphore(limits.in_flight)
        self._gap = 60.0 / limits.requests_per_minute if limits.requests_per_minute else 0.0
        self._clock = clock
        self._next = -float("inf")
        self._held_until = -float("inf")

    def hold(self, seconds: float) -> None:
        """Have every call wait at least so long: the server asked for it."""
        self._held_until = max(self._held_until, self._clock() + seconds)

    def turn(self) -> float:
        """Return how long the next request must wait for its place in the minute, which is taken by this."""
        now = self._clock()
        start = max(now, self._next)
        self._next = start + self._gap
        return start - now

    @property
    def held(self) -> float:
        """Return for how many seconds the server wants no request."""
        return max(0.0, self._held_until - self._clock())
