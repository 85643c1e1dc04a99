"""What a policy-gradient body hands to its loop beside the policy: the order of problems, and what it trains on again."""

from flows.context import NodeContext
from flows.work import inputs
from flows.work.supervised import demonstration_rows
from specs.algorithms import PolicyGradientAlgorithm
from tasks.learning.rows import RowReport, TrainingRow, merge_reports
from tasks.loops.curriculum import CurriculumOrder
from tasks.loops.on_policy import OnPolicyReport
from tasks.loops.order import ProblemOrder, with_adversarial
from tasks.loops.replayed import Mixture
from tasks.policy.store import LoadedPolicy


def problem_order(node: NodeContext, spec: PolicyGradientAlgorithm) -> ProblemOrder | CurriculumOrder:
    """Return what says which problems come next."""
    sets, weights = inputs.problem_sets(node), inputs.weights(node)
    if spec.adversarial is not None:
        sets, weights = with_adversarial(sets, weights, spec.adversarial)
    if spec.curriculum is None:
        return ProblemOrder(sets, node.seed, weights)
    return CurriculumOrder(sets, node.seed, spec.curriculum, weights)


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
    return told
