"""Byte-level BPE tokenizers: trained here or read from a `tokenizer.json`, exact in both directions.

Text never yields a special id, whatever it holds: specials are placed by templates alone.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from specs.errors import ProgramError, StateError
from specs.policy import BPETokenizer
from tasks.boundary import Failure, boundary
from tasks.files import write_durable

COMPACT_SPECIALS = ("<|pad|>", "<|system|>", "<|user|>", "<|call|>", "<|result|>", "<|end|>")
CHATML_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_characters() -> dict[str, int]:
    """Return the character that stands for each byte in a byte-level vocabulary, inverted."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in kept}
    moved = (b for b in range(256) if b not in set(kept))
    table.update({chr(256 + i): b for i, b in enumerate(moved)})
    return table


_BYTE_OF = byte_characters()


class Tokenizer:
    """A byte-level BPE tokenizer. Construction raises ProgramError for any other kind."""

    def __init__(self, backend: Backend, name: str = "tokenizer") -> None:
        self._backend = backend
        self._check_kind(name)
        backend.encode_special_tokens = True
        self._bytes = self._byte_table()

    def _check_kind(self, name: str) -> None:
        data = json.loads(self._backend.to_str())
        kinds = {data["model"].get("type"), (data.get("decoder") or {}).get("type")}
        if kinds != {"BPE", "ByteLevel"}:
            raise ProgramError(
                f"{name}: found a tokenizer of kind {sorted(str(k) for k in kinds)}, expected a byte-level BPE "
                "(as GPT-2, Llama 3, Qwen and SmolLM2 have); choose a model with such a tokenizer"
            )
        if data.get("normalizer") is not None:
            raise ProgramError(
                f"{name}: found the normalizer {data['normalizer'].get('type')!r}, expected none: text must decode to "
                "exactly what was encoded; choose a model whose tokenizer has no normalizer"
            )
        around = self._backend.encode("x")
        if put := [t for t, added in zip(around.tokens, around.special_tokens_mask, strict=True) if added]:
            raise ProgramError(
                f"{name}: puts {', '.join(map(repr, put))} around every text by itself, expected nothing: templates place "
                "every special token, so that whoever serves the policy with this tokenizer would give it one more than "
                "it was trained with; choose a model whose tokenizer adds none"
            )

    def _byte_table(self) -> list[bytes]:
        added = {i: t.content.encode() for i, t in self._backend.get_added_tokens_decoder().items()}
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        table = [b""] * (max(vocabulary.values()) + 1)
        for text, i in vocabulary.items():
            table[i] = added[i] if i in added else bytes(_BYTE_OF[c] for c in text)
        return table

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a `tokenizer.json`. StateError where it is damaged, ProgramError for another kind of tokenizer."""
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise StateError(f"{path}: cannot be read ({e}); expected a tokenizer.json") from e
        backend = boundary("tokenizer.json", lambda: Backend.from_str(content))
        if isinstance(backend, Failure):
            raise StateError(f"{path}: damaged ({backend.message}), expected a tokenizer.json; restore the file")
        return cls(backend, str(path))

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`, the same bytes for the same tokenizer."""
        write_durable(path, self.to_json())

    def to_json(self) -> str:
        """Return the content of `tokenizer.json`."""
        return self._backend.to_str(pretty=False) + "\n"

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; the spelling of a special token in it is ordinary text."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [e.ids for e in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        table = self._bytes
        return b"".join([table[i] for i in ids]).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for (a special: those of its spelling)."""
        return self._bytes[token]

    def spans(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        """Return the byte span [start, end) of each token in the bytes of all of them."""
        return byte_spans([self._bytes[i] for i in ids])

    def ends_inside_character(self, ids: Sequence[int]) -> bool:
        """Return whether the text breaks off in the middle of a UTF-8 character."""
        return ends_inside_character(b"".join(self._bytes[i] for i in ids[-8:]))

    def special(self, name: str) -> int:
        """Return the id of a special token. ProgramError where this tokenizer has none of that name."""
        token = self._backend.token_to_id(name)
        if token is None:
            known = sorted(t.content for t in self._backend.get_added_tokens_decoder().values() if t.special)
            raise ProgramError(
                f"tokenizer: no special token {name!r}; it has {', '.join(known) or 'none'}; "
                "choose the template that this tokenizer was made for (policy.template)"
            )
        return token

    @property
    def size(self) -> int:
        """Return the number of ids."""
        return len(self._bytes)

    @cached_property
    def digest(self) -> str:
        """Return the hex sha256 of `tokenizer.json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def byte_spans(pieces: Iterable[bytes]) -> list[tuple[int, int]]:
    """Return the span [start, end) of each piece in their concatenation."""
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in pieces:
        spans.append((at, at + len(piece)))
        at += len(piece)
    return spans


def ends_inside_character(data: bytes) -> bool:
    """Return whether `data` ends with the beginning of a UTF-8 character that is not complete."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = (
                1 if byte < 0x80 else 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4 if byte >> 3 == 30 else 1
            )
            return length > back
    return False


def train_bpe(
    texts: Iterable[str], spec: BPETokenizer, fragments: Sequence[str], specials: Sequence[str] = COMPACT_SPECIALS
) -> Tokenizer:
    """Train a byte-level BPE: words with their space, groups of digits and single marks never merge with one another.

    `spec.vocab_size` counts specials, the 256 bytes and merges; each fragment is one token on top of them.
    """
    backend = Backend(models.BPE())
    pattern = Regex(rf" ?[A-Za-z_]+|[0-9]{{1,{spec.digit_group}}}|[^A-Za-z0-9_]")
    split: Any = pre_tokenizers.Split(pattern, "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=list(specials),
        initial_alphabet=sorted(_BYTE_OF),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(f, normalized=False, special=False) for f in fragments])
    return Tokenizer(backend)
