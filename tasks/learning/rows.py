"""From trajectories to rows that train: mask by who wrote a token, truncation, and the report of both."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from specs.errors import DataError, TrainingError
from specs.records import NOT_TRAINED, Source, Trajectory
from tasks.protocols import TokenLists, TokenScores


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
    trajectory: str = ""
    """What the row is of."""
    contexts: int = 1
    """Rows of its trajectory."""
    group: str = ""
    """Rows of one group share their prompt."""
    advantage: float = 0.0
    advantages: list[float] | None = None
    """By token, where turns have advantages of their own; `advantage` is then their trajectory's."""
    rewards: list[float] | None = None
    """By token, what its turn earned by itself of the trajectory's reward; None where none did."""
    sampler_logprobs: list[float] | None = None
    old_logprobs: list[float] | None = None
    reference_logprobs: list[float] | None = None
    corrections: list[float] | None = None
    """Constant weights of the tokens for the sampler's difference from the trainer."""
    teacher_logprobs: list[float] | None = None
    """A teacher's logprobs of the tokens, NaN where it says nothing."""
    pair: str = ""
    """Both rows of a pair have its name and stay in one forward pass."""
    unit: str = ""
    """Rows of one unit stay in one forward pass: the contexts of a trajectory, where a loss needs them together."""
    preferred: bool = False
    """Chosen and not rejected, in a pair; wanted, where it stands alone."""
    alone: bool = False
    """Wanted or not without a partner."""
    baseline: float = 0.0
    """What the row's log-ratio is compared with (KTO)."""
    start: int = 0
    """Where the row begins in its trajectory's ids."""
    scores: list[TokenScores] | None = None
    """What each teacher says of its tokens."""
    lists: list[TokenLists | None] | None = None
    """What each teacher lists before the tokens that train; None of one that shows its whole distribution, or nothing."""
    teacher_weights: list[float] | None = None
    """Weights of the teachers, summing to 1; 0: not asked about this row."""
    distill: list[float] | None = None
    """Weights of its tokens in the distillation term; those of all rows of a step sum to 1."""
    target: float | None = None
    """Share of a soft target over the candidates of a list, all of which have the same `pair`."""
    stale: bool = False
    """Not of the policy that is being updated: of an earlier step, or a demonstration."""
    silent: bool = False
    """Of a group that does not vary: a mean of the policy's term does not count it, those of other terms do."""
    importance: float = 1.0
    """Weight of an unequal draw; the policy's term alone is multiplied by it."""
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
    """Trajectories that were shortened to the policy's length and still train."""
    contexts: int = 0
    """Rows beyond the first of a trajectory: further conversations of an agent of one's own."""

    def drop(self, reason: str) -> None:
        """Count a trajectory that gives no row."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def to_json(self) -> dict[str, object]:
        """Return plain data, with the trained share of each source."""
        sources = {
            name: {"rows": c.rows, "tokens": c.tokens, "trained": c.trained, "trained_share": round(c.share, 6)}
            for name, c in self.by_source.items()
        }
        more = {"contexts": self.contexts} if self.contexts else {}
        return {"sources": sources, "dropped": dict(self.dropped), "cut": self.cut, **more}

    def sentences(self) -> list[str]:
        """Return what a person should know."""
        shares = [
            f"{name} {100 * c.share:.0f} % ({c.trained} of {c.tokens}, {c.rows} rows)"
            for name, c in self.by_source.items()
        ]
        lines = [f"tokens that train: {', '.join(shares)}"] if shares else []
        lines += [f"{n} trajectories left out: {reason}" for reason, n in sorted(self.dropped.items())]
        if self.cut:
            lines.append(f"{self.cut} rows were cut to the policy's length and train up to there")
        if self.contexts:
            lines.append(f"{self.contexts} rows are further conversations of a trajectory, each a context of its own")
        return lines


def rows_from(
    trajectories: Iterable[Trajectory],
    *,
    max_length: int,
    source: str = "data",
    truncated: str = "drop",
    behaviour: bool = False,
    advantages: dict[str, float] | None = None,
    turn_advantages: dict[str, list[float]] | None = None,
) -> tuple[list[TrainingRow], RowReport]:
    """Return rows and their report; only tokens that the policy wrote train, its end-of-turn token among them.

    `truncated`: "drop" or "score" trajectories whose completion was cut by the sampler. `behaviour`: keep sampler
    logprobs, temperature and what turns earned by themselves (policy gradient). `advantages`: by trajectory id; a trajectory without one is left out;
    `turn_advantages` are those of its turns, where they have their own.
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
        own = None if turn_advantages is None else _by_token(trajectory, turn_advantages[trajectory.id])
        made = _rows(trajectory, source, max_length, own, behaviour=behaviour)
        if not made:
            report.drop("no_supervised_token")
        count = report.by_source[source]
        for row in made:
            row.advantage = advantages[trajectory.id] if advantages is not None else 0.0
            count.rows += 1
            count.tokens += len(row.ids)
            count.trained += row.trained
        report.cut += bool(made) and any(b - a > max_length for a, b in _contexts(trajectory))
        report.contexts += max(0, len(made) - 1)
        rows += made
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
        if count.trained == count.tokens - count.rows:  # nothing stands before the first token of a row
            raise TrainingError(
                f"data {name!r}: all {count.trained} tokens that have one before them would train, prompts included, in "
                f"each of its {count.rows} rows; expected only "
                "tokens that the policy writes (sources 2). Render it with the policy's template"
            )


