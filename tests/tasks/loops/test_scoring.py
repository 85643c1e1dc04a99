"""Rollouts are scored while others are sampled: bounded, in batches that time has no part in, and to the same end."""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specs.distillation import OPD, FullVocabulary, SampledTokens, TeacherTerm, TopTokens
from specs.errors import Interrupted, ProgramError, RolloutError, TeacherError
from specs.grpo import GRPO
from specs.optimizer import Optimizer
from tasks.learning.checkpoints import Checkpointer
from tasks.learning.learner import Learner
from tasks.learning.open_teacher import OpenTeacher
from tasks.learning.rows import rows_from
from tasks.learning.teaching import span_of
from tasks.loops.collect import Arena
from tasks.loops.distill import Distilling, DistillReport, train_opd
from tasks.loops.fit import Hooks
from tasks.loops.on_policy import OnPolicy, train_policy_gradient
from tasks.loops.order import ProblemOrder
from tasks.loops.scoring import BATCH, ScoringQueue, early_rows, early_teachers
from tasks.loops.token_lessons import Panel
from tasks.policy.store import LoadedPolicy
from tasks.protocols import Completion, SampleRequest, Span, TokenLists, TokenScores
from tasks.teachers.kept_scores import KeptScores
from tasks.teachers.served import ServedTeacher
from tests.tasks.episodes.completions_server import CompletionsServer, Reply
from tests.tasks.learning.algorithms.test_opd import trajectory
from tests.tasks.loops.toy import problem, taught_policy, toy_arena
from tests.tasks.teachers.scored import client, serving

RATE = Optimizer(kind="muon", learning_rate=1e-2)
SAMPLED = SampledTokens(kind="sampled")
LISTED = TopTokens(kind="top_k", size=5, support="teacher")


@pytest.fixture(scope="module")
def taught() -> LoadedPolicy:
    return taught_policy()


@pytest.fixture(scope="module")
def server(taught: LoadedPolicy, tmp_path_factory: pytest.TempPathFactory):
    elder = student(taught)
    with torch.no_grad():
        for p in elder.model.parameters():
            p.mul_(1.1)
    with serving(tmp_path_factory.mktemp("elder"), elder) as found:
        yield found


@pytest.fixture(autouse=True)
def _well(server: CompletionsServer):
    yield
    server.on_score, server.scored, server.most_at_once = None, [], 0
    assert [t.name for t in threading.enumerate() if t.name.startswith("scoring")] == []


class Slow:
    """A sampler that takes its time, and sees what the server has scored each time it is asked."""

    def __init__(self, arena: Arena, server: CompletionsServer, seconds: float, fails_at: int = -1) -> None:
        self._sampler: Any = arena.sampler
        self._server, self._seconds, self._fails_at = server, seconds, fails_at
        self.seen: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        self.seen.append(len(self._server.scored))
        if len(self.seen) == self._fails_at:
            raise RolloutError("the sampler broke")
        time.sleep(self._seconds)
        return self._sampler.generate(requests)


class Afterwards:
    """The same teacher, asked about a whole step when it has ended."""

    def __init__(self, teacher: ServedTeacher) -> None:
        self.name, self.max_length, self.take_figures = teacher.name, teacher.max_length, teacher.take_figures
        self._teacher = teacher

    def score(self, spans: Sequence[Span]) -> list[TokenScores]:
        return self._teacher.score(spans)

    def lists(self, spans: Sequence[Span], size: int) -> list[TokenLists | None]:
        return self._teacher.lists(spans, size)


def served(folder: Path, url: str, taught: LoadedPolicy, **more: Any) -> ServedTeacher:
    return ServedTeacher(client(url, max_length=47, **more), taught.tokenizer.size, KeptScores(folder / "scores"))


def student(taught: LoadedPolicy) -> LoadedPolicy:
    policy = copy.copy(taught)
    policy.model = copy.deepcopy(taught.model)
    return policy


