"""One episode as a state machine: it says what to sample next and is handed what was sampled.

The ids that the sampler saw and drew are the record; nothing is decoded and encoded again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specs.errors import RolloutError
from specs.records import Observation, Problem, Source, Status, ToolCall, Trajectory, Turn
from tasks.boundary import Failure, boundary
from tasks.episodes.agents import ToolLoopAgent
from tasks.episodes.seeds import derive, world_seed
from tasks.protocols import Completion, Environment, SampleRequest, SamplingSettings, ToolSchema, World
from tasks.tokens.template import Segment, Template
from tasks.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EpisodeSetting:
    """What all episodes of a run share."""

    agent: ToolLoopAgent
    template: Template
    tokenizer: Tokenizer
    settings: SamplingSettings
    max_length: int
    """Tokens of the longest trajectory."""
    seed: int
    group_prefix: str
    sampler: str = "local"
    """What generates."""


class Episode:
    """An episode of one problem. Failures of the world end it as `infrastructure`; they never raise."""

    def __init__(
        self, problem: Problem, sample: int, session: int, environment: Environment, shared: EpisodeSetting
    ) -> None:
        self._shared, self._environment, self._problem = shared, environment, problem
        self._session = session
        self._seed = derive(shared.seed, problem.id, sample)
        self._record = self._start_record(sample)
        self._clock: dict[str, float] = {"model": 0.0, "tool": 0.0, "environment": 0.0}
        self._world: World | None = None
        self._tools: list[ToolSchema] = []
        self._open = True
        world = self._outside("environment", "open", lambda: environment.open(problem, world_seed(self._seed)))
        if world is not None:
            self._world = world
            self._tools = environment.tools(problem)
            self._append(shared.template.prompt(problem, self._tools, shared.agent.instruction))
            self._check_room()

    def _start_record(self, sample: int) -> Trajectory:
        shared, problem = self._shared, self._problem
        group = f"{shared.group_prefix}{problem.id}"
        return Trajectory(
            id=f"{group}#{sample}",
            problem_id=problem.id,
            problem_type=problem.type,
            environment=problem.environment,
            environment_version=self._environment.version,
            agent=shared.agent.name,
            group=group,
            sample=sample,
            seed=self._seed,
            ids=[],
            sources=[],
            logprobs=[],
            policy_versions=[],
            turns=[],
            status="infrastructure",
            sampling={
                "temperature": shared.settings.temperature,
                "max_new_tokens": shared.settings.max_new_tokens,
                "logprobs": "after temperature",
                "sampler": shared.sampler,
            },
            tags=list(problem.tags),
        )

    @property
    def request(self) -> SampleRequest | None:
        """Return what to sample next, or None where the episode has ended."""
        if not self._open:
            return None
        seed = derive(self._seed, "turn", len(self._record.turns))
        return SampleRequest(self._session, self._record.ids, seed, self._shared.settings)

    def advance(self, completion: Completion, seconds: float = 0.0) -> None:
        """Take a completion that `seconds` of sampling gave, act on it, and get ready for the next turn."""
        if not self._open:
            raise RolloutError(f"{self._record.id}: a completion for an episode that has ended")
        self._clock["model"] += seconds
        start = len(self._record.ids)
        self._take(completion)
        stopped = completion.finish == "stop"
        text = self._shared.tokenizer.decode(completion.ids[:-1] if stopped else completion.ids)
        turn = Turn(start, len(self._record.ids), text, None, None, "stop" if stopped else "length")
        self._record.turns.append(turn)
        if not stopped:
            if self._shared.tokenizer.ends_inside_character(completion.ids):
                self._record.tags.append("ends_inside_character")
            self._end("truncated")
            return
        turn.call = self._shared.agent.parse(text, self._tools)
        turn.observation = self._act(turn.call)
        if turn.observation is not None:
            self._go_on(turn.observation)

    def _take(self, completion: Completion) -> None:
        if not completion.ids or len(completion.ids) != len(completion.logprobs):
            raise RolloutError(
                f"{self._record.id}: the sampler gave {len(completion.ids)} ids and {len(completion.logprobs)} "
                "logprobs, expected equally many and at least one"
            )
        record, number = self._record, len(completion.ids)
        record.ids += completion.ids
        record.sources += [int(Source.POLICY)] * number
        record.logprobs += completion.logprobs
        versions = record.policy_versions
        if versions and versions[-1][0] == completion.policy_version:
            versions[-1] = (completion.policy_version, versions[-1][1] + number)
        else:
            versions.append((completion.policy_version, number))

    def _act(self, call: ToolCall) -> Observation | None:
        """Return the world's reply, or a tool-error observation for a call that cannot be used."""
        if call.error is not None:
            return Observation({"error": call.error}, is_error=True)
        world = self._world
        assert world is not None
        return self._outside("tool", f"tool {call.name}", lambda: world.call(call))

    def _go_on(self, observation: Observation) -> None:
        world = self._world
        assert world is not None
        if observation.done or world.done:
            self._end("tool_error" if observation.is_error else "finished")
        elif len(self._record.turns) >= self._environment.max_turns:
            self._end("turn_limit")
        else:
            self._append(self._shared.template.observation(observation, cut=False))
            self._check_room()

    def _append(self, segments: Sequence[Segment]) -> None:
        record = self._record
        for source, ids in segments:
            record.ids += ids
            record.sources += [int(source)] * len(ids)
            record.logprobs += [0.0] * len(ids)

    def _check_room(self) -> None:
        """End an episode that has no room for another token."""
        if len(self._record.ids) >= self._shared.max_length:
            self._end("truncated")

    def _outside(self, clock: str, where: str, work: Any) -> Any:
        """Run work of the environment; a failure ends the episode and gives None."""
        start = time.perf_counter()
        result = boundary(f"{self._problem.environment} {where}", work)
        self._clock[clock] += time.perf_counter() - start
        if isinstance(result, Failure):
            self._record.error = str(result)
            self._record.status = "infrastructure"
            self._open = False
            self._close()
            return None
        return result

    def _end(self, status: Status) -> None:
        world = self._world
        assert world is not None
        self._open = False
        state = self._outside("environment", "final state", world.final_state)
        if state is None:
            return
        self._record.final_state, self._record.answer = state, world.answer
        self._record.status = status
        self._close()

    def _close(self) -> None:
        world, self._world = self._world, None
        if world is None:
            return
        failed = boundary(f"{self._problem.environment} close", world.close)
        if isinstance(failed, Failure):
            self._record.tags.append("close_failed")

    def abandon(self) -> None:
        """Close the world of an episode that will not be finished."""
        self._open = False
        self._close()

    @property
    def record(self) -> Trajectory:
        """Return the record so far; it grows with every turn."""
        return self._record

    def trajectory(self) -> Trajectory:
        """Return the record of an episode that has ended."""
        if self._open:
            raise RolloutError(f"{self._record.id}: the episode has not ended")
        self._record.latency = dict(self._clock)
        return self._record
