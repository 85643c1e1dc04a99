"""Rollouts that are judged: the episode loop and the verifiers meet here."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from specs.bounds import CutBound
from specs.errors import Interrupted, TrainingError, VerifierError
from specs.records import NOT_TRAINED, Problem, Trajectory
from specs.reward import Reward
from tasks.episodes.agents import ToolLoopAgent
from tasks.episodes.driver import run_episodes
from tasks.evidence.judge import judge
from tasks.loops.rollout_ledger import LOOSE, Part, RolloutLedger
from tasks.protocols import Environment, Sampler, SamplingSettings, VerifierRun
from tasks.tokens.template import Template

LONGER = "raise agent.max_new_tokens or policy.init.max_length"


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
    repeatable: bool = True
    """Whether equal batches give equal bits, so that rollouts are drawn in batches that a resume can draw again."""
    ended: Callable[[Trajectory], None] | None = None
    """Takes each trajectory of a training step as soon as it has ended, before it is judged."""

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
) -> list[Trajectory]:
    """Return the judged rollouts of the problems. Raises Interrupted where `stop` asks."""
    trajectories = run_episodes(**_episodes(arena, problems, draw), stop=stop, finished=arena.ended)
    by_id = {p.id: p for p in problems}
    for trajectory in trajectories:
        _heed(stop)
        judge(trajectory, by_id[trajectory.problem_id], arena.verifiers, arena.reward)
    return trajectories


def _episodes(arena: Arena, problems: Sequence[Problem], draw: Draw) -> dict[str, Any]:
    return {
        "sampler": arena.sampler,
        "agent": arena.agent,
        "template": arena.template,
        "environments": arena.environments,
        "problems": problems,
        "samples": draw.samples,
        "settings": arena.settings(draw.temperature),
        "seed": draw.seed,
        "in_flight": arena.in_flight,
        "group_prefix": f"{draw.prefix}/",
    }


def _heed(stop: Callable[[], bool] | None) -> None:
    if stop is not None and stop():
        raise Interrupted("stopped while rollouts were judged; run the same command to go on")


def collect(
    arena: Arena,
    problems: Sequence[Problem],
    draw: Draw,
    *,
    stop: Callable[[], bool] | None = None,
    store: RolloutLedger | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Collected:
    """Return the judged rollouts of the problems; what is in `store` is not drawn again.

    Where batches are `repeatable`, they are drawn in parts of as many as may be in flight, and a part that a kill cut
    short is drawn again whole: the same bits come out. One that `stop` cut short keeps what had ended.
    Raises VerifierError where more of them than `reward.max_invalid` have no verdict, Interrupted where `stop` asks.
    """
    known = {} if store is None else store.read()
    size = max(1, arena.in_flight // draw.samples) if arena.repeatable else max(1, len(problems))
    total = len(problems) * draw.samples
    found: list[Trajectory] = []
    try:
        for at in range(0, len(problems), size):
            part = problems[at : at + size]
            wanted = [(p.id, k) for p in part for k in range(draw.samples)]
            have = {key: known[key] for key in wanted if key in known}
            before = len(found) + len(have)

            def tell(finished: int, _: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + finished, total)

            if len(have) < len(wanted):
                whole = Part(f"{at}/{len(wanted)}", len(wanted)) if arena.repeatable and not have else LOOSE
                keep = None if store is None else partial(store.keep, part=whole)
                asked = _episodes(arena, part, draw)
                try:
                    drawn = run_episodes(**asked, stop=stop, progress=tell, known=have.keys(), finished=keep)
                except Interrupted:
                    if store is not None:
                        store.loosen(whole)
                    raise
                have |= {(t.problem_id, t.sample): t for t in drawn}
            elif progress is not None:
                progress(before, total)
            found += [have[key] for key in wanted]
            _judge(arena, part, [have[key] for key in wanted], store, stop)
            if store is not None:
                store.write()
    finally:
        if store is not None:
            store.write(durable=True)
    return check_invalid(found, arena.reward)


def _judge(
    arena: Arena,
    problems: Sequence[Problem],
    trajectories: Sequence[Trajectory],
    store: RolloutLedger | None,
    stop: Callable[[], bool] | None,
) -> None:
    """Judge what was not judged before."""
    by_id = {p.id: p for p in problems}
    for trajectory in trajectories:
        if store is not None and store.judged(trajectory):
            continue
        _heed(stop)
        judge(trajectory, by_id[trajectory.problem_id], arena.verifiers, arena.reward)
        if store is not None:
            store.keep_verdict(trajectory)


def drift_notes(trajectories: Sequence[Trajectory]) -> list[str]:
    """Return a sentence where prompts left out or changed what was sampled before (agents of one's own)."""
    found = [t for t in trajectories if "token_drift" in t.tags]
    dropped = sum(NOT_TRAINED in t.tags for t in found)
    became = f"{dropped} of them do not train" if dropped else "their parts train as contexts of their own"
    return [f"token drift in {len(found)} of {len(trajectories)} trajectories: {became}"] if found else []


def cut_notes(trajectories: Sequence[Trajectory], bound: CutBound, where: str) -> list[str]:
    """Return a sentence with the share and the lengths where some were cut; TrainingError where too many were."""
    run = [t for t in trajectories if t.status != "infrastructure"]
    cut, ended = sum(t.status == "truncated" for t in run), [t for t in run if t.status == "finished"]
    if not cut:
        return []
    share = f"{100 * cut / len(run):.0f} %"
    if cut > bound.max_truncated * len(run):
        raise TrainingError(
            f"{where}: {share} of the trajectories were cut, max_truncated is {bound.max_truncated:g}; {LONGER}"
        )
    lengths = f"mean length {fmean(t.policy_tokens for t in run):.0f} tokens"
    lengths += f", of those that finished {fmean(t.policy_tokens for t in ended):.0f}" if ended else ", none finished"
    return [f"{cut} of {len(run)} trajectories ({share}) were cut ({lengths}); {LONGER}"]


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
