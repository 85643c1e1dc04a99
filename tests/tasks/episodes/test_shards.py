"""Trajectories on disk: exact, deterministic, strict."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specs.errors import DataError, StateError
from specs.records import Trajectory, Verdict, to_dict, trajectory_from
from tasks.episodes import shards
from tasks.episodes.driver import run_episodes
from tasks.episodes.shards import read_shards, read_summary, write_latency, write_shards
from tests.tasks.episodes.counter_world import AGENT, CounterEnvironment, ScriptedSampler, counter_policy, problem

POLICY = counter_policy()


def trajectories() -> list[Trajectory]:
    texts: list[str | None] = ['{"tool":"add","n":2,"note":"ü🎯"}', "{", '{"tool":"finish","answer":"2"}']
    found = run_episodes(
        ScriptedSampler(POLICY.template, texts),
        AGENT,
        POLICY.template,
        {"counter": CounterEnvironment()},
        [problem(i) for i in range(5)],
        seed=2**62,
    )
    found[0].verdicts = [Verdict("v", "1", 1.0, passed=True, evidence={"a": [1]})]
    found[0].success, found[0].reward, found[0].reward_parts = True, 1.25, {"task": 1.0}
    found[1].verdicts = [Verdict("v", "1", None, None, invalid="no")]
    found[2].error, found[2].tags = "x", ["a", "b"]
    return found


def without_clock(found) -> list[Trajectory]:
    return [replace(t, latency={}) for t in found]


def test_round_trip_over_several_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_PART_ROWS", 2)
    made = trajectories()
    assert write_shards(tmp_path, iter(made)) == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "part-00000.parquet", "part-00001.parquet", "part-00002.parquet", "summary.parquet"
    ]  # fmt: skip
    assert list(read_shards(tmp_path)) == without_clock(made)
    summary = read_summary(tmp_path)
    assert [(r["id"], r["success"], r["reward"], r["turns"], r["tool_errors"]) for r in summary[:2]] == [
        ("p0#0", True, 1.25, 3, 1),
        ("p1#0", None, None, 3, 1),
    ]
    assert summary[2]["tags"] == ["a", "b"]
    assert summary[0]["policy_tokens"] == made[0].policy_tokens
    (tmp_path / "part-00001.parquet").unlink()
    with pytest.raises(StateError, match=r"part-00001\.parquet is missing"):
        list(read_shards(tmp_path))


def test_the_same_trajectories_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_shards(tmp_path / name, trajectories())
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_none_at_all(tmp_path):
    assert write_shards(tmp_path, []) == 0
    assert (list(read_shards(tmp_path)), read_summary(tmp_path)) == ([], [])


def test_damage_and_foreign_files_are_named(tmp_path):
    write_shards(tmp_path, trajectories())
    part = tmp_path / "part-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StateError, match=r"part-00000\.parquet: missing or damaged"):
        list(read_shards(tmp_path))
    pq.write_table(pa.table({"id": ["x"]}), part)
    with pytest.raises(StateError, match="other columns"):
        list(read_shards(tmp_path))
    rows = pq.read_table(_file(tmp_path / "whole", whole)).to_pylist()
    rows[0]["turns"] = '[{"start": 1}]'
    pq.write_table(pa.Table.from_pylist(rows, schema=shards.SCHEMA), part)
    with pytest.raises(StateError, match="'p0#0' is damaged"):
        list(read_shards(tmp_path))
    part.unlink()
    with pytest.raises(StateError, match="holds 0 trajectories"):
        list(read_shards(tmp_path))
    with pytest.raises(StateError, match=r"summary\.parquet: missing"):
        read_summary(tmp_path / "nothing")


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_unequal_lengths_and_what_json_cannot_hold_are_refused(tmp_path):
    found = trajectories()
    found[0].logprobs.pop()
    with pytest.raises(DataError, match="expected equally many"):
        write_shards(tmp_path, found)
    found = trajectories()
    found[1].final_state = {"x": float("nan")}
    with pytest.raises(DataError, match="p1#0: holds what JSON cannot"):
        write_shards(tmp_path, found)
    for place in ("final_state", "answer", "error", "tags"):
        found = trajectories()
        bad = {"final_state": {"x": "\ud800"}, "tags": ["\ud800"]}.get(place, "\ud800")
        setattr(found[1], place, bad)
        with pytest.raises(DataError, match=r"p1#0: holds what JSON cannot .*surrogates not allowed"):
            write_shards(tmp_path, found)


def test_json_and_timings(tmp_path):
    made = trajectories()
    assert [trajectory_from(json.loads(json.dumps(to_dict(t)))) for t in made] == made
    write_latency(tmp_path / "notes" / "latency.jsonl", made)
    first = json.loads((tmp_path / "notes" / "latency.jsonl").read_text().splitlines()[0])
    assert set(first) == {"id", "model", "tool", "environment"}
