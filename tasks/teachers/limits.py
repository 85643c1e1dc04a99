"""How fast a teacher is asked: calls at once, calls in a minute, and the wait that its server demands of everybody."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from tasks.leases import Lease
from tasks.teachers.common import Common

_LOOK, _LONGEST_LOOK = 0.01, 0.1
"""Seconds between looks for a place, where other nodes have them all."""


class Pace:
    """Holds the calls of one round back, so that those of all rounds that run at the same time keep to the limits."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._own = asyncio.Semaphore(common.limits.in_flight)
        self._line = asyncio.Lock()
        self._held = set[int]()

    @contextlib.asynccontextmanager
    async def place(self, given_up: Callable[[], bool] = lambda: False) -> AsyncIterator[bool]:
        """Hold one of the places; yields False, without one, where the round is given up before there is one."""
        async with self._own:
            found = await self._free(given_up)
            try:
                yield found is not None
            finally:
                if found is not None:
                    self._held.discard(found[0])
                    found[1].release()

    async def _free(self, given_up: Callable[[], bool]) -> tuple[int, Lease] | None:
        """Return a place. One node at a time waits for it, so that none takes each that another gives back."""
        async with self._line:
            turn = self._common.lease("turn")
            while not turn.try_acquire():
                if given_up():
                    return None
                await asyncio.sleep(_LOOK)
            wait = _LOOK
            try:
                while not given_up():
                    for number in range(self._common.limits.in_flight):
                        if number not in self._held and (place := self._common.lease(f"{number}.place")).try_acquire():
                            self._held.add(number)
                            return number, place
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, _LONGEST_LOOK)  # each look opens a file for every place that others hold
            finally:
                turn.release()
        return None

    def hold(self, seconds: float) -> None:
        """Have every call wait at least so long: the server asked for it."""
        if seconds > 0:
            with self._common.change() as state:
                state.held = max(state.held, self._common.clock() + seconds)

    def turn(self) -> float:
        """Return how long the next request must wait for its place in the minute, which is taken by this."""
        if not self._common.gap:
            return 0.0
        now = self._common.clock()
        with self._common.change() as state:
            start = max(now, state.next)
            state.next = start + self._common.gap
        return start - now

    @property
    def held(self) -> float:
        """Return for how many seconds the server wants no request."""
        return max(0.0, self._common.read().held - self._common.clock())
