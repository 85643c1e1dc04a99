"""Ask teachers about trajectories: each question goes to its problem's teacher, and every answer is accounted for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specs.errors import TeacherError
from specs.records import TeacherSignal
from specs.teachers import BlackBox, EnsembleTeacher
from tasks.teachers import ensemble
from tasks.teachers.asks import Ask
from tasks.teachers.reading import Unreadable
from tasks.teachers.replies import Reply, Teacher

Json = dict[str, Any]
_NO_FAULT = ("no_answer", "no_solution")
"""Where a scripted teacher has nothing to say about a question: no fault of its."""
_MOST_WORDS = 300
"""Characters that are kept of why an answer cannot be read; it may quote all of it."""
_MOST_SHOWN = 160


@dataclass(slots=True)
class Answer:
    """What one teacher answered to one question."""

    content: Json | None = None
    failure: str | None = None
    calls: list[str] = field(default_factory=list[str])
    usd: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Desk:
    """The teachers that may be asked, by name: those that answer, and ensembles of them."""

    specs: Mapping[str, BlackBox]
    clients: Mapping[str, Teacher]
    """Teachers that are no ensembles."""
    prompt: str
    """The instruction."""
    judge: ensemble.Judge | None = None
    """How good a correction is, for ensembles that keep the best."""

    def revision(self, name: str) -> str:
        """Return who answers."""
        spec = self.specs[name]
        if isinstance(spec, EnsembleTeacher):
            return f"ensemble {spec.combine} of {', '.join(self.revision(m) for m in spec.members)}"
        return self.clients[name].revision


def annotate(asks: Sequence[Ask], teacher_of: Mapping[str, str], desk: Desk, prompt: str) -> list[TeacherSignal]:
    """Return one signal per question, in order; `prompt` is the instruction's version.

    TeacherError where more of a teacher's questions failed than it may; what was answered stays in the ledger.
    """
    names = [teacher_of[a.problem.id] for a in asks]
    answers: dict[str, Answer] = {}
    for name in dict.fromkeys(names):
        own = [a for a, n in zip(asks, names, strict=True) if n == name]
        answers |= dict(zip((a.id for a in own), _answers(name, own, desk), strict=True))
    return [_signal(a, n, answers[a.id], desk, prompt) for a, n in zip(asks, names, strict=True)]


def _signal(ask: Ask, name: str, answer: Answer, desk: Desk, prompt: str) -> TeacherSignal:
    return TeacherSignal(
        id=f"{name}/{ask.id}",
        signal=ask.signal,
        teacher=name,
        revision=desk.revision(name),
        prompt=prompt,
        problem_id=ask.problem.id,
        problem_type=ask.problem.type,
        trajectories=[t.id for t in ask.candidates],
        turn=ask.turn,
        sample=ask.sample,
        content=answer.content,
        failure=answer.failure,
        calls=answer.calls,
        usd=answer.usd,
    )


def _answers(name: str, asks: Sequence[Ask], desk: Desk) -> list[Answer]:
    spec = desk.specs[name]
    if isinstance(spec, EnsembleTeacher):
        found = _together(spec, asks, desk)
    else:
        replies = desk.clients[name].ask(asks, desk.prompt)
        found = [_read(a, r) for a, r in zip(asks, replies, strict=True)]
    _bear(name, spec, found)
    return found


def _read(ask: Ask, reply: Reply) -> Answer:
    answer = Answer(failure=reply.failure, calls=list(reply.calls), usd=reply.usd, requests=reply.requests)
    if reply.text is not None:
        try:
            answer.content = ask.read(reply.text)
        except Unreadable as e:
            answer.failure = f"unreadable: {str(e)[:_MOST_WORDS]}"
    return answer


def _together(spec: EnsembleTeacher, asks: Sequence[Ask], desk: Desk) -> list[Answer]:
    members = {m: _answers(m, asks, desk) for m in spec.members}
    return [_one_of(spec, a, {m: members[m][i] for m in members}, desk) for i, a in enumerate(asks)]


def _one_of(spec: EnsembleTeacher, ask: Ask, given: Mapping[str, Answer], desk: Desk) -> Answer:
    made = Answer(calls=[c for a in given.values() for c in a.calls], usd=sum(a.usd for a in given.values()))
    contents = {m: a.content for m, a in given.items()}
    try:
        if spec.combine == "best":
            assert desk.judge is not None, "the node hands in a judge where an ensemble keeps the best"
            judge = desk.judge
            made.content = ensemble.best(spec.members, contents, spec.quorum, lambda c: judge(ask, c))
        else:
            made.content = ensemble.combined(ask.signal, spec.combine, spec.members, contents, spec.quorum)
    except Unreadable as e:
        reasons = "; ".join(f"{m}: {a.failure}" for m, a in given.items() if a.failure)
        made.failure = f"no_quorum: {e}" + (f" ({reasons})" if reasons else "")
    return made


def _bear(name: str, spec: BlackBox, found: Sequence[Answer]) -> None:
    """Raise TeacherError where more questions failed than may."""
    words = Counter((a.failure or "").partition(":")[0] for a in found if a.content is None)
    failed = sum(n for word, n in words.items() if word not in _NO_FAULT)
    if failed > spec.failure_share * len(found):
        told = ", ".join(f"{n} {word}" for word, n in words.most_common())
        kept = "; an answer that cannot be read is kept as it is" if words["unreadable"] else ""
        example = next(a.failure for a in found if a.failure and a.failure.partition(":")[0] not in _NO_FAULT)
        raise TeacherError(
            f"teacher {name}: {failed} of {len(found)} questions failed ({told}; for example {example[:_MOST_SHOWN]}), more than failure_share "
            f"{spec.failure_share:g}; what was answered is kept{kept}. Run again to ask only for the others, or raise it"
        )
