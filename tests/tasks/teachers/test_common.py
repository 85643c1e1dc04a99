"""Limits hold for all processes that ask one teacher at the same time, against real HTTP servers that count."""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specs.errors import TeacherError
from specs.teachers import Limits
from tasks.processes import kill_pid
from tasks.teachers.breaker import Breaker
from tasks.teachers.budget import Caps
from tasks.teachers.client_scores import Circumstances, ScoresClient
from tasks.teachers.common import Common
from tasks.teachers.ledger import OK, CallLedger, Returned
from tasks.teachers.limits import Pace
from tasks.teachers.prompt_logprobs import Question
from tests.tasks.teachers import api
from tests.tasks.teachers.api import serving as serving_words
from tests.tasks.teachers.asked import GOOD, asks, client, teacher
from tests.tasks.teachers.scored import VOCABULARY, serving, spec

COUNT = 6


def side_by_side(work: Callable[[int], object]) -> list[int | None]:
    """Do the work in two processes at once, and return how they ended."""
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=work, args=(n,)) for n in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    return [child.exitcode for child in children]


def in_words(url: str, folder: Path, **limits: Any) -> Callable[[int], object]:
    """Return what asks half of the questions, each half its own."""

    def work(number: int) -> None:
        half = asks(2 * COUNT)[number * COUNT :][:COUNT]
        replies = client(folder, teacher(url, limits=limits)).ask(half, "score it")
        assert [r.text for r in replies] == [GOOD] * COUNT

    return work


def test_calls_in_a_minute_are_those_of_all_nodes(tmp_path: Path) -> None:
    with serving_words(api.says(GOOD)) as server:
        assert side_by_side(in_words(server.url, tmp_path, requests_per_minute=1200)) == [0, 0]
    times = sorted(server.seen.times)
    assert len(times) == 2 * COUNT
    assert times[-1] - times[0] >= (2 * COUNT - 2) * 0.05


