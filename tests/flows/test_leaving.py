"""A run that is stopped while it only waits for services: it is complete, and its exit code says so."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.state import State
from tests.contracts.sources import ROOT

DRIVER = """
import sys, time
from pathlib import Path
from flows import orchestrate
from tests.flows.toy_program import plan, run

def slow(plan, executor, state, say=None):
    executor.prestart()
    while not executor.finished and not (say_early and executor.ends):
        time.sleep(0.01)
    print("waiting", flush=True)
    time.sleep(60)

say_early = sys.argv[3] == "early"
orchestrate.run_flow = slow
run(Path(sys.argv[1]), plan(sys.argv[2], **({"until": "/nowhere"} if say_early else {})), services=True)
"""


@pytest.mark.parametrize(
    ("answer", "when", "code", "said"),
    [
        ("pass", "late", 0, "services were not told everything"),
        ("fail", "late", 3, "services were not told everything"),
        ("pass", "early", 4, "go on with `tutelage resume`"),
    ],
)
def test_a_complete_run_that_is_ended_keeps_its_exit_code(
    tmp_path: Path, answer: str, when: str, code: int, said: str
) -> None:
    home = tmp_path / ".tutelage"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(home), answer, when],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert driver.stdout is not None
    assert driver.stdout.readline() == "waiting\n"
    for _ in range(2):  # the second one ends it at once
        driver.send_signal(signal.SIGINT)
        try:
            driver.wait(1)
        except subprocess.TimeoutExpired:
            continue
    _, errors = driver.communicate(timeout=20)
    assert driver.returncode == code, errors
    assert said in errors
    record = State(home).last("toy")
    assert record is not None
    assert (record.exit_code, record.state) == (code, "ended")
