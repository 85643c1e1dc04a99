"""Running many episodes at once, turn by turn, so that the sampler always sees a large batch."""

import itertools
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from specs.errors import DataError, Interrupted, ProgramError
from specs.records import Problem, Trajectory
from tasks.episodes.agents import ExternalScaffold, ToolLoopAgent
from tasks.episodes.episode import Episode, EpisodeSetting
from tasks.episodes.schemas import check_tools
from tasks.protocols import Environment, Sampler, SamplingSettings
from tasks.tokens.template import Template

_SESSIONS = itertools.count()
"""Session numbers are never used twice in a process, so no run can meet what another left in a sampler."""


def run_episodes(  # noqa: PLR0913 - the seam where everything is handed in
    sampler: Sampler,
    agent: ToolLoopAgent,
    template: Template,
    environments: Mapping[str, Environment],
    problems: Sequence[Problem],
    *,
    samples: int = 1,
    settings: SamplingSettings | None = None,
    seed: int = 0,
    in_flight: int = 256,
    group_prefix: str = "",
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    known: Container[tuple[str, int]] = (),
    finished: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Return `samples` trajectories of each problem, in the order of the problems, samples together.

    What comes out depends on seed, problem and sample only, never on `in_flight`. `settings` without stop ids gets
    the template's. Those whose problem and sample are in `known` are left out. `progress` is told (finished, all)
    after each turn, `finished` takes each trajectory as soon as it has ended. Interrupted where `stop` says so.
    """
    _check(sampler, agent, template, environments, problems)
    if isinstance(agent, ExternalScaffold):
        from tasks.episodes.external import run_external

        return run_external(
            sampler, agent, template, environments, problems, samples=samples,
            settings=_settings(agent, template, settings), seed=seed, in_flight=in_flight, group_prefix=group_prefix,
            progress=progress, stop=stop, known=known, finished=finished,
        )  # fmt: skip
    shared = _shared(sampler, agent, template, settings, seed, group_prefix)
    groups = iter([g for p in problems if (g := [(p, k) for k in range(samples) if (p.id, k) not in known])])
    total = sum((p.id, k) not in known for p in problems for k in range(samples))
    done: dict[int, Trajectory] = {}
    active: dict[int, Episode] = {}
    place = itertools.count()
    group = next(groups, [])
    try:
        while len(done) < total:
            if stop is not None and stop():
                raise Interrupted(f"stopped after {len(done)} of {total} episodes; run the same command to go on")
            while group and (not active or len(active) + len(group) <= in_flight):
                for problem, k in group:
                    environment = environments[problem.environment]
                    active[next(place)] = Episode(problem, k, next(_SESSIONS), environment, shared)
                group = next(groups, [])
            _turn(sampler, active)
            for key in [k for k, e in active.items() if e.request is None]:
                done[key] = active.pop(key).trajectory()
                if finished is not None:
                    finished(done[key])
            if progress is not None:
                progress(len(done), total)
    finally:
        for episode in active.values():
            episode.abandon()
    return [done[k] for k in range(total)]


def _shared(
    sampler: Sampler,
    agent: ToolLoopAgent,
    template: Template,
    settings: SamplingSettings | None,
    seed: int,
    group_prefix: str,
) -> EpisodeSetting:
    settings = _settings(agent, template, settings)
    return EpisodeSetting(
        agent, template, template.tokenizer, settings, sampler.max_length, seed, group_prefix, sampler.name
    )


def _settings(agent: ToolLoopAgent, template: Template, settings: SamplingSettings | None) -> SamplingSettings:
    settings = settings or SamplingSettings(max_new_tokens=agent.spec.max_new_tokens)
    return settings if settings.stop_ids else replace(settings, stop_ids=template.stop_ids)


def _turn(sampler: Sampler, active: dict[int, Episode]) -> None:
    """Sample one turn of every episode that goes on."""
    asked = [(e, r) for e in active.values() if (r := e.request) is not None]
    if not asked:
        return
    start = time.perf_counter()
    completions = sampler.generate([r for _, r in asked])
    seconds = time.perf_counter() - start
    for (episode, _), completion in zip(asked, completions, strict=True):
        episode.advance(completion, seconds)


def _check(
    sampler: Sampler,
    agent: ToolLoopAgent,
    template: Template,
    environments: Mapping[str, Environment],
    problems: Sequence[Problem],
) -> None:
    if sampler.tokenizer_digest != template.digest:
        raise ProgramError(
            f"sampler: serves tokenizer and template {sampler.tokenizer_digest[:12]}, but episodes are written with "
            f"{template.digest[:12]}; start it with this policy"
        )
    if len({p.id for p in problems}) < len(problems):
        raise DataError("problems: the same id twice in one run; ask for more samples instead")
    for problem in problems:
        if problem.environment not in environments:
            raise DataError(
                f"problem {problem.id}: environment {problem.environment!r} is not declared; "
                f"expected one of {', '.join(sorted(environments))}"
            )
    seen: set[str] = set()
    for problem in problems:
        if problem.tools is not None or problem.environment not in seen:
            seen.add(problem.environment)
            check_tools(environments[problem.environment].tools(problem), agent.spec.call_format)


def identical_completions(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """Return for each group how many of its trajectories repeat another's ids byte for byte (0 where all differ)."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for t in trajectories:
        groups.setdefault(t.group, []).append(tuple(t.ids))
    return {group: len(ids) - len(set(ids)) for group, ids in groups.items()}


def watch_episode(  # noqa: PLR0913 - as run_episodes
    sampler: Sampler,
    agent: ToolLoopAgent,
    template: Template,
    environment: Environment,
    problem: Problem,
    settings: SamplingSettings,
    seed: int,
    watch: Callable[[Trajectory], None],
) -> Trajectory:
    """Run one episode alone and show its record to `watch` after every turn. The same episode as in `run_episodes`."""
    _check(sampler, agent, template, {problem.environment: environment}, [problem])
    if isinstance(agent, ExternalScaffold):  # its record is whole when its program has ended
        worlds = {problem.environment: environment}
        record = run_episodes(sampler, agent, template, worlds, [problem], settings=settings, seed=seed)[0]
        watch(record)
        return record
    shared = _shared(sampler, agent, template, settings, seed, "")
    episode = Episode(problem, 0, next(_SESSIONS), environment, shared)
    try:
        while episode.request is not None:
            _turn(sampler, {0: episode})
            watch(episode.record)
    finally:
        episode.abandon()
    return episode.trajectory()
