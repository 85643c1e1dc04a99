"""Servers that send what nobody should send: nothing of it ends a node, fills memory, or shows a key."""

import base64
import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from specs.errors import TeacherError
from tasks.teachers import http_replies
from tasks.teachers.reaching import Reach
from tests.tasks.teachers import api
from tests.tasks.teachers.api import Act, Handler, serving
from tests.tasks.teachers.asked import GOOD, KEY, asks, client, teacher

PRICE = {"input": 10.0, "output": 100.0}
ONCE = {"attempts": 1}


def packed(data: bytes, encoding: str) -> Act:
    return lambda h, _: h.send(200, data, Content_Encoding=encoding)


def streamed(data: bytes) -> Act:
    return api.raw(data, "text/event-stream")


def delta(text: str, *, raw: bool = False, **more: Any) -> bytes:
    event = {"choices": [{"delta": {"content": text}, **more}]}
    return f"data: {json.dumps(event, ensure_ascii=not raw)}\n\n".encode()


END = delta("", finish_reason="stop") + b"data: [DONE]\n\n"
WHOLE = json.dumps(api.completion(GOOD)).encode()
HALF = '{"score": {"right": 8}, "why": "\ud83d'


def said(tmp_path: Path, act: Act, **more: Any) -> tuple[str | None, str | None]:
    with serving(act) as server:
        (reply,) = client(tmp_path, teacher(server.url, limits=ONCE, **more)).ask(asks(1), "score it")
    return reply.text, reply.failure


@pytest.mark.parametrize(
    ("act", "failure"),
    [
        (api.raw(b"[" * 200_000), "not_json"),
        (api.raw(b"\xff\xfe" + WHOLE), "not_json"),
        (api.raw(WHOLE.replace(b'"usage"', b'"choices": [], "usage"')), "not_json"),
        (lambda h, _: h.send(400, b"[" * 60_000), "bad_request"),
        (api.says(GOOD, "abort"), "cut"),
        (api.says(GOOD, "MAX_TOKENS"), "cut_length"),
        (api.says(GOOD, "SAFETY"), "content_filter"),
        (packed(WHOLE, "gzip"), "not_json"),
        (packed(gzip.compress(gzip.compress(b" " * (40 << 20))), "gzip, gzip"), "not_json"),
        (packed(gzip.compress(b" " * (40 << 20)), "gzip"), "too_long"),
        (packed(WHOLE, "br"), "not_json"),
        (api.status(429, Retry_After="Fri, 31 Dec 2027 23:59:59 +99999999999999999999"), "rate_limited: no"),
        (api.status(429, Retry_After="1e309"), "rate_limited: no"),
        (api.status(429, Retry_After="nan"), "rate_limited: no"),
        (api.status(429, Retry_After="-5"), "rate_limited: no"),
    ],
)  # fmt: skip
def test_it_is_a_failure_of_one_question(tmp_path: Path, act: Act, failure: str) -> None:
    assert said(tmp_path, act) == (None, failure)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"data: " + b"[" * 200_000 + b"\n\n" + END, None),
        (delta(HALF) + delta('"}') + END, None),
        (b'data: {"choices":[{"delta":{"content":"\xe9"}}]}\n\n' + END, None),
        (delta(HALF) + delta('\ude00"}') + END, HALF[:-1] + '\U0001f600"}'),
        (delta("a\u2028b\x85c", raw=True) + END, "a\u2028b\x85c"),
    ],
)
def test_a_stream_is_read_by_its_lines(tmp_path: Path, data: bytes, answer: str | None) -> None:
    text, failure = said(tmp_path, streamed(data), stream=True)
    assert (text, failure) == (answer, None if answer else "not_json")


def test_a_stream_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    def stays(h: Handler, _: api.Body) -> None:
        h.send_response(200)
        h.send_header("Content-Type", "text/event-stream")
        h.end_headers()
        h.wfile.write(delta(GOOD) + END)
        h.wfile.flush()
        time.sleep(1)
        h.close_connection = True

    assert said(tmp_path, stays, stream=True) == (GOOD, None)
    assert json.loads((tmp_path / "calls.jsonl").read_text().splitlines()[-1])["seconds"] < 0.9


