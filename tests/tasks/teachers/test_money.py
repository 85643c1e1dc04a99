"""A cap ends a run only where nothing in flight may bring money back: of this node, or of another one."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specs.errors import BudgetError
from tasks.processes import kill_pid
from tasks.teachers import http_replies
from tasks.teachers.budget import Caps, InFlightError
from tasks.teachers.ledger import CallLedger, Returned
from tests.tasks.teachers import api
from tests.tasks.teachers.api import Act, serving
from tests.tasks.teachers.asked import GOOD, asks, client, teacher

SHORT = '{"score": {"ri'


def dear(url: str, **more: Any) -> Any:
    """Return a teacher of which one request reserves $1 and an answer costs half of that; twice the tokens, twice that."""
    limits = {"wait_seconds": 0.05, **more.pop("limits", {})}
    return teacher(url, price={"input": 0.0, "output": 25_000.0}, max_tokens=40, limits=limits, **more)


def by_turns(folder: Path, count: int, caps: Caps, *acts: Act, **limits: Any) -> tuple[list[str | None], float, int]:
    """Return the answers to so many questions, what they cost, and the number of requests."""
    with serving(*acts) as server:
        replies = client(folder, dear(server.url, limits=limits), caps=caps).ask(asks(count), "score it")
    return [r.text for r in replies], CallLedger(folder / "calls.jsonl").spent("closed").usd, len(server.seen.bodies)


@pytest.mark.parametrize("caps", [Caps(usd=2.6), Caps(program_usd=2.6)], ids=["its", "all"])
def test_a_retry_waits_for_what_others_in_flight_bring_back(tmp_path: Path, caps: Caps) -> None:
    good = api.says(GOOD)
    acts = (good, api.status(429), api.slow(good, 0.3), api.slow(good, 0.3), good)
    answers, usd, sent = by_turns(tmp_path, 4, caps, *acts, in_flight=3)
    assert (answers, sent, usd) == ([GOOD] * 4, 5, pytest.approx(2.0))


def test_asking_for_more_tokens_waits_for_what_others_in_flight_bring_back(tmp_path: Path) -> None:
    good = api.says(GOOD)
    acts = (good, api.says(SHORT, "length"), api.slow(good, 0.3), good)
    answers, usd, sent = by_turns(tmp_path, 3, Caps(usd=3.6), *acts, in_flight=2)
    assert (answers, sent, usd) == ([GOOD] * 3, 4, pytest.approx(2.0))


@pytest.mark.parametrize("cap", [0.9, 1.3])
def test_what_cannot_fit_whatever_comes_back_is_not_waited_for(tmp_path: Path, cap: float) -> None:
    slow = api.slow(api.says(GOOD), 0.3)
    with serving(api.says(GOOD), slow) as server, pytest.raises(BudgetError, match=f"cap_usd is {cap}"):
        client(tmp_path, dear(server.url, limits={"in_flight": 2}), caps=Caps(usd=cap)).ask(asks(3), "score it")
    assert len(server.seen.bodies) == int(cap)


def in_background(act: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(act())
        except BudgetError as e:
            found.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, found


def until(holds: Callable[[], object]) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < 10
        time.sleep(0.01)


def test_what_another_node_has_in_flight_is_waited_for(tmp_path: Path) -> None:
    with serving(api.slow(api.says(GOOD), 0.3), api.says(GOOD)) as server:
        one, two = (client(tmp_path, dear(server.url), caps=Caps(usd=1.6)) for _ in range(2))
        thread, found = in_background(lambda: one.ask(asks(1), "score it"))
        until(lambda: server.seen.bodies)
        (reply,) = two.ask(asks(1, sample=1), "score it")
        thread.join()
    assert (reply.text, len(found)) == (GOOD, 1)
    assert CallLedger(tmp_path / "calls.jsonl").spent("closed").usd == pytest.approx(1.0)


def test_two_nodes_that_both_lack_money_end_both(tmp_path: Path) -> None:
    slow = api.slow(api.says(GOOD), 0.1)
    with serving(slow) as server:
        nodes = [client(tmp_path, dear(server.url, model=f"m{n}"), caps=Caps(usd=2.6)) for n in range(2)]
        running = [in_background(lambda node=node: node.ask(asks(4), "score it")) for node in nodes]
        for thread, _ in running:
            thread.join(20)
            assert not thread.is_alive()
    assert [type(e) for _, found in running for e in found] == [BudgetError, BudgetError]
    spent = CallLedger(tmp_path / "calls.jsonl").spent("closed").usd
    assert spent == pytest.approx(2.0), "each answer is paid for, and no further request fits"


def test_what_a_dead_node_reserved_is_not_waited_for(tmp_path: Path) -> None:
    with serving(api.hang(20), api.says(GOOD)) as server:
        caps = Caps(usd=1.6)
        lost = multiprocessing.get_context("fork").Process(
            target=lambda: client(tmp_path, dear(server.url, limits={"deadline_seconds": 30}), caps=caps).ask(
                asks(1), "score it"
            )
        )
        lost.start()
        until(lambda: server.seen.bodies)
        node = client(tmp_path, dear(server.url), caps=caps)
        thread, found = in_background(lambda: node.ask(asks(1, sample=1), "score it"))
        time.sleep(0.3)
        assert not found, "it may yet come back"
        assert lost.pid is not None
        kill_pid(lost.pid)
        lost.join(10)
        thread.join(2)
        assert isinstance(found[0], BudgetError)
    assert len(server.seen.bodies) == 1


def test_a_wait_for_money_is_no_part_of_a_question_s_time(tmp_path: Path) -> None:
    other, caps, passed = CallLedger(tmp_path / "calls.jsonl"), Caps(usd=1.6), [0.0]
    call = other.begin("k", 1, "closed", "other", 1.0, caps)
    with serving(api.says(GOOD)) as server:
        node = client(tmp_path, dear(server.url), caps=caps, clock=lambda: time.monotonic() + passed[0])
        thread, found = in_background(lambda: node.ask(asks(1), "score it"))
        time.sleep(0.2)
        passed[0] = 1000.0
        other.end("k", call, Returned("ok", "x", usd=0.5))
        thread.join(10)
    assert not isinstance(found[0], BudgetError)
    assert [r.text for r in found[0]] == [GOOD]


def test_a_request_whose_end_was_never_noted_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = CallLedger(tmp_path / "calls.jsonl")
    book.begin("k", 1, "closed", "n", 1.0, Caps(usd=1.6))
    with pytest.raises(InFlightError):
        book.check("closed", 1.0, Caps(usd=1.6))
    later = time.time() + 4000
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(BudgetError) as found:
        book.check("closed", 1.0, Caps(usd=1.6))
    assert not isinstance(found.value, InFlightError)


def test_a_call_that_breaks_gives_its_reservation_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that fails leaves a driver that lives: others would wait for what it reserved."""

    def breaks(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(http_replies, "unpacked", breaks)
    with serving(api.says(GOOD)) as server, pytest.raises(MemoryError):
        client(tmp_path, dear(server.url), caps=Caps(usd=1.6)).ask(asks(1), "score it")
    with pytest.raises(BudgetError) as found:
        CallLedger(tmp_path / "calls.jsonl").check("closed", 1.0, Caps(usd=1.6))
    assert not isinstance(found.value, InFlightError)
