"""KP-TEACH-01 to 03 and the faults of closed APIs, against a real HTTP server."""

import json
import time
from pathlib import Path

import pytest

from specs.errors import BudgetError, Interrupted, TeacherError
from specs.teachers import OpenAITeacher
from tasks.teachers.budget import Caps
from tasks.teachers.ledger import CallLedger
from tests.tasks.teachers import api
from tests.tasks.teachers.api import Act, serving
from tests.tasks.teachers.asked import GOOD, KEY, asks, client, teacher

PRICE = {"input": 10.0, "output": 100.0}


def lines(folder: Path, event: str) -> list[dict[str, object]]:
    return [r for t in (folder / "calls.jsonl").read_text().splitlines() if (r := json.loads(t))["event"] == event]


def test_answers_are_kept_and_never_paid_for_twice(tmp_path: Path) -> None:
    with serving(api.says(GOOD)) as server:
        spec = teacher(server.url, price=PRICE, api_key="${env:KEY}")
        first = client(tmp_path, spec).ask(asks(5), "score it")
        again = client(tmp_path, spec).ask(asks(6), "score it")
    assert [r.text for r in first] == [GOOD] * 5
    assert [r.requests for r in again] == [0] * 5 + [1]
    assert first[0].usd == again[0].usd == pytest.approx((100 * 10 + 20 * 100) / 1e6)
    assert set(server.seen.keys.values()) == {1}
    assert server.seen.secrets == {f"Bearer {KEY}"}
    assert server.seen.bodies[0]["response_format"] == {"type": "json_object"}
    assert KEY not in (tmp_path / "calls.jsonl").read_text()


def test_what_another_node_asked_meanwhile_is_not_asked_again(tmp_path: Path) -> None:
    spec, questions = teacher("http://127.0.0.1:1", limits={"in_flight": 1}), asks(5)
    beside = teacher("http://127.0.0.1:1", limits={"in_flight": 2})

    def also(h: api.Handler, body: api.Body) -> None:
        if len(server.seen.bodies) == 2:
            client(tmp_path, beside.model_copy(update={"base_url": server.url})).ask(questions[3:], "score it")
        api.says(GOOD)(h, body)

    with serving(also) as server:
        one = client(tmp_path, spec.model_copy(update={"base_url": server.url}))
        assert [r.requests for r in one.ask(questions, "score it")] == [1, 1, 1, 0, 0]
    assert set(server.seen.keys.values()) == {1}


@pytest.mark.parametrize(
    ("act", "reason", "sent"),
    [
        (api.says("", "length"), "empty_length", 4),
        (api.says('{"score": {"ri', "length"), "cut_length", 4),
        (api.says(None), "empty", 3),
        (api.says(" \n\t"), "empty", 3),
        (api.says(GOOD, "content_filter"), "content_filter", 1),
        (api.says(None, "stop", refusal="I cannot"), "refused", 1),
        (api.raw(b"<html>please log in</html>", "text/html"), "not_json", 3),
        (api.raw(b'{"error": {"message": "overloaded"}}'), "error_body", 3),
        (api.raw(b'{"choices": []}'), "no_choices", 3),
        (api.raw(b'{"choices": null}'), "no_choices", 3),
        (api.cut(json.dumps(api.completion(GOOD)).encode(), 40), "cut", 3),
        (api.status(500), "teacher_unavailable: no", 3),
        (api.status(400, "context too long"), "bad_request: context too long", 1),
    ],
)  # fmt: skip
def test_a_reply_that_is_none_is_a_failure_with_its_reason(tmp_path: Path, act: Act, reason: str, sent: int) -> None:
    with serving(act) as server:
        spec = teacher(server.url, price=PRICE, max_tokens=16, max_tokens_limit=128)
        (reply,) = client(tmp_path, spec).ask(asks(1), "score it")
        assert (reply.text, reply.failure, reply.requests) == (None, reason, sent)
        assert len(server.seen.bodies) == sent
        ended = lines(tmp_path, "returned")
        assert [r["text"] for r in ended] == [None] * sent
        billed = reason not in ("teacher_unavailable: no", "bad_request: context too long")
        assert (reply.usd > 0) == billed, "every attempt that may have been charged is counted"
        assert reply.usd == pytest.approx(sum(float(str(r["usd"])) for r in ended))
        client(tmp_path, spec).ask(asks(1), "score it")
        assert len(server.seen.bodies) == 2 * sent, "a failure is never kept as an answer"


