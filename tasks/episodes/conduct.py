"""One episode of an agent of the user's own: its program, its world, what it may still ask, and its record."""

import json
import os
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any, TypeVar

from specs.errors import TutelageError
from specs.records import NOT_TRAINED, Observation, Problem, Status, ToolCall, Trajectory, Turn
from tasks.boundary import Failure, boundary
from tasks.episodes.asks import MODEL, ToolAsk, tools_as_openai
from tasks.episodes.gateway import Gateway
from tasks.episodes.replies import Replies, Setting
from tasks.episodes.schemas import argument_error
from tasks.episodes.seeds import derive, world_seed
from tasks.linechild import said_words, status_words
from tasks.ownprogram import Running, launch_of, start
from tasks.protocols import Environment, ToolSchema, World
from tasks.tokens.text import compact_json

T = TypeVar("T")
_SAID = 2000


class Conduct:
    """An episode. What goes wrong around the policy ends it as `infrastructure`; it never raises."""

    def __init__(self, problem: Problem, sample: int, environment: Environment, shared: Setting) -> None:
        self._problem, self._sample, self._environment, self._shared = problem, sample, environment, shared
        self._seed = derive(shared.seed, problem.id, sample)
        self.replies = Replies(shared, self._seed)
        self._clock = {"model": 0.0, "tool": 0.0, "environment": 0.0}
        self._world: World | None = None
        self._tools: list[ToolSchema] = []
        self._calls = 0
        self._limit: Status | None = None
        """Status of an episode that was told that it may not call further."""
        self._error: str | None = None
        self._running: Running | None = None
        self._said: IO[bytes] | None = None
        self._secret = ""
        self._deadline = 0.0
        self.closed = False
        """It has ended; what is still asked of it comes too late."""

    # --- its program

    def start(self, gateway: Gateway) -> None:
        """Open the world and start the program."""
        shared = self._shared
        self._deadline = time.monotonic() + shared.agent.spec.timeout_seconds
        self._world = self._outside("environment", "open", self._open)
        if self._world is None:
            return
        self._secret = gateway.admit(self, self._deadline)
        variables = {
            "OPENAI_BASE_URL": gateway.url, "OPENAI_API_BASE": gateway.url, "OPENAI_API_KEY": self._secret,
            "OPENAI_MODEL": MODEL, "TUTELAGE_TOOLS_URL": f"{gateway.url}/tools/call",
        }  # fmt: skip
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed when the episode ends
        with tempfile.TemporaryFile() as asked:
            asked.write(json.dumps(self.told(), ensure_ascii=False).encode() + b"\n")
            asked.seek(0)
            launch = launch_of("agent", shared.agent.spec)
            self._running = start(launch, variables, stdin=asked, stdout=self._said, stderr=self._said)

    def _open(self) -> World:
        world = self._environment.open(self._problem, world_seed(self._seed))
        self._tools = self._environment.tools(self._problem)
        return world

    def told(self) -> dict[str, Any]:
        """Return what the program is told of its problem: nothing of the world's state or of what is expected."""
        problem = self._problem
        return {
            "id": problem.id, "type": problem.type, "text": problem.text, "environment": problem.environment,
            "sample": self._sample, "seed": self._seed, "max_turns": self._environment.max_turns,
            "max_requests": self._shared.agent.spec.max_requests, "tools": tools_as_openai(self._tools),
        }  # fmt: skip

    @property
    def alive(self) -> bool:
        """Return whether its program runs."""
        return self._running is not None and self._running.child.poll() is None

    def over(self) -> bool:
        """Return whether the program has ended, never started, or is out of time.

        One that hangs after it was told a limit ends with that limit: what a policy writes is no fault around it.
        """
        late = time.monotonic() > self._deadline
        if not self.alive or (late and self._told_limit is not None):
            return True
        if late:
            self.fail(f"agent: not done within agent.timeout_seconds ({self._shared.agent.spec.timeout_seconds:g} s)")
        limit = self._shared.agent.spec.limits.output_mb
        if self._said is not None and os.fstat(self._said.fileno()).st_size > limit * 2**20:
            self.fail(f"agent: wrote more than agent.limits.output_mb ({limit})")
        return self._error is not None

    def grant(self, seconds: float) -> None:
        """Give it so much more time."""
        self._deadline += seconds

    def fail(self, why: str) -> None:
        """Note that the episode cannot be judged; the first reason counts."""
        self._error = self._error or why

    # --- what it asks

    def call(self, ask: ToolAsk) -> dict[str, Any]:
        """Carry out a call of the world's tools and return what the program is told."""
        world = self._world
        if world is None or self._calls >= self._environment.max_turns:
            self._limit = self._limit or "turn_limit"
            return {
                "error": {
                    "message": f"no further call: max_turns is {self._environment.max_turns}",
                    "code": "turn_limit",
                }
            }
        self._calls += 1
        call = ToolCall(ask.name, ask.arguments, ask.written, ask.error or self._call_error(ask))
        observation = Observation({"error": call.error}, is_error=True)
        if call.error is None:
            found = self._outside("tool", f"tool {call.name}", lambda: world.call(call))
            if found is None:
                raise _Lost(self._error or "the world is lost")
            observation = found
        self._note(call, observation)
        return {
            "data": observation.data, "content": compact_json(observation.data), "is_error": observation.is_error,
            "done": observation.done or world.done, "calls_left": self._environment.max_turns - self._calls,
        }  # fmt: skip

    def _call_error(self, ask: ToolAsk) -> str | None:
        tool = next((t for t in self._tools if t.name == ask.name), None)
        return "unknown_tool" if tool is None else argument_error(ask.arguments, tool.parameters)

    def _note(self, call: ToolCall, observation: Observation) -> None:
        """Put a call into the turn of the reply before it, or into one of its own where that has one already."""
        turns = self.replies.transcript.turns
        if turns and turns[-1][1].observation is None:
            turn = turns[-1][1]
            call.written = turn.text
        else:
            turn = Turn(0, 0, "", None, None)
            turns.append((None, turn))
        turn.call, turn.observation = call, observation

    def took(self, seconds: float) -> None:
        """Count the time that sampling took."""
        self._clock["model"] += seconds

    # --- its end

    def finish(self, gateway: Gateway) -> Trajectory:
        """End the program and return the record of the episode."""
        self.closed = True
        gateway.dismiss(self._secret)
        code = self._running.end() if self._running is not None else None
        if self._running is not None and code != 0 and self._error is None and self._told_limit is None:
            self.fail(f"agent: ended early ({status_words(code)}); {said_words(self._last_words())}")
        world = self._world
        state = None
        if world is not None and self._error is None:
            state = self._outside("environment", "final state", world.final_state)
        record = self._record()
        if world is not None and self._error is None:
            record.status, record.final_state, record.answer = self._status(world), state, world.answer
        record.error = self._error
        if world is not None and isinstance(boundary("close", world.close), Failure):
            record.tags.append("close_failed")
        self._close_said()
        return record

    @property
    def _told_limit(self) -> Status | None:
        return self._limit or self.replies.limit

    def _status(self, world: World) -> Status:
        turns = self.replies.transcript.turns
        last = next((t.observation for _, t in reversed(turns) if t.observation is not None), None)
        if world.done:
            return "tool_error" if last is not None and last.is_error else "finished"
        if self._told_limit is not None:
            return self._told_limit
        return "truncated" if turns and turns[-1][1].finish == "length" else "finished"

    def _record(self) -> Trajectory:
        shared, problem = self._shared, self._problem
        joined = self.replies.transcript.joined()
        group = f"{shared.group_prefix}{problem.id}"
        drift = self.replies.transcript.drifted > 0
        dropped = drift and shared.agent.spec.token_drift == "drop"
        tags = [*problem.tags, *(["token_drift"] if drift else []), *([NOT_TRAINED] if dropped else [])]
        return Trajectory(
            id=f"{group}#{self._sample}", problem_id=problem.id, problem_type=problem.type,
            environment=problem.environment, environment_version=self._version(), agent=shared.agent.name, group=group,
            sample=self._sample, seed=self._seed, ids=joined.ids, sources=joined.sources, logprobs=joined.logprobs,
            policy_versions=joined.versions, turns=joined.turns, status="infrastructure",
            sampling={
                "temperature": shared.settings.temperature, "max_new_tokens": shared.settings.max_new_tokens,
                "logprobs": "after temperature", "sampler": shared.sampler, "segments": joined.segments, "drifted": self.replies.transcript.drifted,
            },
            latency=dict(self._clock), tags=tags,
        )  # fmt: skip

    def _version(self) -> str:
        found = boundary("version", lambda: self._environment.version)
        return "unknown" if isinstance(found, Failure) else found

    def _last_words(self) -> str:
        if self._said is None:
            return ""
        self._said.seek(0, 2)
        self._said.seek(max(0, self._said.tell() - _SAID))
        return self._said.read().decode("utf-8", errors="replace").strip()

    def _close_said(self) -> None:
        if self._said is not None:
            self._said.close()

    def abandon(self, gateway: Gateway) -> None:
        """End the program of an episode that will not be finished, and its world."""
        self.closed = True
        gateway.dismiss(self._secret)
        if self._running is not None:
            self._running.end()
        if self._world is not None:
            boundary("close", self._world.close)
        self._close_said()

    def _outside(self, clock: str, where: str, work: Callable[[], T]) -> T | None:
        """Run work of the environment; a failure is noted and gives None."""
        began = time.perf_counter()
        found = boundary(f"{self._problem.environment} {where}", work)
        self._clock[clock] += time.perf_counter() - began
        if isinstance(found, Failure):
            self.fail(str(found))
            return None
        return found


class _Lost(TutelageError):
    """The world of an episode failed."""
