"""A sampler whose policy lives in a vLLM server: ids out, ids and logprobs back, weights pushed and proven.

After every push a probe samples fixed contexts and compares the logprobs of what was drawn with the policy's own; the
contexts stand in the server's prefix cache from the push before, so a cache that was kept is found too. A server that
dies is started again once, gets the weights again, and is asked again what it had not answered.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from specs.errors import ProgramError, RolloutError, ServiceError
from tasks.episodes.completions import CompletionsClient, GoneError, Json
from tasks.episodes.probes import check_encoding, check_probe, probes_of
from tasks.policy.llama import Llama
from tasks.policy.store import LoadedPolicy, Precision
from tasks.protocols import Completion, SampleRequest

_PATHS = ("/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version")
_ROUNDING = 1e-3
"""How far above 0 a logprob may lie: sums of floats are rounded."""


class ModelServer(Protocol):
    """Where the model is served, and how it is started anew."""

    @property
    def url(self) -> str:
        """Return where it listens."""
        ...

    @property
    def model(self) -> str | None:
        """Return the name under which a server of ours serves the policy; None for a server of somebody else's."""
        ...

    @property
    def folder(self) -> str:
        """Return the folder that it loads weights from."""
        ...

    @property
    def alive(self) -> bool:
        """Return whether its process lives; True where nothing is known of it."""
        ...

    def write_weights(self, model: Llama) -> None:
        """Put the weights into the folder."""
        ...

    def restart(self, reason: str) -> None:
        """End it and start another one in its place. ServiceError where that cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class Asking:
    """How a server is asked."""

    in_flight: int = 64
    seconds: float = 900.0
    """Longest wait for one call of `generate`."""
    stop: Callable[[], bool] = lambda: False
    say: Callable[[str], object] = lambda _: None
    """Hears what a person must know about the server."""


class VLLMSampler:
    """Samples from a model server. Not for several threads at once; nobody else may use the server meanwhile."""

    def __init__(
        self,
        server: ModelServer,
        policy: LoadedPolicy,
        version: str,
        precision: Precision,
        asking: Asking | None = None,
    ) -> None:
        self._server, self._policy = server, policy
        self._precision: Precision = precision
        self._asking = asking or Asking()
        self._probes = probes_of(policy)
        self._model, self._version = policy.model, version
        self._held: dict[int, list[int]] = {}
        self.restarts = self.repeated = self.pushes = 0
        """Servers started anew, requests asked again because of that, and weights pushed."""
        self.push_seconds = 0.0
        """Of the last push, its proof included."""
        self.max_length = policy.config.max_length
        """Tokens of the longest context and completion together."""
        self._client = self._connect()
        with ExitStack() as undo:
            undo.callback(self.close)
            self._check_server()
            self._guarded(self._push)
            undo.pop_all()

    @property
    def name(self) -> str:
        """Return what generates, as trajectories record it."""
        return f"vllm {self._engine} {self._precision}"

    @property
    def policy_version(self) -> str:
        """Return the name of the weights in use."""
        return self._version

    @property
    def tokenizer_digest(self) -> str:
        """Return the digest of template and tokenizer, proven by encoding probes."""
        return self._policy.template.digest

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._client.close()

    def load_weights(self, model: Llama, version: str) -> None:
        """Have the server use the weights of `model` from now on; RolloutError where it proves to use others."""
        if version == self._version:
            raise ProgramError(f"sampler: found version {version!r} again, expected another one for other weights")
        if model.config != self._policy.config:
            raise ProgramError("sampler: the weights have another shape than the model that it serves")
        self._model, self._version = model, version
        self._held = {}
        self._guarded(self._push)

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order. Sessions that are not asked for are forgotten.

        RolloutError where a request is too long or does not extend what its session holds, or where an answer is not
        about the ids that were sent.
        """
        bodies = {i: self._body(r) for i, r in enumerate(requests)}
        self._check_sessions(requests)
        answers: dict[int, Json] = {}

        def ask() -> None:
            self._check_version()
            found: dict[int, Json] = {}
            try:
                self._client.complete({i: b for i, b in bodies.items() if i not in answers}, found)
            except GoneError:
                answers.update(found)
                raise
            self._check_version()  # else what was found may come from weights that somebody put there meanwhile
            answers.update(found)

        if requests:
            self._guarded(ask, lambda: len(bodies) - len(answers))
        completions = [self._completion(r, answers[i]) for i, r in enumerate(requests)]
        self._held = {r.session: [*r.ids, *c.ids[:-1]] for r, c in zip(requests, completions, strict=True)}
        return completions

    # --- requests and answers

    def _limit(self, request: SampleRequest) -> int:
        return min(request.settings.max_new_tokens, self.max_length - len(request.ids))

    def _body(self, request: SampleRequest) -> Json:
        limit = self._limit(request)
        if limit < 1 or not request.ids:
            raise RolloutError(
                f"sampler: a context of {len(request.ids)} tokens, expected 1 to {self.max_length - 1}; "
                "raise the policy's max_length or end episodes earlier"
            )
        vocabulary = self._policy.config.vocab_size
        if min(request.ids) < 0 or max(request.ids) >= vocabulary or not 0 <= request.seed < 2**64:
            raise RolloutError(
                f"sampler: an id outside of 0 to {vocabulary - 1}, or the seed {request.seed} outside of 64 bits; was "
                "the request made with another tokenizer?"
            )
        settings = request.settings
        return {
            "model": self._served,
            "prompt": request.ids,
            "max_tokens": limit,
            "temperature": settings.temperature,
            "seed": request.seed % 2**63,  # what the server takes
            "stop_token_ids": list(settings.stop_ids),
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }

    def _check_sessions(self, requests: Sequence[SampleRequest]) -> None:
        if len({r.session for r in requests}) < len(requests):
            raise RolloutError("sampler: the same session twice in one call; give every sequence its own")
        for request in requests:
            held = self._held.get(request.session, [])
            if held and (len(request.ids) <= len(held) or request.ids[: len(held)] != held):
                raise RolloutError(
                    f"sampler: session {request.session} does not extend what it sent and received before (token "
                    "drift); each context must begin with the ids of the one before"
                )

    def _completion(self, request: SampleRequest, answer: Json) -> Completion:
        ids, logprobs, finish = read_choice(answer, request.ids, self._policy.config.vocab_size)
        stops, limit = request.settings.stop_ids, self._limit(request)
        stopped = bool(ids) and ids[-1] in stops
        whole = stopped if finish == "stop" else finish == "length" and len(ids) == limit
        if not whole or any(i in stops for i in ids[:-1]):
            raise RolloutError(
                f"{self._server.url}: a completion of {len(ids)} tokens (at most {limit}) that ended by {finish!r}, its "
                f"last ids {ids[-3:]}, does not keep to the stop tokens {list(stops)}"
            )
        if request.settings.temperature == 0:  # all probability is on the token that is taken
            logprobs = [0.0] * len(ids)
        return Completion(ids, logprobs, "stop" if stopped else "length", self._version)

    # --- the server

    def _connect(self) -> CompletionsClient:
        asking, server = self._asking, self._server
        return CompletionsClient(
            server.url,
            in_flight=asking.in_flight,
            seconds=asking.seconds,
            alive=lambda: server.alive,
            stop=asking.stop,
        )

    def _check_server(self) -> None:
        """Find out what is served. ServiceError for a stranger, ProgramError for another model or tokenizer."""
        url = self._server.url
        try:
            models = self._client.get("/v1/models").get("data") or [{}]
            self._engine = str(self._client.get("/version").get("version", "of unknown version"))
        except RolloutError as e:
            raise ServiceError(f"{e}; that is no vLLM server: stop it, or name another in run.sampler.url") from e
        self._served = str(models[0].get("id"))
        if self._server.model is not None and self._served != self._server.model:
            raise ServiceError(
                f"{url}: serves {self._served!r}, but the server that was started serves {self._server.model!r}: another "
                "process took its port; run the same command again"
            )
        length = int(models[0].get("max_model_len") or 0)
        if length < self.max_length:
            raise ProgramError(
                f"{url}: takes {length} tokens, the policy's max_length is {self.max_length}; start the server with "
                f"--max-model-len {self.max_length}"
            )
        check_encoding(self._client, self._served, self._policy)

    def _push(self) -> None:
        """Give the server the weights, drop what it computed with others, and prove it."""
        start = time.monotonic()
        self._server.write_weights(self._model)
        try:
            self._client.post("/pause?mode=abort")
            self._client.post(
                "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": self._server.folder}}
            )
            dropped = self._client.post("/reset_prefix_cache")
            self._client.post("/update_weight_version", {"new_version": self._version})
            self._client.post("/resume")
        except RolloutError as e:
            raise ServiceError(
                f"{e}; weights cannot be pushed to it. Start the server with VLLM_SERVER_DEV_MODE=1, which opens "
                f"{', '.join(_PATHS)}"
            ) from e
        if not dropped.get("success"):
            raise RolloutError(f"{self._server.url}: it did not drop its prefix cache ({dropped}); restart that server")
        self._prove()
        self.pushes += 1
        self.push_seconds = time.monotonic() - start

    def _prove(self) -> None:
        answers: dict[int, Json] = {}
        self._client.complete({i: self._body(p) for i, p in enumerate(self._probes)}, answers)
        size = self._policy.config.vocab_size
        drawn = [read_choice(answers[i], p.ids, size)[:2] for i, p in enumerate(self._probes)]
        check_probe(self._server.url, self._model, self._probes, drawn, self._precision)

    def _check_version(self) -> None:
        """Refuse to sample from weights that somebody else has put there."""
        found = self._client.get("/weight_info").get("weight_version")
        if found != self._version:
            if self._server.model is not None and found is None:  # a server that was started anew behind our back
                raise GoneError(f"{self._server.url}: it has lost the weights that it was given")
            raise RolloutError(
                f"{self._server.url}: holds weights {found!r}, expected {self._version!r}: somebody else uses it too. "
                "Give this run a server of its own"
            )

    def _guarded(self, work: Callable[[], None], unanswered: Callable[[], int] = lambda: 1) -> None:
        """Do `work`; where the server dies meanwhile, start it again once and do it again."""
        try:
            work()
            return
        except GoneError as e:
            first = e
        if self._server.model is None:
            raise ServiceError(f"{first}; start that server again, then run the same command") from first
        again = unanswered()
        try:
            if self.restarts:
                raise first
            self._revive(str(first))
            if work != self._push:
                self._push()
            work()
        except GoneError as e:
            raise ServiceError(
                f"the model server died twice in this node ({e}). Its logs are services/model-*.log and *.died.log; where "
                "memory was short lower run.sampler.cache_gb or run.rollout_batch, or sample with run.sampler.kind=local; then "
                "run the same command again"
            ) from e
        self.repeated += again
        text = f"{again} request{'' if again == 1 else 's'} repeated"
        self._asking.say(f"the model server died once ({first}); it was started again, {text}")

    def _revive(self, reason: str) -> None:
        self.restarts += 1
        self._client.close()
        self._server.restart(reason)
        self._client = self._connect()
        self._check_server()