def sampled_at(trajectory: Trajectory) -> float:
    """Return the temperature at which the policy wrote a trajectory."""
    return float(trajectory.sampling.get("temperature", 1.0))


def behind(prefix: list[int], row: TrainingRow) -> TrainingRow:
    """Return the row with a prefix before it, which never trains."""
    by_token = ("sampler", "old", "reference", "teacher")
    unset: Any = {"advantages": None, "rewards": None, "corrections": None} | {f"{n}_logprobs": None for n in by_token}
    return replace(row, ids=[*prefix, *row.ids], mask=[False] * len(prefix) + row.mask, start=0, **unset)


def merge_reports(reports: Iterable[RowReport]) -> RowReport:
    """Return one report of several sets."""
    merged = RowReport()
    for report in reports:
        merged.by_source.update(report.by_source)
        merged.cut += report.cut
        merged.contexts += report.contexts
        for reason, n in report.dropped.items():
            merged.dropped[reason] = merged.dropped.get(reason, 0) + n
    return merged


def _by_token(trajectory: Trajectory, turns: list[float]) -> list[float]:
    """Return for each token the number of the turn it belongs to."""
    values = [0.0] * len(trajectory.ids)
    for turn, value in zip(trajectory.turns, turns, strict=True):
        values[turn.start : turn.end] = [value] * (turn.end - turn.start)
    return values


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
    return "token_drift" if NOT_TRAINED in trajectory.tags else None


def _contexts(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Return the spans of `ids` that are read from their own beginning."""
    starts = trajectory.segments if trajectory.ids else []
    return list(zip(starts, [*starts[1:], len(trajectory.ids)][: len(starts)], strict=True))


def _rows(
    trajectory: Trajectory, source: str, max_length: int, advantages: list[float] | None = None, *, behaviour: bool
) -> list[TrainingRow]:
    """Return one row for each context in which something trains."""
    spans = _contexts(trajectory)
    earned = [turn.reward for turn in trajectory.turns] if behaviour else []
    rewards = _by_token(trajectory, earned) if any(earned) else None
    made: list[TrainingRow] = []
    for number, (start, end) in enumerate(spans):
        end = min(end, start + max_length)
        mask = [s == Source.POLICY for s in trajectory.sources[start:end]]
        mask[:1] = [False] * len(mask[:1])  # nothing stands before the first token
        if not any(mask):
            continue
        row = TrainingRow(
            id=trajectory.id if len(spans) == 1 else f"{trajectory.id}/{number}",
            source=source,
            trajectory=trajectory.id,
            ids=trajectory.ids[start:end],
            mask=mask,
            temperature=sampled_at(trajectory) if behaviour else 1.0,
            start=start,
            group=trajectory.group if number == 0 else f"{trajectory.group}/{number}",
            sampler_logprobs=trajectory.logprobs[start:end] if behaviour else None,
            advantages=None if advantages is None else advantages[start:end],
            rewards=None if rewards is None else rewards[start:end],
        )
        made.append(row)
    for row in made:
        row.contexts = len(made)
    return made