def load(arena: Arena, policy: LoadedPolicy, step: int) -> None:
    sampler: Any = arena.sampler
    sampler.load_weights(policy.model, f"step{step}")


def stage_of(policy: LoadedPolicy, panel: Panel, over: Any, **more: Any) -> tuple[OPD, Arena, Distilling]:
    """Return a stage of 16 rollouts a step of which 4 are sampled at a time."""
    arena = replace(toy_arena(policy), in_flight=4)
    given: dict[str, Any] = {"group_size": 2, "problems_per_step": 8, "steps": 2, "optimizer": RATE} | more
    made = OPD(type="opd", over=over, **given)
    problems = ProblemOrder({"all": [problem(i) for i in range(64)]}, 0)
    return made, arena, Distilling(made, problems, panel, 0, policy.config.max_length, partial(load, arena, policy))


def train(
    policy: LoadedPolicy,
    teacher: Any,
    over: Any,
    *,
    queue: int = 256,
    hooks: Hooks | None = None,
    sampler: Callable[[Arena], Slow] | None = None,
    **more: Any,
) -> DistillReport:
    made, arena, stage = stage_of(policy, Panel([teacher], lambda _: [1.0], queue=queue), over, **more)
    if sampler is not None:
        arena = replace(arena, sampler=sampler(arena))
    return train_opd(Learner(policy.model, made.optimizer, made.steps), arena, stage, hooks)


def same_weights(one: LoadedPolicy, other: LoadedPolicy) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# --- the same as afterwards, while others are sampled


@pytest.mark.parametrize("over", [SAMPLED, LISTED], ids=lambda o: o.kind)
@pytest.mark.parametrize("queue", [1, 256])
def test_a_step_is_scored_as_it_would_be_at_its_end(
    server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path, over: Any, queue: int
):
    ahead, after = student(taught), student(taught)
    early = train(ahead, served(tmp_path / "a", server.url, taught), over, queue=queue)
    asked = sorted(server.scored)
    server.scored = []
    late = train(after, Afterwards(served(tmp_path / "b", server.url, taught)), over)
    assert sorted(server.scored) == asked
    assert early.curve == late.curve
    assert sum(line["teacher_calls"] for line in early.curve) == len(asked)
    assert same_weights(ahead, after)


def test_rows_are_scored_while_others_are_sampled(server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path):
    made: list[Slow] = []

    def slow(arena: Arena) -> Slow:
        made.append(Slow(arena, server, 0.05))
        return made[0]

    train(student(taught), served(tmp_path, server.url, taught), SAMPLED, queue=4, steps=1, sampler=slow)
    assert made[0].seen[-1] >= 4, "when the last are sampled, the first have been scored"
    assert made[0].seen[0] == 0


def test_a_teacher_beside_a_reward_is_asked_meanwhile_too(
    server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path
):
    found: list[tuple[LoadedPolicy, list[dict[str, float]]]] = []
    for wrap in (lambda t: t, Afterwards):
        policy = student(taught)
        arena = replace(toy_arena(policy), in_flight=4)
        slow = Slow(arena, server, 0.01)
        arena = replace(arena, sampler=slow)
        made = GRPO(
            type="grpo", group_size=4, problems_per_step=6, steps=1, optimizer=RATE, distill=TeacherTerm(over=SAMPLED)
        )
        asked = Panel([wrap(served(tmp_path / str(len(found)), server.url, taught))], lambda _: [1.0], queue=4)
        stage = OnPolicy(
            spec=made,
            problems=ProblemOrder({"all": [problem(i) for i in range(16)]}, 0),
            seed=0,
            max_length=policy.config.max_length,
            load_weights=partial(load, arena, policy),
            panel=asked,
        )
        report = train_policy_gradient(Learner(policy.model, made.optimizer, 1), arena, stage)
        found.append((policy, report.curve))
        assert (slow.seen[-1] > 0) == (len(found) == 1)
        server.scored = []
    (one, early), (other, late) = found
    assert early == late
    assert same_weights(one, other)


