"""No trajectory that failed is ever a positive example; no evaluation or regression problem ever trains."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import pools
from flows.context import NodeContext
from flows.work import published, remedying
from flows.work.lines import read_rows, write_rows
from specs.environments import OrderDesk
from specs.flywheel import AskPerson, Cause, HardPool, Prefer, Remedy, Repair, Ticket
from specs.records import BadCase, Problem, Status, Trajectory
from specs.supervised import RFT, RewardWeighted
from tasks.cases.remedies import Rules, apply, successes
from tasks.evidence.apart import normalised
from tasks.loops.selection import select, select_weighted
from tests.flows.test_judging import node
from tests.tasks.cases.planting import CALM, VERIFIERS
from tests.tasks.cases.test_siblings import maker, texts
from tests.tasks.judging.builders import trajectory

STATUSES: tuple[Status, ...] = get_args(Status)
CAUSES: tuple[Cause, ...] = get_args(Cause)
TRAIN, GOLDEN, REGRESS = (CALM.problems(s, 40, n) for s, n in (("train", 2), ("golden", 2), ("train", 3)))
PROBLEMS = {p.id: p for p in (*TRAIN, *GOLDEN)}


@st.composite
def trajectories(draw: st.DrawFn) -> list[Trajectory]:
    made: list[Trajectory] = []
    for number in range(draw(st.integers(0, 12))):
        success = draw(st.sampled_from([True, False, None]))
        changes: dict[str, Any] = {"success": success, "status": draw(st.sampled_from(STATUSES))}
        changes["reward"] = draw(st.sampled_from([1.0, 0.0, -1.0])) if success is not None else None
        made.append(trajectory(draw(st.integers(0, 3)), **changes, ids=[draw(st.integers(0, 2))] * 2))
        made[-1].id = f"t{number}"
    return made


@given(trajectories(), st.integers(0, 12))
def test_successes_hold_verified_trajectories_only(rolled: list[Trajectory], size: int) -> None:
    kept, dropped = successes(rolled, size)

    assert all(t.success is True and t.status == "finished" for t in kept)
    assert len(kept) <= size
    assert len({tuple(t.ids) for t in kept}) == len(kept)
    assert len(kept) + sum(dropped.values()) == len(rolled), "what is left out is counted"


@given(
    trajectories(),
    st.one_of(st.none(), st.floats(-2, 2)),
    st.one_of(st.none(), st.integers(1, 3)),
    st.sampled_from([(0.0, 1.0), (0.2, 0.6)]),
)
def test_rejection_sampling_takes_verified_trajectories_only(
    rolled: list[Trajectory], threshold: float | None, top_k: int | None, band: tuple[float, float]
) -> None:
    spec = RFT(type="rft", threshold=threshold, top_k=top_k, band=band)
    chosen = select(rolled, spec)

    by_id = {t.id: t for t in rolled}
    assert all(by_id[i].success is True and by_id[i].status == "finished" for i in chosen.ids)
    assert len(chosen.ids) + sum(chosen.dropped.values()) == len(rolled), "what is left out is counted"


@given(trajectories())
def test_weights_by_reward_go_to_problems_that_were_solved(rolled: list[Trajectory]) -> None:
    by_id = {t.id: t for t in rolled}
    solved = {t.problem_id for t in rolled if t.success and t.status == "finished"}
    assert {by_id[i].problem_id for i in select_weighted(rolled, RewardWeighted(type="reward_weighted")).ids} <= solved


@st.composite
def cases(draw: st.DrawFn) -> list[BadCase]:
    made: list[BadCase] = []
    for number in range(draw(st.integers(1, 6))):
        role = draw(st.sampled_from(["train", "golden"]))
        problem = draw(st.sampled_from(TRAIN if role == "train" else GOLDEN))
        confirmed = draw(st.booleans())
        made.append(
            BadCase(
                f"{number}", "p", role, role, "desk", problem.id, problem.type, f"failed/{problem.id}", "policy",
                "confirmed" if confirmed else "suspected", "state" if confirmed else None,
                draw(st.sampled_from(CAUSES)), 0.9, {}, 0, 1,
            )
        )  # fmt: skip
    return made


REMEDIES: st.SearchStrategy[Remedy] = st.sampled_from(
    [
        Repair(do="repair", quota=3),
        Prefer(do="prefer", quota=3),
        HardPool(do="hard_pool", quota=3),
        Ticket(do="ticket"),
        AskPerson(do="ask_person"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(cases(), st.dictionaries(st.sampled_from(CAUSES), REMEDIES), REMEDIES, st.integers(1, 3))
def test_what_remedies_train_is_no_evaluation_no_regression_and_no_failure(
    failures: list[BadCase], remedies: dict[Cause, Remedy], default: Remedy, per_case: int
) -> None:
    make = maker(evaluation={"golden": texts(GOLDEN), "regress": texts(REGRESS)}, training=texts(TRAIN))
    done = apply(failures, PROBLEMS, Rules(remedies, default, per_case), make)

    trained = [m.problem for m in (*done.repaired, *done.pairs)] + done.hard
    forbidden = [*GOLDEN, *REGRESS, *done.regression]
    assert {p.id for p in trained}.isdisjoint(p.id for p in forbidden)
    assert {normalised(p.text) for p in trained}.isdisjoint(normalised(p.text) for p in forbidden)
    assert {p.id for p in (*trained, *done.regression)}.isdisjoint(c.problem_id for c in failures)
    for made in (*done.repaired, *done.pairs):
        final = trajectory(0, status="finished")
        final.final_state, final.answer = made.final_state, made.answer
        assert VERIFIERS["state"].verify(final, made.problem).passed
        assert made.by == "clerk"
    if not any(c.status == "confirmed" for c in failures):
        assert not trained
        assert not done.regression
    held = [c for c in failures if c.regression is not None]
    assert all(c.role == "train" and c.status == "confirmed" for c in held)


class Executions:
    """Executions of one program over one home, each of one round without a policy: the failures are given."""

    def __init__(self, home: Path) -> None:
        self.home = home
        folder = home / "data"
        folder.mkdir()
        for name, problems in (("train", TRAIN), ("golden", GOLDEN)):
            (folder / name).mkdir()
            write_rows(folder / name / "records.jsonl", problems)
        self.data = {f"data.{n}": folder / n for n in ("train", "golden")}
        self.data |= {"train.train": folder / "train", "eval.golden": folder / "golden"}

    def known(self, pool: str) -> Path:
        """Return the published version of a pool as a refreshed plan resolves it."""
        version = pools.newest(self.home, "p", pool)
        params = {"pool": pool, "version": None if version is None else version.resolved()}
        made = self._node(f"published.{pool}", params, {})
        published.published(made)
        return made.out

    def remedy(self, failures: list[BadCase], known: dict[str, Path] | None = None, **changes: Any) -> Path:
        cases = self.home / f"cases{len(list(self.home.glob('cases*')))}"
        cases.mkdir()
        write_rows(cases / "cases.jsonl", failures)
        (cases / "causes.json").write_text('{"regression": {}}')
        known = known or {f"published.{p}": self.known(p) for p in ("regression", "trained")}
        params = {
            "program": "p", "round": 1, "remedies": {}, "default": "hard_pool", "fills": ["hard"], "apart": {},
            "siblings": {"per_case": 2}, "environments": {"desk": OrderDesk(kind="order_desk").model_dump(mode="json")},
            "verifiers": {"state": {"kind": "environment_state"}}, "reward": {"outcome": {"state": 1.0}}, **changes,
        }  # fmt: skip
        made = self._node("remedy", params, {"cases": cases, **self.data, **known})
        remedying.remedy(made)
        return made.out

    def publish(self, remedy: Path) -> dict[str, Any]:
        cases = max(self.home.glob("cases*"))
        made = self._node("publish", {"program": "p", "round": 1, "stages": []}, {"remedy": remedy, "cases": cases})
        remedying.publish(made)
        return json.loads((made.out / "published.json").read_text())

    def _node(self, name: str, params: dict[str, Any], inputs: dict[str, Path]) -> NodeContext:
        made = node(self.home, params, inputs, name)
        made.execution["home"] = str(self.home)
        return made


def failed(problem: Problem, role: str, policy: str = "one") -> BadCase:
    return BadCase(
        f"{role}/{problem.id}/{policy}", "p", role, role, "desk", problem.id, problem.type, f"{policy}/{problem.id}",
        policy, "confirmed", "state", "argument", 0.9, {}, 0, 1,
    )  # fmt: skip


def texts_of(folder: Path, pool: str) -> set[str]:
    found = [r.get("problem", r) for r in read_rows(folder / "pools" / pool / "records.jsonl")]
    return {p["id"] for p in found} | {normalised(p["text"]) for p in found}


@pytest.mark.parametrize(("first", "then"), [("golden", "train"), ("train", "golden")])
def test_over_executions_what_trained_is_never_held_back_and_what_is_held_back_never_trains(
    tmp_path: Path, first: str, then: str
) -> None:
    runs, problems = Executions(tmp_path), TRAIN[:6]
    before = runs.remedy([failed(p, first) for p in problems])
    runs.publish(before)
    after = runs.remedy([failed(p, then, "two") for p in problems])
    mine, other = ("hard", "regression") if first == "golden" else ("regression", "hard")
    assert texts_of(before, mine)
    assert texts_of(after, other)
    assert texts_of(before, mine).isdisjoint(texts_of(after, other))

    # the very draws of the second execution, had the first one published them: others are drawn
    drawn = "hard" if first == "golden" else "regression"
    known = {f"published.{p}": runs.known(p) for p in ("regression", "trained")}
    records = [r.get("problem", r) for r in read_rows(after / "pools" / other / "records.jsonl")]
    write_rows(known["published.trained" if drawn == "hard" else "published.regression"] / "records.jsonl", records)
    again = runs.remedy([failed(p, then, "two") for p in problems], known)
    assert texts_of(again, other)
    assert texts_of(again, other).isdisjoint(texts_of(after, other))


def test_a_case_that_is_found_again_holds_nothing_more_back(tmp_path: Path) -> None:
    runs, failures = Executions(tmp_path), [failed(p, "train") for p in TRAIN[:10]]
    told = [runs.publish(runs.remedy(failures)) for _ in range(3)]
    assert [t["problems"] for t in told] == [10, 10, 10]
    assert [t["trained"] for t in told] == [20, 40, 60], "each time other siblings train"
    version = pools.newest(tmp_path, "p", "regression")
    assert version is not None
    pointed = {c["regression"] for c in pools.cases(tmp_path, "p")}
    assert pointed == {r["id"] for r in pools.records(tmp_path, version)}
    new = [*failures, failed(TRAIN[0], "train", "two")]
    assert runs.publish(runs.remedy(new))["problems"] == 11
