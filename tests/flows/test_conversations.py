"""`inspect` and `try` on real shards and a real (untrained) policy."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands import inspect_trajectories, try_problem
from flows.conversation import conversation
from specs.errors import ProgramError, StateError
from specs.records import Trajectory, Verdict
from tasks.episodes.driver import run_episodes
from tasks.episodes.shards import write_shards
from tasks.policy.store import save_policy
from tests.flows.test_evaluate import PROGRAM
from tests.tasks.episodes.counter_world import AGENT, CounterEnvironment, ScriptedSampler, counter_policy, problem

POLICY = counter_policy(max_length=200)


def parsed(module: Any, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.configure(parser, "x")
    return parser.parse_args(list(words))


def trajectories() -> list[Trajectory]:
    sampler = ScriptedSampler(POLICY.template, ['{"tool":"add","n":"x"}', '{"tool":"finish","answer":"2"}'])
    found = run_episodes(
        sampler, AGENT, POLICY.template, {"counter": CounterEnvironment()}, [problem(i) for i in range(4)]
    )
    for i, t in enumerate(found):
        t.success, t.reward = i == 2, i / 4
        t.verdicts = [Verdict("state", "1", float(i == 2), i == 2, {"differs": ["count"]})]
        t.reward_parts = {"task": i / 4}
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUTELAGE_HOME", str(tmp_path / "home"))
    write_shards(tmp_path / "out" / "trajectories", trajectories())
    write_shards(tmp_path / "out" / "greedy", trajectories()[:1])
    save_policy(POLICY, tmp_path / "out" / "policy")
    return tmp_path / "out"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert inspect_trajectories.run(parsed(inspect_trajectories, *words)) == 0
    return capsys.readouterr().out


def test_a_list_and_a_choice(folder, capsys):
    listed = shown(capsys, str(folder))
    assert "5 trajectories, 1 successes" in listed
    assert listed.count("finished") == 5
    assert "3 shown" in shown(capsys, str(folder), "--limit", "3")
    best = shown(capsys, str(folder), "--best", "--part", "trajectories")
    assert best.startswith("p3#0 · count · finished · failure · reward +0.750")
    assert "3 more fit" in best
    worst = json.loads(shown(capsys, str(folder), "--worst", "--json"))
    assert (worst[0]["id"], worst[0]["part"]) == ("p0#0", "greedy")
    failed = shown(capsys, str(folder), "--failed", "--limit", "9", "--part", "trajectories")
    assert [line.split()[0] for line in failed.splitlines() if " · " in line] == ["p0#0", "p1#0", "p3#0"]


def test_a_conversation_shows_who_said_what(folder, capsys):
    text = shown(capsys, str(folder), "p2", "--part", "trajectories")
    for expected in (
        "user       Count to 2, please.",
        'policy     {"tool":"add","n":"x"}',
        "the call was not made: wrong_type",
        'tool       {"error": "wrong_type"}   [error]',
        'verdict    state: passed 1.0   {"differs": ["count"]}',
        "reward     task +0.500",
        "sampled by script",
    ):
        assert expected in text
    assert "name the policy with --policy" in conversation(trajectories()[0])
    odd = trajectories()[0]
    odd.turns[0].text = "\x1b[31mred\x07"
    assert "\x1b" not in conversation(odd, POLICY.tokenizer)


def test_what_is_not_there_is_said(folder, capsys):
    with pytest.raises(StateError, match="has no part 'x'; it has greedy, trajectories"):
        shown(capsys, str(folder), "--part", "x")
    with pytest.raises(StateError, match="no trajectory fits"):
        shown(capsys, str(folder), "zzz")
    with pytest.raises(StateError, match="holds no trajectories"):
        shown(capsys, str(folder / "policy"))
    with pytest.raises(ProgramError, match="expected a folder or RUN:NODE"):
        shown(capsys, "nothing")
    with pytest.raises(StateError, match="no run is called"):
        shown(capsys, "nothing:eval.x")


def test_try_runs_one_episode(folder, tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(PROGRAM, encoding="utf-8")
    words = (str(tmp_path / "tiny.yaml"), "--policy", str(folder / "policy"), "--seed", "4")
    assert try_problem.run(parsed(try_problem, *words, "--type", "stock", "--temperature", "1")) == 0
    text = capsys.readouterr().out
    assert "· stock" in text.splitlines()[0]
    assert "user " in text
    assert "policy " in text
    assert "state: failed" in text
    assert text.splitlines()[-1].endswith("reward +0.000")
    assert try_problem.run(parsed(try_problem, *words, "--json")) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sampling"]["temperature"] == 0.0
    policy = "policy:\n  sampler_precision: auto\n"
    (tmp_path / "auto.yaml").write_text(PROGRAM.replace("policy:\n", policy), encoding="utf-8")
    assert try_problem.run(parsed(try_problem, str(tmp_path / "auto.yaml"), *words[1:], "--json")) == 0
    assert json.loads(capsys.readouterr().out)["problem_id"] == record["problem_id"]
    with pytest.raises(ProgramError, match="--type: found 'x', expected one of"):
        try_problem.run(parsed(try_problem, *words, "--type", "x"))
    with pytest.raises(ProgramError, match="--environment"):
        try_problem.run(parsed(try_problem, *words, "--environment", "x"))
