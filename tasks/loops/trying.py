"""Try a teacher's correction in the world of the trajectory that it corrects, before anybody learns from it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specs.records import Observation, Problem, ToolCall, Trajectory, Turn
from specs.reward import Reward
from tasks.boundary import Failure, boundary
from tasks.episodes.schemas import argument_error
from tasks.episodes.seeds import world_seed
from tasks.evidence.judge import judge
from tasks.protocols import Environment, VerifierRun

Json = dict[str, Any]
UNUSABLE = -1e9
"""Worth of a correction that cannot be carried out, or that no verifier can judge."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Where corrections are tried, and who judges."""

    environments: Mapping[str, Environment]
    verifiers: Mapping[str, VerifierRun]
    reward: Reward

    def worth(self, problem: Problem, own: Trajectory, content: Json) -> float:
        """Return the reward that the verifiers give a correction: success first, since it outweighs all else."""
        made = self._judged(problem, own, content)
        return UNUSABLE if made is None or made.reward is None else made.reward

    def holds(self, problem: Problem, own: Trajectory, content: Json) -> bool | None:
        """Return whether every call of a correction can be made and the verifiers call it a success.

        None where the world cannot be run, or nobody can judge it.
        """
        made = self._judged(problem, own, content)
        if made is None or made.success is None:
            return None
        usable = not any(turn.call is not None and turn.call.error for turn in made.turns[content["keep"] :])
        return made.success and usable and made.status == "finished"

    def _judged(self, problem: Problem, own: Trajectory, content: Json) -> Trajectory | None:
        found = boundary("correction", lambda: self._played(problem, own, content))
        if isinstance(found, Failure):
            return None
        judge(found, problem, self.verifiers, self.reward)
        return found

    def _played(self, problem: Problem, own: Trajectory, content: Json) -> Trajectory:
        environment = self.environments[problem.environment]
        schemas = {t.name: t.parameters for t in environment.tools(problem)}
        kept = [t.call for t in own.turns[: content["keep"]] if t.call is not None]
        calls = [*kept, *(ToolCall(c["name"], c["arguments"], "") for c in content["calls"])]
        world, turns = environment.open(problem, world_seed(own.seed)), list[Turn]()
        try:
            for call in calls[: environment.max_turns]:
                wrong = _error(call, schemas)
                reply = Observation({"error": wrong}, is_error=True) if wrong else world.call(call)
                turns.append(Turn(0, 0, call.written, replace(call, error=wrong), reply))
                if world.done:
                    break
            status = "finished" if world.done else "turn_limit"
            return replace(
                own, turns=turns, status=status, final_state=world.final_state(), answer=world.answer, verdicts=[],
                success=None, reward=None, reward_parts={}, tags=[],
            )  # fmt: skip
        finally:
            world.close()


def _error(call: ToolCall, schemas: Mapping[str, Json]) -> str | None:
    if call.name not in schemas:
        return "unknown_tool"
    return argument_error(call.arguments, schemas[call.name])
