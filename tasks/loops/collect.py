"""Rollouts that are judged: the episode loop and the verifiers meet here."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specs.errors import VerifierError
from specs.records import NOT_TRAINED, Problem, Trajectory
from specs.reward import Reward
from tasks.episodes.agents import ToolLoopAgent
from tasks.episodes.driver import run_episodes
from tasks.evidence.judge import judge
from tasks.loops.rollout_store import RolloutStore
from tasks.protocols import Environment, Sampler, SamplingSettings, VerifierRun
from tasks.tokens.template import Template

PARTS_IN_FLIGHT = 4
"""Rollouts of one stored part, in multiples of what is in flight at once."""


@dataclass(frozen=True, slots=True)
class Arena:
    """What a policy is let loose on: who samples, how it acts, where, and who judges."""

    sampler: Sampler
    agent: ToolLoopAgent
    template: Template
    environments: dict[str, Environment]
    verifiers: dict[str, VerifierRun]
    reward: Reward
    max_new_tokens: int
    in_flight: int = 256

    def settings(self, temperature: float) -> SamplingSettings:
        """Return sampling settings with the template's stop tokens."""
        return SamplingSettings(temperature, self.max_new_tokens, tuple(self.template.stop_ids))


@dataclass(frozen=True, slots=True)
class Draw:
    """Which rollouts: `samples` of each problem at a temperature. Equal draws give equal trajectories."""

    samples: int
    temperature: float
    seed: int
    prefix: str
    """First part of the names of its groups."""


@dataclass(slots=True)
class Collected:
    """Judged trajectories, in order of problem and sample."""

    trajectories: list[Trajectory]
    invalid: int = 0
    """Trajectories without a verdict (infrastructure, or a verifier that could not say)."""
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def policy_tokens(self) -> int:
        """Return the tokens that the policy wrote."""
        return sum(t.policy_tokens for t in self.trajectories)


def rollouts(
    arena: Arena,
    problems: Sequence[Problem],
    draw: Draw,
    *,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Return the judged rollouts of the problems. Raises Interrupted where `stop` asks."""
    trajectories = run_episodes(
        arena.sampler,
        arena.agent,
        arena.template,
        arena.environments,
        problems,
        samples=draw.samples,
        settings=arena.settings(draw.temperature),
        seed=draw.seed,
        in_flight=arena.in_flight,
        group_prefix=f"{draw.prefix}/",
        progress=progress,
        stop=stop,
    )
    by_id = {p.id: p for p in problems}
    for trajectory in trajectories:
        judge(trajectory, by_id[trajectory.problem_id], arena.verifiers, arena.reward)
    return trajectories


def collect(
    arena: Arena,
    problems: Sequence[Problem],
    draw: Draw,
    *,
    stop: Callable[[], bool] | None = None,
    store: RolloutStore | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Collected:
    """Return the judged rollouts of the problems, some problems at a time; with a `store` no part is drawn twice.

    Raises VerifierError where more of them than `reward.max_invalid` have no verdict, Interrupted where `stop` asks.
    """
    part = max(1, PARTS_IN_FLIGHT * arena.in_flight // draw.samples)
    total = len(problems) * draw.samples
    found: list[Trajectory] = []
    for at in range(0, len(problems), part):
        name = f"part-{at:06d}-{part}"  # with its size, for a resume may have another number in flight
        known = store.read(name) if store is not None else None
        if known is None:
            done = len(found)

            def tell(finished: int, _: int, done: int = done) -> None:
                if progress is not None:
                    progress(done + finished, total)

            known = rollouts(arena, problems[at : at + part], draw, stop=stop, progress=tell)
            if store is not None and at + part < len(problems):
                store.write(name, known)
        found += known
    return check_invalid(found, arena.reward)


def drift_notes(trajectories: Sequence[Trajectory]) -> list[str]:
    """Return a sentence where prompts left out or changed what was sampled before (agents of one's own)."""
    found = [t for t in trajectories if "token_drift" in t.tags]
    dropped = sum(NOT_TRAINED in t.tags for t in found)
    became = f"{dropped} of them do not train" if dropped else "their parts train as contexts of their own"
    return [f"token drift in {len(found)} of {len(trajectories)} trajectories: {became}"] if found else []


def check_invalid(trajectories: list[Trajectory], reward: Reward) -> Collected:
    """Return the trajectories with their count of missing verdicts; VerifierError where it is above the limit."""
    reasons: Counter[str] = Counter()
    for trajectory in trajectories:
        if trajectory.status == "infrastructure":
            reasons[f"infrastructure: {trajectory.error or 'unknown'}"] += 1
        elif trajectory.success is None or trajectory.reward is None:
            first = next((f"{v.verifier}: {v.invalid}" for v in trajectory.verdicts if v.invalid), "no verdict")
            reasons[first] += 1
    invalid = reasons.total()
    if trajectories and invalid / len(trajectories) > reward.max_invalid:
        most = "; ".join(f"{n}x {reason}" for reason, n in reasons.most_common(3))
        raise VerifierError(
            f"{invalid} of {len(trajectories)} rollouts have no verdict, more than reward.max_invalid "
            f"({reward.max_invalid:g}) allows: {most}. Mend what failed, or raise the limit knowingly"
        )
    return Collected(trajectories, invalid, dict(reasons))