def test_a_reply_cut_for_length_is_asked_for_with_more_tokens(tmp_path: Path) -> None:
    with serving(api.says("", "length"), api.says("", "length"), api.says(GOOD)) as server:
        (reply,) = client(tmp_path, teacher(server.url, max_tokens=16, max_tokens_limit=50)).ask(asks(1), "score it")
    assert reply.text == GOOD
    assert [b["max_tokens"] for b in server.seen.bodies] == [16, 32, 50]


def test_asking_for_more_tokens_uses_up_no_attempt(tmp_path: Path) -> None:
    short = api.says('{"score": {"ri', "length")
    with serving(api.status(429), short, short, api.status(500), short, api.says(GOOD)) as server:
        spec = teacher(server.url, max_tokens=16, max_tokens_limit=128, limits={"attempts": 3})
        (reply,) = client(tmp_path, spec).ask(asks(1), "score it")
    assert (reply.text, reply.requests) == (GOOD, 6)
    assert [b["max_tokens"] for b in server.seen.bodies] == [16, 16, 32, 64, 64, 128]
    with serving(api.status(500), short, api.status(500), api.says(GOOD)) as server:
        spec = teacher(server.url, revision="2", limits={"attempts": 2})
        assert client(tmp_path, spec).ask(asks(1), "score it")[0].failure == "teacher_unavailable: no"


