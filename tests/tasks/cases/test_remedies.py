from typing import Any

from specs.flywheel import AskPerson, Cause, HardPool, Prefer, Remedy, Repair, StopForRewardFix, Ticket
from specs.records import BadCase, Problem
from tasks.cases.finding import Source, find_cases
from tasks.cases.remedies import Rules, apply
from tasks.cases.triage import confirmation, standing
from tests.tasks.cases.planting import CALM, planted
from tests.tasks.cases.test_siblings import maker, texts

PROBLEMS = {p.id: p for p in CALM.problems("train", 60, 2)}
GOLDEN = {p.id: p for p in CALM.problems("golden", 30, 2)}


def case(problem: Problem, cause: Cause = "argument", **changes: Any) -> BadCase:
    plain: dict[str, Any] = {
        "id": f"train/{problem.id}/0", "program": "p", "set": "train", "role": "train", "environment": "desk",
        "problem_id": problem.id, "problem_type": problem.type, "trajectory_id": f"mine/{problem.id}#0",
        "policy": "rl/0", "status": "confirmed", "confirmed_by": "state environment_state@2", "cause": cause,
        "confidence": 0.9, "evidence": {}, "first_wrong_turn": 0, "round": 1,
    }  # fmt: skip
    return BadCase(**{**plain, **changes})


def rules(remedies: dict[Cause, Remedy] | None = None, default: Remedy | None = None, per_case: int = 2) -> Rules:
    return Rules(remedies or {}, default or AskPerson(do="ask_person"), per_case)


REPAIR: dict[Cause, Remedy] = {"argument": Repair(do="repair", quota=15), "wrong_tool": HardPool(do="hard_pool")}


def test_repair_and_hard_pool_are_filled_by_siblings_up_to_the_quota() -> None:
    some = list(PROBLEMS.values())
    cases = [*(case(p) for p in some[:10]), *(case(p, "wrong_tool") for p in some[10:16])]
    done = apply(cases, PROBLEMS, rules(REPAIR), maker(training=texts(some)))

    assert (len(done.repaired), len(done.hard), len(done.regression)) == (15, 12, 16)
    assert {c.life for c in cases} == {"open"}, "whether a stage trains on its sibling is seen when the round ends"
    assert set(done.given) == {c.id for c in cases}
    assert set(done.given.values()) == {"repaired", "hard"}
    assert sorted(c.regression or "" for c in cases) == sorted(p.id for p in done.regression)
    trained = {m.problem.id for m in done.repaired} | {p.id for p in done.hard}
    assert trained.isdisjoint(p.id for p in done.regression)
    assert trained.isdisjoint(PROBLEMS)
    assert dict(done.counts) == {"repair": 10, "hard_pool": 6, "beyond_quota": 0}


def test_prefer_fills_the_pool_of_pairs_with_solved_siblings() -> None:
    some = list(PROBLEMS.values())[:5]
    cases = [case(p, "wrong_tool") for p in some]
    done = apply(cases, PROBLEMS, rules({"wrong_tool": Prefer(do="prefer", quota=7)}), maker(training=texts(some)))
    assert (len(done.pairs), len(done.repaired), len(done.hard)) == (7, 0, 0)
    assert set(done.given.values()) == {"pairs"}
    assert all(made.turns and made.by == "clerk" for made in done.pairs)
    assert {made.problem.id for made in done.pairs}.isdisjoint(PROBLEMS)


def test_a_quota_smaller_than_the_cases_is_counted() -> None:
    done = apply([case(p) for p in PROBLEMS.values()], PROBLEMS, rules(REPAIR), maker())
    assert len(done.repaired) == 15
    assert done.counts["beyond_quota"] == 45


def test_suspected_cases_and_other_remedies_train_nothing() -> None:
    a, b, c, d, e = list(PROBLEMS.values())[:5]
    remedies: dict[Cause, Remedy] = {
        **REPAIR, "verifier": Ticket(do="ticket"), "reward_hack": StopForRewardFix(do="stop_for_reward_fix"),
    }  # fmt: skip
    cases = [
        case(a, status="suspected", confirmed_by=None),
        case(b, "verifier"),
        case(c, "reward_hack"),
        case(d, "planning"),
        case(Problem("gone", "desk", "mail", "train", "", {}, {})),
    ]
    done = apply(cases, PROBLEMS, rules(remedies), maker())
    assert (done.repaired, done.hard) == ([], [])
    assert [a.do for a in done.asks] == ["confirm", "ticket", "stop_for_reward_fix", "ask_person", "ticket"]
    assert [c.life for c in cases] == ["open"] * 5
    assert "its problem is gone" in done.asks[-1].reason
    assert [c.regression is not None for c in cases] == [False, False, True, True, False]
    assert e.id not in {x.case for x in done.asks}


def test_what_is_not_the_policys_fault_never_trains_whatever_the_remedy_says() -> None:
    causes: list[Cause] = ["infrastructure", "environment", "verifier", "data"]
    cases = [case(p, c) for p, c in zip(PROBLEMS.values(), causes, strict=False)]
    done = apply(cases, PROBLEMS, rules(default=Repair(do="repair")), maker())
    assert (done.repaired, done.hard, done.regression) == ([], [], [])
    assert [a.do for a in done.asks] == ["ticket"] * 4


def test_failures_of_evaluation_sets_give_siblings_only() -> None:
    cases = [case(p, set="golden", role="golden") for p in GOLDEN.values()]
    make = maker(evaluation={"golden": texts(list(GOLDEN.values()))})
    done = apply(cases, GOLDEN, rules({"argument": Repair(do="repair")}), make)
    assert len(done.repaired) == 60
    assert done.regression == []
    assert {m.problem.split for m in done.repaired} == {"train"}


def test_failures_become_cases_and_what_has_no_verdict_is_counted_apart() -> None:
    made = list(planted(CALM, 3))
    problems = {p.id: p for _, _, p, _ in made}
    trajectories = [t for _, _, _, t in made]
    lost, mute = trajectories[0], trajectories[1]
    lost.status = "infrastructure"
    mute.success = None
    solved = trajectories[2]
    solved.success = True
    assert [standing(t) for t in trajectories[:4]] == ["infrastructure", "verifier", "solved", "failed"]

    found = find_cases(Source("p", 1, "train", "train"), trajectories, problems, {"desk": CALM}, ["state"])
    assert (len(found.cases), dict(found.apart)) == (len(made) - 3, {"infrastructure": 1, "verifier": 1})
    assert all(c.status == "confirmed" and c.confirmed_by == "state environment_state@2" for c in found.cases)
    figures = found.figures()
    assert sum(v["count"] for v in figures["causes"].values()) == figures["failures"] == len(found.cases)
    assert figures["causes"]["loop"]["low"] < figures["causes"]["loop"]["share"] < figures["causes"]["loop"]["high"]
    assert found.without_clerk == 0
    gone = find_cases(Source("p", 1, "train", "train"), trajectories, {}, {"desk": CALM}, ["state"])
    assert gone.without_clerk == len(gone.cases)


def test_only_a_deterministic_verifier_that_decides_confirms() -> None:
    _, _, _, trajectory = next(planted(CALM, 1))
    assert confirmation(trajectory, ["state"]) == "state environment_state@2"
    assert confirmation(trajectory, ["other"]) is None
    verdict = trajectory.verdicts[0]
    for change in ({"version": "judge@1"}, {"evidence": {}}, {"passed": True}, {"invalid": "timed out"}):
        for name, value in change.items():
            before = getattr(verdict, name)
            setattr(verdict, name, value)
            assert confirmation(trajectory, ["state"]) is None
            setattr(verdict, name, before)
