"""A teacher whose weights this process holds and whose token ids are the policy's.

It scores spans of like length together, at most so many tokens at a time; the prompt of a group is read once.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from tasks.learning.head import selected_logprobs
from tasks.learning.microbatches import MicroBatch, micro_batches
from tasks.learning.rows import TrainingRow, sampled_at
from tasks.policy.llama import Llama
from tasks.protocols import Feed, Span, TokenScores

_Key = tuple[str, int, tuple[bool, ...]]
_WAIT = 0.1
"""Seconds between looks at whether a step is given up."""


def _key(span: Span) -> _Key:
    """Return what tells a span from the others of a step."""
    return span.trajectory.id, span.start, tuple(span.mask)


class OpenTeacher:
    """A frozen model; a `VocabularyTeacher`."""

    def __init__(
        self,
        name: str,
        model: Llama,
        *,
        precision: Literal["fp32", "bf16"] = "fp32",
        micro_batch_tokens: int = 8192,
        device: str = "cpu",
    ) -> None:
        self._name = name
        self._model = model.to(device).eval().requires_grad_(requires_grad=False)
        self._device = torch.device(device)
        self._bf16 = precision == "bf16"
        self._tokens = micro_batch_tokens
        self._early: dict[_Key, TokenScores] = {}

    @property
    def name(self) -> str:
        """Return the name in the program's roster."""
        return self._name

    @property
    def head_weight(self) -> Tensor:
        """Return the (vocabulary, width) weight that turns hidden states into logits."""
        return self._model.head_weight

    @property
    def max_length(self) -> int:
        """Return how many tokens a span may have."""
        return self._model.config.max_length

    @property
    def elsewhere(self) -> bool:
        """Return False: it computes in this process."""
        return False

    def ahead(self, feed: Feed, size: int) -> None:
        """Score what comes, a batch at a time, until nothing will."""
        assert size == 0, "over a vocabulary it is compared within the learner's pass"
        while (spans := feed.take(_WAIT)) is not None:
            self._early |= {_key(s): said for s, said in zip(spans, self._scored(spans), strict=True)}
            feed.done(len(spans))

    def score(self, spans: Sequence[Span]) -> list[TokenScores]:
        """Return the logprobs of the tokens asked about; NaN elsewhere, and in spans that are too long for it.

        They are at the temperature at which the trajectory was sampled, as the policy's own are.
        """
        early, self._early = self._early, {}
        rest = iter(self._scored([s for s in spans if _key(s) not in early]))
        return [early.get(_key(s)) or next(rest) for s in spans]

    @torch.no_grad()
    def _scored(self, spans: Sequence[Span]) -> list[TokenScores]:
        rows = self._rows(spans)
        scores = [TokenScores([float("nan")] * len(s.ids)) for s in spans]
        for micro, states_ND in self._passes(rows):
            columns = micro.shape[1]
            temperatures = torch.tensor([rows[i].temperature for i in micro.rows])
            if bool((temperatures != 1.0).any()):
                states_ND = states_ND.float() / temperatures[micro.cells_N // columns].to(self._device)[:, None]
            with self._autocast():
                found, _ = selected_logprobs(states_ND, self.head_weight, micro.targets_N.to(self._device))
            for cell, value in zip(micro.cells_N.tolist(), found.tolist(), strict=True):
                scores[micro.rows[cell // columns]].logprobs[cell % columns] = value
        return scores

    @torch.no_grad()
    def states(self, spans: Sequence[Span]) -> Tensor:
        """Return the hidden states before the tokens asked about, span after span."""
        rows = self._rows(spans)
        starts, total = list[int](), 0
        for row in rows:
            starts.append(total)
            total += row.trained
        found = torch.zeros(total, self.head_weight.shape[1], device=self._device)
        for micro, states_ND in self._passes(rows):
            places = [starts[i] + n for i in micro.rows for n in range(rows[i].trained)]
            found[torch.tensor(places, device=self._device)] = states_ND.float()
        return found

    def _rows(self, spans: Sequence[Span]) -> list[TrainingRow]:
        rows: list[TrainingRow] = []
        for n, span in enumerate(spans):
            group = f"{span.trajectory.group}/{span.start}" if span.trajectory.group else ""
            mask = span.mask if len(span.ids) <= self.max_length else [False] * len(span.ids)
            temperature = sampled_at(span.trajectory)
            rows.append(TrainingRow(str(n), "teacher", span.ids, mask, group=group, temperature=temperature))
        return rows

    def _passes(self, rows: list[TrainingRow]) -> Iterator[tuple[MicroBatch, Tensor]]:
        move = self._device
        for micro in micro_batches(rows, self._tokens, share=True):
            with self._autocast():
                states_ND = self._model.hidden(
                    micro.ids_RL.to(move),
                    None if micro.positions_RL is None else micro.positions_RL.to(move),
                    None if micro.attention_RLL is None else micro.attention_RLL.to(move),
                    micro.states_N.to(move),
                )
                yield micro, states_ND

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16)