def test_everything_that_can_change_an_answer_is_part_of_its_key(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [
        {}, {"temperature": 1.0}, {"temperature": 1.0, "max_tokens": 16}, {"temperature": 1.0, "top_p": 0.5},
        {"model": "other"}, {"revision": "2"}, {"json_mode": False},
    ]  # fmt: skip
    with serving(api.answers(lambda b: f"{b['model']} {len(server.seen.bodies)}")) as server:
        texts: list[str | None] = []
        for change in changes:
            spec = OpenAITeacher.model_validate(teacher(server.url).model_dump(mode="json") | change)
            texts += [r.text for r in client(tmp_path, spec).ask(asks(1), "score it")]
        spec = teacher(server.url, temperature=1.0)
        four = [r.text for n in range(4) for r in client(tmp_path, spec).ask(asks(1, sample=n), "score it")]
        other = client(tmp_path, spec).ask(asks(1), "score it well")
        again = [r.text for n in range(4) for r in client(tmp_path, spec).ask(asks(1, sample=n), "score it")]
    assert len(set(texts)) == len(changes)
    assert four[0] == texts[1], "the first sample of the same question is the same call"
    assert len(set(four)) == 4
    assert again == four
    assert other[0].text not in four


@pytest.mark.parametrize("stream", [False, True])
def test_retries_wait_as_the_server_asks_and_start_over(tmp_path: Path, *, stream: bool) -> None:
    whole = '{"score": {"right": 7}}'
    broken = (
        api.streams([whole[:10]], done=False) if stream else api.cut(json.dumps(api.completion(whole)).encode(), 60)
    )
    good = api.streams([whole[:10], whole[10:]]) if stream else api.says(whole)
    with serving(api.status(429, Retry_After="1"), broken, good) as server:
        (reply,) = client(tmp_path, teacher(server.url, stream=stream, price=PRICE)).ask(asks(1), "score it")
    assert reply.text == whole
    assert reply.requests == 3
    assert server.seen.times[1] - server.seen.times[0] >= 1.0
    outcomes = [(r["outcome"], r["tokens_out"]) for r in lines(tmp_path, "returned")]
    assert [o for o, _ in outcomes] == ["rate_limited", "cut", "ok"]
    assert outcomes[2][1] == 20


def test_other_calls_wait_as_well_when_the_server_asks_for_it(tmp_path: Path) -> None:
    with serving(api.status(429, Retry_After="0.6"), api.says(GOOD)) as server:
        replies = client(tmp_path, teacher(server.url, limits={"in_flight": 4})).ask(asks(4), "score it")
    assert [r.text for r in replies] == [GOOD] * 4
    assert min(t - server.seen.times[0] for t in server.seen.times[1:]) >= 0.6


def test_a_wait_beyond_the_deadline_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    with serving(api.status(429, Retry_After="300")) as server:
        replies = client(tmp_path, teacher(server.url, limits={"deadline_seconds": 0.5})).ask(asks(4), "score it")
    assert [r.failure for r in replies] == ["rate_limited: no"] + ["rate_limited"] * 3
    assert len(server.seen.bodies) == 1
    assert time.monotonic() - began < 2.0


def test_a_teacher_that_fails_again_and_again_is_left_alone(tmp_path: Path) -> None:
    limits = {"failures_in_a_row": 4, "pause_seconds": 0.5, "in_flight": 2}
    began = time.monotonic()
    with serving(api.status(500)) as server, pytest.raises(TeacherError, match="calls in a row failed"):
        client(tmp_path, teacher(server.url, limits=limits)).ask(asks(24), "score it")
    assert len(server.seen.bodies) <= (4 + 2 + 1) * 3
    assert time.monotonic() - began >= 0.5


def test_a_teacher_that_is_not_there_fails_the_same_way(tmp_path: Path) -> None:
    with serving(api.says(GOOD)) as server:
        url = server.url
    (reply,) = client(tmp_path, teacher(url)).ask(asks(1), "score it")
    assert (reply.failure, reply.requests) == ("teacher_unavailable", 3)
    (reply,) = client(tmp_path, teacher("http://no-such-host.invalid/v1")).ask(asks(1), "score it")
    assert (reply.failure, reply.requests) == ("teacher_unavailable", 3)


def test_a_teacher_that_recovers_is_asked_again(tmp_path: Path) -> None:
    limits = {"failures_in_a_row": 2, "pause_seconds": 0.2, "in_flight": 1, "attempts": 1}
    with serving(api.status(500), api.status(500), api.says(GOOD)) as server:
        replies = client(tmp_path, teacher(server.url, limits=limits)).ask(asks(5), "score it")
    assert [r.failure for r in replies] == ["teacher_unavailable: no"] * 2 + [None] * 3
    assert server.seen.times[2] - server.seen.times[1] >= 0.2


@pytest.mark.parametrize("act", [api.hang(3), api.trickle(220, 0.1)], ids=["silent", "trickling"])
def test_the_deadline_is_over_everything(tmp_path: Path, act: Act) -> None:
    began = time.monotonic()
    with serving(act) as server:
        spec = teacher(server.url, price=PRICE, limits={"deadline_seconds": 0.5})
        (reply,) = client(tmp_path, spec).ask(asks(1), "score it")
        assert time.monotonic() - began < 1.5
        assert (reply.failure, reply.requests) == ("deadline", 1)
        assert reply.usd > 0, "what may have been charged counts"


@pytest.mark.parametrize("code", [401, 402, 403, 404])
def test_a_wrong_key_or_model_is_found_out_by_one_request(tmp_path: Path, code: int) -> None:
    with serving(api.echo_key(code)) as server, pytest.raises(TeacherError, match=str(code)) as caught:
        client(tmp_path, teacher(server.url, api_key="${env:KEY}")).ask(asks(24), "score it")
    assert len(server.seen.bodies) == 1
    assert KEY not in str(caught.value)
    assert KEY not in (tmp_path / "calls.jsonl").read_text()


def test_a_key_that_is_not_set_is_named(tmp_path: Path) -> None:
    with serving(api.says(GOOD)) as server, pytest.raises(TeacherError, match=r"closed\.api_key.*KEY is not set"):
        client(tmp_path, teacher(server.url, api_key="${env:KEY}"), environ={}).ask(asks(1), "score it")
    assert not server.seen.bodies
    with pytest.raises(TeacherError, match=r"base_url is no address"):
        client(tmp_path, teacher("${env:KEY}")).ask(asks(1), "score it")


def test_a_cap_of_calls_is_never_passed_and_can_be_raised(tmp_path: Path) -> None:
    with serving(api.slow(api.says(GOOD), 0.05)) as server:
        spec = teacher(server.url, limits={"in_flight": 8})
        with pytest.raises(BudgetError, match=r"budget_exhausted.*cap_calls is 10"):
            client(tmp_path, spec, caps=Caps(calls=10)).ask(asks(24), "score it")
        assert len(server.seen.bodies) == 10
        replies = client(tmp_path, spec, caps=Caps(calls=24)).ask(asks(24), "score it")
        assert [r.text for r in replies] == [GOOD] * 24
        assert set(server.seen.keys.values()) == {1}


def test_dollars_are_reserved_before_a_request_is_sent(tmp_path: Path) -> None:
    caps = Caps(usd=0.01)
    with serving(api.slow(api.says(GOOD), 0.02)) as server:
        spec = teacher(server.url, price=PRICE, max_tokens=40, limits={"in_flight": 8})
        with pytest.raises(BudgetError, match=r"cap_usd is 0\.01"):
            client(tmp_path, spec, caps=caps).ask(asks(24), "score it")
    spent = CallLedger(tmp_path / "calls.jsonl").spent("closed")
    assert 0 < spent.usd <= 0.01
    assert spent.requests == len(server.seen.bodies) < 24
    with serving(api.says(GOOD)) as server, pytest.raises(BudgetError, match=r"budget\.teacher_usd is 0\.01"):
        client(tmp_path, spec, caps=Caps(program_usd=0.01)).ask(asks(24), "score it")
    assert not server.seen.bodies, "what was spent before counts"


def counts(tokens_a_byte: float) -> Act:
    """Answer, and count so many tokens for each byte of the messages."""

    def act(h: api.Handler, body: api.Body) -> None:
        size = sum(len(m["content"].encode()) for m in body["messages"])
        told = api.completion(GOOD) | {"usage": {"prompt_tokens": int(tokens_a_byte * size), "completion_tokens": 1}}
        h.send(200, json.dumps(told).encode())

    return api.slow(act, 0.05)


@pytest.mark.parametrize("tokens_a_byte", [0.25, 1.0, 3.0])
def test_a_cap_is_used_up_and_not_passed_however_many_tokens_a_text_has(tmp_path: Path, tokens_a_byte: float) -> None:
    price, ask = {"input": 100.0, "output": 0.0}, asks(64)
    one = max(sum(len(m["content"].encode()) for m in a.messages("score it")) for a in ask) * 100 / 1e6
    cap = 8.5 * one
    with serving(counts(tokens_a_byte)) as server, pytest.raises(BudgetError, match="cap_usd"):
        client(tmp_path, teacher(server.url, price=price), caps=Caps(usd=cap)).ask(ask, "score it")
    spent = CallLedger(tmp_path / "calls.jsonl").spent("closed").usd
    assert spent <= cap
    assert spent > cap - 1.2 * max(1.0, tokens_a_byte) * one, "no more than one call's worth is left"


def test_calls_at_once_and_in_a_minute_are_bounded(tmp_path: Path) -> None:
    with serving(api.slow(api.says(GOOD), 0.05)) as server:
        client(tmp_path, teacher(server.url, limits={"in_flight": 3})).ask(asks(9), "score it")
        assert server.seen.most_at_once == 3
        client(tmp_path, teacher(server.url, model="n", limits={"requests_per_minute": 600})).ask(asks(6), "score it")
        times = server.seen.times[9:]
        assert times[-1] - times[0] >= 0.45


def test_stopping_keeps_what_has_arrived(tmp_path: Path) -> None:
    with serving(api.slow(api.says(GOOD), 0.1)) as server:
        spec = teacher(server.url, limits={"in_flight": 2})
        stop = lambda: len(server.seen.bodies) >= 6  # noqa: E731
        with pytest.raises(Interrupted):
            client(tmp_path, spec, stop=stop).ask(asks(24), "score it")
        assert len(server.seen.bodies) <= 10
        client(tmp_path, spec).ask(asks(24), "score it")
        assert set(server.seen.keys.values()) == {1}, "nothing is asked for twice"


def dies_after(count: int, how: str) -> Act:
    """Answer so many questions and no more: refuse the next ones, or be gone, so that nobody listens any more."""

    def act(h: api.Handler, body: api.Body) -> None:
        if len(h.api.seen.bodies) <= count:
            return api.slow(api.says(GOOD), 0.02)(h, body)
        if how == "500":
            return api.status(500)(h, body)
        h.close_connection = True
        return h.api.vanish()

    return act


@pytest.mark.parametrize("how", ["500", "gone"])
def test_a_teacher_that_dies_has_its_answers_kept_and_a_rerun_pays_for_the_rest(tmp_path: Path, how: str) -> None:
    limits = {"in_flight": 4, "attempts": 2, "failures_in_a_row": 3, "pause_seconds": 0.1}
    with serving(dies_after(10, how)) as server, pytest.raises(TeacherError, match="calls in a row failed") as caught:
        client(tmp_path, teacher(server.url, price=PRICE, limits=limits)).ask(asks(24), "score it")
    assert "what was answered is kept" in str(caught.value)
    kept = [r["key"] for r in lines(tmp_path, "returned") if r["outcome"] == "ok"]
    assert len(kept) == 10
    assert {r["outcome"] for r in lines(tmp_path, "returned")} - {"ok", "cut"} == {"teacher_unavailable"}
    before = CallLedger(tmp_path / "calls.jsonl").spent("closed")
    with serving(api.says(GOOD)) as again:
        replies = client(tmp_path, teacher(again.url, price=PRICE, limits=limits)).ask(asks(24), "score it")
    assert [r.text for r in replies] == [GOOD] * 24
    assert len(again.seen.bodies) == sum(r.requests for r in replies) == 24 - len(kept)
    assert set(again.seen.keys.values()) == {1}
    after = CallLedger(tmp_path / "calls.jsonl").spent("closed")
    assert after.usd - before.usd == pytest.approx((24 - len(kept)) * (100 * 10 + 20 * 100) / 1e6)
