"""Carrying out plans: reuse, order, conditions, gates, stopping, exit codes. Nodes are the bodies of the fault tests."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import flows.execute
from flows.child import Assignment
from flows.ends import Event, ranks
from flows.execute import Executor, Settings
from flows.launch import LocalLauncher
from flows.leases import Lease
from flows.nodes import Plan
from flows.state import State
from specs.errors import BusyError, Interrupted, StateError
from tests.faults.bodies import entry_for
from tests.faults.plans import node, plan_of, reference
from tests.faults.running import here, run_with_fault


class _NoLauncher:
    """Fails the test if a heavy node is launched."""

    def prepare(self, heavy_left: int) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def run(self, work: Assignment, started: object, progress: object) -> list[str]:
        raise AssertionError(f"{work.node} was launched")


def _executor(plan: Plan, home: Path, **settings: object) -> Executor:
    state = State(home)
    state.prepare()
    return Executor(plan, state, LocalLauncher(), replace(Settings(entry_for=entry_for), **settings))


def _statuses(executor: Executor) -> dict[str, str]:
    return {n: e.status for n, e in executor.ends.items()}


def _light(gate: str = "pass", go: bool = True) -> Plan:  # noqa: FBT001
    """A plan without processes: a decision, a conditional node, a gate, what depends on it."""
    return plan_of(
        [
            node("policy", "data.problems"),
            node("choose1", "choose", {"preflight": "policy"}, {"go": go}),
            node(
                "first", "data.apart", {"policy": "policy", "condition": "choose1"},
                when={"node": "choose1", "go": False}, passthrough="policy",
            ),
            node("choose2", "choose", {"preflight": "first", "condition": "choose1"}, {"go": True},
                 when={"node": "choose1", "go": False}),
            node("again", "data.apart", {"policy": "first", "condition": "choose2"},
                 when={"node": "choose2", "go": False}, passthrough="policy"),
            node("gate.ship", "gate", {"eval": "again"}, {"answer": gate}),
            node("promote.ship", "promote", {"gate": "gate.ship", "policy.last": "again"}),
            node("report", "report", {"gate": "gate.ship"}),
        ]
    )  # fmt: skip


def test_everything_is_reused_the_second_time_and_nothing_is_launched(tmp_path: Path):
    first = here(tmp_path)
    assert {e.status for e in first.ends.values()} == {"completed"}
    state = State(tmp_path)
    again = Executor(reference(), state, _NoLauncher(), Settings(entry_for=entry_for))
    again.walk()
    assert again.finished
    assert {e.status for e in again.ends.values()} == {"reused"}
    assert again.run_all() == 0


def test_a_change_runs_what_depends_on_it_and_stops_where_the_output_is_the_same(tmp_path: Path):
    here(tmp_path)
    changed = here(tmp_path, reference(gate={"answer": "pass", "looks": 2}))
    ran = [n for n, e in changed.ends.items() if e.status == "completed"]
    assert ran == ["gate.ship"]  # its output is byte for byte the old one


def test_a_false_condition_skips_and_hands_its_input_through(tmp_path: Path):
    executor = _executor(_light(go=True), tmp_path)
    assert executor.run_all() == 0
    ends = executor.ends
    assert _statuses(executor) == {
        "policy": "completed", "choose1": "completed", "first": "skipped", "choose2": "skipped",
        "again": "skipped", "gate.ship": "completed", "promote.ship": "completed", "report": "completed",
    }  # fmt: skip
    assert ends["again"].digest == ends["policy"].digest
    assert ends["choose2"].digest == "nothing"
    assert ends["first"].reason == "choose1 decided go: true"
    assert ends["again"].reason == "choose2 was skipped"
    assert executor.state.out(str(ends["again"].run_key)) == executor.state.node(str(ends["policy"].run_key)) / "out"
    again = _executor(_light(go=True), tmp_path)
    again.walk()
    assert again.finished


def test_a_true_condition_runs(tmp_path: Path):
    executor = _executor(_light(go=False), tmp_path)
    assert executor.run_all() == 0
    assert _statuses(executor)["first"] == "completed"
    assert _statuses(executor)["again"] == "skipped"


@pytest.mark.parametrize(("answer", "status", "code"), [("fail", "gate_failed", 3), ("hold", "held", 7)])
def test_a_gate_that_does_not_pass_keeps_the_report_and_the_exit_code_also_when_repeated(
    answer: str, status: str, code: int, tmp_path: Path
):
    for _ in range(2):
        executor = _executor(_light(gate=answer), tmp_path)
        assert executor.run_all() == code
        found = _statuses(executor)
        assert found["gate.ship"] == status
        assert found["promote.ship"] == "skipped"
        assert found["report"] in ("completed", "reused")


def test_a_failure_blocks_what_needs_it_says_why_and_leaves_the_rest(tmp_path: Path):
    finish = here(tmp_path, reference(train={"fail": True}))
    assert finish.exit_code == 5
    ends = finish.ends
    assert ends["teach"].status == "failed"
    assert ends["teach"].reason == "teach: the loss is not finite at step 3; lower optimizer.learning_rate"
    assert ends["data.golden"].status == "completed"
    assert ends["report"].status == "blocked"
    assert State(tmp_path).failure(str(ends["teach"].run_key))["error"] == "TrainingError"  # type: ignore[index]


def test_an_unforeseen_error_is_told_without_a_traceback_and_kept_with_one(tmp_path: Path):
    finish = here(tmp_path, reference(train={"break": True}))
    end = finish.ends["teach"]
    assert end.reason.startswith("KeyError: 'weights'; this was not foreseen, the details are in ")
    log = State(tmp_path).node(str(end.run_key)) / "log"
    assert "Traceback" in log.read_text()
    assert here(tmp_path, reference(train={"break": True})).exit_code == 5  # tried again, failed again


def test_until_stops_there_and_only_refuses_what_is_not_ready(tmp_path: Path):
    with pytest.raises(StateError, match=r"node gate\.ship: needs eval\.teach\.golden, which is not done"):
        here(tmp_path, only="gate.ship")
    until = here(tmp_path, until="data.apart")
    assert list(until.ends) == ["data.train", "data.golden", "data.apart"]
    assert here(tmp_path, only="policy.init").ends["policy.init"].status == "completed"


def test_from_does_a_node_and_all_after_it_again(tmp_path: Path):
    here(tmp_path)
    again = here(tmp_path, start="gate.ship")
    assert [n for n, e in again.ends.items() if e.status == "completed"] == ["gate.ship", "promote.ship", "report"]


@pytest.mark.parametrize("start", ["teach", "policy.init"])
def test_from_does_not_go_on_from_a_checkpoint(tmp_path: Path, start: str):
    home = tmp_path / "home"
    run_with_fault(home, "checkpoint:4:kill_run")
    (kept,) = home.glob("nodes/*/ckpt/step-015")
    for state in home.glob("nodes/*/ckpt/*/state.json"):
        state.write_text(json.dumps({**json.loads(state.read_text()), "state": "of another attempt"}))
    again = here(home, start=start).ends["teach"]
    assert again.run_key == kept.parents[1].name
    (aside,) = kept.parents[1].glob("replaced-*/ckpt")
    assert (aside / "step-015").is_dir()
    assert (aside / "rollouts.jsonl").is_file()
    fresh = here(tmp_path / "fresh").ends["teach"]
    assert again.digest == fresh.digest, "no step of the first attempt is in it"


def test_from_leaves_a_node_that_another_program_carries_out_alone(tmp_path: Path):
    done = here(tmp_path).ends["gate.ship"]
    assert done.run_key is not None
    lease = Lease(tmp_path / "nodes" / done.run_key / "lease")
    assert lease.try_acquire(program="other")
    with pytest.raises(BusyError, match=r"--from: node gate\.ship is carried out for other at this moment"):
        here(tmp_path, start="gate.ship")
    lease.release()
    assert State(tmp_path).receipt(done.run_key) is not None


def test_what_most_nodes_wait_for_is_most_urgent():
    plan = _light()
    rank = ranks(plan)
    assert all(rank[n.id] < rank[i] for n in plan for i in n.inputs.values())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_listener_that_raises_does_not_keep_the_run_from_ending(tmp_path: Path):
    def listen(event: Event) -> None:
        if event.what == "ended":
            raise BrokenPipeError("nobody listens")

    executor = _executor(_light(), tmp_path)
    executor.subscribe(listen)
    thread = threading.Thread(target=executor.run_all, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert executor.finished


def test_what_comes_after_an_interrupted_node_is_not_reached(tmp_path: Path):
    class Interrupting(_NoLauncher):
        def run(self, work: Assignment, started: object, progress: object) -> list[str]:
            raise Interrupted("its process was asked to stop by hand")

    nodes = [node("policy", "data.problems"), node("rl", "train.policy_gradient", {"policy": "policy"})]
    plan = plan_of([*nodes, node("eval", "evaluate", {"policy": "rl"}), node("report", "report", {"eval": "eval"})])
    state = State(tmp_path)
    state.prepare()
    executor = Executor(plan, state, Interrupting(), Settings(entry_for=entry_for))
    assert executor.run_all() == 4
    assert [e.status for e in executor.ends.values()] == ["completed", *["interrupted"] * 3]
    assert executor.ends["eval"].reason == "not reached: rl was interrupted"


def test_a_node_that_never_looks_at_the_flag_is_ended_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows.execute, "STOP_SECONDS", 0.4)
    plan = plan_of([node("policy", "data.problems"), node("stuck", "train.policy_gradient", {"policy": "policy"})])
    executor = _executor(plan, tmp_path)
    running = threading.Event()
    executor.subscribe(lambda e: running.set() if e.node == "stuck" and e.what == "started" else None)
    executor.prestart()
    assert running.wait(5)
    time.sleep(0.4)
    began = time.monotonic()
    executor.stop("stopped by a test")
    assert executor.run_all() == 4
    assert executor.ends["stuck"].status == "interrupted"
    assert time.monotonic() - began < 3


def test_two_programs_that_share_a_node_do_it_once(tmp_path: Path):
    plans = [plan_of([node("data", "data.problems"), node("p", "policy.init", {"d": "data"})], name) for name in "ab"]
    executors = [_executor(p, tmp_path) for p in plans]
    ran: list[str] = []
    for executor in executors:
        executor.subscribe(lambda e: ran.append(e.node) if e.what == "started" else None)
    threads = [threading.Thread(target=e.run_all) for e in executors]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert sorted(ran) == ["data", "p"]
    assert all(e.exit_code() == 0 for e in executors)


def test_listeners_hear_of_progress(tmp_path: Path):
    heard: list[Event] = []
    executor = _executor(reference(), tmp_path)
    executor.subscribe(heard.append)
    assert executor.run_all() == 0
    progress = next(e for e in heard if e.what == "progress")
    assert (progress.node, progress.figures["steps"]) == ("teach", 30)
    assert [e.node for e in heard if e.what == "ended"][-1] in ("report", "promote.ship")
