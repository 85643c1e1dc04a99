"""A sampler in this process: many sequences at once, keys and values kept between the turns of a session.

The first prompts of a group are encoded once and fanned out. Within a call, sequences that have finished move to
the end of the batch and are computed no further. A request's tokens depend on its own seed and context only, up to
the rounding of float sums.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from specs.errors import ProgramError, RolloutError
from tasks.episodes.drawing import draw
from tasks.episodes.seeds import uniforms
from tasks.policy.llama import KVCache, Llama
from tasks.policy.store import DTYPES, LoadedPolicy, Precision
from tasks.protocols import Completion, SampleRequest

_DROP_FROM = 0.65
"""Finished sequences leave the batch when at most this share of it goes on."""
_ROUND = 16
"""Cache lengths are rounded up to this."""
_PADDING = 512
"""Most padding tokens of one encoding of prompts: about what another forward pass costs."""
_ENCODED = 16384
"""Most tokens, padding included, of one encoding of prompts."""


@dataclass(slots=True)
class _Session:
    """What the cache holds of a session: its row and the tokens whose keys and values are there."""

    row: int
    ids: list[int]


@dataclass(slots=True)
class _Row:
    """One request while it is decoded."""

    index: int
    """Place of the request in the call."""
    limit: int
    """Tokens that it may still draw at its start."""
    stop_ids: frozenset[int]
    ids: list[int]
    logprobs: list[float]
    finish: str = "length"
    going: bool = True


class LocalSampler:
    """Samples from a model in this process. Not for several threads at once."""

    name = "local"
    """What generates, as trajectories record it."""

    def __init__(self, policy: LoadedPolicy, version: str, precision: Precision = "fp32") -> None:
        self._precision: Precision = precision
        self.max_length = policy.config.max_length
        """Tokens of the longest context and completion together."""
        self._pad = policy.template.pad_id
        self._digest = policy.template.digest
        self._version = self._first_version = version
        self._loads = 0
        self._model = self._own(policy.model)
        self._head_VD = self._head(policy.model)
        self._device = self._model.embed.weight.device
        self._sessions: dict[int, _Session] = {}
        self._cache: KVCache | None = None
        self.drawn_tokens = 0
        """Tokens drawn so far."""
        self.encoded_tokens = 0
        """Context tokens encoded so far; a group's shared prompt counts once."""

    def _own(self, model: Llama) -> Llama:
        dtype = DTYPES[self._precision]
        return model if model.embed.weight.dtype == dtype else copy.deepcopy(model).to(dtype)

    def _head(self, model: Llama) -> Tensor:
        """Return the output layer in fp32 at any precision: rounded logits would be another policy than the trainer's."""
        own = self._model.head_weight
        return own if own.dtype == torch.float32 else model.head_weight.detach().float().clone()

    @property
    def policy_version(self) -> str:
        """Return the name of the weights in use."""
        return self._version

    @property
    def tokenizer_digest(self) -> str:
        """Return the digest of template and tokenizer."""
        return self._digest

    @torch.no_grad()
    def load_weights(self, model: Llama, version: str | None = None) -> None:
        """Use the weights of `model` from now on; nothing computed before is used again.

        `version` names them; where it is left out, the first version with a count behind it does.
        """
        self._loads += 1
        version = version or f"{self._first_version}+{self._loads}"
        if version == self._version:
            raise ProgramError(f"sampler: found version {version!r} again, expected another one for other weights")
        if model.config != self._model.config:
            raise ProgramError("sampler: the weights have another shape than the model that it serves")
        if model.embed.weight.dtype == DTYPES[self._precision]:
            self._model = model
        else:
            for own, other in zip(self._model.parameters(), model.parameters(), strict=True):
                own.copy_(other)
        self._head_VD = self._head(model)
        self._version = version
        self.forget()

    def forget(self) -> None:
        """Drop every session and its keys and values."""
        self._sessions, self._cache = {}, None

    @torch.inference_mode()
    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Return one completion per request, in order. Sessions that are not asked for are forgotten.

        RolloutError where a request is too long, or does not extend what its session holds.
        """
        if not requests:
            self.forget()
            return []
        limits = [self._limit(r) for r in requests]
        order, last_BD = self._encode(requests, limits)
        rows = [_Row(i, limits[i], frozenset(requests[i].settings.stop_ids), list(requests[i].ids), []) for i in order]
        self._decode(rows, requests, last_BD)
        self._sessions = {requests[row.index].session: _Session(place, row.ids[:-1]) for place, row in enumerate(rows)}
        completions = {row.index: self._completion(row, requests[row.index]) for row in rows}
        return [completions[i] for i in range(len(requests))]

    def _completion(self, row: _Row, request: SampleRequest) -> Completion:
        return Completion(row.ids[len(request.ids) :], row.logprobs, row.finish, self._version)

    def _limit(self, request: SampleRequest) -> int:
        limit = min(request.settings.max_new_tokens, self.max_length - len(request.ids))
        if limit < 1 or not request.ids:
            raise RolloutError(
                f"sampler: a context of {len(request.ids)} tokens, expected 1 to {self.max_length - 1}; "
                "raise the policy's max_length or end episodes earlier"
            )
        if min(request.ids) < 0 or max(request.ids) >= self._model.config.vocab_size or not 0 <= request.seed < 2**64:
            raise RolloutError(
                f"sampler: an id outside of 0 to {self._model.config.vocab_size - 1}, or the seed {request.seed} outside "
                "of 64 bits; was the request made with another tokenizer?"
            )
        return limit

    def _encode(self, requests: Sequence[SampleRequest], limits: list[int]) -> tuple[list[int], Tensor]:
        """Encode what the cache lacks. Return the order of rows (known sessions first) and their last hidden states."""
        if len({r.session for r in requests}) < len(requests):
            raise RolloutError("sampler: the same session twice in one call; give every sequence its own")
        known = [i for i, r in enumerate(requests) if r.session in self._sessions]
        fresh = [i for i, r in enumerate(requests) if r.session not in self._sessions]
        need = max(len(requests[i].ids) + limits[i] for i in range(len(requests)))
        length = min(self.max_length, -(-need // _ROUND) * _ROUND)
        states: list[Tensor] = []
        caches: list[tuple[KVCache, Tensor, int]] = []
        if known:
            assert self._cache is not None
            sessions = [self._sessions[requests[i].session] for i in known]
            used = max(len(s.ids) for s in sessions)
            caches.append((self._cache, torch.tensor([s.row for s in sessions]), used))
        order = list(known)
        askers: dict[tuple[int, ...], list[int]] = {}
        for i in fresh:
            askers.setdefault(tuple(requests[i].ids), []).append(i)
        for prompts in _like_lengths(list(askers)):
            cache, hidden = self._encode_prompts(prompts)
            back = torch.tensor([k for k, ids in enumerate(prompts) for _ in askers[ids]])
            order += [i for ids in prompts for i in askers[ids]]
            caches.append((cache, back, cache.length))
            states.append(hidden[back])
        self._cache = KVCache.gather(caches, length)
        if known:
            states.insert(0, self._extend([requests[i] for i in known]))
        return order, torch.cat(states)

    def _encode_prompts(self, prompts: list[tuple[int, ...]]) -> tuple[KVCache, Tensor]:
        width = max(map(len, prompts))
        cache = self._model.new_cache(len(prompts), width)
        ids = torch.tensor([[*p, *[self._pad] * (width - len(p))] for p in prompts])
        positions = torch.arange(width).expand(len(prompts), -1)
        ends = torch.tensor([i * width + len(p) - 1 for i, p in enumerate(prompts)])
        self.encoded_tokens += sum(map(len, prompts))
        return cache, self._model.step(ids, positions, cache, width, ends)

    def _extend(self, requests: list[SampleRequest]) -> Tensor:
        """Encode the new tokens of known sessions, which are the first rows of the cache."""
        assert self._cache is not None
        starts: list[int] = []
        feeds: list[list[int]] = []
        for request in requests:
            held = self._sessions[request.session].ids
            if len(request.ids) <= len(held) or request.ids[: len(held)] != held:
                raise RolloutError(
                    f"sampler: session {request.session} does not extend what it sent and received before (token "
                    "drift); each context must begin with the ids of the one before"
                )
            starts.append(len(held))
            feeds.append(request.ids[len(held) :])
        width = max(map(len, feeds))
        ids = torch.tensor([f + [self._pad] * (width - len(f)) for f in feeds])
        positions = (torch.tensor(starts)[:, None] + torch.arange(width)).clamp_(max=self._cache.length - 1)
        ends = torch.tensor([i * width + len(f) - 1 for i, f in enumerate(feeds)])
        self.encoded_tokens += sum(map(len, feeds))
        return self._model.step(ids, positions, self._cache, int(positions.max()) + 1, ends)

    def _decode(self, rows: list[_Row], requests: Sequence[SampleRequest], states_BD: Tensor) -> None:
        """Draw tokens until every row has finished; `rows` ends up in the order of the cache's rows."""
        cache, device = self._cache, self._device
        assert cache is not None
        settings = [requests[r.index].settings for r in rows]
        temperatures = torch.tensor([s.temperature for s in settings], device=device)
        seeds = [requests[r.index].seed for r in rows]
        noise = torch.from_numpy(uniforms(seeds, max(r.limit for r in rows))).to(device)
        size, column = len(rows), 0
        while True:
            logits_BV = functional.linear(states_BD.float(), self._head_VD)
            drawn = draw(logits_BV, temperatures[:size], noise[:size, column])
            alive = self._append(rows[:size], *drawn)
            column += 1
            if alive == 0:
                return
            if alive <= _DROP_FROM * size:
                holes = [i for i in range(alive) if not rows[i].going]
                movers = [i for i in range(alive, size) if rows[i].going]
                if holes:
                    cache.swap(torch.tensor(holes), torch.tensor(movers), max(len(r.ids) for r in rows[:size]))
                    temperatures[holes], noise[holes] = temperatures[movers], noise[movers]
                for one, other in zip(holes, movers, strict=True):
                    rows[one], rows[other] = rows[other], rows[one]
                size = alive
            at = [len(r.ids) - 1 for r in rows[:size]]
            ids = torch.tensor([[r.ids[-1]] for r in rows[:size]], device=device)
            positions = torch.tensor(at, device=device)[:, None]
            states_BD = self._model.step(ids, positions, cache, max(at) + 1)[:, 0]

    def _append(self, rows: list[_Row], tokens_B: Tensor, logprobs_B: Tensor) -> int:
        """Give each row that goes on its token; return how many still go on."""
        alive = 0
        for row, token, logprob in zip(rows, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            if not row.going:
                continue
            row.ids.append(token)
            row.logprobs.append(logprob)
            self.drawn_tokens += 1
            if token in row.stop_ids:
                row.finish = "stop"
            row.going = row.finish != "stop" and len(row.logprobs) < row.limit
            alive += row.going
        return alive


def _like_lengths(prompts: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return the prompts in batches of like length, the longest first."""
    batches: list[list[tuple[int, ...]]] = []
    width = padding = 0
    for prompt in sorted(prompts, key=len, reverse=True):
        padding += width - len(prompt)
        if not batches or padding > _PADDING or width * (len(batches[-1]) + 1) > _ENCODED:
            batches.append([])
            width, padding = len(prompt), 0
        batches[-1].append(prompt)
    return batches
