"""How a teacher is reached: its address and its key, looked up when it is asked, and kept out of all that is written."""

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import quote, unquote, urlsplit

import httpx

from specs.addresses import open_road
from specs.errors import TeacherError
from specs.redaction import REFERENCE, Redactor
from specs.served_teacher import ServedModelTeacher
from specs.teachers import OpenAITeacher

_SHORTEST = 8
"""Characters of a secret from which on it is taken out of answers too; a shorter one may be a word (`EMPTY`)."""


@dataclass(frozen=True, slots=True)
class Reach:
    """An address and a key; neither is shown."""

    address: str = field(repr=False)
    key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of a request. Replies come as they are: nothing that is packed can grow without bound."""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        return headers if self.key is None else {**headers, "Authorization": f"Bearer {self.key}"}

    def hide(self, words: str | None, *, answer: bool = False) -> str | None:
        """Return a server's words without the key or a password of the address, as they are or encoded."""
        if not words:
            return words
        secrets = [s for s in (self.key, _password(self.address)) if s and not (answer and len(s) < _SHORTEST)]
        for secret in secrets:
            packed = base64.b64encode(secret.encode()).decode().rstrip("=")
            for form in (secret, quote(secret, safe=""), packed):
                words = words.replace(form, "(not shown)")
        return words if answer else Redactor().clean(words)


def reach(name: str, spec: OpenAITeacher | ServedModelTeacher, environ: Mapping[str, str]) -> Reach:
    """Return how a teacher is reached. TeacherError, without any value, where a variable is not set or cannot be meant."""
    at = f"teachers.{name}"
    key = spec.api_key and _named(spec.api_key, environ, f"{at}.api_key")
    if isinstance(spec, OpenAITeacher):
        return Reach(_named(spec.base_url, environ, f"{at}.base_url").rstrip("/"), key)
    address = _named(spec.url, environ, f"{at}.url").rstrip("/")
    if open_road(address) and not spec.unencrypted:
        raise TeacherError(
            f"{at}.url: the address leads beyond the loopback without https://; bring the server here by a tunnel, or "
            f"write {at}.unencrypted: yes where you trust all that lies between"
        )
    return Reach(address, key)


@cache
def trust() -> ssl.SSLContext:
    """Return the certificates that are trusted; reading them takes longer than many a call."""
    return httpx.create_ssl_context()


def _named(text: str, environ: Mapping[str, str], where: str) -> str:
    """Return text with its references replaced."""
    for variable in (str(m[1]) for m in REFERENCE.finditer(text)):
        value = environ.get(variable, "")
        if not value:
            raise TeacherError(f"{where}: the environment variable {variable} is not set; set it and run again")
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise TeacherError(
                f"{where}: the environment variable {variable} holds a blank, a line break, or something else that no "
                "key and no address has; set it anew and run again"
            )
    return REFERENCE.sub(lambda m: environ[m[1]], text)


def _password(address: str) -> str | None:
    try:
        found = urlsplit(address).password
    except ValueError:  # no address: told when it is used
        return None
    return unquote(found) if found else None
