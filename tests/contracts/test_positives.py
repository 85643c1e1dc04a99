"""No trajectory that failed is ever a positive example; no evaluation or regression problem ever trains."""

from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from specs.flywheel import AskPerson, Cause, HardPool, Remedy, Repair, Ticket
from specs.records import BadCase, Status, Trajectory
from tasks.cases.remedies import Rules, apply, successes
from tasks.evidence.apart import normalised
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
    [Repair(do="repair", quota=3), HardPool(do="hard_pool", quota=3), Ticket(do="ticket"), AskPerson(do="ask_person")]
)


@settings(max_examples=60, deadline=None)
@given(cases(), st.dictionaries(st.sampled_from(CAUSES), REMEDIES), REMEDIES, st.integers(1, 3))
def test_what_remedies_train_is_no_evaluation_no_regression_and_no_failure(
    failures: list[BadCase], remedies: dict[Cause, Remedy], default: Remedy, per_case: int
) -> None:
    make = maker(evaluation={"golden": texts(GOLDEN), "regress": texts(REGRESS)}, training=texts(TRAIN))
    done = apply(failures, PROBLEMS, Rules(remedies, default, per_case), make)

    trained = [m.problem for m in done.repaired] + done.hard
    forbidden = [*GOLDEN, *REGRESS, *done.regression]
    assert {p.id for p in trained}.isdisjoint(p.id for p in forbidden)
    assert {normalised(p.text) for p in trained}.isdisjoint(normalised(p.text) for p in forbidden)
    assert {p.id for p in (*trained, *done.regression)}.isdisjoint(c.problem_id for c in failures)
    for made in done.repaired:
        final = trajectory(0, status="finished")
        final.final_state, final.answer = made.final_state, made.answer
        assert VERIFIERS["state"].verify(final, made.problem).passed
        assert made.by == "clerk"
    if not any(c.status == "confirmed" for c in failures):
        assert not trained
        assert not done.regression
    held = [c for c in failures if c.regression is not None]
    assert all(c.role == "train" and c.status == "confirmed" for c in held)
