"""Episodes of an agent of the user's own: one program per episode, all of them against one gateway.

Programs run side by side; whatever they ask is answered by the one thread that runs here: requests of a short while
are sampled together, calls of tools are carried out in order. A program that ends with another status than 0, or runs
out of time, is a fault of the infrastructure with its evidence, unless it had been told that a limit was reached.
"""

import contextlib
import itertools
import queue
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from specs.errors import Interrupted
from specs.records import Problem, Trajectory
from tasks.boundary import Failure, boundary
from tasks.episodes.agents import ExternalScaffold
from tasks.episodes.asks import ChatAsk, DecodeAsk, EncodeAsk, IdsAsk, Refused, ToolAsk
from tasks.episodes.conduct import Conduct
from tasks.episodes.gateway import Gateway, Job
from tasks.episodes.replies import Replies, Setting
from tasks.protocols import Environment, Sampler, SampleRequest, SamplingSettings
from tasks.tokens.template import Template

T = TypeVar("T")

_TICK = 0.01
"""Seconds between looks at programs that ask nothing."""
_WINDOW = 0.008
"""Seconds without a further request after which those that wait are sampled together."""
_LONGEST_WINDOW = 0.05


def run_external(  # noqa: PLR0913 - as run_episodes
    sampler: Sampler,
    agent: ExternalScaffold,
    template: Template,
    environments: Mapping[str, Environment],
    problems: Sequence[Problem],
    *,
    samples: int,
    settings: SamplingSettings,
    seed: int,
    in_flight: int,
    group_prefix: str = "",
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    known: Container[tuple[str, int]] = (),
    finished: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Return `samples` trajectories of each problem, in the order of the problems, samples together, without `known`.

    At most `in_flight` programs run at once. Interrupted where `stop` says so; every program has ended then.
    """
    setting = Setting(agent, template, settings, sampler.max_length, seed, group_prefix, sampler.name)
    asked = [(p, i) for p in problems for i in range(samples) if (p.id, i) not in known]
    wanted = ((place, p, i) for place, (p, i) in enumerate(asked))
    total = len(asked)
    with Gateway(agent, template.tokenizer.size, settings.temperature) as gateway:
        crowd = _Crowd(sampler, setting, environments, gateway)
        try:
            while len(crowd.finished) < total:
                if stop is not None and stop():
                    raise Interrupted(
                        f"stopped after {len(crowd.finished)} of {total} episodes; run the same command to go on"
                    )
                crowd.fill(wanted, in_flight)
                crowd.serve()
                ended = crowd.reap()
                if finished is not None and ended:
                    with crowd.unheard():
                        for place in ended:
                            finished(crowd.finished[place])
                if ended and progress is not None:
                    progress(len(crowd.finished), total)
        finally:
            crowd.abandon()
    return [crowd.finished[k] for k in range(total)]


def _alone(job: Job, work: Callable[[], T], code: str = "gateway") -> T | None:
    """Return what `work` returns; None where it refused the job, or failed and so ended that episode and no other."""

    def tried() -> T | Refused:
        try:
            return work()
        except Refused as e:
            return e

    found = boundary("gateway", tried)
    if isinstance(found, Failure):
        job.episode.fail(str(found))
        found = Refused(str(found), 500, code)
    if isinstance(found, Refused):
        job.refuse(found)
        return None
    return found


class _Crowd:
    """The episodes that run."""

    def __init__(
        self, sampler: Sampler, setting: Setting, environments: Mapping[str, Environment], gateway: Gateway
    ) -> None:
        self._sampler, self._setting, self._environments, self._gateway = sampler, setting, environments, gateway
        self._sessions = itertools.count(1 << 40)  # apart from those of episodes without a program
        self._running: dict[int, Conduct] = {}
        self.finished: dict[int, Trajectory] = {}

    def fill(self, wanted: Iterator[tuple[int, Problem, int]], most: int) -> None:
        """Start episodes until as many run as may."""
        while len(self._running) < most:
            found = next(wanted, None)
            if found is None:
                return
            place, problem, sample = found
            conduct = Conduct(problem, sample, self._environments[problem.environment], self._setting)
            self._running[place] = conduct
            conduct.start(self._gateway)

    def serve(self) -> None:
        """Answer what is asked: calls at once, samples together."""
        waiting: list[Job] = []
        began = last = time.monotonic()
        while True:
            alive = sum(c.alive for c in self._running.values())
            if waiting and len(waiting) >= alive:
                break
            try:
                job = self._gateway.jobs.get(timeout=_WINDOW if waiting else _TICK)
            except queue.Empty:
                if waiting and time.monotonic() - last < _WINDOW and time.monotonic() - began < _LONGEST_WINDOW:
                    continue
                break
            last = time.monotonic()
            if job.episode.closed:
                job.refuse(Refused("the episode is over", 410, "over"))
            elif isinstance(job.ask, ChatAsk | IdsAsk):
                waiting.append(job)
            else:
                self._at_once(job)
        if waiting:
            self._sample(waiting)

    def _at_once(self, job: Job) -> None:
        conduct: Conduct = job.episode
        match job.ask:
            case ToolAsk():
                answer = _alone(job, lambda: conduct.call(job.ask), "environment")  # type: ignore[arg-type]
                if answer is not None:
                    job.reply(answer, 403 if "error" in answer else 200)
            case EncodeAsk(text=text, chat=chat):
                ids = _alone(job, lambda: self._encoded(conduct, text, chat))
                if ids is not None:
                    job.reply({"ids": ids, "count": len(ids)})
            case DecodeAsk(ids=ids):
                said = _alone(job, lambda: self._setting.template.tokenizer.decode(ids))
                if said is not None:
                    job.reply({"text": said})

    def _encoded(self, conduct: Conduct, text: str | None, chat: ChatAsk | None) -> list[int]:
        if chat is not None:
            return conduct.replies.ids_of(chat)
        return self._setting.template.tokenizer.encode(text or "")

    def _sample(self, jobs: list[Job]) -> None:
        """Sample for all that wait, each from its own ids and seed."""
        asked: list[tuple[Job, SampleRequest]] = []
        for job in jobs:
            replies: Replies = job.episode.replies
            request = _alone(job, partial(replies.request, job.ask, next(self._sessions)))  # type: ignore[arg-type]
            if request is not None:
                asked.append((job, request))
        if not asked:
            return
        start = time.perf_counter()
        completions = self._sampler.generate([r for _, r in asked])
        seconds = time.perf_counter() - start
        for (job, request), completion in zip(asked, completions, strict=True):
            job.episode.took(seconds)
            reply = _alone(job, partial(job.episode.replies.take, job.ask, request.session, completion))
            if reply is not None:
                job.reply(reply)

    def reap(self) -> list[int]:
        """Take up the episodes whose program has ended or is out of time; return their places."""
        ended = [place for place, c in self._running.items() if c.over()]
        for place in ended:
            self.finished[place] = self._running.pop(place).finish(self._gateway)
        return ended

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """Stand around what keeps from serving; the time that it takes is none of the programs'."""
        began = time.monotonic()
        with self._gateway.unheard():
            yield
        for conduct in self._running.values():
            conduct.grant(time.monotonic() - began)

    def abandon(self) -> None:
        """End the programs of episodes that will not be finished."""
        for conduct in self._running.values():
            conduct.abandon(self._gateway)
