"""A world that is a program: what it says is checked, and what goes wrong is nobody's reward."""

import sys
from pathlib import Path

import pytest

from specs.environments import ProcessEnvironment
from specs.errors import DataError, ProgramError, RolloutError
from specs.records import ToolCall
from specs.reward import Reward
from specs.verifiers import EnvironmentState
from tasks.episodes.driver import run_episodes
from tasks.episodes.environments import environment_for
from tasks.episodes.environments.contract import contract
from tasks.evidence.judge import judge
from tasks.evidence.verifiers import verifier_for
from tests.tasks.episodes.counter_world import AGENT, ScriptedSampler, counter_policy

LAMPS = Path(__file__).parents[2] / "examples" / "lamp_world.py"


def lamps(*more: str, script: Path = LAMPS, seconds: float = 20.0, **settings):
    spec = ProcessEnvironment(
        kind="process", command=[sys.executable, str(script), *more], timeout_seconds=seconds, max_turns=4,
        events=["needless"], **settings,
    )  # fmt: skip
    return environment_for("house", spec)


def test_the_example_keeps_the_contract():
    found = contract(lamps(), "flat")
    assert [f.check for f in found if not f.ok] == []
    assert len(found) == 8


def test_several_worlds_are_open_at_once_and_share_nothing():
    house = lamps()
    problems = house.problems("train", 3, 1)
    worlds = [house.open(p, 0) for p in problems]
    for world, problem in zip(worlds, problems, strict=True):
        lamp, on = problem.world["wanted"]
        assert world.call(ToolCall("set_lamp", {"lamp": lamp, "on": on}, "")).changed
    needless = worlds[0].call(
        ToolCall("set_lamp", {"lamp": problems[0].world["wanted"][0], "on": problems[0].world["wanted"][1]}, "")
    )
    assert needless.event == "needless"
    assert [w.final_state() for w in worlds] == [p.expected["state"] for p in problems]
    for world in worlds:
        world.close()


def test_what_it_refuses_is_told_in_its_words():
    house = lamps()
    with pytest.raises(DataError, match="there is no split 'test'; expected one of train"):
        house.problems("test", 1, 0)
    problem = house.problems("train", 1, 0)[0]
    problem.world = {"lamps": {"pink": True}}
    with pytest.raises(DataError, match="a lamp that is not sold here"):
        house.open(problem, 0)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("crash", "exit status 1); stderr: the fuse blew"),
        ("hang", "no answer within 4 s"),
        ("flood", "longer than limits.line_kb"),
        ("noise", "cannot be read"),
        ("nan", "NaN is not a number"),
        ("half", "a lone surrogate"),
        ("event", "the event 'boo' is not declared"),
        ("stale", "it answered"),
        ("shape", "an observation without `data`"),
    ],
)
def test_a_world_that_breaks_ends_its_episode_as_infrastructure_with_evidence(how, told):
    from specs.commands import Limits

    house = lamps("--broken", how, seconds=4.0 if how == "hang" else 20.0, limits=Limits(line_kb=64))
    problem = house.problems("train", 1, 1)[0]
    policy = counter_policy(max_length=128)
    call = '{"tool":"set_lamp","lamp":"red","on":true}'
    sampler = ScriptedSampler(policy.template, [call])
    sampler.max_length = 400
    found = run_episodes(sampler, AGENT, policy.template, {"house": house}, [problem])[0]
    assert (found.status, found.final_state) == ("infrastructure", None)
    assert told in (found.error or ""), found.error
    state = verifier_for("state", EnvironmentState(kind="environment_state"))
    judge(found, problem, {"state": state}, Reward(outcome={"state": 1.0}))
    assert (found.success, found.reward) == (None, None), "never a reward of 0"
    assert len(found.turns) == 3, "what happened before is kept"


def test_worlds_of_a_start_that_ended_are_lost_and_the_next_ones_open():
    house = lamps("--broken", "crash")
    one, other = house.problems("train", 2, 1)
    first, second = house.open(one, 0), house.open(other, 0)
    call = ToolCall("set_lamp", {"lamp": "red", "on": True}, "")
    first.call(call)
    first.call(call)
    with pytest.raises(RolloutError, match="the fuse blew"):
        first.call(call)
    with pytest.raises(RolloutError, match="what it held is lost, for asked to call it ended"):
        second.call(call)
    second.close()
    third = house.open(other, 0)
    assert house.version == "process@1/lamps-2"
    assert third.final_state() == {"lamps": other.world["lamps"]}
    third.close()