def read_choice(answer: Json, sent: list[int], vocabulary: int) -> tuple[list[int], list[float], str]:
    """Return ids, logprobs and how it ended.

    RolloutError for an answer about other ids, whose parts differ, or that no policy of `vocabulary` tokens could give.
    """
    try:
        choice: dict[str, Any] = answer["choices"][0]
        ids, finish = list(choice["token_ids"]), str(choice["finish_reason"])
        logprobs = [float(x) for x in choice["logprobs"]["token_logprobs"]]
        prompt = choice["prompt_token_ids"]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as e:
        raise RolloutError(
            f"model server: an answer without token ids or logprobs ({type(e).__name__}: {e}); it must know "
            "return_token_ids, as vLLM 0.10 and later do"
        ) from e
    if prompt != sent or len(ids) != len(logprobs):
        raise RolloutError(
            "model server: an answer about other ids than were sent, or without a logprob for each token"
        )
    strange = [i for i in ids if type(i) is not int or not 0 <= i < vocabulary]
    if strange:
        raise RolloutError(
            f"model server: drew the token {str(strange[0])[:20]}, expected 0 to {vocabulary - 1}: it serves another model"
        )
    wrong = [x for x in logprobs if not (math.isfinite(x) and x <= _ROUNDING)]
    if wrong:
        raise RolloutError(
            f"model server: gave the logprob {wrong[0]}, expected a finite number of at most 0. Its weights or its "
            "arithmetic are broken: start it with --dtype float32 or bfloat16, and see its log"
        )
    return ids, logprobs, finish
