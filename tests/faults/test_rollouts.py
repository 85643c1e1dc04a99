"""Kills of rollouts, with the real sampler and the batch that programs have: what had ended is not drawn for nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specs.run import Run
from tests.faults.rolling import ROLLOUTS, main, result

BATCH = Run().rollout_batch
PAUSE = 0.25


def _start(folder: Path, pause: float) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    env = os.environ | {"FAULT_PAUSE": str(pause)}
    return subprocess.Popen([sys.executable, "-m", "tests.faults.rolling", str(folder)], env=env)


def _ended(folder: Path) -> Counter[str]:
    path = folder / "ended"
    return Counter(path.read_text().splitlines() if path.exists() else [])


def _cut_short(folder: Path, at: int, number: signal.Signals) -> int:
    """Send a signal once so many rollouts have ended; return how the process ended."""
    process = _start(folder, PAUSE)
    while len(_ended(folder)) < at:
        assert process.poll() is None, "it ended before"
        time.sleep(0.01)
    asked = time.monotonic()
    process.send_signal(number)
    code = process.wait(60)
    assert time.monotonic() - asked < 10
    return code


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert main(folder, threading.Event()) == 0
    assert _ended(folder).total() == ROLLOUTS
    return folder


def test_asked_to_stop_it_repeats_nothing_and_killed_at_99_percent_what_was_in_flight(
    tmp_path: Path, whole: Path
) -> None:
    assert _cut_short(tmp_path, BATCH + 20, signal.SIGTERM) == 4
    before = _ended(tmp_path)
    assert _cut_short(tmp_path, round(0.99 * ROLLOUTS), signal.SIGKILL) == -signal.SIGKILL
    assert _start(tmp_path, 0).wait(60) == 0
    ended = _ended(tmp_path)
    assert {ended[name] for name in before} == {1}
    assert ended.total() - ROLLOUTS <= ROLLOUTS % BATCH
    assert result(tmp_path, logprobs=False) == result(whole, logprobs=False)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_cut_short_again_and_again(number: signal.Signals, tmp_path: Path, whole: Path) -> None:
    moments = (100, BATCH + 20, 2 * BATCH + 100, 790)
    codes: list[Any] = [_cut_short(tmp_path, at, number) for at in moments]
    assert set(codes) == {4 if number == signal.SIGTERM else -signal.SIGKILL}
    assert _start(tmp_path, 0).wait(60) == 0
    again = _ended(tmp_path).total() - ROLLOUTS
    assert again <= (0 if number == signal.SIGTERM else BATCH * len(moments))
    assert result(tmp_path, logprobs=False) == result(whole, logprobs=False)
    if number == signal.SIGKILL:
        assert result(tmp_path) == result(whole)
