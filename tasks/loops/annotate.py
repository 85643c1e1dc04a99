"""Ask teachers about trajectories: each question goes to its problem's teacher, and every answer is accounted for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from specs.errors import TeacherError
from specs.records import TeacherSignal
from specs.teachers import BlackBox, EnsembleTeacher, OpenAITeacher
from tasks.teachers import ensemble
from tasks.teachers.asks import Ask
from tasks.teachers.reading import Unreadable
from tasks.teachers.replies import Reply, Teacher

Json = dict[str, Any]
_NO_FAULT = ("no_answer", "no_solution")
"""Where a scripted teacher has nothing to say about a question: no fault of its."""
_UNREADABLE = "unreadable"
_MOST_WORDS = 300
"""Characters that are kept of why an answer cannot be read; it may quote all of it."""
_MOST_SHOWN = 160


@dataclass(slots=True)
class Answer:
    """What one teacher answered to one question."""

    content: Json | None = None
    failure: str | None = None
    absent: dict[str, str] = field(default_factory=dict[str, str])
    """By member of an ensemble that gave none, why."""
    again: int = 0
    """How often it was asked for anew, as it could not be read."""
    calls: list[str] = field(default_factory=list[str])
    usd: float = 0.0


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
    """Return one signal per question, in order; `teacher_of` has the teacher of each by its id, `prompt` is the instruction's version.

    TeacherError where more of a teacher's questions failed than it may; what was answered stays in the ledger.
    """
    names = [teacher_of[a.id] for a in asks]
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
        absent=answer.absent,
        again=answer.again,
        calls=answer.calls,
        usd=answer.usd,
    )


def _answers(name: str, asks: Sequence[Ask], desk: Desk) -> list[Answer]:
    spec = desk.specs[name]
    found = _together(spec, asks, desk) if isinstance(spec, EnsembleTeacher) else _asked(name, asks, desk)
    _bear(name, spec, found)
    return found


def _asked(name: str, asks: Sequence[Ask], desk: Desk, *, dispensable: bool = False) -> list[Answer]:
    """Return what a teacher answers; what cannot be read is asked for again, so often as its limits say."""
    spec, ask = desk.specs[name], partial(desk.clients[name].ask, prompt=desk.prompt)
    found = [_read(a, r) for a, r in zip(asks, ask(asks, dispensable=dispensable), strict=True)]
    for again in range(1, 1 + (spec.limits.ask_again if isinstance(spec, OpenAITeacher) else 0)):
        odd = [i for i, a in enumerate(found) if _word(a.failure) == _UNREADABLE]
        anew = [replace(asks[i], again=again) for i in odd]
        for i, question, reply in zip(odd, anew, ask(anew, dispensable=True), strict=True):
            found[i] = _after(found[i], _read(question, reply))
    return found


def _after(before: Answer, now: Answer) -> Answer:
    """Return the later of two answers to a question, with what both have cost."""
    return replace(now, calls=before.calls + now.calls, usd=before.usd + now.usd, again=before.again + 1)


def _read(ask: Ask, reply: Reply) -> Answer:
    answer = Answer(failure=reply.failure, calls=list(reply.calls), usd=reply.usd)
    if reply.text is not None:
        try:
            answer.content = ask.read(reply.text)
        except Unreadable as e:
            answer.failure = f"{_UNREADABLE}: {str(e)[:_MOST_WORDS]}"
    return answer


def _together(spec: EnsembleTeacher, asks: Sequence[Ask], desk: Desk) -> list[Answer]:
    """Ask every member. What one of them fails in counts against the quorum; nothing but a cap or a stop ends it here."""
    members = {m: _asked(m, asks, desk, dispensable=True) for m in spec.members}
    return [_one_of(spec, a, {m: members[m][i] for m in members}, desk) for i, a in enumerate(asks)]


def _one_of(spec: EnsembleTeacher, ask: Ask, given: Mapping[str, Answer], desk: Desk) -> Answer:
    made = Answer(calls=[c for a in given.values() for c in a.calls], usd=sum(a.usd for a in given.values()))
    made.again = sum(a.again for a in given.values())
    made.absent = {m: a.failure or "" for m, a in given.items() if a.content is None}
    contents = {m: a.content for m, a in given.items()}
    try:
        if spec.combine == "best":
            assert desk.judge is not None, "the node hands in a judge where an ensemble keeps the best"
            judge = desk.judge
            made.content = ensemble.best(spec.members, contents, spec.quorum, lambda c: judge(ask, c))
        else:
            made.content = ensemble.combined(ask.signal, spec.combine, spec.members, contents, spec.quorum)
    except Unreadable as e:
        faultless = made.absent and all(_word(why) in _NO_FAULT for why in made.absent.values())
        reasons = "; ".join(f"{m}: {why}" for m, why in made.absent.items())
        made.failure = f"{'no_answer' if faultless else 'no_quorum'}: {e}" + (f" ({reasons})" if reasons else "")
    return made


def _word(failure: str | None) -> str:
    return (failure or "").partition(":")[0]


def _bear(name: str, spec: BlackBox, found: Sequence[Answer]) -> None:
    """Raise TeacherError where more questions failed than may."""
    words = Counter(_word(a.failure) for a in found if a.content is None)
    failed = sum(n for word, n in words.items() if word not in _NO_FAULT)
    if failed > spec.failure_share * len(found):
        told = ", ".join(f"{n} {word}" for word, n in words.most_common())
        odd = any(_word(why) == _UNREADABLE for a in found for why in (a.failure, *a.absent.values()))
        kept = "; one that cannot be read is asked for anew where limits.ask_again is raised" if odd else ""
        example = next(a.failure for a in found if a.failure and _word(a.failure) not in _NO_FAULT)
        raise TeacherError(
            f"teacher {name}: {failed} of {len(found)} questions failed ({told}; for example {example[:_MOST_SHOWN]}), more than failure_share "
            f"{spec.failure_share:g}{_members(found)}; what was answered is kept{kept}. Run again to ask only for the others, or raise it"
        )


def _members(found: Sequence[Answer]) -> str:
    """Return in which members of an ensemble questions failed, how often, and an example of each."""
    told = {m: [a.absent[m] for a in found if m in a.absent] for m in sorted({m for a in found for m in a.absent})}
    return "".join(
        f"; its member {m} gave no answer to {len(why)} (for example {why[0][:_MOST_SHOWN]})" for m, why in told.items()
    )
