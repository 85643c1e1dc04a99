"""What a policy-gradient body hands to its loop beside the policy: the order of problems, and what it trains on again."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from flows.context import NodeContext
from flows.work import inputs
from flows.work.data import read_texts
from flows.work.reading import environments
from flows.work.supervised import demonstration_rows
from specs.algorithms import PolicyGradientAlgorithm
from specs.data import Apart
from specs.records import Problem
from specs.self_teaching import SelfEvolve
from tasks.episodes.seeds import derive
from tasks.evidence.apart import overlap_finder
from tasks.learning.rows import RowReport, TrainingRow, merge_reports
from tasks.loops.curriculum import CurriculumOrder
from tasks.loops.growth import Growing
from tasks.loops.on_policy import OnPolicyReport
from tasks.loops.order import ProblemOrder, Sets, with_adversarial
from tasks.loops.replayed import Mixture
from tasks.policy.store import LoadedPolicy

_DRAWN = 128
"""Problems of each environment in one draw of its generator."""
_PARTS = 4
"""Parts of a stage for which shares are told."""


def problem_order(node: NodeContext, spec: PolicyGradientAlgorithm) -> ProblemOrder | CurriculumOrder:
    """Return what says which problems come next."""
    sets, weights = inputs.problem_sets(node), inputs.weights(node)
    if spec.adversarial is not None:
        sets, weights = with_adversarial(sets, weights, spec.adversarial)
    if spec.curriculum is None:
        return ProblemOrder(sets, node.seed, weights)
    return CurriculumOrder(sets, node.seed, spec.curriculum, weights, _growing(node, spec, sets))


def _growing(node: NodeContext, spec: PolicyGradientAlgorithm, sets: Sets) -> Growing | None:
    """Return what makes new problems, in the environments of the stage's own, where the algorithm wants some."""
    if not isinstance(spec, SelfEvolve) or spec.growth is None or spec.curriculum is None:
        return None
    worlds, names = environments(node), sorted({p.environment for found in sets.values() for p in found})

    def make(seed: int) -> list[Problem]:
        return [p for name in names for p in worlds[name].problems("train", _DRAWN, derive(seed, name))]

    return Growing(spec.growth, spec.curriculum, make, _gives_away(node), node.seed)


def _gives_away(node: NodeContext) -> Callable[[Problem], bool]:
    """Return what says whether a problem gives an evaluation set away."""
    judging = {n: f / "records.jsonl" for n, f in node.inputs.items() if n.startswith("eval.")}
    rule = Apart.model_validate(node.params["apart"])
    hit = overlap_finder({n: list(read_texts(path)) for n, path in judging.items()}, rule.near_duplicate)
    return lambda problem: hit(problem.id, problem.text) is not None


def mixture(node: NodeContext, spec: PolicyGradientAlgorithm, policy: LoadedPolicy) -> tuple[Mixture | None, list[str]]:
    """Return what mixes the batches, with the demonstrations rendered for this policy, and what became of these.

    None where nothing is replayed.
    """
    if spec.replay is None:
        return None, []
    shown, reports = spec.replay.demonstrations, list[RowReport]()
    by_trajectory: dict[tuple[str, str], list[TrainingRow]] = {}
    for name in () if shown is None else shown.sets:
        rows, report = demonstration_rows(node, name, policy)
        reports.append(report)
        for row in rows:
            by_trajectory.setdefault((name, row.trajectory), []).append(row)
    return Mixture(spec, node.seed, list(by_trajectory.values())), merge_reports(reports).sentences()


def notes(report: OnPolicyReport, spec: PolicyGradientAlgorithm) -> list[str]:
    """Return what a person should know of the buffer and of the curriculum."""
    told: list[str] = []
    if spec.replay is not None and spec.replay.history is not None:
        again = sum(line["replayed"] for line in report.curve)
        left = ", ".join(f"{n} {reason}" for reason, n in sorted(report.replay_left.items())) or "none"
        told.append(f"{again:.0f} trajectories of earlier steps trained again; not taken in, or gone: {left}")
    if spec.curriculum is not None and report.curve:
        last = report.curve[-1]
        told.append(
            f"curriculum: {last['curriculum_seen']:.0%} of the problems were tried, {last['curriculum_retired']:.0%} are known; "
            f"in the last step {last['curriculum_in_band']:.0%} were within the band"
        )
    if isinstance(spec, SelfEvolve) and spec.growth is not None and report.curve:
        told += _growth_notes(report.curve, spec.growth.calls)
    return told


def _growth_notes(curve: Sequence[Mapping[str, float]], levels: Sequence[int]) -> list[str]:
    """Return the share of each level among the made problems over the stage, and how often each was solved."""
    size = math.ceil(len(curve) / min(_PARTS, len(curve)))
    parts = [range(at, min(at + size, len(curve))) for at in range(0, len(curve), size)]
    shares = [" / ".join(f"{fmean(curve[i][f'made_{n}_calls'] for i in part):.0%}" for n in levels) for part in parts]
    over = "; ".join(
        f"steps {part.start + 1} to {part.stop}: {share}" for part, share in zip(parts, shares, strict=True)
    )
    solved = {n: [line[key] for line in curve if (key := f"solved_{n}_calls") in line] for n in levels}
    told = ", ".join(f"{n} calls {fmean(found):.0%}" for n, found in solved.items() if found)
    names = " / ".join(map(str, levels))
    return [
        f"problems made anew, by calls {names}: {over}; the hardest open level is {curve[-1]['growth_calls']:.0f} calls",
        f"of those solved: {told}; {sum(line['growth_refused'] for line in curve):.0f} drawn ones were refused, as they "
        "give evaluation sets away",
    ]
