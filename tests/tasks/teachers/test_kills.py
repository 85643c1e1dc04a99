"""A kill at any moment of a call: nothing that was kept is asked again, and at most what was in flight repeats."""

import multiprocessing
import os
from pathlib import Path

import pytest

from tasks import faults
from tasks.teachers.ledger import CallLedger
from tests.tasks.teachers import api
from tests.tasks.teachers.api import serving
from tests.tasks.teachers.asked import GOOD, asks, client, teacher

PRICE = {"input": 1.0, "output": 1.0}


def ask_all(url: str, folder: Path, fault: str) -> None:
    os.environ[faults.FAULT_VARIABLE] = fault
    faults._counted = 0
    replies = client(folder, teacher(url, price=PRICE, limits={"in_flight": 4})).ask(asks(24), "score it")
    assert all(r.text == GOOD for r in replies)


def run(url: str, folder: Path, fault: str = "") -> int | None:
    """Ask 24 questions in a process of their own, and return how it ended."""
    child = multiprocessing.get_context("fork").Process(target=ask_all, args=(url, folder, fault))
    child.start()
    child.join(60)
    return child.exitcode


@pytest.mark.parametrize("point", ["call_sent:9", "call_returned:9", "call_kept:9", "mid_append:20"])
def test_a_kill_repeats_only_what_was_in_flight(tmp_path: Path, point: str) -> None:
    with serving(api.slow(api.says(GOOD), 0.02)) as server:
        assert run(server.url, tmp_path, f"{point}:kill") == -9
        before = CallLedger(tmp_path / "calls.jsonl")
        assert run(server.url, tmp_path) == 0
    counts = server.seen.keys.values()
    assert len(counts) == 24
    assert sum(counts) - 24 <= 4
    after = CallLedger(tmp_path / "calls.jsonl")
    lost = after.spent().requests - 24
    assert 0 <= lost <= 4, "what a kill lost is counted as possibly paid"
    assert before.spent().usd < after.spent().usd
