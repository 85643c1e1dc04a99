from pathlib import Path

import pytest

from specs.redaction import Redactor, secret_key
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
