"""A whole program with a closed teacher, by command line: budget, resumption, and no trace of the key."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.access import need_secrets
from flows.compile import compile as compile_program
from flows.resolve import resolve
from flows.spending import cap_warnings
from flows.state import State
from specs.errors import ProgramError
from specs.loader import load_program
from tests.contracts.sources import ROOT
from tests.tasks.teachers.closed_clerk import serve

KEY = "sk-canary-0123456789"
PROGRAM = """\
program: tiny
policy:
  init: {kind: scratch, hidden_size: 64, layers: 1, intermediate_size: 96, max_length: 160, tokenizer: {kind: bpe, vocab_size: 600}}
environments:
  desk: {kind: order_desk, types: [stock, mail], max_turns: 4}
data:
  demos: {kind: demonstrations, environment: desk, size: 400}
  train: {kind: problems, environment: desk, size: 20}
  golden: {kind: problems, environment: desk, split: golden, size: 10, role: golden}
teachers:
  closed:
    kind: openai
    model: some-model
    base_url: "${env:TEACHER_URL}"
    api_key: "${env:TEACHER_KEY}"
    gives: [score]
    price: {input: 3.0, output: 15.0}
    cap_calls: 1000
verifiers:
  state: {kind: environment_state}
stages:
  - {id: teach, algorithm: {type: sft, epochs: 4, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 5e-3}}, data: [demos]}
  - {id: learn, algorithm: {type: from_teacher, signal: score, samples: 3, at_least: 0}, data: [train]}
evaluation: {sets: [golden]}
"""


def written(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def test_calls_and_dollars_are_estimated_and_the_address_is_no_part_of_a_key(tmp_path: Path) -> None:
    path = written(tmp_path)
    plans = []
    for change in (
        [],
        ["teachers.closed.base_url=http://elsewhere/v1", "teachers.closed.limits.in_flight=2"],
        ["teachers.closed.model=other"],
    ):
        loaded = load_program(path, change)
        plans.append(compile_program(loaded.program, resolve(loaded, environ={})))
    asked = [p.node("learn.teach1") for p in plans]
    assert asked[0].estimate.teacher_calls == 60
    assert asked[0].estimate.teacher_usd == pytest.approx(60 * (850 * 3 + 60 * 15) / 1e6)
    assert asked[0].plan_key == asked[1].plan_key != asked[2].plan_key
    assert "TEACHER_KEY" not in plans[0].resolution["env"]
    assert cap_warnings(plans[0], plans[0].nodes) == []
    loaded = load_program(
        path, ["teachers.closed.cap_calls=50", "teachers.closed.cap_usd=0.1", "budget.teacher_usd=0.01"]
    )
    low = compile_program(loaded.program, resolve(loaded, environ={}))
    told = cap_warnings(low, low.nodes)
    assert [t.partition(" is ")[0] for t in told] == [
        "teachers.closed.cap_calls",
        "teachers.closed.cap_usd",
        "budget.teacher_usd",
    ]


def test_a_paid_teacher_of_any_rule_is_in_the_estimate(tmp_path: Path) -> None:
    free = "  clerk: {kind: scripted, environment: desk, gives: [score]}\nverifiers:"
    rules = "routing:\n  - {when: problem.type == 'mail', teachers: {closed: 1.0}}\n  - {teachers: {clerk: 1.0}}\n"
    path = tmp_path / "tiny.yaml"
    path.write_text(PROGRAM.replace("verifiers:", free).replace("stages:", f"{rules}stages:"), encoding="utf-8")
    loaded = load_program(path, ["teachers.closed.cap_calls=50"])
    plan = compile_program(loaded.program, resolve(loaded, environ={}))
    assert plan.node("learn.teach1").estimate.teacher_calls == 60  # the worst case: all of them are of that type
    (told,) = cap_warnings(plan, plan.nodes)
    assert told.startswith("teachers.closed.cap_calls is 50, the plan expects up to 60 calls")


def test_a_missing_key_is_named_before_anything_runs(tmp_path: Path) -> None:
    loaded = load_program(written(tmp_path))
    plan = compile_program(loaded.program, resolve(loaded, environ={}))
    with pytest.raises(
        ProgramError, match=r"teachers\.closed\.api_key: the environment variable TEACHER_KEY is not set"
    ):
        need_secrets(plan.nodes, {"TEACHER_URL": "http://x"})
    need_secrets(plan.nodes, {"TEACHER_URL": "http://x", "TEACHER_KEY": KEY})


@pytest.mark.slow
def test_a_budget_stops_the_run_and_raising_it_goes_on(tmp_path: Path) -> None:
    path, home = written(tmp_path), tmp_path / "home"
    home.mkdir()
    server = serve(path, home)

    def run(*more: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "flows.cli", "run", str(path), "--no-services", *more]
        environ = {**os.environ, "TUTELAGE_HOME": str(home), "TEACHER_URL": server.url, "TEACHER_KEY": KEY}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr

    code, first = run("--set", "teachers.closed.cap_calls=20")
    assert code == 8, first
    assert "budget_exhausted" in first
    assert len(server.seen.bodies) == 20
    code, second = run()
    assert code == 0, second
    assert set(server.seen.keys.values()) == {1}, "nothing is paid for twice"
    assert all("logprobs" not in b for b in server.seen.bodies)
    record = State(home).last("tiny")
    assert record is not None
    receipt = State(home).receipt(record.nodes["learn.teach1"]["run_key"])
    assert receipt is not None
    assert receipt.cost["teacher_calls"] == len(server.seen.bodies) > 20, "both attempts paid for this result"
    code, third = run()
    assert code == 0
    assert "learn.teach1       reused" in third
    server.shutdown()
    secrets = [KEY.encode(), base64.b64encode(KEY.encode())]
    for found in (p for p in home.rglob("*") if p.is_file()):
        assert not any(s in found.read_bytes() for s in secrets), found
    assert KEY not in first + second + third