def test_calls_at_once_are_those_of_all_nodes_and_each_gets_its_turn(tmp_path: Path) -> None:
    with serving_words(api.slow(api.says(GOOD), 0.06)) as server:
        assert side_by_side(in_words(server.url, tmp_path, in_flight=2)) == [0, 0]
    assert server.seen.most_at_once == 2
    first = [int(json.dumps(b).partition("question ")[2].partition("\\")[0]) // COUNT for b in server.seen.bodies]
    assert len(first) == 2 * COUNT
    assert set(first[: COUNT + 2]) == {0, 1}, "one does not end before the other begins"


def test_a_server_of_scores_gets_no_more_at_once_from_two_nodes(tmp_path: Path) -> None:
    questions = {n: Question((1, 2, 3 + n), (1, 2)) for n in range(2 * COUNT)}
    with serving(tmp_path / "model") as server:
        server.on_score = lambda number, result: (time.sleep(0.05), result)[1]

        def work(number: int) -> None:
            asked = ScoresClient(
                "big", spec(server.url, limits={"in_flight": 2, "deadline_seconds": 30}), Circumstances({}, tmp_path)
            )
            own = {n: q for n, q in questions.items() if n % 2 == number}
            found: list[int] = []
            asked.ask(own, VOCABULARY, lambda n, result: found.append(n) if result.answer else None)
            assert sorted(found) == sorted(own)

        assert side_by_side(work) == [0, 0]
        assert (len(server.scored), server.most_at_once) == (2 * COUNT, 2)


def test_a_teacher_that_fails_is_left_alone_by_all(tmp_path: Path) -> None:
    most = 8
    limits = {"failures_in_a_row": most, "pause_seconds": 0.2, "attempts": 1, "in_flight": 1}
    with serving_words(api.status(500)) as server:

        def work(number: int) -> None:
            half = asks(40)[20 * number :][:20]
            with pytest.raises(TeacherError, match=r"calls in a row failed \(teacher_unavailable\)"):
                client(tmp_path, teacher(server.url, limits=limits)).ask(half, "score it")

        assert side_by_side(work) == [0, 0]
    assert most + 1 < len(server.seen.bodies) <= most + 3, "together so many, and each tries once more"


def test_a_killed_node_gives_back_what_it_held(tmp_path: Path) -> None:
    with serving_words(api.hang(20), api.says(GOOD)) as server:
        ask_all = in_words(server.url, tmp_path, in_flight=1)
        hung = multiprocessing.get_context("fork").Process(target=ask_all, args=(0,))
        hung.start()
        while not server.seen.bodies:
            time.sleep(0.01)
        assert hung.pid is not None
        kill_pid(hung.pid)
        hung.join(10)
        began = time.monotonic()
        ask_all(1)
        assert time.monotonic() - began < 2


# --- the state


def two(folder: Path, **limits: Any) -> tuple[Common, Common]:
    made = Limits.model_validate(limits)
    return Common(folder, made, time.monotonic), Common(folder, made, time.monotonic)


def test_a_wait_that_a_server_demands_is_everybodys(tmp_path: Path) -> None:
    one, other = two(tmp_path / "t")
    with one.enter(), other.enter():
        Pace(one).hold(5.0)
        assert 4.0 < Pace(other).held <= 5.0
    with other.enter():
        assert Pace(other).held == 0.0, "nobody asks any more who was told so"


def test_the_gap_to_the_next_request_outlasts_those_who_asked(tmp_path: Path) -> None:
    one, other = two(tmp_path / "t", requests_per_minute=60)
    with one.enter():
        assert [round(Pace(one).turn()) for _ in range(4)] == [0, 1, 2, 3]
    with other.enter():
        assert 0.9 < Pace(other).turn() <= 1.0, "what was reserved and not used is free"


def test_one_call_tries_for_all_and_a_new_round_begins_anew(tmp_path: Path) -> None:
    one, other = two(tmp_path / "t", failures_in_a_row=2, pause_seconds=0.05)
    first, second = Breaker("big", one), Breaker("big", other)
    with one.enter(), other.enter():
        first.bad("gone")
        assert not second.open
        second.bad("gone")
        assert first.open
        assert second.open
        assert not first.trial()
        time.sleep(0.06)
        assert first.trial()
        assert not second.trial()
        with pytest.raises(TeacherError, match=r"3 calls in a row failed \(gone\), the last after a pause of 0\.05 s"):
            first.bad("gone")
        assert not second.trial(), "it pauses once more"
        time.sleep(0.06)
        assert second.trial()
        second.good()
        assert not first.open
        first.bad("gone")
        first.bad("gone")
        assert second.open
    with other.enter():
        assert not second.open


def test_a_call_that_never_came_to_try_leaves_it_to_another(tmp_path: Path) -> None:
    one, other = two(tmp_path / "t", failures_in_a_row=1, pause_seconds=0.0)
    first, second = Breaker("big", one), Breaker("big", other)
    with one.enter(), other.enter():
        first.bad("gone")
        assert first.trial("a")
        first.leave("b")
        assert not second.trial("c"), "another call than the one that tries it has ended"
        first.leave("a")
        assert second.trial("c")
        second.good()
        first.bad("gone")
        assert first.open, "a failure after that is the first again, and no end"


def test_the_call_that_tries_it_alone_decides(tmp_path: Path) -> None:
    one, other = two(tmp_path / "t", failures_in_a_row=1, pause_seconds=0.0)
    first, second = Breaker("big", one), Breaker("big", other)
    with one.enter(), other.enter():
        first.bad("gone", "a")
        assert first.trial("b")
        first.bad("gone", "sent before the pause")
        assert not second.trial("c"), "b still tries it"
        second.good()  # another node's call that was sent before the pause is answered
        first.bad("gone", "b")
        assert first.open, "one failure after an answer, and no end"
        first.leave("b")
        assert first.trial("d")
        with pytest.raises(TeacherError, match="the last after a pause"):
            first.bad("gone", "d")


def test_a_call_that_was_sent_before_the_pause_ends_no_round(tmp_path: Path) -> None:
    limits = {"failures_in_a_row": 1, "pause_seconds": 0.05, "attempts": 1, "in_flight": 2}
    tried = threading.Event()

    def late(h: api.Handler, body: api.Body) -> None:
        tried.wait(10)
        api.status(500)(h, body)

    def trial(h: api.Handler, body: api.Body) -> None:
        tried.set()
        time.sleep(0.3)
        api.says(GOOD)(h, body)

    with serving_words(api.says(GOOD), api.status(500), late, trial, api.says(GOOD)) as server:
        replies = client(tmp_path, teacher(server.url, limits=limits)).ask(asks(5), "score it")
    assert sorted(str(r.text) for r in replies) == sorted([*[GOOD] * 3, "None", "None"])


def test_who_comes_too_late_for_a_trial_does_not_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two(tmp_path / "t", failures_in_a_row=2, pause_seconds=0.0)
    first, second = Breaker("big", one), Breaker("big", other)
    with one.enter(), other.enter():
        first.bad("gone")
        first.bad("gone")
        assert first.trial()
        lease = other.lease

        def meanwhile(name: str) -> Any:
            first.good()  # after the other one has looked, before it has the lease
            return lease(name)

        monkeypatch.setattr(other, "lease", meanwhile)
        assert not second.trial()
        second.bad("gone")
        assert not second.open, "one failure is no end"


def test_a_trial_that_finds_its_answer_kept_holds_nobody_up(tmp_path: Path) -> None:
    limits = {"failures_in_a_row": 1, "pause_seconds": 0.3, "attempts": 1, "in_flight": 1}
    asked = asks(4)

    def act(h: api.Handler, body: api.Body) -> None:
        if len(server.seen.bodies) == 1:  # another node has the answer to the second question; this one fails
            ledger = CallLedger(tmp_path / "calls.jsonl")
            one = client(tmp_path, spec)
            key = one.key(asked[1].messages("score it"), 0, 0)
            ledger.end(key, ledger.begin(key, 1, "closed", "other", 0.0, Caps()), Returned(OK, text=GOOD))
            return api.status(500)(h, body)
        return api.says(GOOD)(h, body)

    with serving_words(act) as server:
        spec = teacher(server.url, limits=limits)
        began = time.monotonic()
        stop: Callable[[], bool] = lambda: time.monotonic() - began > 20  # noqa: E731
        replies = client(tmp_path, spec, stop=stop).ask(asked, "score it")
    assert [r.text for r in replies] == [None, GOOD, GOOD, GOOD]


def test_a_damaged_state_is_none(tmp_path: Path) -> None:
    (one, _), state = two(tmp_path / "t"), tmp_path / "t" / "state.json"
    for left in ("", '{"other": 1}', "[]"):
        state.parent.mkdir(exist_ok=True)
        state.write_text(left)
        with one.enter():
            assert Pace(one).held == 0.0


def test_a_trial_ends_with_who_tried(tmp_path: Path) -> None:
    one, other = two(tmp_path / "t", failures_in_a_row=1, pause_seconds=0.0)

    def dies(_: int) -> None:
        assert Breaker("big", other).trial()
        kill_pid(os.getpid())

    with one.enter():
        Breaker("big", one).bad("gone")
        child = multiprocessing.get_context("fork").Process(target=dies, args=(0,))
        child.start()
        child.join(10)
        assert child.exitcode == -9
        assert Breaker("big", one).trial()
