"""Ledger, ensembles, routing and scorecards, each by itself."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specs.errors import StateError, TeacherError
from specs.records import TeacherSignal
from specs.routing import HistoryWeights, Route
from specs.when import problem_values
from tasks.teachers import ensemble
from tasks.teachers.asks import Ask
from tasks.teachers.budget import Caps, prompt_tokens
from tasks.teachers.ledger import CallLedger, Returned
from tasks.teachers.places import by_state, places
from tasks.teachers.reading import Unreadable
from tasks.teachers.routing import Place, drawn, require_teachers, route, rules_of, weights_of
from tasks.teachers.scorecard import Evidence, scorecard, tallies, usage
from tests.tasks.teachers.asked import problem, trajectory
from tests.tasks.teachers.test_asks import PROBLEM, tried, turn
from tests.tasks.tokens.kinds import KINDS, tokenizer


def test_a_call_without_an_end_counts_as_reserved(tmp_path: Path) -> None:
    ledger = CallLedger(tmp_path / "calls.jsonl")
    first = ledger.begin("k1", 1, "big", "node", 0.5, Caps())
    ledger.begin("k2", 1, "big", "node", 0.25, Caps())
    ledger.end("k1", first, Returned("ok", "hello", usd=0.1))
    again = CallLedger(tmp_path / "calls.jsonl")
    assert (again.spent("big").usd, again.spent().requests) == (pytest.approx(0.35), 2)
    assert again.answer("k1") == Returned("ok", "hello", usd=0.1)
    assert again.answer("k2") is None
    assert again.attempts("k1") == (1, pytest.approx(0.1))
    assert again.attempts("k2") == (1, pytest.approx(0.25))


def test_what_a_node_paid_is_told_over_all_its_attempts_and_without_what_others_paid(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(
        '{"event": "sent", "key": "k0", "attempt": 1, "id": "0", "teacher": "big", "node": "teach", "usd": 9.0}\n'
    )
    killed, other = CallLedger(path, "a" * 64), CallLedger(path, "b" * 64)
    killed.end("k1", killed.begin("k1", 1, "big", "teach", 0.5, Caps()), Returned("ok", "hello", usd=0.1))
    killed.begin("k2", 1, "small", "teach", 0.25, Caps())
    other.end("k3", other.begin("k3", 1, "big", "teach", 0.5, Caps()), Returned("ok", "hello", usd=0.3))
    again = CallLedger(path, "a" * 64)
    again.end("k2", again.begin("k2", 2, "small", "teach", 0.25, Caps()), Returned("ok", "hello", usd=0.2))
    assert (again.paid().usd, again.paid().requests) == (pytest.approx(0.1 + 0.25 + 0.2), 3)
    assert (other.paid().usd, other.paid().requests) == (pytest.approx(0.3), 1)
    assert CallLedger(path, "c" * 64).paid().requests == 0
    assert again.spent().usd == pytest.approx(9.0 + 0.1 + 0.25 + 0.2 + 0.3)


def test_two_processes_share_one_ledger(tmp_path: Path) -> None:
    one, two = CallLedger(tmp_path / "calls.jsonl"), CallLedger(tmp_path / "calls.jsonl")
    call = one.begin("k1", 1, "big", "node", 0.5, Caps())
    with pytest.raises(TeacherError, match="cap_calls is 1"):
        two.begin("k2", 1, "big", "other", 0.5, Caps(calls=1))
    one.end("k1", call, Returned("ok", "hello"))
    assert two.answer("k1") is not None
    two.begin("k3", 1, "big", "other", 0.5, Caps())


def test_a_torn_line_is_cut_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    ledger = CallLedger(path)
    ledger.end("k1", ledger.begin("k1", 1, "big", "node", 0.5, Caps()), Returned("ok", "hello"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "se')
    torn = CallLedger(path)
    assert torn.answer("k1") is not None
    torn.begin("k2", 1, "big", "node", 0.5, Caps())
    assert len(path.read_text().splitlines()) == 3
    path.write_bytes(b"not json\n" + whole)
    with pytest.raises(StateError, match="damaged record"):
        CallLedger(path)


def test_the_first_of_two_answers_counts(tmp_path: Path) -> None:
    ledger = CallLedger(tmp_path / "calls.jsonl")
    calls = [ledger.begin("k", n, "big", "node", 0.0, Caps()) for n in (1, 2)]
    for call, text in zip(calls, ("one", "two"), strict=True):
        ledger.end("k", call, Returned("ok", text))
    assert (ledger.answer("k") or Returned("")).text == "one"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    ["four words stand here", '{"a":[{"b":1},{}]}' * 9, "0123456789" * 9, "日本語🗼" * 9],
    ids=["words", "json", "digits", "cjk"],
)
def test_no_vocabulary_makes_more_tokens_of_a_text_than_are_reserved(kind: str, text: str) -> None:
    assert len(tokenizer(kind).ids(text)) <= prompt_tokens([{"role": "user", "content": text}])


def test_more_is_reserved_where_more_was_counted_than_expected(tmp_path: Path) -> None:
    ledger = CallLedger(tmp_path / "calls.jsonl")
    lost = ledger.begin("k0", 1, "big", "node", 1.0, Caps())
    ledger.end("k0", lost, Returned("deadline", usd=9.0, counted=False))
    assert ledger.reserved(ledger.begin("k1", 1, "big", "node", 1.0, Caps())) == 1.0, "a guess teaches nothing"
    for key, usd in (("k2", 1.5), ("k3", 3.0), ("k4", 0.1)):
        ledger.end(key, ledger.begin(key, 1, "big", "node", 1.0, Caps()), Returned("ok", "x", usd=usd))
    again = CallLedger(tmp_path / "calls.jsonl")
    assert again.reserved(again.begin("k5", 1, "big", "node", 1.0, Caps())) == pytest.approx(3.0)
    assert again.reserved(again.begin("k5", 1, "small", "node", 1.0, Caps())) == 1.0
    with pytest.raises(TeacherError, match=r"may cost \$6\.0000"):
        again.check("big", 2.0, Caps(usd=again.spent("big").usd + 5.9))


SCORES: dict[str, Any] = {
    "a": {"score": 0.2, "dimensions": {"x": 0.2}},
    "b": {"score": 0.4, "dimensions": {"x": 0.4}},
    "c": {"score": 0.9, "dimensions": {"x": 0.9}},
}
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0}


def test_scores_are_averaged_by_weight_or_their_median_counts() -> None:
    weighted = ensemble.combined("score", "weighted", WEIGHTS, SCORES, 0.5)
    assert weighted["score"] == pytest.approx((0.2 + 0.4 + 2 * 0.9) / 4)
    assert weighted["members"] == ["a", "b", "c"]
    assert ensemble.combined("score", "vote", WEIGHTS, SCORES, 0.5)["score"] == 0.4


def test_below_the_quorum_there_is_no_answer() -> None:
    with pytest.raises(Unreadable, match="1 of 3 members"):
        ensemble.combined("score", "weighted", WEIGHTS, SCORES | {"b": None, "c": None}, 0.5)
    found = ensemble.combined("score", "weighted", WEIGHTS, SCORES | {"a": None, "b": None}, 0.5)
    assert found["members"] == ["c"]


def test_orders_of_calls_are_added_up_and_the_best_call_is_voted_on() -> None:
    calls = [{"name": "look", "arguments": {"at": at}} for at in "xyz"]
    told: dict[str, Any] = {
        "a": {"tiers": [[0], [1, 2]], "best": calls[0], "candidates": calls},
        "b": {"tiers": [[1], [0], [2]], "best": calls[1], "candidates": calls},
        "c": {"tiers": [[0, 1], [2]], "best": calls[1], "candidates": calls},
    }
    found = ensemble.combined("action", "vote", WEIGHTS, told, 0.5)
    assert (found["tiers"], found["best"], found["candidates"]) == ([[0], [1], [2]], calls[1], calls)


def test_orders_are_added_up_by_place() -> None:
    orders: dict[str, Any] = {
        "a": {"tiers": [["t1"], ["t2"], ["t3"]]},
        "b": {"tiers": [["t2"], ["t1"], ["t3"]]},
        "c": {"tiers": [["t2", "t1"], ["t3"]]},
    }
    equal = dict.fromkeys(orders, 1.0)
    assert ensemble.combined("rank", "vote", equal, orders, 0.5)["tiers"] == [["t1", "t2"], ["t3"]]
    heavy = equal | {"b": 3.0}
    assert ensemble.combined("rank", "weighted", heavy, orders, 0.5)["tiers"] == [["t2"], ["t1"], ["t3"]]


def test_labels_and_calls_are_voted_on() -> None:
    def said(label: str, call: str | None) -> dict[str, Any]:
        fix = None if call is None else {"name": call, "arguments": {}}
        return {
            "turns": [{"turn": 0, "label": "good", "correction": None}, {"turn": 1, "label": label, "correction": fix}]
        }

    votes = {"a": said("first_error", "x"), "b": said("first_error", "y"), "c": said("good", None)}
    made = ensemble.combined("critique", "weighted", {"a": 1.0, "b": 1.5, "c": 2.0}, votes, 0.5)
    assert made["turns"][1] == {"turn": 1, "label": "first_error", "correction": {"name": "y", "arguments": {}}}
    tied = ensemble.combined("critique", "vote", {"a": 1.0, "c": 2.0}, {n: votes[n] for n in "ac"}, 0.5)
    assert tied["turns"][1] == {"turn": 1, "label": "neutral", "correction": None}
    fixes: dict[str, Any] = {
        n: {"keep": 0, "calls": [{"name": c, "arguments": {}}]} for n, c in zip("abc", "xyx", strict=True)
    }
    assert ensemble.combined("sample", "vote", dict.fromkeys("abc", 1.0), fixes, 0.5)["calls"][0]["name"] == "x"
    equal = dict.fromkeys("abc", 1.0)
    fixes["c"] = {"keep": 1, "calls": fixes["a"]["calls"]}
    with pytest.raises(Unreadable, match="3 members gave as many different"):
        ensemble.combined("sample", "vote", dict.fromkeys("abc", 1.0), fixes, 0.5)
    assert ensemble.best(equal, fixes, 0.5, lambda c: float(c["keep"]))["members"] == ["c"]
    with pytest.raises(Unreadable, match="1 of 3 members"):
        ensemble.best(equal, fixes | {"a": None, "b": None}, 0.5, lambda c: 0.0)


def test_scores_of_calls_are_averaged() -> None:
    votes: dict[str, Any] = {
        n: {"scores": s, "best": None, "candidates": [{"name": "x", "arguments": {}}] * 2}
        for n, s in (("a", [0.0, 1.0]), ("b", [0.5, 0.5]))
    }
    assert ensemble.combined("action", "weighted", {"a": 1.0, "b": 1.0}, votes, 0.5)["scores"] == [0.25, 0.75]


RULES = [
    Route(when="problem.type == 'math'", teachers={"t1": 1.0}),
    Route(when="problem.type == 'code'", teachers={"t2": 1.0}),
]
PROBLEMS = [problem(1, "math"), problem(2, "Code"), problem(3, ""), problem(4, "law")]
PLACES = [Place(p.id, p, problem_values(p)) for p in PROBLEMS]


def test_problems_that_no_rule_is_for_are_refused_by_name() -> None:  # KP-TEACH-05
    with pytest.raises(TeacherError, match=r"3 of 4 problems: p2 \(Code\), p3 \(\), p4 \(law\)"):
        route(PLACES, [*RULES, Route(reject=True)], lambda _: 0.0, {})
    with pytest.raises(TeacherError, match=r"3 of 4 problems"):  # of teachers whose probabilities are read
        require_teachers(PROBLEMS, rules_of([*RULES, Route(reject=True)]))
    require_teachers(PROBLEMS, rules_of([*RULES, Route(teachers={"t3": 1.0})]))


def test_the_use_of_the_last_rule_is_counted() -> None:
    found = route(PLACES, [*RULES, Route(teachers={"t3": 1.0})], lambda _: 0.0, {})
    assert found.teacher == {"p1": "t1", "p2": "t3", "p3": "t3", "p4": "t3"}
    assert dict(found.by_default) == {"Code": 1, "": 1, "law": 1}
    assert dict(found.rules) == {0: 1, 2: 3}


@pytest.mark.parametrize(
    ("when", "to_other"),
    [
        ("state.turn == 1", ["first"]),
        ("state.last_tool == 'look' and not state.last_tool_failed", ["second"]),
        ("state.last_tool_failed", ["third"]),
        ("state.tool_errors >= 1", ["third"]),
        ("problem.id == 'p'", ["first", "second", "third"]),
        ("history.problem_success < 0.5 and history.type_success > 0.5", ["first", "second", "third"]),
    ],
)
def test_rules_know_the_state_and_how_rollouts_ended(when: str, to_other: list[str]) -> None:
    own = tried("t", turn("look", at="a"), turn("order", error="unknown_tool"), turn("finish"))
    others = [replace(tried(f"o{i}", success=True), problem_id="q") for i in range(2)]
    unjudged = replace(tried("x"), success=None)
    asks = [Ask("action", PROBLEM, (), (own,), turn=n) for n in range(3)]
    routing = [Route(when=when, teachers={"other": 1.0}), Route(teachers={"one": 1.0})]
    found = route(places(asks, [own, *others, unjudged], states=True), routing, lambda _: 0.0, {})
    named = dict(zip((a.id for a in asks), ("first", "second", "third"), strict=True))
    assert [named[place] for place, teacher in found.teacher.items() if teacher == "other"] == to_other
    assert by_state(routing) is when.startswith("state.")


def test_without_the_state_all_questions_about_a_problem_have_one_teacher() -> None:
    asks = [Ask("action", PROBLEM, (), (tried("t", turn("look", at="a")),), turn=n) for n in range(2)]
    (place,) = places(asks, [tried("t"), tried("g", success=True)], states=False)
    assert (place.id, place.values["history.problem_success"]) == ("p", 0.5)
    assert "state.turn" not in place.values


def test_teachers_are_drawn_by_weight() -> None:
    weights = {"a": 0.25, "b": 0.75}
    assert [drawn(weights, x) for x in (0.0, 0.2, 0.25, 0.9, 0.9999)] == ["a", "a", "b", "b", "b"]
    assert weights_of(Route(teachers={"a": 1.0, "b": 3.0}), "math", {}) == weights


def test_agreement_with_verifiers_moves_the_weights() -> None:
    rule = Route(teachers={"a": 1.0, "b": 1.0}, history=HistoryWeights(kappa=2.0, least=0.3))
    tally = {("a", "math"): (8, 8), ("b", "math"): (0, 8)}
    found = weights_of(rule, "math", tally)
    assert found == {"a": pytest.approx(0.7), "b": 0.3}
    three = Route(teachers={"a": 1.0, "b": 1.0, "c": 1.0}, history=HistoryWeights(kappa=2.0, least=1.0))
    assert weights_of(three, "math", tally) == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert weights_of(rule, "law", tally) == {"a": 0.5, "b": 0.5}


def signal(
    kind: Any, content: Any, *ids: int, teacher: str = "big", usd: float = 0.1, failure: str | None = None
) -> TeacherSignal:
    names = [f"t{i}" for i in ids]
    return TeacherSignal(
        id=f"{kind}{names}", signal=kind, teacher=teacher, revision="r", prompt=f"{kind}@1", problem_id="p",
        problem_type="stock", trajectories=names, content=content, failure=failure, usd=usd,
    )  # fmt: skip


def test_a_scorecard_compares_with_the_verifiers() -> None:
    known = {f"t{i}": trajectory(i, success=i < 2) for i in range(4)}
    bad = {"turns": [{"turn": 0, "label": "first_error", "correction": None}]}
    signals = [
        signal("score", {"score": 0.8, "dimensions": {}}, 0),
        signal("score", {"score": 0.8, "dimensions": {}}, 2),
        signal("critique", bad, 2),
        signal("critique", bad, 0),
        signal("rank", {"tiers": [["t0"], ["t2", "t1"], ["t3"]]}, 0, 1, 2, 3),
        signal("score", None, 3, failure="unreadable: no JSON"),
        signal("score", None, 3, failure="empty_length"),
    ]
    card = scorecard(signals, Evidence(known))["big"]
    assert (card["asked"], card["answered"]) == (7, 5)
    assert card["failures"] == {"empty_length": 1, "unreadable": 1}
    assert card["usd_per_signal"] == pytest.approx(0.7 / 5)
    assert card["agreement"] == {"rate": round(5 / 8, 4), "judged": 8, "by_type": {"stock": [5, 8]}}
    assert tallies([{"big": card}, {"big": card}]) == {("big", "stock"): (10, 16)}
    json.dumps(card)


def test_what_an_answer_cost_that_a_stage_learnt_from_is_told_beside_what_any_answer_cost() -> None:
    fix = {"keep": 0, "calls": [{"name": "finish", "arguments": {}}]}
    signals = [signal("sample", fix, i) for i in range(4)] + [signal("sample", None, 4, failure="refused")]
    signals.append(signal("sample", fix, 5, teacher="other"))
    assert usage(signals, {signals[0].id, signals[2].id}) == {
        "big": {"answered": 4, "used": 2, "usd": 0.5, "usd_per_used": 0.25},
        "other": {"answered": 1, "used": 0, "usd": 0.1, "usd_per_used": None},
    }


def test_a_correction_agrees_where_it_held_in_the_world() -> None:
    known = {f"t{i}": trajectory(i, success=False) for i in range(3)}
    fix = {"keep": 0, "calls": [{"name": "finish", "arguments": {}}]}
    signals = [signal("sample", fix, i) for i in range(3)]
    held = {signals[0].id: True, signals[1].id: False}
    assert scorecard(signals, Evidence(known, held))["big"]["agreement"] == {
        "rate": 0.5,
        "judged": 2,
        "by_type": {"stock": [1, 2]},
    }


def scored(scores: dict[str, float], best: str | None = None) -> TeacherSignal:
    calls = [{"name": "look", "arguments": {"at": at}} for at in scores]
    named = None if best is None else {"name": "look", "arguments": {"at": best}}
    made = signal("action", {"candidates": calls, "scores": list(scores.values()), "best": named}, 0)
    made.turn = 1
    return made


@pytest.mark.parametrize(
    ("said", "tally"),
    [
        (scored({"a": 0.9, "b": 0.1}), (1, 1)),
        (scored({"a": 0.1, "b": 0.9}), (0, 1)),
        (scored({"a": 0.5, "b": 0.5}), (0, 1)),
        (scored({"a": 0.1, "b": 0.9}, best="a"), (1, 1)),
        (scored({"a": 0.9, "b": 0.1}, best="b"), (0, 1)),
        (scored({"a": 0.9}, best="b"), (0, 1)),
        (scored({"a": 0.9, "c": 0.1}), (0, 0)),
        (scored({"a": 0.9}, best="d"), (0, 0)),
    ],
)
def test_scores_of_calls_are_compared_with_what_came_of_them(said: TeacherSignal, tally: tuple[int, int]) -> None:
    """In the state of turn 1 a success came of `a` and only a failure of `b`; elsewhere it is another state."""
    start = turn("look", at="start")
    ways: dict[str, tuple[str, str, bool]] = {
        "t0": ("start", "a", False), "t1": ("start", "a", True), "t2": ("start", "b", False), "t3": ("other", "b", True),
    }  # fmt: skip
    known = {
        name: tried(name, start if first == "start" else turn("look", at=first), turn("look", at=then), success=won)
        for name, (first, then, won) in ways.items()
    }
    said.problem_id = "p"
    card = scorecard([said], Evidence(known))["big"]["agreement"]
    assert (card["by_type"].get("stock", [0, 0]), card["judged"]) == (list(tally), tally[1])
