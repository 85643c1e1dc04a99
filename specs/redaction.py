"""Secrets stay out of programs and out of messages; `${env:NAME}` names them instead."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from specs.positions import KeyPath

_KEY = re.compile(
    r"(?:^|[_.-])(?:api_?keys?|access_?keys?|secret_?keys?|private_?keys?|auth|authorization|bearer|credentials?"
    r"|passwd|passwords?|passphrase|pwd|secrets?|token)$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_REFERENCE = REFERENCE.pattern
_USER = rf"(?:{_REFERENCE}|(?!{_REFERENCE})[^/\s:\[])*+:"
_PASSWORD = rf"(?!(?:\d|{_REFERENCE})*[/?#])(?!{_REFERENCE}@[^\s@/?#]*(?:[\s/?#]|$))"
"""Before what stands behind a user's colon: it is no port, and more than a reference alone."""
_SLASHED = (
    rf"(?!localhost/)[^/\s:@.\[]+/(?:{_REFERENCE}|(?!{_REFERENCE})[^\s:@])*+:{_PASSWORD}\S+@"
    r"(?=[\w.-]++(?::\d++)?+(?![\w:@]))"
)
"""A user that holds a / as it is, and a password: what is before the / names no host, and what is behind the @ may be one.

So `https://example.com/a:b@c` is a path, and so is `oci://registry/image:tag@sha256:…`.
"""
_VALUE = re.compile(
    r"(?:\b(?:sk|pk|rk)-[A-Za-z0-9_-]{4,}|\bgh[pousr]_\w{6,}|\bgithub_pat_\w{6,}|\bglpat-[\w-]{6,}|\bhf_[A-Za-z0-9]{8,}"
    r"|\bAKIA[0-9A-Z]{12,}|\bxox[abprs]-[\w-]{6,}|\beyJ[\w-]{10,}\.[\w-]+|-----BEGIN [A-Z ]*KEY|\bBearer\s+\S{6,}"
    rf"|://(?:{_USER}{_PASSWORD}(?:[^\s@]+@)+|{_SLASHED}))"
)
_NAME_MAPS = ("environments", "data", "verifiers", "gates", "schedule", "teachers")
"""Their keys are names that people choose; a map behind one is no secret."""
_HIDDEN = "(not shown)"
_SHORTEST = 3
"""Values below this length would blot out words everywhere; they are hidden where they stand only."""


def secret_key(key: object) -> bool:
    """Say whether a key of this name holds a secret (`api_key`, `token`, `dbPassword`, but not `max_new_tokens`)."""
    return isinstance(key, str) and bool(_KEY.search(_CAMEL.sub("_", key).lower().replace("-", "_")))


def looks_secret(value: object) -> bool:
    """Say whether a text has the form of a key or password of a known service."""
    return isinstance(value, str) and bool(_VALUE.search(value))


def without_secrets(uri: str) -> str:
    """Return a text without the user and password of its URIs, also where those hold a / or @ as it is.

    What is behind the first colon is a port where only digits stand before a /: such a password is not told from it.
    """
    port = rf"(?:\d|{_REFERENCE})*(?:[/?#]|$)"
    return re.sub(rf"://(?:(?:{_USER}(?!{port})\S*|[^/\s?#]*)@|{_SLASHED})", "://", uri)


@dataclass(frozen=True, slots=True)
class Found:
    """A secret that is written out, and the key under which it stands."""

    path: KeyPath
    key: str


def written_secrets(data: Any) -> list[Found]:
    """Return where secrets are written out: anything but `${env:NAME}` under a secret's key, or of a secret's form."""
    return list(dict.fromkeys(found for found, _ in _walk(data, (), None)))


class Redactor:
    """Takes the secrets of a program out of text."""

    def __init__(self, *data: Any) -> None:
        values = {str(v) for d in data for _, v in _walk(d, (), None) if not isinstance(v, bool)}
        self._values = sorted((v for v in values if len(v) >= _SHORTEST), key=len, reverse=True)

    def clean(self, text: str) -> str:
        """Return the text without any of the secrets."""
        for value in self._values:
            text = text.replace(value, _HIDDEN).replace(repr(value)[1:-1], _HIDDEN)
        return _VALUE.sub(_HIDDEN, text)


def _walk(data: Any, path: KeyPath, holder: Found | None) -> Iterator[tuple[Found, Any]]:
    """Yield each secret's value with the key that it stands under, however deep."""
    if isinstance(data, dict):
        for name, value in cast(dict[Any, Any], data).items():
            here = (*path, name)
            named = len(path) == 1 and path[0] in _NAME_MAPS and isinstance(value, dict)
            inner = holder or (Found(here, name) if secret_key(name) and not named else None)
            if looks_secret(name):
                yield Found(here, ""), name
            yield from _walk(value, here, inner)
    elif isinstance(data, list):
        for i, value in enumerate(cast(list[Any], data)):
            yield from _walk(value, (*path, i), holder)
    elif holder is not None:
        if data is not None and not (isinstance(data, str) and REFERENCE.fullmatch(data)):
            yield holder, data
    elif looks_secret(data):
        yield Found(path, ""), data
