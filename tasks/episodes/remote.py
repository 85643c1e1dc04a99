"""The client of a sampler server: the same protocol as a sampler in this process."""

import json
import uuid
from collections.abc import Sequence
from typing import Any

import httpx

from specs.errors import ProgramError, RolloutError, ServiceError
from tasks.boundary import foreign, reason_of
from tasks.episodes.wire import completion_from, request_to
from tasks.protocols import Completion, SampleRequest


class HTTPSampler:
    """Asks a sampler server. ServiceError where it cannot be reached, RolloutError where it refuses a request."""

    name = "sampler server"
    """What generates, as trajectories record it."""

    def __init__(self, url: str, tokenizer_digest: str, *, timeout: float = 600.0) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._client = httpx.Client(timeout=httpx.Timeout(timeout, connect=10.0), trust_env=False)
        self._name = uuid.uuid4().hex
        health = self._ask("GET", "/health")
        found = str(health.get("tokenizer_digest"))
        if found != tokenizer_digest:
            self.close()
            raise ProgramError(
                f"{self._url}: serves tokenizer and template {found[:12]}, expected {tokenizer_digest[:12]}; "
                "start the server with the policy that this program uses"
            )
        self._digest = found
        self._version = str(health["policy_version"])
        self.max_length = int(health["max_length"])
        """Tokens of the longest context and completion together."""

    @property
    def policy_version(self) -> str:
        """Return the version that the server named last."""
        return self._version

    @property
    def tokenizer_digest(self) -> str:
        """Return the digest of template and tokenizer that both sides use."""
        return self._digest

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order."""
        body = {"client": self._name, "requests": [request_to(r) for r in requests]}
        answer = self._ask("POST", "/generate", json.dumps(body).encode())
        completions = [completion_from(c) for c in answer.get("completions", [])]
        if len(completions) != len(requests):
            raise RolloutError(f"{self._url}: {len(completions)} completions for {len(requests)} requests")
        if completions:
            self._version = completions[-1].policy_version
        return completions

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(self, method: str, path: str, content: bytes | None = None) -> dict[str, Any]:
        with foreign(self._url, lambda e: f"no sampler answers ({reason_of(e)}); start it, or wait until it is ready"):
            reply = self._client.request(method, self._url + path, content=content)
        try:
            data = reply.json()
        except ValueError as e:
            raise ServiceError(f"{self._url}{path}: answered {reply.status_code} without JSON; is it a sampler?") from e
        if reply.status_code == 400 and isinstance(data, dict):
            raise RolloutError(f"{self._url}{path}: refused ({data.get('kind', 'request')}): {data.get('error')}")
        if reply.status_code != 200 or not isinstance(data, dict):
            raise ServiceError(f"{self._url}{path}: answered {reply.status_code}: {str(data)[:300]}")
        return data