def test_a_reply_that_was_packed_all_the_same_is_read(tmp_path: Path) -> None:
    assert said(tmp_path, packed(gzip.compress(WHOLE), "gzip")) == (GOOD, None)
    assert len(http_replies.unpacked(gzip.compress(b" " * (40 << 20)), "gzip")) == http_replies.MOST_BYTES + 1


def test_a_moment_is_told_by_the_servers_clock() -> None:
    date, later = "Mon, 01 Jan 2001 00:00:00 GMT", "Mon, 01 Jan 2001 00:00:07 GMT"
    assert http_replies.retry_after(later, date) == 7.0
    assert http_replies.retry_after(date, later) == 0.0
    assert http_replies.retry_after(later, None) == 0.0, "long ago by our own clock"
    assert http_replies.retry_after("soon", date) == 0.0


def test_a_count_that_cannot_be_is_no_count(tmp_path: Path) -> None:
    body = api.completion(GOOD) | {"usage": {"prompt_tokens": 10**400, "completion_tokens": 1}}
    with serving(api.raw(json.dumps(body).encode())) as server:
        (reply,) = client(tmp_path, teacher(server.url, price=PRICE)).ask(asks(1), "score it")
    assert reply.text == GOOD
    assert 0 < reply.usd < 1, "the most that was asked for"


def test_another_address_gets_nothing(tmp_path: Path) -> None:
    with serving(api.says(GOOD)) as other, serving(api.status(307, Location=f"{other.url}/chat/completions")) as server:
        with pytest.raises(TeacherError, match="307: it points to another address"):
            client(tmp_path, teacher(server.url, api_key="${env:KEY}")).ask(asks(9), "score it")
        assert len(server.seen.bodies) == 1
    assert not other.seen.bodies


def test_what_was_never_sent_costs_nothing(tmp_path: Path) -> None:
    with serving(api.says(GOOD)) as server:
        url = server.url
    (reply,) = client(tmp_path, teacher(url, price=PRICE)).ask(asks(1), "score it")
    assert (reply.failure, reply.usd, reply.requests) == ("teacher_unavailable", 0.0, 3)


@pytest.mark.parametrize("value", ["", "sk-canary\n", "sk canary", "sk-\u00e9"])
def test_a_key_that_none_can_be_is_named_and_nothing_is_sent(tmp_path: Path, value: str) -> None:
    with serving(api.says(GOOD)) as server, pytest.raises(TeacherError, match=r"closed\.api_key: .* KEY ") as caught:
        client(tmp_path, teacher(server.url, api_key="${env:KEY}"), environ={"KEY": value}).ask(asks(3), "score it")
    assert not server.seen.bodies
    assert "canary" not in str(caught.value)
    assert not (tmp_path / "calls.jsonl").exists(), "nothing is reserved for it"


def test_a_key_that_comes_back_is_not_kept(tmp_path: Path) -> None:
    def echo(h: Handler, body: api.Body) -> None:
        held = str(h.headers.get("Authorization"))
        api.says(f"{GOOD} {held} {base64.b64encode(KEY.encode()).decode().rstrip('=')}")(h, body)

    text, failure = said(tmp_path, echo, api_key="${env:KEY}")
    assert (text, failure) == (f"{GOOD} Bearer (not shown) (not shown)", None)
    assert KEY not in (tmp_path / "calls.jsonl").read_text()


def test_a_password_of_the_address_is_not_told() -> None:
    to = Reach("http://me:p%40ssword@host/v1", "EMPTY")
    assert to.hide("p@ssword p%40ssword EMPTY") == "(not shown) (not shown) (not shown)"
    assert to.hide("EMPTY lists", answer=True) == "EMPTY lists", "a short key may be a word of the answer"
    assert "ssword" not in repr(to)


def test_half_a_character_in_a_question_is_asked_as_its_escape(tmp_path: Path) -> None:
    (ask,) = asks(1)
    ask.problem.text = "x\ud800"
    with serving(api.says(GOOD)) as server:
        (reply,) = client(tmp_path, teacher(server.url)).ask([ask], "score it")
    assert reply.text == GOOD
    assert json.loads(server.seen.bodies[0]["messages"][1]["content"])["request"] == "x\ud800"
