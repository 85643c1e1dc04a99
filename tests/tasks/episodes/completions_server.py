"""A small real model server that speaks the part of vLLM's HTTP API that the product uses.

`python -m tests.tasks.episodes.completions_server --model FOLDER --port N`; other arguments of vLLM are taken and ignored.
A model of our own stands behind it, so its logprobs are true, those of a prompt (`prompt_logprobs`) too. As vLLM does,
it keeps the output layer that it began with where the configuration ties it to the embedding, and it reuses what it computed
for a prompt until its cache is reset. `--faults` makes it wrong on purpose; `on_score` takes each scored prompt into its hands.
"""

import argparse
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer as Backend

from tasks.episodes.drawing import draw
from tasks.episodes.loopback import JSONHandler, LoopbackServer
from tasks.episodes.seeds import uniforms
from tasks.policy.config import config_from
from tasks.policy.store import load_model, read_json

FAULTS = (
    "raw_logprobs",
    "keeps_cache",
    "skips_reload",
    "not_dev",
    "dies_once",
    "dies_always",
    "error_once",
    "hangs",
    "no_ids",
    "ignores_stop",
    "other_prompt",
    "positive_logprob",
    "strange_id",
    "negative_id",
    "weights_move",
)


@dataclass
class Reply:
    """What is sent instead of a result: a status, words, headers, and perhaps less than was promised."""

    status: int = 200
    content: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    missing: int = 0
    """Bytes that were promised and are not sent."""


OnScore = Callable[[int, dict[str, Any]], Any]
"""Number of the prompt, from 0, and the result: what is answered in its place."""


