"""What MLflow and DVC are told of an execution: everything once, whatever is killed, locked or sent again."""

import json
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from flows import datasets, recorder, registry, services
from flows.cli import main
from flows.nodes import Plan
from flows.state import State
from flows.tracking import flatten, points_of, safe_name, short
from specs.redaction import Redactor, looks_secret, without_secrets
from tests.flows.toy_program import plan, run


def recorded(home: Path, what: Plan, *, end: bool = True) -> str:
    """Run a plan, tell the recorder, and return the execution."""
    finish = run(home, what, services=False)
    state, record = State(home), finish.record
    events = recorder.Events(state, record.execution)
    events.start(what, record)
    if end:
        events.end(finish.exit_code)
    return record.execution


def rows(home: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{home}/mlflow/mlflow.db?mode=ro", uri=True) as db:
        return db.execute(query, values).fetchall()


def everything(home: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what the store holds, without ids."""
    return {
        "runs": rows(home, "select name, status, start_time, end_time from runs order by name"),
        "metrics": rows(
            home,
            "select r.name, m.key, m.value, m.step, m.timestamp, m.is_nan from metrics m"
            " join runs r on r.run_uuid = m.run_uuid order by 1, 2, 4",
        ),
        "params": rows(
            home,
            "select r.name, p.key, p.value from params p join runs r on r.run_uuid = p.run_uuid order by 1, 2",
        ),
        "inputs": rows(home, "select name, digest, dataset_source_type from datasets order by 1"),
        "models": rows(home, "select name, status from logged_models order by 1"),
        "versions": rows(home, "select name, version from model_versions order by 2"),
        "aliases": rows(home, "select name, alias, version from registered_model_aliases order by 2"),
    }


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose one execution is recorded wholly; its MLflow store is the template of the others."""
    home = tmp_path_factory.mktemp("sent") / ".tutelage"
    execution = recorded(home, plan())
    recorder.start(home)
    said = recorder.drain(home, execution, 60)
    assert len(said) == 1, said
    assert "no git repository" in said[0]
    return home


def copy_store(sent: Path, home: Path) -> None:
    """Give a home an empty store with its tables made, which takes seconds."""
    (home / "mlflow").mkdir(parents=True)
    with sqlite3.connect(f"file:{sent}/mlflow/mlflow.db?mode=ro", uri=True) as source:
        source.backup(target := sqlite3.connect(home / "mlflow" / "mlflow.db"))
        target.close()


@pytest.mark.services
def test_an_execution_is_a_run_with_a_child_for_every_node(sent: Path) -> None:
    found = everything(sent)
    names = [r[0] for r in found["runs"]]
    nodes = ["data.hidden", "data.train", "eval.init.hidden", "eval.teach.hidden", "gate.ship", "policy.init"]
    assert sorted(names[1:]) == sorted([*nodes, "promote.ship", "report", "teach"])
    assert {r[1] for r in found["runs"]} == {"FINISHED"}
    parent = {m[1]: m[2] for m in found["metrics"] if m[0] == names[0]}
    assert parent["success.hidden"] == 0.9
    assert parent["success_low.hidden"] == pytest.approx(0.85)
    assert (parent["gate.ship"], parent["cost.rollouts"], parent["cost.steps"]) == (1.0, 20.0, 5.0)
    curve = [(m[3], m[2]) for m in found["metrics"] if m[1] == "by_stage.success.hidden"]
    assert curve == [(0, 0.1), (1, 0.9)]
    loss = [(m[3], m[2]) for m in found["metrics"] if m[0] == "teach" and m[1] == "loss"]
    assert loss == [(i, pytest.approx(1 / i)) for i in range(1, 6)]
    infinite = [(m[3], m[2]) for m in found["metrics"] if m[1] == "gap.not_finite"]
    assert infinite == [(2, 1.0), (4, 2.0)]
    assert all(abs(m[2]) < 1e300 for m in found["metrics"])
    params = {p[1]: p[2] for p in found["params"] if p[0] == "teach"}
    assert len(params) == 100
    assert params["algorithm.template"].startswith("sha256:")
    assert params["algorithm.optimizer.learning_rate"] == "0.001"


@pytest.mark.services
def test_models_data_and_aliases_are_linked(sent: Path) -> None:
    found = everything(sent)
    assert found["models"] == [("init", 2), ("teach", 2)]
    assert found["versions"] == [("toy", 1)]
    assert found["aliases"] == [("toy", "champion", 1)]
    md5s = {v.name: v.md5 for v in datasets.latest(sent)}
    assert set(md5s) == {
        "toy/train",
        "toy/hidden",
        "toy/eval.init.hidden.trajectories",
        "toy/eval.teach.hidden.trajectories",
    }
    read = {"toy/hidden", "toy/train", "toy/eval.teach.hidden.trajectories"}  # the last one by the gate
    assert {(name, md5, "dvc") for name, md5 in md5s.items() if name in read} == set(found["inputs"])
    champion = registry.champion(sent, "toy")
    assert champion is not None
    tags = rows(sent, "select value from model_version_tags where key = 'tutelage.digest'")
    assert tags == [(champion.digest,)]
    artifacts = {p.name for p in (sent / "mlflow" / "artifacts").rglob("*") if p.is_file()}
    assert {"toy.yaml", "plan.json", "plan.md", "gate.json", "report.html", "params.json"} <= artifacts


@pytest.mark.services
def test_sending_everything_again_changes_nothing(sent: Path, tmp_path: Path) -> None:
    home = tmp_path / ".tutelage"
    shutil.copytree(sent, home, symlinks=True)
    before = everything(home)
    (home / "recorder" / "sent.jsonl").write_text('{"execution": "torn')
    recorder.sync(home, seconds=30)
    after = everything(home)
    for what, found in before.items():
        assert after[what] == found, what


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what `sync` sets for this process out of other tests."""
    for name in (*services.quiet_environment(Path()), *recorder.SETTINGS):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.mark.services
def test_a_locked_store_delays_nothing_and_gets_everything_later(sent: Path, tmp_path: Path) -> None:
    home = tmp_path / ".tutelage"
    copy_store(sent, home)
    held = sqlite3.connect(home / "mlflow" / "mlflow.db", isolation_level=None)
    held.execute("begin exclusive")
    execution = recorded(home, plan())
    recorder.start(home)
    before = time.monotonic()
    said = recorder.drain(home, execution, 1.5)
    assert time.monotonic() - before < 3.0
    assert "not sent yet to MLflow and DVC" in said[0]
    assert "tutelage data sync" in said[0]
    held.execute("rollback")
    held.close()
    assert len(recorder.drain(home, execution, 60)) == 1  # that there is no git repository
    points = rows(
        home,
        "select count(*) from metrics m join runs r on r.run_uuid = m.run_uuid where r.name = 'teach' and m.key = 'loss'"
        " and r.run_uuid in (select run_uuid from tags where key = 'tutelage.execution' and value = ?)",
        execution,
    )
    assert points == [(5,)]


@pytest.mark.services
def test_an_absent_store_is_named_and_the_run_is_sent_by_hand_later(
    sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ".tutelage"
    copy_store(sent, home)
    execution = recorded(home, plan())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    status = recorder.sync(home, seconds=0)
    assert status[execution]["done"] is False
    assert "MLflow at http://127.0.0.1:9" in status[execution]["errors"][0]
    assert "secret" not in json.dumps(status)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert recorder.sync(home, seconds=30)[execution]["done"] is True


@pytest.mark.services
def test_a_killed_driver_leaves_no_run_running(sent: Path, tmp_path: Path) -> None:
    home = tmp_path / ".tutelage"
    copy_store(sent, home)
    execution = recorded(home, plan(), end=False)
    state = State(home)
    record = state.last("toy")
    assert record is not None
    record.driver["start"] = "1"  # that process is gone
    record.ended = record.exit_code = None
    state.save_record(record)
    state.ledger("toy", execution).append([{"node": "teach", "at": record.started, "status": "running", "reason": ""}])
    lines = (state.program("toy") / "executions" / f"{execution}.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["node"] != "teach" or json.loads(line)["status"] == "running"]
    (state.program("toy") / "executions" / f"{execution}.jsonl").write_text("".join(f"{k}\n" for k in kept))
    path = state.program("toy") / "executions" / f"{execution}.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "nodes": {k: v for k, v in data["nodes"].items() if k != "teach"}}))
    status = recorder.sync(home, seconds=30)[execution]
    assert status["done"], status
    query = "select name, status from runs r join tags t on t.run_uuid = r.run_uuid where t.key = 'tutelage.execution'"
    found = dict(rows(home, f"{query} and t.value = ?", execution))
    assert (found[execution], found["teach"], found["report"]) == ("KILLED", "KILLED", "FINISHED")


def began_badly(home: Path, left: str, *, alive: bool) -> str:
    """Run a plan whose recorder was told nothing but `left` of how it began; return the execution."""
    execution = recorded(home, plan(), end=False)
    (home / "executions" / f"{execution}.jsonl").write_text(left)
    state = State(home)
    record = state.last("toy")
    assert record is not None
    if not alive:
        record.driver["start"] = "1"  # that process is gone
    state.save_record(record)
    return execution


@pytest.mark.services
@pytest.mark.parametrize("left", ["", '{"event": "start", "progr'])
def test_an_execution_whose_beginning_was_not_noted_is_sent_from_its_record(
    sent: Path, tmp_path: Path, left: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / ".tutelage"
    copy_store(sent, home)
    execution = began_badly(home, left, alive=False)
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    assert main(["data", "sync"]) == 0
    said = capsys.readouterr().out
    assert f"{execution}: sent" in said
    assert "how it began was not noted, so it is sent without the text of its program" in said
    found = dict(rows(home, "select name, status from runs"))
    assert (found[execution], found["teach"]) == ("KILLED", "FINISHED")


def test_an_execution_without_a_beginning_waits_for_its_driver_and_not_for_one_that_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / ".tutelage"
    execution = began_badly(home, "", alive=True)
    (home / "recorder").mkdir()
    follower = recorder.Recorder(home)
    assert follower.step(), "its driver lives and may still say how it began"
    assert follower.pending() == [execution]
    (home / "programs" / "toy" / "executions" / f"{execution}.json").unlink()
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    assert main(["data", "sync"]) == 0
    assert "its record or plan is gone, so it cannot be sent" in capsys.readouterr().out
    assert recorder.Recorder(home).pending() == []


def test_the_same_spool_gives_the_same_points_whenever_it_is_read() -> None:
    lines = [
        '{"step": 1, "seconds": 0.5, "values": {"loss": 1.0, "gap": null}, "not_finite": ["gap"]}',
        '{"step": 2, "seconds": 1.5, "values": {"loss": 0.5}}',
        '{"step": 3, "seconds": 0.25, "values": {"loss": 0.25}}',  # a resumed attempt
        '{"step": 4, "seco',
    ]
    points = points_of(lines, 1000)
    assert points == points_of(lines, 1000)
    assert [(p[0], p[2], p[3]) for p in points] == [
        ("loss", 1500, 1),
        ("gap.not_finite", 1500, 1),
        ("loss", 2500, 2),
        ("loss", 2750, 3),
    ]


def test_params_are_flat_short_and_named_reversibly() -> None:
    flat = flatten({"a": {"b": [1, 2]}, "c": [{"d": 1}], "e": "x" * 9000})
    assert {k: v for k, v in flat.items() if k != "e"} == {"a.b": [1, 2], "c.0.d": 1}
    assert short(flat["e"]).endswith("(9000 characters, whole in params.json)")
    assert short([1, 2]) == "[1, 2]"
    assert safe_name("a.b/c-d") == "a.b/c-d"
    assert safe_name("lr=1:2") == "lr:3d1:3a2"
    for password in ("key", "ke/y", "k@e/y", "12a/b", "123", ":"):
        text = f"no MLflow at http://me:{password}@host/x"
        assert without_secrets(text) == "no MLflow at http://host/x"
        assert looks_secret(text)
        assert Redactor().clean(text) == "no MLflow at http(not shown)host/x"
    assert without_secrets("http://me@host/x") == "http://host/x"
    for text in ("redis://:ke@y@host/0", "redis://me@home:ke/y@host/0"):
        assert without_secrets(text) == "redis://host/0"
        assert Redactor().clean(text) == "redis(not shown)host/0"
    for kept in (
        "http://host:80/a@b",
        "http://host/a@b",
        "http://[::1]:80/a@b",
        "http://host:80, a@b",
        "models:/name@champion",
        "http://h:1?a=b@c",
    ):
        assert without_secrets(kept) == kept
        assert not looks_secret(kept)
