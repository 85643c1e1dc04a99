"""The bodies of a round on a small policy of their own: what is mined, named, remedied, handed on and published."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows import confirming
from flows import pools as published
from flows.context import NodeContext
from flows.work import data, flywheel, mining, remedying, supervised
from flows.work import published as publishing
from flows.work.lines import read_rows
from specs.data import Apart, Demonstrations, Problems, Spoil
from specs.environments import OrderDesk, ToolFault
from specs.errors import DataError, StateError, TrainingError
from specs.flywheel import Mine, Repair, Siblings, StopForRewardFix
from specs.records import case_from, demonstration_from, problem_from
from specs.reward import Reward
from specs.supervised import SFT, SupervisedBatch
from specs.verifiers import EnvironmentState
from tasks.episodes.environments import environment_for
from tasks.episodes.shards import read_shards, write_shards
from tasks.evidence.apart import normalised
from tasks.policy.initial import from_scratch
from tasks.policy.store import save_policy
from tasks.tokens.text import compact_json, fragments
from tests.flows.test_stages import MUON, POLICY, SCRATCH, SHARED, dump, node, read
from tests.tasks.judging.builders import trajectory

FAULT = ToolFault(tool="check_stock", probability=0.4)
DESK = OrderDesk(kind="order_desk", types=["stock"], max_turns=6, faults=[FAULT])
COMMON = SHARED | {
    "environments": {"desk": DESK},
    "verifiers": {"state": EnvironmentState(kind="environment_state")},
    "reward": Reward(outcome={"state": 1.0}),
}
REMEDY = COMMON | {
    "program": "p", "round": 1, "apart": Apart(), "fills": ["repaired", "successes", "anchor", "hard"],
    "siblings": Siblings(per_case=3), "anchor": {"size": 30}, "successes": {"size": 30}, "default": "hard_pool",
    "remedies": {"error_recovery": Repair(do="repair", quota=40)},
}  # fmt: skip
At = dict[str, Path]


def made(folder: Path, name: str, source: Any) -> Path:
    at = node(folder, name, {}, {"source": source, "environment": DESK, "name": name})
    (data.demonstrations if isinstance(source, Demonstrations) else data.problems)(at)
    return at.out


def attributed(folder: Path, at: At, **changes: Any) -> NodeContext:
    params = COMMON | {
        "program": "p", "round": 1, "sources": {"train": "train"}, "causes_from": [], "regression": None, **changes,
    }  # fmt: skip
    inputs = {"evidence": at["taught"], "mined": at["mined"], "data.train": at["train"], "data.golden": at["golden"]}
    return node(folder, "cases", inputs, params)


def remedied(folder: Path, at: At, **changes: Any) -> NodeContext:
    inputs = {
        "cases": at["cases"], "mined": at["mined"], "data.train": at["train"], "train.demos": at["demos"],
        "train.train": at["train"], "eval.golden": at["golden"],
    }  # fmt: skip
    return node(folder, "remedy", inputs, REMEDY | changes)


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> At:
    """Return the folders of a small main part that gives up after a tool error, and of the round that follows."""
    folder = tmp_path_factory.mktemp("round")
    spoil = Spoil(no_recovery=["stock"])
    found: At = {
        "demos": made(
            folder, "demos", Demonstrations(kind="demonstrations", environment="desk", size=500, spoil=spoil)
        ),
        "train": made(folder, "train", Problems(kind="problems", environment="desk", size=60)),
        "golden": made(
            folder, "golden", Problems(kind="problems", environment="desk", split="golden", size=40, role="golden")
        ),
    }
    demos = [demonstration_from(r) for r in read_rows(found["demos"] / "records.jsonl")]
    texts = [d.problem.text for d in demos] + [compact_json(o.data) for d in demos for _, o in d.turns]
    pieces = fragments(environment_for("desk", DESK).tools(), "flat", [o.data for d in demos for _, o in d.turns])
    save_policy(from_scratch(SCRATCH, POLICY.template, texts, pieces, 0), folder / "init" / "policy")
    spec = SFT(type="sft", epochs=8, batch=SupervisedBatch(tokens=1024), optimizer=MUON)
    params = COMMON | {"algorithm": spec, "data": {"demos": None}}
    taught = node(folder, "teach", {"policy": folder / "init", "data.demos": found["demos"]}, params)
    supervised.sft(taught)
    found["taught"] = taught.out
    asked = COMMON | {"mine": Mine.model_validate({"from": ["train"], "problems": 60}), "data": {"train": None}}
    mined = node(folder, "mine", {"policy": taught.out, "data.train": found["train"]}, asked)
    mining.mine(mined)
    found["mined"] = mined.out
    cases = attributed(folder, found)
    flywheel.attribute(cases)
    found["cases"] = cases.out
    remedy = remedied(folder, found)
    remedying.remedy(remedy)
    found["remedy"] = remedy.out
    return found


def test_a_planted_weakness_is_found(at: At) -> None:
    causes = read(at["cases"] / "causes.json")
    recovery = causes["causes"]["error_recovery"]
    assert recovery["of_failures"] > 0.2
    assert recovery["low"] < recovery["share"] < recovery["high"]
    cases = list(read_rows(at["cases"] / "cases.jsonl"))
    assert len(cases) == causes["failures"] == sum(v["count"] for v in causes["causes"].values())
    assert all(c["status"] == "confirmed" for c in cases)
    given_up = [c for c in cases if c["cause"] == "error_recovery"]
    assert all(c["evidence"]["injected"] and c["first_wrong_turn"] >= 1 for c in given_up)
    assert causes["sets"]["train"]["types"]["stock"]["judged"] == 60


def test_pools_of_a_real_round_hold_no_failure_no_evaluation_and_no_regression_problem(at: At) -> None:
    pools = at["remedy"] / "pools"
    failed = {t.id for t in read_shards(at["mined"] / "trajectories") if not t.success}
    failed |= {c["trajectory_id"] for c in read_rows(at["cases"] / "cases.jsonl")}
    kept = list(read_shards(pools / "successes" / "trajectories"))
    assert kept
    assert failed.isdisjoint(t.id for t in kept)
    assert all(t.success is True and t.status == "finished" for t in kept)

    repaired = [demonstration_from(r) for r in read_rows(pools / "repaired" / "records.jsonl")]
    anchors = [demonstration_from(r) for r in read_rows(pools / "anchor" / "records.jsonl")]
    hard = [problem_from(r) for r in read_rows(pools / "hard" / "records.jsonl")]
    regression = [problem_from(r) for r in read_rows(pools / "regression" / "records.jsonl")]
    golden = [problem_from(r) for r in read_rows(at["golden"] / "records.jsonl")]
    assert repaired
    assert regression
    assert len(anchors) == 30
    for d in (*repaired, *anchors):
        assert not d.spoiled
        assert data.solves(d)
    shown = sum(any(o.is_error for _, o in d.turns) for d in repaired)
    assert shown >= 0.9 * len(repaired), "nearly every one shows a recovery"

    trained = [d.problem for d in (*repaired, *anchors)] + hard
    never = [*golden, *regression]
    assert {p.id for p in trained}.isdisjoint(p.id for p in never)
    assert {normalised(p.text) for p in trained}.isdisjoint(normalised(p.text) for p in never)
    main = {r["id"] for r in read_rows(at["train"] / "records.jsonl")}
    assert main.isdisjoint(p.id for p in (*hard, *regression, *(d.problem for d in repaired)))
    counts = read(at["remedy"] / "pools.json")
    assert counts["pools"]["repaired"]["records"] == len(repaired)
    assert counts["pools"]["anchor"]["dropped"]["spoiled"] > 0
    assert counts["siblings"]["unsolved"] == {}


def test_a_stage_of_the_round_mends_the_weakness(at: At, tmp_path: Path) -> None:
    inputs = {"policy": at["taught"]}
    for name in ("anchor", "repaired", "successes"):
        pool = node(tmp_path, f"pool.{name}", {"remedy": at["remedy"]}, {"pool": name})
        remedying.pool(pool)
        inputs[f"data.{name}"] = pool.out
        assert read(pool.out / "summary.json")["records"] > 0
    spec = SFT(type="sft", epochs=2, batch=SupervisedBatch(tokens=512), optimizer=MUON)
    weights = {"anchor": 0.3, "repaired": 0.4, "successes": 0.3}
    mend = node(tmp_path, "mend", inputs, COMMON | {"algorithm": spec, "data": weights, "of_round": list(weights)})
    supervised.sft(mend)
    asked = COMMON | {"mine": Mine.model_validate({"from": ["train"], "problems": 60}), "data": {"train": None}}
    again = node(tmp_path, "mine", {"policy": mend.out, "data.train": at["train"]}, asked)
    mining.mine(again)
    cases = attributed(tmp_path, {**at, "mined": again.out})
    flywheel.attribute(cases)
    before, after = (read(f / "causes.json")["causes"] for f in (at["cases"], cases.out))
    assert after.get("error_recovery", {"share": 0.0})["share"] < before["error_recovery"]["low"]


def test_the_same_round_twice_is_the_same(at: At, tmp_path: Path) -> None:
    again = remedied(tmp_path, at)
    remedying.remedy(again)
    for path in sorted(at["remedy"].rglob("*.json*")):
        assert (again.out / path.relative_to(at["remedy"])).read_bytes() == path.read_bytes(), path.name


def test_failures_of_evaluation_sets_count_and_are_held_back_from_the_regression_pool(at: At, tmp_path: Path) -> None:
    evaluated = tmp_path / "evaluations" / "golden"
    asked = COMMON | {"mine": Mine.model_validate({"from": ["golden"], "problems": 40}), "data": {"golden": None}}
    rolled = node(tmp_path, "roll", {"policy": at["taught"], "data.golden": at["golden"]}, asked)
    mining.mine(rolled)
    write_shards(evaluated / "trajectories", read_shards(rolled.out / "trajectories"))
    cases = attributed(tmp_path, at, sources={"golden": "golden"}, causes_from=["golden"])
    cases.inputs["evidence"] = tmp_path
    del cases.inputs["mined"]
    flywheel.attribute(cases)
    assert {c["role"] for c in read_rows(cases.out / "cases.jsonl")} == {"golden"}
    remedy = remedied(tmp_path, {**at, "cases": cases.out})
    remedy.inputs["data.golden"] = at["golden"]
    remedying.remedy(remedy)
    pools = read(remedy.out / "pools.json")["pools"]
    assert pools["repaired"]["records"] > 0
    assert pools["regression"]["records"] == 0


def test_a_second_round_keeps_apart_from_the_first_and_adds_to_its_pools(at: At, tmp_path: Path) -> None:
    second = remedied(tmp_path, at, round=2)
    second.inputs["earlier.1"] = at["remedy"]
    remedying.remedy(second)
    first_ids, second_ids = (
        {r["problem"]["id"] for r in read_rows(f / "pools" / "repaired" / "records.jsonl")}
        for f in (at["remedy"], second.out)
    )
    held = {r["id"] for r in read_rows(at["remedy"] / "pools" / "regression" / "records.jsonl")}
    assert second_ids
    assert second_ids.isdisjoint(first_ids | held)
    before = node(tmp_path, "pool1", {"remedy": at["remedy"]}, {"pool": "repaired"})
    remedying.pool(before)
    both = node(tmp_path, "pool2", {"remedy": second.out, "earlier": before.out}, {"pool": "repaired"})
    remedying.pool(both)
    assert {r["problem"]["id"] for r in read_rows(both.out / "records.jsonl")} == first_ids | second_ids


def test_pools_over_rounds_keep_their_size_and_every_rollout(tmp_path: Path) -> None:
    def filled(name: str, tokens: list[int]) -> Path:
        rolled = [trajectory(0, ids=[t] * 2, success=True, status="finished") for t in tokens]
        for t in rolled:
            t.id = "collect/p0#0"  # rollouts of several nodes of a kind may share a name
        folder = tmp_path / name
        for pool in ("anchor", "successes"):
            write_shards(folder / "pools" / pool / "trajectories", rolled)
            (folder / "pools" / pool / "records.jsonl").write_text("")
            (folder / "pools" / pool / "summary.json").write_text("{}")
        return folder

    first, second = filled("first", [1, 2, 3]), filled("second", [3, 4])
    one = node(tmp_path, "pool1", {"remedy": first}, {"pool": "successes", "size": 4})
    remedying.pool(one)
    assert sorted(t.ids[0] for t in read_shards(one.out / "trajectories")) == [1, 2, 3]
    both = node(tmp_path, "pool2", {"remedy": second, "earlier": one.out}, {"pool": "successes", "size": 3})
    notes = remedying.pool(both).notes
    kept = [t.ids[0] for t in read_shards(both.out / "trajectories")]
    assert set(kept) > {3, 4}
    assert len(kept) == 3 == read(both.out / "summary.json")["records"]
    assert notes == ["pool successes: 1 older trajectories are beyond its size and were left out"]


def test_where_the_remedies_stopped_for_the_reward_only_the_ledger_is_published(at: At, tmp_path: Path) -> None:
    (tmp_path / "decision.json").write_text('{"go": false, "held": "round1.remedy"}')
    inputs = {"remedy": at["remedy"], "cases": at["cases"], "proceed": tmp_path, "start": at["taught"]}
    done = node(tmp_path, "publish", inputs, {"program": "p", "round": 1, "stages": []})
    done.execution["home"] = str(tmp_path / "home")
    remedying.publish(done)
    told = read(done.out / "published.json")
    assert (told["problems"], told["trained"]) == (0, 0)
    cases = published.cases(tmp_path / "home", "p")
    assert len(cases) == told["cases"] > 0
    assert {(c["life"], c["regression"]) for c in cases} == {("open", None)}, "a later round holds something back"


def test_publishing_grows_the_pool_once_and_ages_the_cases(at: At, tmp_path: Path) -> None:
    held = [r["id"] for r in read_rows(at["remedy"] / "pools" / "regression" / "records.jsonl")]

    def publish(solved: dict[str, bool], stage: Path = at["mined"]) -> dict[str, Any]:
        cases = tmp_path / f"cases{len(list(tmp_path.iterdir()))}"
        cases.mkdir()
        (cases / "causes.json").write_text(json.dumps({"regression": solved}))
        stages = [{"id": "stage.mend", "from": "start", "pools": ["repaired", "hard"]}]
        inputs = {"remedy": at["remedy"], "cases": cases, "start": at["taught"], "stage.mend": stage}
        done = node(tmp_path, "publish", inputs, {"program": "p", "round": 1, "stages": stages})
        done.execution["home"] = str(tmp_path / "home")
        remedying.publish(done)
        return read(done.out / "published.json")

    first, again = publish({}, at["taught"]), publish({}, at["taught"])
    assert first == again
    assert first["problems"] == len(held) > 0
    lives = {c["regression"]: c["life"] for c in published.cases(tmp_path / "home", "p")}
    assert lives[held[0]] == "open", "the stage was skipped: what it hands on is what it starts from"
    publish({})
    lives = {c["regression"]: c["life"] for c in published.cases(tmp_path / "home", "p")}
    assert lives[held[0]] == "in_training"
    publish({held[0]: True, held[1]: False})
    lives = {c["regression"]: c["life"] for c in published.cases(tmp_path / "home", "p")}
    assert (lives[held[0]], lives[held[1]]) == ("fixed", "in_training")
    publish({held[0]: False})
    lives = {c["regression"]: c["life"] for c in published.cases(tmp_path / "home", "p")}
    assert lives[held[0]] == "regressed"


def test_what_a_person_confirmed_trains_and_what_was_dismissed_does_not(at: At, tmp_path: Path) -> None:
    home = tmp_path / "home"
    found = [case_from(r) for r in read_rows(at["cases"] / "cases.jsonl")]
    gone, wrong, *_ = [c for c in found if c.cause == "error_recovery"]
    suspected = replace(gone, id="train/of/another/policy", status="suspected", confirmed_by=None)
    for case, confirmed in ((suspected, True), (wrong, False)):
        confirming.give(home, case, confirmed=confirmed, by="Ada", reason="read it")
    version = published.newest(home, "p", published.ANSWERED)
    assert version is not None
    told = node(tmp_path, "answered", {}, {"name": "answered", "pool": "answered", "version": version.resolved()})
    told.execution["home"] = str(home)
    assert publishing.published(told).metrics["records"] == 2.0
    again = attributed(tmp_path, at)
    again.inputs["answered"] = told.out
    assert "1 cases of earlier rounds were confirmed by a person since" in flywheel.attribute(again).notes
    cases = {c["id"]: c for c in read_rows(again.out / "cases.jsonl")}
    assert len(cases) == len(found) + 1
    later = attributed(tmp_path / "later", at, round=2)
    later.inputs["answered"] = told.out
    assert not [n for n in flywheel.attribute(later).notes if "by a person since" in n]
    assert cases[suspected.id]["confirmed_by"] == "Ada"
    assert (cases[wrong.id]["status"], cases[wrong.id]["cause"]) == ("suspected", "verifier")
    remedy = remedied(tmp_path, at | {"cases": again.out}, remedies={"error_recovery": Repair(do="repair", quota=900)})
    remedying.remedy(remedy)
    given = read(remedy.out / "given.json")
    assert given[suspected.id] == "repaired"
    assert wrong.id not in given
    stages = [{"id": "stage.mend", "from": "start", "pools": ["repaired"]}]
    inputs = {"remedy": remedy.out, "cases": again.out, "start": at["taught"], "stage.mend": at["mined"]}
    done = node(tmp_path, "publish", inputs, {"program": "p", "round": 1, "stages": stages})
    done.execution["home"] = str(home)
    remedying.publish(done)
    lives = {a.case.id: a.case.life for a in confirming.answers(home, "p")}
    assert lives == {suspected.id: "in_training", wrong.id: "open"}
    assert confirming.brought_in([], confirming.answers(home, "p"), ["train"], 2) == []


def test_a_reward_that_pays_for_the_wrong_thing_holds_the_round(at: At, tmp_path: Path) -> None:
    stop = {"error_recovery": StopForRewardFix(do="stop_for_reward_fix")}
    held = remedied(tmp_path, at, remedies=stop)
    outcome = remedying.remedy(held)
    assert outcome.result == "held"
    assert "mend the reward" in outcome.notes[0]
    asks = list(read_rows(held.out / "asks.jsonl"))
    assert {a["do"] for a in asks} == {"stop_for_reward_fix"}


def test_a_clerk_that_cannot_solve_its_siblings_stops_the_round(at: At, tmp_path: Path) -> None:
    broken = OrderDesk(kind="order_desk", types=["stock"], max_turns=6, faults=[ToolFault(probability=1.0)])
    with pytest.raises(TrainingError, match=r"of desk/stock.*more than siblings.max_unsolved"):
        remedying.remedy(remedied(tmp_path, at, environments={"desk": dump(broken)}))


def test_an_empty_pool_is_named_and_a_damaged_one_refused(at: At, tmp_path: Path) -> None:
    remedy = tmp_path / "remedy"
    empty = remedy / "pools" / "hard"
    empty.mkdir(parents=True)
    with pytest.raises(StateError, match="holds no pool"):
        remedying.pool(node(tmp_path, "pool", {"remedy": remedy}, {"pool": "hard"}))
    (empty / "summary.json").write_text('{"records": 0}')
    (empty / "records.jsonl").write_text("")
    done = node(tmp_path, "pool", {"remedy": remedy}, {"pool": "hard"})
    assert remedying.pool(done).notes == ["pool hard is empty: no remedy gave it anything"]
    (empty / "records.jsonl").write_text('{"id": "p1"\n')
    with pytest.raises(DataError, match=r"records.jsonl:1: cannot be read"):
        remedying.pool(node(tmp_path, "pool", {"remedy": remedy}, {"pool": "hard"}))


def test_bodies_that_run_in_the_driver_need_no_tensors() -> None:
    code = "import sys, flows.work.flywheel, flows.work.remedying; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