class CompletionsServer:
    """Serves a model folder from a thread; use it as a context manager."""

    def __init__(
        self, folder: Path, name: str = "tiny", *, port: int = 0, max_length: int = 0, faults: str = ""
    ) -> None:
        self.folder, self.name = folder, name
        self.faults = set(filter(None, faults.split(",")))
        assert self.faults <= set(FAULTS), faults
        self.lock = threading.Lock()
        self.config = config_from(read_json(folder / "config.json"), str(folder))
        self.max_length = max_length or self.config.max_length
        self.backend = Backend.from_file(str(folder / "tokenizer.json"))
        self.model = load_model(folder, self.config)
        self.head = self.model.head_weight.detach().clone()
        self.version: str | None = None
        self.cache: dict[tuple[int, ...], torch.Tensor] = {}
        self.completed = self.errors = self.resets = 0
        self.at_once = self.most_at_once = 0
        self.max_logprobs = 20
        self.scored: list[tuple[int, ...]] = []
        """The prompts whose logprobs were asked for."""
        self.keys: set[str] = set()
        """Authorization headers."""
        self.on_score: OnScore | None = None
        self.tokenizes = True
        owner = self

        class Handler(_Completions):
            serving = owner

        self._http = LoopbackServer(port, Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.close_connections()
        self._http.server_close()
        self._thread.join()

    def forever(self) -> None:
        self._http.serve_forever()

    # --- the endpoints

    def get(self, path: str) -> Any:
        return {
            "/health": {},
            "/version": {"version": "tiny-1"},
            "/v1/models": {"data": [{"id": self.name, "root": str(self.folder), "max_model_len": self.max_length}]},
            "/weight_info": {"weight_version": self.version},
        }.get(path)

    def post(self, path: str, body: Any) -> Any:
        path = path.partition("?")[0]
        if path == "/tokenize":
            if not self.tokenizes:
                return None
            return {"tokens": self.backend.encode(body["prompt"], add_special_tokens=body["add_special_tokens"]).ids}
        if path == "/v1/completions":
            return self._complete(body) if body.get("prompt_logprobs") is None else self._score(body)
        if "not_dev" in self.faults:
            return None
        match path:
            case "/pause" | "/resume":
                return {"status": "ok"}
            case "/collective_rpc":
                assert body["method"] == "reload_weights"
                self._reload(Path(body["kwargs"]["weights_path"]))
                return {"results": [None]}
            case "/reset_prefix_cache":
                self.resets += 1
                if "keeps_cache" not in self.faults:
                    self.cache.clear()
                return {"success": True}
            case "/update_weight_version":
                self.version = body["new_version"]
                return {"success": True}
        return None

    def _reload(self, folder: Path) -> None:
        if "skips_reload" in self.faults:
            return
        self.model = load_model(folder, self.config)
        if not self.config.tied:
            self.head = self.model.head_weight.detach().clone()

    def _complete(self, body: Any) -> Any:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self._misbehave()
            with self.lock:
                ids, logprobs, finish = self._generate(body)
        finally:
            self.at_once -= 1
        if ids and self.completed > 4:
            self._spoil(ids, logprobs)
        prompt = body["prompt"] if "other_prompt" not in self.faults else [*body["prompt"], 1]
        choice = {"token_ids": ids, "prompt_token_ids": prompt, "finish_reason": finish}
        if "no_ids" in self.faults:
            del choice["token_ids"]
        return {"choices": [{**choice, "logprobs": {"token_logprobs": logprobs}}]}

    def _score(self, body: Any) -> Any:
        """Return the logprobs of a prompt as vLLM does: by place the likeliest tokens and the one that stands there."""
        prompt, size = body["prompt"], body["prompt_logprobs"]
        if isinstance(prompt, str):
            prompt = self.backend.encode(prompt, add_special_tokens=body["add_special_tokens"]).ids
        if body["model"] != self.name:
            return Reply(404, _error(f"The model `{body['model']}` does not exist."))
        if size > self.max_logprobs or len(prompt) + body["max_tokens"] > self.max_length:
            return Reply(400, _error(f"too much is asked for: {size} logprobs of {len(prompt)} tokens"))
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            number = len(self.scored)
            self.scored.append(tuple(prompt))
        try:
            listed = self._listed(prompt, size)
            choice = {"text": "", "prompt_logprobs": listed, "finish_reason": "length"}
            if body.get("return_token_ids"):
                choice["prompt_token_ids"] = prompt
            result: dict[str, Any] = {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}}
            return result if self.on_score is None else self.on_score(number, result)
        finally:
            self.at_once -= 1

    @torch.no_grad()
    def _listed(self, prompt: list[int], size: int) -> list[Any]:
        hidden = self.model.hidden(torch.tensor([prompt]))[0]
        listed: list[Any] = [None]
        for at, row in enumerate(torch.nn.functional.linear(hidden, self.head)[:-1].log_softmax(-1), 1):
            best = row.topk(size).indices.tolist()
            ranks = {prompt[at]: int((row > row[prompt[at]]).sum()) + 1} | {i: n for n, i in enumerate(best, 1)}
            word = lambda i: self.backend.decode([i], skip_special_tokens=False)  # noqa: E731
            listed.append(
                {str(i): {"logprob": float(row[i]), "rank": n, "decoded_token": word(i)} for i, n in ranks.items()}
            )
        return listed

    def _spoil(self, ids: list[int], logprobs: list[float]) -> None:
        strange = {"strange_id": self.config.vocab_size, "negative_id": -1}
        if "positive_logprob" in self.faults:
            logprobs[0] = 0.5
        for fault in self.faults & strange.keys():
            ids[0] = strange[fault]
        if "weights_move" in self.faults:
            self.version = "theirs/8"

    def _misbehave(self) -> None:
        self.completed += 1
        real = self.completed > 4  # the first four are the probe of the first push
        if "hangs" in self.faults and real:
            threading.Event().wait(30)
        if "error_once" in self.faults and real and not self.errors:
            self.errors += 1
            raise RuntimeError("a moment, please")
        marker = self.folder / "died"
        if real and ("dies_always" in self.faults or ("dies_once" in self.faults and not marker.exists())):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @torch.no_grad()
    def _generate(self, body: Any) -> tuple[list[int], list[float], str]:
        ids, stops, temperature = list(body["prompt"]), set(body["stop_token_ids"]), float(body["temperature"])
        noise = torch.from_numpy(uniforms([body["seed"]], body["max_tokens"]))
        drawn: list[int] = []
        logprobs: list[float] = []
        for column in range(body["max_tokens"]):
            logits = self._logits(tuple(ids))
            token, logprob = draw(logits, torch.tensor([temperature]), noise[:, column])
            if "raw_logprobs" in self.faults:
                logprob = logits.log_softmax(-1).gather(1, token[:, None])[:, 0]
            ids.append(int(token))
            drawn.append(int(token))
            logprobs.append(float(logprob))
            if drawn[-1] in stops and "ignores_stop" not in self.faults:
                return drawn, logprobs, "stop"
        return drawn, logprobs, "length"

    def _logits(self, ids: tuple[int, ...]) -> torch.Tensor:
        if ids not in self.cache:
            self.cache[ids] = self.model.hidden(torch.tensor([ids]))[:, -1]
        return torch.nn.functional.linear(self.cache[ids], self.head)


def _error(words: str) -> bytes:
    return json.dumps({"error": {"message": words}}).encode()


class _Completions(JSONHandler):
    serving: CompletionsServer

    def do_GET(self) -> None:
        found = self.serving.get(self.path)
        self.reply(404 if found is None else 200, found or {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0") or 0))
        self.serving.keys.add(self.headers.get("Authorization", ""))
        try:
            found = self.serving.post(self.path, json.loads(body) if body else {})
        except RuntimeError as e:
            self.reply(500, {"error": str(e)})
            return
        if isinstance(found, Reply):
            self._send(found)
            return
        self.reply(404 if found is None else 200, found or {"detail": "Not Found"})

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.content) + reply.missing))
        self.end_headers()
        self.wfile.write(reply.content)
        if reply.missing:
            self.wfile.flush()
            self.close_connection = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--served-model-name", default="tiny")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--max-model-len", type=int, default=0)
    parser.add_argument("--faults", default="")
    given, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    CompletionsServer(
        given.model, given.served_model_name, port=given.port, max_length=given.max_model_len, faults=given.faults
    ).forever()
