"""From trajectories to rows that train: mask by who wrote a token, truncation, and the report of both."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from specs.errors import DataError, TrainingError
from specs.records import Source, Trajectory


@dataclass(slots=True)
class TrainingRow:
    """One sequence. `mask[t]` is True where token t trains; it is predicted from the tokens before it."""

    id: str
    source: str
    """Data set it came from."""
    ids: list[int]
    mask: list[bool]
    weight: float = 1.0
    temperature: float = 1.0
    """Logits are divided by it before the log-softmax."""
    group: str = ""
    """Rows of one group share their prompt."""
    advantage: float = 0.0
    sampler_logprobs: list[float] | None = None
    old_logprobs: list[float] | None = None
    reference_logprobs: list[float] | None = None
    trained: int = field(init=False)
    """How many tokens train."""
    length: int = field(init=False)
    """Tokens that a forward pass must see: all up to the last one that trains."""

    def __post_init__(self) -> None:
        if len(self.mask) != len(self.ids) or not self.ids:
            raise ValueError(f"row {self.id}: {len(self.ids)} ids and a mask of {len(self.mask)}")
        if self.mask[0]:
            raise ValueError(f"row {self.id}: its first token trains, but nothing stands before it")
        self.trained = sum(self.mask)
        self.length = next((t + 1 for t in range(len(self.mask) - 1, -1, -1) if self.mask[t]), 0)


@dataclass(slots=True)
class SourceCount:
    """Rows and tokens of one data set."""

    rows: int = 0
    tokens: int = 0
    trained: int = 0

    @property
    def share(self) -> float:
        """Return the share of tokens that train."""
        return self.trained / self.tokens if self.tokens else 0.0


@dataclass(slots=True)
class RowReport:
    """What became of the trajectories."""

    by_source: dict[str, SourceCount] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> trajectories that gave no row."""
    cut: int = 0
    """Rows that were shortened to the policy's length and still train."""

    def drop(self, reason: str) -> None:
        """Count a trajectory that gives no row."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def to_json(self) -> dict[str, object]:
        """Return plain data, with the trained share of each source."""
        sources = {
            name: {"rows": c.rows, "tokens": c.tokens, "trained": c.trained, "trained_share": round(c.share, 6)}
            for name, c in self.by_source.items()
        }
        return {"sources": sources, "dropped": dict(self.dropped), "cut": self.cut}

    def sentences(self) -> list[str]:
        """Return what a person should know."""
        lines = [
            f"{name}: {c.rows} rows, {c.trained} of {c.tokens} tokens train ({100 * c.share:.0f} %)"
            for name, c in self.by_source.items()
        ]
        lines += [f"{n} trajectories left out: {reason}" for reason, n in sorted(self.dropped.items())]
        if self.cut:
            lines.append(f"{self.cut} rows were cut to the policy's length and train up to there")
        return lines


def rows_from(
    trajectories: Iterable[Trajectory],
    *,
    max_length: int,
    source: str = "data",
    truncated: str = "drop",
    behaviour: bool = False,
    advantages: dict[str, float] | None = None,
) -> tuple[list[TrainingRow], RowReport]:
    """Return rows and their report; only tokens that the policy wrote train, its end-of-turn token among them.

    `truncated`: "drop" or "score" trajectories whose completion was cut by the sampler. `behaviour`: keep sampler
    logprobs and temperature (policy gradient). `advantages`: by trajectory id; a trajectory without one is left out.
    Raises DataError for a record whose columns differ in length.
    """
    report = RowReport({source: SourceCount()})
    rows: list[TrainingRow] = []
    for trajectory in trajectories:
        _check_columns(trajectory)
        reason = _refusal(trajectory, truncated, advantages)
        if reason:
            report.drop(reason)
            continue
        row = _row(trajectory, source, max_length, behaviour=behaviour)
        if row is None:
            report.drop("no_supervised_token")
            continue
        row.advantage = advantages[trajectory.id] if advantages is not None else 0.0
        report.cut += len(trajectory.ids) > max_length
        count = report.by_source[source]
        count.rows, count.tokens, count.trained = (
            count.rows + 1,
            count.tokens + len(row.ids),
            count.trained + row.trained,
        )
        rows.append(row)
    return rows, report


def check_rows(report: RowReport, max_length: int) -> None:
    """Refuse data of which nothing or everything trains; raises TrainingError with what to do."""
    for name, count in report.by_source.items():
        if count.rows == 0:
            reasons = ", ".join(f"{n} {r}" for r, n in sorted(report.dropped.items())) or "the set is empty"
            advice = (
                f"policy.init.max_length is {max_length}: raise it or shorten the problems"
                if "no_supervised_token" in report.dropped
                else "see what the data node wrote"
            )
            raise TrainingError(f"data {name!r}: no row is left to train on ({reasons}); {advice}")
        if count.trained == count.tokens:
            raise TrainingError(
                f"data {name!r}: every one of its {count.tokens} tokens would train, prompts included; expected only "
                "tokens that the policy writes (sources 2). Render it with the policy's template"
            )


def merge_reports(reports: Iterable[RowReport]) -> RowReport:
    """Return one report of several sets."""
    merged = RowReport()
    for report in reports:
        merged.by_source.update(report.by_source)
        merged.cut += report.cut
        for reason, n in report.dropped.items():
            merged.dropped[reason] = merged.dropped.get(reason, 0) + n
    return merged


def _check_columns(trajectory: Trajectory) -> None:
    n = len(trajectory.ids)
    if len(trajectory.sources) != n or len(trajectory.logprobs) != n:
        raise DataError(
            f"trajectory {trajectory.id}: {n} ids, {len(trajectory.sources)} sources, {len(trajectory.logprobs)} "
            "logprobs; expected one of each per token. The shard is damaged or was made by another version"
        )


def _refusal(trajectory: Trajectory, truncated: str, advantages: dict[str, float] | None) -> str | None:
    if trajectory.status == "infrastructure":
        return "infrastructure"
    if trajectory.status == "truncated" and truncated == "drop":
        return "truncated"
    if advantages is not None and trajectory.id not in advantages:
        return "no_advantage"
    return None


def _row(trajectory: Trajectory, source: str, max_length: int, *, behaviour: bool) -> TrainingRow | None:
    ids = trajectory.ids[:max_length]
    mask = [s == Source.POLICY for s in trajectory.sources[:max_length]]
    mask[0] = False  # nothing stands before the first token
    if not any(mask):
        return None
    return TrainingRow(
        id=trajectory.id,
        source=source,
        ids=ids,
        mask=mask,
        temperature=float(trajectory.sampling.get("temperature", 1.0)) if behaviour else 1.0,
        group=trajectory.group,
        sampler_logprobs=trajectory.logprobs[:max_length] if behaviour else None,
    )
