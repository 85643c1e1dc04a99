"""Rollouts one by one, each wanted or not, without a partner (KTO): which are used, with which weight."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specs.errors import DataError, TrainingError
from specs.preference import Pairing
from specs.records import Label, Trajectory
from tasks.learning.rows import TrainingRow, rows_from
from tasks.loops.pairing import unusable


@dataclass(slots=True)
class LabelReport:
    """Labels that are left, and what became of the other trajectories."""

    labels: list[Label] = field(default_factory=list)
    problems: int = 0
    unusable: dict[str, int] = field(default_factory=dict)
    """Reason -> trajectories: `infrastructure, invalid, truncated, token_drift, unfinished` (a success that did not end)."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> trajectories that cannot train: `empty, several_contexts, repeated`."""
    cut: int = 0
    """Trajectories that were shortened to the policy's length."""

    def sides(self) -> tuple[int, int]:
        """Return how many are wanted, and how many are not."""
        wanted = sum(label.wanted for label in self.labels)
        return wanted, len(self.labels) - wanted

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        wanted, unwanted = self.sides()
        return {
            "wanted": wanted,
            "unwanted": unwanted,
            "problems": self.problems,
            "cut": self.cut,
            **{name: dict(sorted(getattr(self, name).items())) for name in ("unusable", "dropped")},
        }

    def sentences(self) -> list[str]:
        """Return what a person should know."""
        wanted, unwanted = self.sides()
        lines = [f"{wanted} trajectories are wanted, {unwanted} are not; both sides weigh the same together"]
        lines += [f"{n} trajectories left out: {reason}" for reason, n in sorted(self.unusable.items())]
        lines += [f"{n} trajectories left out: {reason}" for reason, n in sorted(self.dropped.items())]
        return lines + ([f"{self.cut} trajectories were cut to the policy's length"] if self.cut else [])


def label_up(trajectories: Iterable[Trajectory]) -> LabelReport:
    """Return judged trajectories as wanted (they succeeded and finished) or not (they failed); each distinct one once."""
    report = LabelReport()
    seen: set[tuple[str, tuple[int, ...]]] = set()
    problems: set[str] = set()
    for trajectory in trajectories:
        problems.add(trajectory.problem_id)
        key = (trajectory.problem_id, tuple(trajectory.ids))
        reason = unusable(trajectory)
        if reason:
            report.unusable[reason] = report.unusable.get(reason, 0) + 1
        elif key in seen:
            report.dropped["repeated"] = report.dropped.get("repeated", 0) + 1
        else:
            seen.add(key)
            report.labels.append(Label(trajectory.id, trajectory.problem_id, bool(trajectory.success)))
    report.problems = len(problems)
    return report


def label_rows(report: LabelReport, trajectories: Mapping[str, Trajectory], max_length: int) -> list[TrainingRow]:
    """Return the row of each label, cut to the policy's length, and leave in the report the labels that can train.

    A problem's labels of one side weigh 1 together; both sides weigh the same together, and all rows have a mean of 1.
    DataError for a label whose trajectory is not there.
    """
    kept: list[Label] = []
    rows: list[TrainingRow] = []
    for label in report.labels:
        if label.trajectory not in trajectories:
            raise DataError(f"label {label.trajectory}: there is no such trajectory beside it; make the pairs again")
        made, _ = rows_from([trajectories[label.trajectory]], max_length=max_length, truncated="score")
        if len(made) != 1:
            reason = "several_contexts" if made else "empty"
            report.dropped[reason] = report.dropped.get(reason, 0) + 1
            continue
        report.cut += len(trajectories[label.trajectory].ids) > max_length
        made[0].preferred, made[0].alone = label.wanted, True
        kept.append(label)
        rows += made
    report.labels = kept
    _weigh(kept, rows)
    return rows


def _weigh(labels: list[Label], rows: list[TrainingRow]) -> None:
    counts: dict[tuple[bool, str], int] = {}
    for label in labels:
        key = (label.wanted, label.problem_id)
        counts[key] = counts.get(key, 0) + 1
    problems = {side: len({p for s, p in counts if s is side}) for side in (True, False)}
    for label, row in zip(labels, rows, strict=True):
        label.weight = 1 / counts[label.wanted, label.problem_id]
        row.weight = label.weight * len(rows) / (2 * problems[label.wanted])


def require_labels(report: LabelReport, spec: Pairing, stage: str) -> None:
    """Raise TrainingError, with the ways out, where a side has too few to train on."""
    wanted, unwanted = report.sides()
    if min(wanted, unwanted) >= spec.at_least:
        return
    few = "wanted" if wanted < spec.at_least else "unwanted"
    out = (
        "train on demonstrations first (sft) or take easier problems"
        if few == "wanted"
        else f"take harder problems or a higher temperature (now {spec.temperature:g})"
    )
    raise TrainingError(
        f"stage {stage}: {wanted} wanted and {unwanted} unwanted trajectories of {report.problems} problems are left, "
        f"expected at least pairing.at_least, {spec.at_least}, of either side. Too few are {few}: {out}, "
        f"or draw more samples (now {spec.samples})"
    )
