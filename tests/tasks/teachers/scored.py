"""A tiny policy behind the small model server, asked for the logprobs of prompts as a teacher."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specs.served_teacher import ServedModelTeacher
from tasks.learning.rows import TrainingRow, rows_from
from tasks.policy.foreign import teacher_of
from tasks.policy.served import export_for_server
from tasks.policy.store import LoadedPolicy
from tasks.protocols import Span
from tasks.teachers.client_scores import Circumstances, ScoresClient
from tasks.teachers.kept_scores import KeptScores
from tasks.teachers.served import ServedTeacher
from tests.tasks.episodes.completions_server import CompletionsServer
from tests.tasks.episodes.counter_world import counter_policy
from tests.tasks.learning.algorithms.test_opd import trajectory

POLICY = counter_policy()
TOKENIZER, FRAME = (teacher_of(POLICY).tokenizer, teacher_of(POLICY).frame)
VOCABULARY = TOKENIZER.size
_SHARED = TemporaryDirectory(prefix="tutelage-limits-")


@contextmanager
def serving(folder: Path, policy: LoadedPolicy = POLICY) -> Iterator[CompletionsServer]:
    export_for_server(policy, folder, "fp32", max_length=policy.config.max_length)
    with CompletionsServer(folder) as server:
        yield server


def spec(url: str, **more: Any) -> ServedModelTeacher:
    limits = {"wait_seconds": 0.01, "deadline_seconds": 5.0, "attempts": 2, **more.pop("limits", {})}
    given = {"kind": "served_model", "model": "tiny", "url": url, "max_length": 64, "limits": limits, **more}
    return ServedModelTeacher.model_validate(given)


def client(
    url: str, *, environ: dict[str, str] | None = None, stop: Callable[[], bool] = lambda: False, **more: Any
) -> ScoresClient:
    return ScoresClient("big", spec(url, **more), Circumstances(environ or {}, Path(_SHARED.name), stop))


def teacher(folder: Path, url: str, **more: Any) -> ServedTeacher:
    return ServedTeacher(client(url, **more), VOCABULARY, KeptScores(folder / "scores"))


def rows_of(count: int, first: int = 0) -> tuple[list[TrainingRow], dict[str, Any]]:
    found = [trajectory(i, vocabulary=VOCABULARY, turns=1 + i % 3) for i in range(first, first + count)]
    rows, _ = rows_from(found, max_length=64, behaviour=True)
    return rows, {t.id: t for t in found}


def spans_of(count: int, first: int = 0) -> list[Span]:
    rows, trajectories = rows_of(count, first)
    return [Span(trajectories[r.trajectory], r.start, r.ids, r.mask) for r in rows]
