from pathlib import Path
from random import Random

import pytest

from specs.redaction import Redactor, looks_secret, secret_key, without_secrets
from tests.specs.programs import BASE, changed, refused

CANARY = "sk-canary"


@pytest.mark.parametrize(
    "text",
    [
        f"api_key: {CANARY}\n{BASE}",
        f"api_key: [{CANARY}, {{a: [{CANARY}]}}]\n{BASE}",
        f"api_key: {{value: {CANARY}}}\n{BASE}",
        f"api_key: &k {CANARY}\nother: *k\n{BASE}",
        changed(("policy:\n", f"policy:\n  api_key: {CANARY}\n")),
        changed(("{kind: order_desk}", f"{{kind: order_desk, max_turns: {CANARY}}}")),
        changed(("kind: order_desk", f"kind: {CANARY}")),
        changed(("program: desk", f"program: {CANARY}")),
        changed(("data: [demos]", f"data: [{CANARY}]")),
        changed(("seed: 17", f"{CANARY}: 17")),
        changed(("seed: 17", f"tags: {{owner: {CANARY}}}")),
        changed(("program: desk\n", f"api_key: {CANARY}\n"), ("type: grpo", "type: x")),
    ],
)
def test_a_secret_written_out_is_refused_and_never_shown(tmp_path: Path, text: str) -> None:
    message = refused(tmp_path, text)
    assert CANARY not in message
    assert "canary" not in message
    assert "${env:" in message


def test_the_message_names_the_field_and_the_other_mistakes(tmp_path: Path) -> None:
    lines = refused(tmp_path, f"api_key: hunter2\n{BASE.replace('program: desk', 'about: hunter2')}").splitlines()
    assert any(
        "api_key: `api_key` holds a secret that is written out" in line and "${env:API_KEY}" in line for line in lines
    )
    assert any("program: is missing" in line for line in lines)
    assert any("api_key: unknown key" in line for line in lines)


def test_a_value_is_hidden_wherever_it_stands(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        changed(("seed: 17", "seed: hunter2\npassword: [hunter2, 9917]\ntoken: 12345"), ("size: 50", "size: h9917")),
    )
    assert "hunter2" not in message
    assert "9917" not in message
    assert "12345" not in message
    assert "seed: found '(not shown)', expected a whole number" in message


def test_secrets_in_settings_and_in_broken_values(tmp_path: Path) -> None:
    message = refused(tmp_path, BASE, (f"api_key={CANARY}", f"seed={CANARY}", CANARY, f"policy.token=[{CANARY}"))
    assert CANARY not in message
    message = refused(tmp_path, f"secret: 1e987\nsecret: 5e987\n{BASE}")
    assert "987" not in message
    assert "the key is written twice" in message


def test_references_under_secret_keys_are_no_secrets(tmp_path: Path) -> None:
    message = refused(tmp_path, changed(("policy:\n", 'policy:\n  api_key: "${env:KEY}"\n')))
    assert "written out" not in message
    assert "policy.api_key: unknown key" in message


@pytest.mark.parametrize(
    "key", ["api_key", "apiKey", "API-KEY", "token", "access_token", "dbPassword", "client_secret", "hf_token"]
)
def test_keys_of_secrets(key: str) -> None:
    assert secret_key(key)


@pytest.mark.parametrize(
    "key", ["tokens", "max_new_tokens", "tokenizer", "schema_tokens", "key", "keyword", "monkey", "author"]
)
def test_keys_that_are_none(key: str) -> None:
    assert not secret_key(key)


def test_known_forms_are_hidden() -> None:
    clean = Redactor({"password": "pa'ss\\wörd"}).clean
    for secret in ("ghp_abcdefgh123", "https://me:pw@host/x", "Bearer abcdefgh", "AKIAABCDEFGHIJKLMNOP", "pa'ss\\wörd"):
        assert secret not in clean(f"found {secret!r} and {secret}")
    assert clean("task-based desk-top https://host/x") == "task-based desk-top https://host/x"


def drawn(choose: Random, letters: str, most: int) -> str:
    return "".join(choose.choices(letters, k=choose.randint(1, most)))


def some_host(choose: Random, *, dotted: bool) -> str:
    name = f"h{drawn(choose, 'host09', 6)}" + (".org" if dotted else "")
    return name + choose.choice(["", f":{choose.randint(10, 65535)}"])


def test_a_password_is_hidden_where_the_user_holds_a_slash() -> None:
    choose = Random(5)
    urls = [("us/er", "pw", "host", "")]
    for _ in range(500):
        user = f"{drawn(choose, 'us', 4)}/{drawn(choose, 'er./', 5)}"
        password = f"p{drawn(choose, 'wW09/:?#@!%&=+~._-', 10)}9"
        after = choose.choice(["", "/api", ", see", "?x=1"])
        urls.append((user, password, some_host(choose, dotted=choose.random() < 0.5), after))
    for user, password, host, after in urls:
        text = f"found https://{user}:{password}@{host}{after}"
        assert Redactor().clean(text) == f"found https(not shown){host}{after}"
        assert without_secrets(text) == f"found https://{host}{after}"


@pytest.mark.parametrize("user", ["user", "${env:USER}", "us$er", "us/er", "us/${env:USER}", ""])
@pytest.mark.parametrize(
    "password", ["pa$s", "$", "$PASSWORD", "${PASSWORD}", "${env:PW}x", "x${env:PW}", "${env:PW}${env:PW}", "${env:PW}@x", "${env:}"]
)  # fmt: skip
def test_a_password_with_a_dollar_is_hidden_unless_it_is_a_reference(user: str, password: str) -> None:
    text = f"found scheme://{user}:{password}@host/v1, see"
    assert Redactor().clean(text) == "found scheme(not shown)host/v1, see"
    assert looks_secret(text)
    assert without_secrets(text) == "found scheme://host/v1, see"
    for plain in ("host", "host:80/v1", "host/v1/a@b?x#y"):
        reference = f"found 'scheme://{user}:${{env:PW}}@{plain}' and scheme://${{env:HOST}}:${{env:PORT}}/a:b@c"
        assert Redactor().clean(reference) == reference
        assert not looks_secret(reference)


def test_a_path_with_an_at_sign_is_no_secret() -> None:
    choose = Random(5)
    urls = [
        "host/a@b", "localhost/a:b@c", "registry/image:tag@sha256:0f00f00f", "registry/image@sha256:0f00f00f",
        "/folder/a:b@c", "host/a:80/b@c", "host/${env:NAME}@b", "${env:HOST}/a@b", "${env:HOST}/a:b@c", "host:${env:PORT}/a@b",
    ]  # fmt: skip
    for _ in range(500):
        path = "".join(f"/{drawn(choose, 'aB9@:._~', 6)}" for _ in range(choose.randint(1, 3)))
        urls.append(some_host(choose, dotted=True) + path)
    for url in urls:
        text = f"found scheme://{url}"
        assert Redactor().clean(text) == text
        assert without_secrets(text) == text