def test_a_world_that_is_given_up_leaves_every_later_episode_without_a_verdict():
    from specs.commands import Limits

    house = lamps("--broken", "crash", limits=Limits(restarts=0))
    problems = house.problems("train", 3, 1)
    policy = counter_policy(max_length=128)
    sampler = ScriptedSampler(policy.template, ['{"tool":"set_lamp","lamp":"red","on":true}'])
    sampler.max_length = 400
    found = run_episodes(sampler, AGENT, policy.template, {"house": house}, problems, in_flight=1)
    assert [t.status for t in found] == ["infrastructure"] * 3
    assert "given up after 1 starts" in (found[2].error or "")
    assert house.version == "process@1/lamps-2"


SHORT = """\
import json, sys
for line in sys.stdin:
    ask = json.loads(line)
    told = {ANSWERS}.get(ask["do"], {{}})
    print(json.dumps({{"id": ask["id"], "protocol": 1, "version": "v1", **told}}), flush=True)
"""
GOOD = {"id": "a", "type": "t", "text": "x", "world": {}, "expected": {}}


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, "asked for 1 problems of split train it gave no list"),
        ({"problems": {"problems": [GOOD, GOOD]}}, "it gave 2"),
        ({"problems": {"problems": [{**GOOD, "text": ""}]}}, "'a' of which text is '', expected a text"),
        ({"problems": {"problems": [{**GOOD, "world": [1]}]}}, r"world is \[1\], expected an object"),
        ({"problems": {"problems": [{k: GOOD[k] for k in ("id", "type", "text", "world")}]}}, "'a' without `expected`"),
        ({"problems": {"problems": [{**GOOD, "tags": "x"}]}}, "expected a list of texts"),
        ({"problems": {"problems": [{**GOOD, "min_calls": 0}]}}, "min_calls is 0, expected a whole number"),
        ({"problems": {"problems": [{**GOOD, "tools": ["x"]}]}}, r"tools is \['x'\], expected a list of objects"),
        ({"problems": {"problems": ["?"]}}, "a problem that is str"),
    ],
)
def test_problems_are_checked(answers, told, tmp_path):
    script = tmp_path / "own.py"
    script.write_text(SHORT.format(ANSWERS=repr(answers)))
    with pytest.raises(DataError, match=told):
        lamps(script=script).problems("train", 1, 0)


def test_what_it_does_not_offer_is_said(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        SHORT.format(ANSWERS=repr({"problems": {"problems": [GOOD]}, "hello": {"tools": [{"name": "x"}]}}))
    )
    house = lamps(script=script)
    problem = house.problems("train", 1, 0)[0]
    with pytest.raises(ProgramError, match="makes no demonstrations"):
        house.demonstrate(problem, 0)
    with pytest.raises(DataError, match="no sibling of problem 'a' can be made"):
        house.sibling(problem, 0)
    with pytest.raises(ProgramError, match=r"found the tool .*expected name, description and parameters"):
        house.tools(problem)


def test_a_world_without_a_contract_is_told_check_by_check(tmp_path):
    script = tmp_path / "own.py"
    text = LAMPS.read_text()
    drifting = text.replace("def new_house(problem):", "SHARED = {}\n\n\ndef new_house(problem):").replace(
        'dict(problem["world"]["lamps"])}', 'SHARED.setdefault(problem["id"], dict(problem["world"]["lamps"]))}'
    )
    script.write_text(drifting.replace('random.Random(f"{split}/{seed}")', "random.Random()"))
    found = {f.check: f for f in contract(lamps(script=script), "flat")}
    assert "other problems the second time" in found["problems are drawn by seed"].text
    script.write_text(drifting)
    found = {f.check: f for f in contract(lamps(script=script), "flat")}
    assert found["problems are drawn by seed"].ok
    broken = [f.check for f in found.values() if f.ok is False]
    assert "worlds are single-use" in broken
