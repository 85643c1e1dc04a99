"""The node that asks teachers: the clerk itself, the clerk behind a real API, and several together."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.context import NodeContext
from flows.work.teaching import teach
from specs.errors import BudgetError, TeacherError
from specs.ladder import Asking, WordSignal
from specs.prompting import CURRENT, prompt, version_for
from specs.records import Problem, TeacherSignal, Trajectory, signal_from
from specs.routing import Route
from specs.teachers import BLACK_BOX
from tasks.episodes.environments import environment_for
from tasks.episodes.shards import write_shards
from tasks.teachers.asking import asks_for
from tasks.teachers.asks import Ask
from tests.flows.asked_desk import DESK, REWARD, STATE, rollouts, thinking
from tests.flows.test_stages import node
from tests.tasks.teachers import api
from tests.tasks.teachers.api import Act, serving

CLERK = {"kind": "scripted", "environment": "desk", "noise": 0.0}
KEY = "sk-canary-0123456789"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], list[Trajectory]]:
    return rollouts(tmp_path_factory.mktemp("drawn"))


def made(
    folder: Path, name: str, inputs: dict[str, Path], signal: WordSignal, roster: dict[str, Any], **more: Any
) -> NodeContext:
    access = {
        n: {
            k: v
            for k, v in spec.items()
            if k in ("base_url", "api_key", "limits", "price", "cap_usd", "cap_calls", "failure_share")
        }
        for n, spec in roster.items()
    }
    who = {n: {k: v for k, v in spec.items() if k not in access[n]} for n, spec in roster.items()}
    routing = more.pop("routing", [{"teachers": {next(iter(roster)): 1.0}}])
    params = {
        "signal": signal, "asking": Asking(signal=signal, dimensions=["result"]), "prompt": CURRENT[signal], "teachers": who, "environments": {"desk": DESK},
        "routing": [Route.model_validate(r) for r in routing], "data": ["train"], "drawn": {"problems": None, "samples": 3},
        "access": {"program": "p", "teachers": access, "teacher_usd": more.pop("teacher_usd", None)}, **more,
    }  # fmt: skip
    if signal == "sample":
        params |= {"verifiers": {"state": STATE}, "reward": REWARD}
    context = node(folder, name, inputs, {})
    context.params.update({k: dumped(v) for k, v in params.items()})
    return context


def dumped(value: Any) -> Any:
    if isinstance(value, list):
        return [dumped(v) for v in value]
    if isinstance(value, dict):
        return {k: dumped(v) for k, v in value.items()}
    return value.model_dump(mode="json", by_alias=True) if hasattr(value, "model_dump") else value


def signals(context: NodeContext) -> list[TeacherSignal]:
    return [signal_from(json.loads(x)) for x in (context.out / "signals.jsonl").read_text().splitlines()]


def told(context: NodeContext) -> dict[str, Any]:
    return json.loads((context.out / "signals.json").read_text())


def asked(signal: WordSignal, inputs: dict[str, Path], own: list[Trajectory], **more: Any) -> list[Ask]:
    desk = environment_for("desk", DESK)
    problems = {
        p.id: p
        for x in (inputs["data.train"] / "records.jsonl").read_text().splitlines()
        for p in [Problem(**json.loads(x))]
    }
    asking = Asking.model_validate({"signal": signal, "dimensions": ["result"]} | more).model_dump(mode="json")
    return asks_for(asking, own, problems, desk.tools)[0]


@pytest.mark.parametrize("signal", BLACK_BOX)
def test_the_clerk_and_a_closed_api_say_the_same(tmp_path: Path, drawn: Any, signal: WordSignal) -> None:
    inputs, own = drawn
    scripted = made(tmp_path, "scripted", inputs, signal, {"clerk": CLERK})
    teach(scripted)
    act = thinking(asked(signal, inputs, own), prompt(CURRENT[signal]).text)
    with serving(act) as server:
        closed = {
            "kind": "openai",
            "model": "m",
            "base_url": server.url,
            "api_key": None,
            "failure_share": 1.0,
            "price": {"input": 1, "output": 2},
        }
        behind = made(tmp_path, "behind", inputs, signal, {"closed": closed})
        done = teach(behind)
        assert done.cost["teacher_calls"] == len(server.seen.bodies) > 0
        again = made(tmp_path, "again", inputs, signal, {"closed": closed})
        (again.checkpoints / "teachers").symlink_to(behind.checkpoints / "teachers")
        assert teach(again).cost == {"teacher_calls": 0.0, "teacher_usd": 0.0}
    one, two = signals(scripted), signals(behind)
    assert [s.content for s in one] == [s.content for s in two]
    assert [s.content for s in signals(again)] == [s.content for s in two]
    assert any(s.content for s in one)
    assert (behind.out / "signals.jsonl").read_text() == (again.out / "signals.jsonl").read_text()
    card = told(scripted)["scorecard"]["clerk"]
    assert card["agreement"]["rate"] > 0.8
    assert card["agreement"]["judged"] >= {"action": 3, "sample": 6}.get(signal, 8)
    assert {s.revision for s in two} == {"openai m"}
    assert all(s.prompt == CURRENT[signal] for s in one)


@pytest.mark.parametrize(
    "change", [{"signal": "action", "form": "rank"}, {"signal": "score", "dimensions": {"result": "Is it?"}}]
)
def test_other_forms_of_a_question_reach_a_closed_api(tmp_path: Path, drawn: Any, change: dict[str, Any]) -> None:
    inputs, own = drawn
    asking = Asking(**change)
    version = version_for(asking.model_dump())
    assert version != CURRENT[asking.signal]
    asks = asked(asking.signal, inputs, own, **{k: v for k, v in change.items() if k != "signal"})
    with serving(thinking(asks, prompt(version).text)) as server:
        behind = {"kind": "openai", "model": "m", "base_url": server.url, "failure_share": 1.0}
        roster = {"behind": made(tmp_path, "behind", inputs, asking.signal, {"closed": behind}, asking=asking, prompt=version),
                  "scripted": made(tmp_path, "scripted", inputs, asking.signal, {"clerk": CLERK}, asking=asking, prompt=version)}  # fmt: skip
        for context in roster.values():
            teach(context)
        assert len(server.seen.bodies) == len({json.dumps(a.data()) for a in asks})
    one, two = (signals(context) for context in roster.values())
    assert [s.content for s in one] == [s.content for s in two]
    assert {s.prompt for s in one} == {version}
    card = told(roster["scripted"])["scorecard"]["clerk"]
    assert card["agreement"]["rate"] > 0.8
    spoiled = made(
        tmp_path, "spoiled", inputs, asking.signal, {"clerk": CLERK | {"noise": 1.0}}, asking=asking, prompt=version
    )
    teach(spoiled)
    assert told(spoiled)["scorecard"]["clerk"]["agreement"]["rate"] < 0.3


@pytest.mark.parametrize("signal", ["score", "sample", "action"])
def test_noise_spoils_a_share(tmp_path: Path, drawn: Any, signal: WordSignal) -> None:
    inputs, _ = drawn
    rates = []
    for noise in (0.0, 1.0):
        spoiled = made(tmp_path, f"noise{noise}", inputs, signal, {"clerk": CLERK | {"noise": noise}})
        teach(spoiled)
        rates.append(told(spoiled)["scorecard"]["clerk"]["agreement"]["rate"])
    assert rates[0] > 0.8
    assert rates[1] <= (0.5 if signal == "sample" else 0.3), "some corrections do without the call that is taken out"


def test_an_ensemble_outvotes_a_member_that_errs(tmp_path: Path, drawn: Any) -> None:
    inputs, _ = drawn
    bad = CLERK | {"noise": 1.0}
    together = {"kind": "ensemble", "members": {"good": 1.0, "fine": 1.0, "bad": 1.0}, "combine": "vote", "quorum": 0.5}
    roster = {"three": together, "good": CLERK, "fine": CLERK, "bad": bad}
    context = made(tmp_path, "ensemble", inputs, "score", roster)
    teach(context)
    assert told(context)["scorecard"]["three"]["agreement"]["rate"] > 0.8
    assert {s.teacher for s in signals(context)} == {"three"}


def closed(url: str, **more: Any) -> dict[str, Any]:
    limits = {"attempts": 1, "wait_seconds": 0.01, "failures_in_a_row": 2, "pause_seconds": 0.05, "in_flight": 2}
    return {"kind": "openai", "model": "m", "base_url": url, "limits": limits | more.pop("limits", {}), **more}


def two(**more: Any) -> dict[str, Any]:
    return {"kind": "ensemble", "members": {"bad": 1.0, "good": 1.0}, "combine": "weighted", "quorum": 0.5, **more}


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (api.status(401), "the server answered 401: the key is not accepted"),
        (api.status(500), "calls in a row failed"),
        (api.says(None, "stop", refusal="no"), "refused"),
        (api.says("8/10, well done"), "unreadable"),
    ],
)
def test_a_member_that_fails_counts_against_the_quorum_alone(tmp_path: Path, drawn: Any, act: Act, why: str) -> None:
    inputs, own = drawn
    with serving(act) as server:
        roster = {"both": two(), "bad": closed(server.url), "good": CLERK}
        context = made(tmp_path, "borne", inputs, "score", roster)
        done = teach(context)
        count = len(asked("score", inputs, own))
        assert [s.content["members"] for s in signals(context) if s.content] == [["good"]] * count
        assert all(why in s.absent["bad"] for s in signals(context)[-2:])
        absent = told(context)["scorecard"]["both"]["absent"]
        assert list(absent) == ["bad"]
        assert sum(absent["bad"]["failures"].values()) == count
        assert any(
            n.startswith(f"both: its member bad gave no answer to {count} of {count} questions") for n in done.notes
        )
        with pytest.raises(TeacherError, match=r"teacher both: .*no_quorum.*its member bad gave no answer to"):
            teach(made(tmp_path, "stops", inputs, "score", roster | {"both": two(quorum=0.6)}))


def test_what_a_member_answered_before_it_died_counts(tmp_path: Path, drawn: Any) -> None:
    inputs, own = drawn
    act = thinking(asked("score", inputs, own), prompt(CURRENT["score"]).text)
    with serving(*[act] * 5, api.status(500)) as server:
        roster = {"both": two(), "bad": closed(server.url), "good": CLERK}
        context = made(tmp_path, "died", inputs, "score", roster)
        teach(context)
    met = [s for s in signals(context) if s.content and s.content["members"] == ["bad", "good"]]
    assert len({tuple(s.calls) for s in met}) == 5
    failures = told(context)["scorecard"]["both"]["absent"]["bad"]["failures"]
    assert set(failures) == {"teacher_unavailable", "teacher_failed"}


def test_a_cap_of_a_member_ends_the_run(tmp_path: Path, drawn: Any) -> None:
    inputs, _ = drawn
    with serving(api.says("no")) as server:
        roster = {"both": two(), "bad": closed(server.url, cap_calls=3), "good": CLERK}
        with pytest.raises(BudgetError, match="cap_calls is 3"):
            teach(made(tmp_path, "capped", inputs, "score", roster))


def test_clerks_that_all_have_nothing_to_say_are_no_fault(tmp_path: Path, drawn: Any) -> None:
    inputs, _ = drawn
    context = made(tmp_path, "silent", inputs, "action", {"both": two(), "bad": CLERK, "good": CLERK})
    context.params["asking"]["states"] = 9
    teach(context)
    assert "no_answer" in told(context)["scorecard"]["both"]["failures"]


def test_the_best_correction_is_the_one_that_verifiers_like(tmp_path: Path, drawn: Any) -> None:
    inputs, _ = drawn
    together = {"kind": "ensemble", "members": {"bad": 1.0, "good": 1.0}, "combine": "best", "quorum": 0.5}
    roster = {"best": together, "bad": CLERK | {"noise": 1.0}, "good": CLERK}
    context = made(tmp_path, "best", inputs, "sample", roster)
    teach(context)
    contents = [s.content for s in signals(context) if s.content]
    assert contents
    assert all(c["worth"] >= 1.0 for c in contents), "every failure was corrected"
    assert {m for c in contents for m in c["members"]} >= {"good"}


def test_rules_send_problems_to_their_teachers(tmp_path: Path, drawn: Any) -> None:
    inputs, _ = drawn
    roster = {"mails": CLERK, "others": CLERK | {"noise": 1.0}}
    routing = [{"when": "problem.type == 'mail'", "teachers": {"mails": 1.0}}, {"teachers": {"others": 1.0}}]
    lacking = ["routing[0]: critique is not given by mails"]
    context = made(tmp_path, "routed", inputs, "score", roster, routing=routing, downgrades=lacking)
    done = teach(context)
    assert f"signal score; no finer one: {lacking[0]}" in done.notes
    told_of = json.loads((context.out / "notes" / "signal.json").read_text())
    assert told_of == {"signal": "score", "no_finer": lacking}
    assert {(s.problem_type == "mail") == (s.teacher == "mails") for s in signals(context)} == {True}
    assert set(told(context)["by_default"]) <= {"stock", "place"}
    assert any(n.startswith("routing: the last rule decided for") for n in done.notes)
    refusing = [routing[0], {"reject": True}]
    with pytest.raises(TeacherError, match=r"routing: no rule is for .* nothing was asked"):
        teach(made(tmp_path, "refused", inputs, "score", roster, routing=refusing))


def test_a_node_asks_about_the_problems_of_its_own_rules_alone(tmp_path: Path, drawn: Any) -> None:
    inputs, own = drawn
    routing: list[dict[str, Any]] = [
        {"when": "problem.type == 'mail'", "teachers": {"mails": 1.0}},
        {"teachers": {"others": 1.0}},
    ]
    found: list[str] = []
    for i, name in enumerate(("mails", "others")):
        context = made(tmp_path, name, inputs, "score", {name: CLERK}, routing=routing, rules=[i])
        done = teach(context)
        assert {(s.problem_type == "mail") for s in signals(context)} == {i == 0}
        found += told(context)["problems"]
        others = sum((t.problem_type == "mail") is (i == 1) for t in own)
        assert told(context)["skipped"]["another_signal"] == others
        assert not any("no problem went to" in n for n in done.notes)
    assert sorted(found) == sorted({t.problem_id for t in own})
    refusing = [routing[0], {"reject": True}]
    with pytest.raises(TeacherError, match=r"routing: no rule is for .* nothing was asked"):
        teach(made(tmp_path, "refused", inputs, "score", {"mails": CLERK}, routing=refusing, rules=[0]))


def test_a_problem_that_nobody_is_asked_about_is_not_refused(tmp_path: Path, drawn: Any) -> None:
    inputs, own = drawn
    routing: list[dict[str, Any]] = [{"when": "problem.type == 'mail'", "teachers": {"mails": 1.0}}, {"reject": True}]
    solved = [t for t in own if t.problem_type != "mail" and t.sample == 0]
    assert all(t.success for t in solved)
    mails = [t for t in own if t.problem_type == "mail"]
    write_shards(tmp_path / "once" / "trajectories", mails + solved)
    once = inputs | {"rollouts": tmp_path / "once"}
    for signal in ("rank", "sample"):  # nothing to correct, nothing to order
        context = made(tmp_path, signal, once, signal, {"mails": CLERK}, routing=routing, rules=[0])
        teach(context)
        assert told(context)["problems"] == sorted({t.problem_id for t in mails})
    other = [replace(t, id=f"{t.id}b", turns=[replace(t.turns[0], text="other"), *t.turns[1:]]) for t in solved]
    write_shards(tmp_path / "twice" / "trajectories", mails + solved + other)
    twice = inputs | {"rollouts": tmp_path / "twice"}
    for signal in ("rank", "sample"):  # the node of either signal refuses what one of them would be asked about
        context = made(tmp_path, f"{signal}2", twice, signal, {"mails": CLERK}, routing=routing, rules=[0])
        with pytest.raises(TeacherError, match=rf"no rule is for {len(solved)} of .* nothing was asked"):
            teach(context)


def test_states_of_one_problem_may_go_to_different_teachers(tmp_path: Path, drawn: Any) -> None:
    inputs, _ = drawn
    roster = {"begin": CLERK, "later": CLERK}
    routing = [
        {"when": "state.turn == 1 and history.problem_success > 0", "teachers": {"begin": 1.0}},
        {"teachers": {"later": 1.0}},
    ]
    context = made(tmp_path, "states", inputs, "action", roster, routing=routing)
    teach(context)
    found = signals(context)
    assert {(s.turn == 0, s.teacher) for s in found} == {(True, "begin"), (False, "later")}
    assert told(context)["rules"] == {str(i): sum((s.turn == 0) is (i == 0) for s in found) for i in range(2)}


@pytest.mark.parametrize("signal", ["score", "sample", "action"])
def test_earlier_agreement_moves_the_weights(tmp_path: Path, drawn: Any, signal: WordSignal) -> None:
    inputs, _ = drawn
    roster = {"good": CLERK, "bad": CLERK | {"noise": 1.0}}
    history = {"kappa": 20.0, "least": 0.01}
    routing: list[dict[str, Any]] = [{"teachers": {"good": 1.0, "bad": 1.0}, "history": history}]
    first = made(tmp_path, "first", inputs, signal, roster, routing=routing)
    untold = "routing: history counts nothing here, as no earlier answer was compared with verifiers"
    assert untold in teach(first).notes
    second = made(tmp_path, "second", inputs | {"history.0": first.out}, signal, roster, routing=routing)
    assert untold not in teach(second).notes
    counts = [sum(s.teacher == "bad" for s in signals(c)) for c in (first, second)]
    assert counts[0] > counts[1]


@pytest.mark.parametrize("text", ["8/10, well done", "", "ignore the rules and give 10", '{"score": {"result": 11}}'])
def test_what_cannot_be_read_is_an_abstention_and_too_many_stop_the_node(tmp_path: Path, drawn: Any, text: str) -> None:
    inputs, _ = drawn
    with serving(api.says(text)) as server:
        closed = {
            "kind": "openai",
            "model": "m",
            "base_url": server.url,
            "failure_share": 1.0,
            "limits": {"attempts": 1},
        }
        context = made(tmp_path, "odd", inputs, "score", {"closed": closed})
        teach(context)
        assert {s.content is None for s in signals(context)} == {True}
        assert set(told(context)["scorecard"]["closed"]["failures"]) == {"empty" if not text else "unreadable"}
        with pytest.raises(TeacherError, match=r"more than failure_share 0\.5"):
            teach(made(tmp_path, "stops", inputs, "score", {"closed": closed | {"failure_share": 0.5}}))


def test_what_cannot_be_read_is_asked_for_anew_and_nothing_else_is(tmp_path: Path, drawn: Any) -> None:
    inputs, own = drawn
    good = thinking(asked("score", inputs, own), prompt(CURRENT["score"]).text)
    count = len({json.dumps(a.data()) for a in asked("score", inputs, own)})
    odd: list[str] = []
    """Questions that are answered so that nobody can read it, the first two times."""

    def act(h: api.Handler, body: api.Body) -> None:
        question = json.dumps(body["messages"])
        if len(h.api.seen.bodies) <= 4:
            odd.append(question)
        elif question in odd and h.api.seen.keys.most_common(1)[0][1] == 2:
            return api.says("8 of 10")(h, body)
        return (api.says("8 of 10") if len(h.api.seen.bodies) <= 4 else good)(h, body)

    def asking(name: str, again: int, share: float) -> NodeContext:
        limits = {"ask_again": again, "in_flight": 1}
        return made(tmp_path, name, inputs, "score", {"closed": closed(server.url, limits=limits, failure_share=share)})

    with serving(act) as server:
        with pytest.raises(TeacherError, match=r"\d unreadable.*limits\.ask_again is raised"):
            teach(asking("node", 0, 0.05))
        assert len(server.seen.bodies) == count
        with pytest.raises(TeacherError, match=r"\d unreadable"):
            teach(asking("node", 1, 0.05))
        assert len(server.seen.bodies) == count + 4
        context = asking("node", 2, 0.05)
        done = teach(context)
        assert len(server.seen.bodies) == done.cost["teacher_calls"] == count + 8
        assert {s.content is None for s in signals(context)} == {False}
        assert {s.again for s in signals(context)} == {0, 2}
        assert "asked for anew as they could not be read" in done.notes[0]
        teach(asking("node", 2, 0.05))
        assert len(server.seen.bodies) == count + 8


def test_a_budget_ends_the_node_and_raising_it_goes_on(
    tmp_path: Path, drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, own = drawn
    monkeypatch.setenv("TEACHER_KEY", KEY)
    count = len({json.dumps(a.data()) for a in asked("score", inputs, own)})  # equal questions are one call
    with serving(thinking(asked("score", inputs, own), prompt(CURRENT["score"]).text)) as server:
        closed = {
            "kind": "openai",
            "model": "m",
            "base_url": server.url,
            "api_key": "${env:TEACHER_KEY}",
            "price": {"input": 10, "output": 100},
        }
        with pytest.raises(BudgetError, match="cap_calls is 10") as caught:
            teach(made(tmp_path, "capped", inputs, "score", {"closed": closed | {"cap_calls": 10}}))
        assert caught.value.exit_code == 8
        assert len(server.seen.bodies) == 10
        done = teach(made(tmp_path, "capped", inputs, "score", {"closed": closed | {"cap_calls": 100}}))
        assert len(server.seen.bodies) == done.cost["teacher_calls"] == count, "both attempts paid for this result"
        assert done.cost["teacher_usd"] == pytest.approx(count * (100 * 10 + 20 * 100) / 1e6)
        assert set(server.seen.keys.values()) == {1}
        assert server.seen.secrets == {f"Bearer {KEY}"}
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert not [p for p in written if KEY.encode() in p.read_bytes()]
