"""What people answered to held gates: one durable file per answer, bound to the evidence that was asked about.

`.tutelage/answers/<program>/<gate>.<evidence>.json` says who, when and why. The evidence is the digest of the gate's
record without any answer and of everything that the gate read: other rollouts or another candidate ask again. Answers
are resolved before each run, so that they are part of the gate's key and of what its record says.
"""

import getpass
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from flows.durable import digest_tree, write_json
from flows.ends import DONE
from flows.leases import short_lock
from flows.nodes import Json, digest
from flows.state import NOTHING, RunRecord, State, now
from specs.errors import StateError

Verdict = Literal["approved", "rejected"]
FORMAT = 1
_SHORT = 16
_WORDS: dict[str, str] = {"approved": "pass", "rejected": "fail"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person said about one record of one gate."""

    program: str
    gate: str
    """Id of the gate's node."""
    verdict: Verdict
    evidence: str
    """Digest of the record that was looked at."""
    by: str
    at: str
    why: str
    candidate: str | None
    run_key: str
    execution: str

    @property
    def sentence(self) -> str:
        """Return the answer in words."""
        return f"{self.verdict} by {self.by} at {self.at[:16]}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class HeldGate:
    """A gate whose last decision is that it cannot decide by itself."""

    gate: str
    run_key: str
    evidence: str
    candidate: str | None
    sentence: str
    execution: str
    """The newest one that came to this gate."""
    answer: Answer | None = None

    @property
    def short(self) -> str:
        """Return as much of the evidence's digest as a person needs to name it."""
        return self.evidence[:_SHORT]

    @property
    def words(self) -> str:
        """Return what is asked about."""
        candidate = "" if self.candidate is None else f", candidate {self.candidate}"
        return f"{self.gate}{candidate}, evidence {self.short}: {self.sentence}"


def evidence_of(record: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Return the digest of a gate's record and of what it read, by input."""
    return digest([dict(record), {k: v for k, v in inputs.items() if v != NOTHING}])


def held_gates(state: State, program: str) -> list[HeldGate]:
    """Return the gates that wait for a person, each with the answer that was given since.

    An execution that did not come to a gate (it is at work, crashed, was stopped, left the gate out) changes nothing
    about it. A gate that the program has no more, and one that was set aside to be done again, ask nothing.
    """
    last = state.last(program)
    if last is None:
        return []
    known = {(a.gate, a.evidence): a for a in answers(state.home, program)}
    found: list[HeldGate] = []
    for node, (execution, key) in sorted(_undecided(state, last).items()):
        if execution == last.execution or (state.node(key) / "receipt.json").exists():
            gate = held_gate(state, node, key, execution)
            found.append(replace(gate, answer=known.get((gate.gate, gate.evidence))))
    return found


def _undecided(state: State, last: RunRecord) -> dict[str, tuple[str, str]]:
    """Return gate -> execution and run key, of the gates that were held when an execution came to them last."""
    left, held = _gates(state, last), dict[str, tuple[str, str]]()
    for record in state.latest(last.program):
        if not left:
            break
        for node in sorted(left):
            end = record.nodes.get(node, {})
            if end.get("status") not in DONE:
                continue
            left.discard(node)
            if end["status"] == "held" and end.get("run_key"):
                held[node] = record.execution, str(end["run_key"])
    return held


def _gates(state: State, record: RunRecord) -> set[str]:
    """Return the gates of an execution's plan; those that it came to where that cannot be read."""
    plan = state.plan(record.plan)
    if plan is None:
        return {n for n in record.nodes if n.startswith("gate.")}
    return {str(n["id"]) for n in plan.get("nodes", []) if n.get("kind") == "gate"}


def held_gate(state: State, node: str, run_key: str, execution: str) -> HeldGate:
    """Return what a held gate asks about, from its record. StateError where that cannot be used."""
    path = state.node(run_key) / "out" / "gate.json"
    receipt = state.receipt(run_key)
    try:
        if receipt is None:
            raise ValueError("its receipt is damaged or gone")
        data = cast(Json, json.loads(path.read_bytes()))
        candidate, sentence = data["candidate"], str(data["sentence"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StateError(f"{path}: no usable gate record ({e}); run the program again from its gate") from e
    return HeldGate(node, run_key, evidence_of(data, receipt.inputs), candidate, sentence, execution)


def commands(program: str, gate: HeldGate) -> tuple[str, str]:
    """Return the commands that say yes and no to exactly what a gate asks about now."""
    name = gate.gate.removeprefix("gate.")
    yes, no = (f"tutelage {verb} {program} {name} --evidence {gate.short}" for verb in ("approve", "reject"))
    return yes, no


def give(state: State, program: str, gate: HeldGate, verdict: Verdict, *, by: str, why: str) -> Answer:
    """Keep an answer and return it; the one that is there already where it says the same.

    StateError where the same evidence was answered otherwise.
    """
    answer = Answer(
        program,
        gate.gate,
        verdict,
        gate.evidence,
        by,
        now(),
        why,
        gate.candidate,
        gate.run_key,
        gate.execution,
    )
    path = _path(state.home, answer)
    with short_lock(state.home / "answers" / "lock"):
        if path.exists():
            before = _read(path)
            if before.verdict == verdict:
                return before
            raise StateError(
                f"{program}: {gate.gate} was {before.sentence}; an answer to the same evidence stays: new evidence "
                "asks again, and `tutelage promote` or `tutelage rollback` changes the champion"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        body = asdict(answer)
        write_json(path, {"format": FORMAT, **body, "check": digest(body)})
    return answer


def answers(home: Path, program: str) -> list[Answer]:
    """Return every answer of a program, by gate and evidence. StateError names a file that is damaged."""
    return [_read(path) for path in sorted((home / "answers" / program).glob("*.json"))]


def resolved(home: Path, program: str) -> dict[str, list[Json]]:
    """Return, by gate node, the answers that its body may apply."""
    found: dict[str, list[Json]] = {}
    for a in answers(home, program):
        found.setdefault(a.gate, []).append(
            {"evidence": a.evidence, "verdict": a.verdict, "by": a.by, "at": a.at, "why": a.why}
        )
    return found


def applied(record: Json, given: list[Json], inputs: Mapping[str, Path]) -> Json:
    """Return an inconclusive record as a person answered it; the record itself where nobody did.

    `inputs` are the folders that the gate read.
    """
    if not given:
        return record
    evidence = evidence_of(record, {name: digest_tree(folder) for name, folder in inputs.items()})
    said = next((a for a in given if a["evidence"] == evidence), None)
    if said is None:
        return record
    why = f": {said['why']}" if said["why"] else ""
    words = f"{said['verdict']} by {said['by']} at {str(said['at'])[:16]}{why}"
    sentence = f"{words} (the evidence alone is inconclusive: {record['sentence']})"
    text = f"{record['text']}\n{words}".strip()
    return {**record, "answer": _WORDS[said["verdict"]], "sentence": sentence, "text": text, "person": dict(said)}


def person() -> str:
    """Return who is at the keyboard, as far as the system knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _path(home: Path, answer: Answer) -> Path:
    return home / "answers" / answer.program / f"{answer.gate}.{answer.evidence[:_SHORT]}.json"


def _read(path: Path) -> Answer:
    try:
        data = cast(Json, json.loads(path.read_bytes()))
        check, version = data.pop("check"), data.pop("format")
        if version != FORMAT or check != digest(data):
            raise ValueError("its content was changed" if version == FORMAT else f"format {version}")
        return Answer(**data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise StateError(f"{path}: damaged answer ({e}); remove the file and answer again") from e
