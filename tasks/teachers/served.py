"""A teacher whose model stands behind a server: logprobs of the tokens that are asked about, or its likeliest tokens there.

What cannot be scored has no score: such a row is counted by reason, and where there are too many of them the stage stops.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from specs.errors import ProgramError, TeacherError
from tasks.protocols import Feed, Span, TokenLists, TokenScores
from tasks.teachers.client_scores import Result, ScoresClient
from tasks.teachers.kept_scores import KeptScores
from tasks.teachers.prompt_logprobs import Answer, Question


class ServedTeacher:
    """A `ListingTeacher`. `vocabulary`: how many ids its tokenizer has."""

    def __init__(self, client: ScoresClient, vocabulary: int, kept: KeptScores) -> None:
        self._client, self._vocabulary, self._kept = client, vocabulary, kept
        self._asked = self._requests = self._tokens = 0
        self._unscored = Counter[str]()
        self._early: dict[Question, Result] = {}

    @property
    def elsewhere(self) -> bool:
        """Return True: the server does the work."""
        return True

    @property
    def revision(self) -> str:
        """Return who answers: kind, model and revision."""
        spec = self._client.spec
        return f"{spec.kind} {spec.model}{f'@{spec.revision}' if spec.revision else ''}"

    @property
    def name(self) -> str:
        """Return the name in the program's roster."""
        return self._client.name

    @property
    def max_length(self) -> int:
        """Return how many tokens a span may have."""
        return self._client.spec.max_length

    def settle(self) -> None:
        """Let go of what was said before the last checkpoint, as another one is about to be written."""
        self._kept.turn()

    def take_figures(self) -> dict[str, float]:
        """Return rows, those without a score by reason, requests and tokens sent since this was last called."""
        figures = {
            "teacher_rows": float(self._asked),
            "unscored_rows": float(self._unscored.total()),
            "teacher_calls": float(self._requests),
            "teacher_tokens": float(self._tokens),
        }
        figures |= {f"unscored_{reason}": float(n) for reason, n in sorted(self._unscored.items())}
        self._asked = self._requests = self._tokens = 0
        self._unscored = Counter()
        return figures

    def ahead(self, feed: Feed, size: int) -> None:
        """Ask about what comes until nothing will. What had no answer is not asked again; the whole step is judged by it."""
        asked: dict[int, Question] = {}

        def more() -> dict[int, Question] | None:
            spans = feed.take()
            if not spans:
                return None if spans is None else {}
            self._check(spans, size)
            new = dict.fromkeys(q for span in spans if (q := self._question(span, size)) is not None)
            known = self._early.keys() | set(asked.values())
            found = {
                len(asked) + n: q for n, q in enumerate(q for q in new if q not in known and not self._kept.get(q))
            }
            asked.update(found)
            feed.done(len(spans) - len(found))
            return found

        def take(number: int, result: Result) -> None:
            self._early[asked[number]] = result
            if result.answer is not None:
                self._kept.add(asked[number], result.answer, result.requests)
            feed.done(1)

        self._client.follow(more, self._vocabulary, take)

    def score(self, spans: Sequence[Span]) -> list[TokenScores]:
        """Return the logprobs of the tokens asked about; NaN elsewhere, in spans too long for it, and without an answer.

        ProgramError for spans that were sampled at another temperature than 1: the server's logprobs are those at 1.
        """
        self._check(spans, 0)
        found: list[TokenScores] = []
        for span, answer in zip(spans, self._answers(spans, 0), strict=True):
            logprobs = np.full(len(span.ids), np.nan)
            if answer is not None:
                logprobs[_places(span)] = answer.own_N
            found.append(TokenScores(logprobs.tolist()))
        return found

    def lists(self, spans: Sequence[Span], size: int) -> list[TokenLists | None]:
        """Return by span its `size` likeliest tokens where it is asked; None where it said nothing that can be used."""
        self._check(spans, size)
        found = self._answers(spans, size)
        return [None if a is None else TokenLists(a.ids_NK, a.logprobs_NK, a.own_N) for a in found]

    def _check(self, spans: Sequence[Span], size: int) -> None:
        """Raise ProgramError where a server cannot say what is asked."""
        if size > self._vocabulary:
            raise ProgramError(
                f"teacher {self.name}: over.size is {size}, but its vocabulary has {self._vocabulary} tokens; ask for fewer"
            )
        for span in spans if size == 0 else ():
            temperature = float(span.trajectory.sampling.get("temperature", 1.0))
            if temperature != 1.0:
                raise ProgramError(
                    f"teacher {self.name}: trajectories were sampled at temperature {temperature:g}, but its server gives "
                    "logprobs at 1; write temperature: 1.0 in the algorithm, or over: {kind: top_k, support: teacher}"
                )

    def _answers(self, spans: Sequence[Span], size: int) -> list[Answer | None]:
        """Return an answer by span; spans that are alike are asked about once. TeacherError where too many have none."""
        wanted = [self._question(span, size) for span in spans]
        early, self._early = self._early, {}
        for question, result in early.items():  # also what turned out not to be needed was sent
            self._count(question, result.requests)
        failed = {q: r for q in wanted if q is not None and (r := early.get(q)) is not None and r.answer is None}
        known: dict[Question, Answer] = {}
        open_: dict[Question, int] = {}
        for number, question in enumerate(wanted):
            if question is None or question in known or question in open_ or question in failed:
                continue
            kept = self._kept.get(question)
            if kept is None:
                open_[question] = number
            else:
                known[question] = kept
                self._count(question, self._kept.owed(question))
        numbered = {number: question for question, number in open_.items()}

        def take(number: int, result: Result) -> None:
            question = numbered[number]
            self._count(question, result.requests)
            if result.answer is None:
                failed[question] = result
            else:
                self._kept.add(question, result.answer, result.requests)
                known[question] = result.answer

        self._client.ask(numbered, self._vocabulary, take)
        self._judge([q for q in wanted if q is not None], failed)
        return [None if q is None else known.get(q) for q in wanted]

    def _count(self, question: Question, requests: int) -> None:
        self._requests += requests
        self._tokens += requests * len(question.ids)

    def _question(self, span: Span, size: int) -> Question | None:
        """Return what is asked about a span; None where there is nothing to ask, or it is too long."""
        places = _places(span)
        if not places or len(span.ids) > self.max_length:
            return None
        last = places[-1] + 1  # what follows the last token asked about says nothing of it
        return Question(tuple(span.ids[:last]), tuple(places), size)

    def _judge(self, asked: Sequence[Question], failed: dict[Question, Result]) -> None:
        reasons = Counter(failed[q].reason for q in asked if q in failed)
        self._asked += len(asked)
        self._unscored += reasons
        share, spec = self._client.spec.failure_share, self._client.spec
        if reasons.total() <= share * len(asked):
            return
        told = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common())
        last = next(reversed(failed.values()))
        raise TeacherError(
            f"teacher {self.name}: {reasons.total()} of {len(asked)} rows have no score ({told}), failure_share is {share:g}; "
            f"the last one: {last.words}. See to the server of {spec.model!r} at teachers.{self.name}.url, then run the same "
            "command: what was scored is kept"
        )


def _places(span: Span) -> list[int]:
    return [t for t, wanted in enumerate(span.mask) if wanted]
