"""Demonstrations as trajectories: the tokens that the policy should have written, with their sources."""

from collections.abc import Sequence

from specs.errors import DataError
from specs.records import Demonstration, Source, Trajectory, Turn
from tasks.episodes.agents import ToolLoopAgent
from tasks.protocols import ToolSchema
from tasks.tokens.template import Segment, Template


def render_demonstration(
    demonstration: Demonstration, agent: ToolLoopAgent, template: Template, tools: Sequence[ToolSchema]
) -> Trajectory:
    """Return the demonstration as a finished trajectory: the same ids as an episode in which the policy wrote it.

    Logprobs are 0.0, for no policy drew it. DataError for a demonstration without a turn.
    """
    problem = demonstration.problem
    if not demonstration.turns:
        raise DataError(f"demonstration of {problem.id}: has no turn, expected at least one call")
    ids: list[int] = []
    sources: list[int] = []

    def append(segments: Sequence[Segment]) -> None:
        for source, tokens in segments:
            ids.extend(tokens)
            sources.extend([int(source)] * len(tokens))

    append(template.prompt(problem, tools, agent.instruction))
    turns: list[Turn] = []
    last = len(demonstration.turns) - 1
    for number, (call, observation) in enumerate(demonstration.turns):
        text = agent.write(call)
        start = len(ids)
        append([(Source.POLICY, template.completion(text))])
        turns.append(Turn(start, len(ids), text, call, observation))
        if number < last:
            append(template.observation(observation, cut=False))
    return Trajectory(
        id=f"demonstration/{problem.id}",
        problem_id=problem.id,
        problem_type=problem.type,
        environment=problem.environment,
        environment_version="",
        agent=agent.name,
        group=f"demonstration/{problem.id}",
        sample=0,
        seed=0,
        ids=ids,
        sources=sources,
        logprobs=[0.0] * len(ids),
        policy_versions=[],
        turns=turns,
        status="finished",
        sampling={},
        final_state=demonstration.final_state,
        answer=demonstration.answer,
        origin=f"demonstration/{demonstration.by}",
        tags=[*problem.tags, *(["spoiled"] if demonstration.spoiled else [])],
    )
