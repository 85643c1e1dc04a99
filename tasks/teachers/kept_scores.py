"""What a server has said since the last checkpoint, on disk: a resumed stage asks for none of it again."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from specs.errors import StateError
from tasks.files import Ledger, move
from tasks.teachers.prompt_logprobs import Answer, Question

_NOW, _BEFORE = "now.jsonl", "before.jsonl"
_REMEDY = "remove the folder to ask the teacher again"


class KeptScores:
    """Answers by question, of the stretch up to now and of the one before it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._owed: dict[str, int] = {}
        self._before, self._now = self._read(_BEFORE), self._read(_NOW)
        self._ledger = Ledger(folder / _NOW, remedy=_REMEDY)

    def get(self, question: Question) -> Answer | None:
        """Return what was answered, None where it was not."""
        key = _key(question)
        return self._now.get(key) or self._before.get(key)

    def owed(self, question: Question) -> int:
        """Return the requests that an attempt that was killed sent for an answer; they are told once."""
        return self._owed.pop(_key(question), 0)

    def add(self, question: Question, answer: Answer, requests: int) -> None:
        """Keep an answer, and what it took, as soon as it is there; a kill after this does not lose it."""
        key = _key(question)
        self._now[key] = answer
        packed = {name: _packed(getattr(answer, name)) for name in Answer.__slots__}
        self._ledger.append([{"key": key, "requests": requests, **packed}], durable=False)

    def turn(self) -> None:
        """Begin another stretch, as a checkpoint is about to be written: what came before the last one is not needed."""
        if not (self._folder / _NOW).exists():
            return
        move(self._folder / _NOW, self._folder / _BEFORE)
        self._now, self._before = {}, self._now
        self._ledger = Ledger(self._folder / _NOW, remedy=_REMEDY)

    def _read(self, name: str) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        for line in Ledger(self._folder / name, remedy=_REMEDY):
            try:
                found[line["key"]] = Answer(*(_unpacked(line[field]) for field in Answer.__slots__))
                self._owed[line["key"]] = int(line["requests"])
            except (KeyError, TypeError, ValueError) as e:
                raise StateError(
                    f"{self._folder / name}: found a damaged record, expected a teacher's scores; {_REMEDY}"
                ) from e
        return found


def _key(question: Question) -> str:
    told = np.array([question.size, len(question.ids), *question.ids, *question.places], np.int64)
    return hashlib.sha256(told.tobytes()).hexdigest()


def _packed(array: Any) -> Any:
    return [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]


def _unpacked(told: Any) -> Any:
    kind, shape, data = told
    return np.frombuffer(base64.b64decode(data), np.dtype(kind)).reshape(shape)