def test_who_can_be_asked_early(server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path):
    panel = Panel(
        [OpenTeacher("near", copy.deepcopy(taught.model)), served(tmp_path, server.url, taught)], lambda _: [0.5, 0.5]
    )
    assert list(early_teachers(panel, SAMPLED, near=False)) == [1]
    assert list(early_teachers(panel, SAMPLED, near=True)) == [0, 1]
    assert list(early_teachers(panel, LISTED, near=True)) == [1]
    assert list(early_teachers(panel, FullVocabulary(), near=True)) == []


# --- bounds and batches


def ended(taught: LoadedPolicy, count: int) -> list[Span]:
    """Return what is asked about trajectories of several lengths."""
    found = [trajectory(i, vocabulary=taught.tokenizer.size, turns=1 + i % 2) for i in range(count)]
    rows, _ = rows_from(found, max_length=47, behaviour=True)
    return [span_of(r, t) for r, t in zip(rows, found, strict=True)]


def queue_of(teachers: Sequence[Any], most: int, stop: Callable[[], bool] = lambda: False) -> ScoringQueue:
    rows = partial(early_rows, max_length=47, truncated="score")
    return ScoringQueue(Panel(teachers, lambda _: [1.0] * len(teachers), queue=most), SAMPLED, rows, stop, near=True)


def put_all(queue: ScoringQueue, spans: Sequence[Span]) -> None:
    for span in spans:
        queue.put(span.trajectory)


def test_the_sampler_waits_where_as_many_rows_wait_as_may(
    server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path
):
    gate, put = threading.Event(), list[int]()
    server.on_score = lambda number, result: (gate.wait(5), result)[1]
    spans = ended(taught, 12)

    def sample(queue: ScoringQueue) -> None:
        for n, span in enumerate(spans):
            queue.put(span.trajectory)
            put.append(n)

    teacher = served(tmp_path, server.url, taught, limits={"in_flight": 2})
    with queue_of([teacher], 5) as queue:
        sampling = threading.Thread(target=sample, args=(queue,))
        sampling.start()
        time.sleep(0.3)
        assert len(put) == 5
        gate.set()
        sampling.join()
    assert len(put) == len(server.scored) == 12
    assert server.most_at_once == 2
    found = teacher.score(spans)
    assert len(server.scored) == 12, "the whole step finds what was scored"
    assert all(np.isfinite(np.array(f.logprobs)[s.mask]).all() for f, s in zip(found, spans, strict=True))


class Batched(OpenTeacher):
    """Tells which rows were scored together, and takes as long as it is told."""

    def __init__(self, policy: LoadedPolicy, seconds: Callable[[], float]) -> None:
        super().__init__("near", copy.deepcopy(policy.model))
        self.batches: list[list[str]] = []
        self._seconds = seconds

    def _scored(self, spans: Sequence[Span]) -> list[TokenScores]:
        if spans:
            self.batches.append([s.trajectory.id for s in spans])
        time.sleep(self._seconds())
        return super()._scored(spans)


def test_batches_are_made_of_the_order_of_ends_alone(taught: LoadedPolicy):
    spans = ended(taught, 2 * BATCH + 5)
    lengths = {s.trajectory.id: len(s.ids) for s in spans}
    whole = OpenTeacher("near", copy.deepcopy(taught.model)).score(spans)
    made: list[list[list[str]]] = []
    for late in (0.0, 0.02):
        teacher = Batched(taught, lambda late=late: late)
        with queue_of([teacher], 64) as queue:
            for n, span in enumerate(spans):
                queue.put(span.trajectory)
                time.sleep(0.003 if late == 0 and n % 7 == 0 else 0)
        for one, other in zip(teacher.score(spans), whole, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
        made.append(teacher.batches)
    assert made[0] == made[1]
    assert [len(b) for b in made[0]] == [BATCH, BATCH, 5]
    order = [s.trajectory.id for s in spans]
    for at, batch in zip((0, BATCH, 2 * BATCH), made[0], strict=True):
        assert sorted(batch) == sorted(order[at : at + BATCH])
        assert [lengths[i] for i in batch] == sorted((lengths[i] for i in batch), reverse=True)


def test_several_teachers_are_asked_side_by_side(server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path):
    near, far = Batched(taught, lambda: 0.0), served(tmp_path, server.url, taught)
    spans = ended(taught, 20)
    with queue_of([near, far], 4) as queue:
        put_all(queue, spans)
    assert (sum(map(len, near.batches)), len(server.scored)) == (20, 20)


# --- what goes wrong in the middle


def test_a_teacher_that_dies_in_the_middle_ends_the_step_and_is_asked_for_the_rest(
    server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path
):
    made: list[Slow] = []

    def slow(arena: Arena) -> Slow:
        made.append(Slow(arena, server, 0.03))
        return made[-1]

    limits = {"failures_in_a_row": 2, "pause_seconds": 0.02, "attempts": 1, "in_flight": 2}
    server.on_score = lambda number, result: Reply(500) if number >= 4 else result
    hooks = Hooks(checkpointer=Checkpointer(tmp_path / "ckpt", "n"))
    with pytest.raises(TeacherError, match="calls in a row failed"):
        train(
            student(taught), served(tmp_path, server.url, taught, limits=limits), SAMPLED, queue=2, hooks=hooks,
            sampler=slow,
        )  # fmt: skip
    assert len(made[0].seen) < 4, "it is told while others are to be sampled"
    answered = server.scored[:4]
    server.on_score, server.scored = None, []
    again, whole = student(taught), student(taught)
    train(again, served(tmp_path, server.url, taught), SAMPLED, hooks=hooks)
    assert not set(answered) & set(server.scored), "what was scored is not asked for again"
    train(whole, Afterwards(served(tmp_path / "b", server.url, taught)), SAMPLED)
    assert same_weights(again, whole)


def test_a_stop_does_not_wait_for_a_teacher(server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path):
    gate = threading.Event()
    server.on_score = lambda number, result: (gate.wait(40), result)[1] if number > 1 else result
    began = time.monotonic()
    teacher = served(tmp_path, server.url, taught, limits={"deadline_seconds": 60.0})
    with pytest.raises(Interrupted):
        train(student(taught), teacher, SAMPLED, queue=2, hooks=Hooks(stop=lambda: len(server.scored) > 2))
    assert time.monotonic() - began < 20
    gate.set()


def test_what_breaks_in_the_scorer_is_raised_in_the_loop(
    server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path
):
    with pytest.raises(ProgramError, match=r"sampled at temperature 0\.5, but its server gives logprobs at 1"):
        train(student(taught), served(tmp_path, server.url, taught), SAMPLED, queue=2, temperature=0.5)
    assert server.scored == []


def test_a_sampler_that_breaks_ends_what_is_under_way(
    server: CompletionsServer, taught: LoadedPolicy, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    gate = threading.Event()
    server.on_score = lambda number, result: (gate.wait(40), result)[1]
    began = time.monotonic()
    with pytest.raises(RolloutError, match="the sampler broke"):
        train(
            student(taught), served(tmp_path, server.url, taught), SAMPLED,
            sampler=lambda arena: Slow(arena, server, 0.02, fails_at=3),
        )  # fmt: skip
    assert time.monotonic() - began < 20
    gate.set()
    spans = ended(taught, 3)

    class Broken(OpenTeacher):
        def ahead(self, feed: Any, size: int) -> None:
            raise TeacherError("it broke too")

    with pytest.raises(RolloutError), queue_of([Broken("near", copy.deepcopy(taught.model))], 2):
        raise RolloutError("the sampler broke")
    assert "it broke too" in caplog.text
    with (
        pytest.raises(TeacherError, match="it broke too"),
        queue_of([Broken("near", copy.deepcopy(taught.model))], 2) as queue,
    ):
        put_all(queue, spans)
