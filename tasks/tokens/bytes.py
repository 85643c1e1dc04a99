"""The bytes behind the tokens of any tokenizer: byte-level BPE, SentencePiece with byte fallback, Unigram, WordPiece.

Bytes are read from the vocabulary and never by decoding a token alone, which would break characters that lie over
two tokens. Text is never normalised here: where a tokenizer changes it, that is found out, and the tokens are placed
by the spans of the original text that the tokenizer reports.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from specs.errors import ProgramError, StateError
from tasks.boundary import Failure, boundary
from tasks.tokens.tokenizer import byte_characters

Ends = NDArray[np.int64]
"""Where each token ends, in bytes of the text; it never falls."""
Kind = Literal["byte_level", "sentence_piece", "word_piece", "words"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTES = byte_characters()


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text in tokens."""

    ids: list[int]
    ends: Ends
    exact: bool
    """The tokens' bytes are the text's. Where not, the tokenizer changed the text and `ends` come from its own spans."""
    unknown: NDArray[np.bool_]
    """Tokens that stand for what the vocabulary cannot write, or where characters are that no token stands for."""


class AnyTokenizer:
    """A tokenizer of any kind, seen by the bytes of its tokens. Text never yields a special id."""

    def __init__(self, backend: Backend, name: str = "tokenizer") -> None:
        self._backend = backend
        self.name = name
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        data: dict[str, Any] = json.loads(backend.to_str())
        self.kind: Kind = _kind(data, name)
        self.specials = {i: t.content for i, t in backend.get_added_tokens_decoder().items() if t.special}
        self.table = _byte_table(backend, data["model"], self.kind, self.specials)
        single = {b[0] for b in self.table if len(b) == 1}
        self._lacking = frozenset(range(256)) - single if self.kind == "byte_level" else frozenset[int]()
        self._lengths = np.array([len(b) for b in self.table], dtype=np.int64)
        unknown: str | int | None = data["model"].get("unk_token")
        if data["model"].get("type") == "Unigram":
            self.unknown_id: int | None = data["model"].get("unk_id")
        else:
            self.unknown_id = backend.token_to_id(unknown) if isinstance(unknown, str) else None

    @classmethod
    def load(cls, path: Path) -> "AnyTokenizer":
        """Read a `tokenizer.json`. StateError where it is damaged."""
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise StateError(f"{path}: cannot be read ({e}); expected a tokenizer.json") from e
        return cls.from_json(content, str(path))

    @classmethod
    def from_json(cls, content: str, name: str = "tokenizer") -> "AnyTokenizer":
        """Make one from the content of a `tokenizer.json`. StateError where it is damaged."""
        backend = boundary("tokenizer.json", lambda: Backend.from_str(content))
        if isinstance(backend, Failure):
            raise StateError(f"{name}: damaged ({backend.message}), expected a tokenizer.json; restore the file")
        return cls(backend, name)

    @cached_property
    def digest(self) -> str:
        """Return the hex sha256 of `tokenizer.json`, as `Tokenizer` has it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the content of `tokenizer.json`."""
        return self._backend.to_str(pretty=False) + "\n"

    @property
    def size(self) -> int:
        """Return the number of ids."""
        return len(self.table)

    def special(self, content: str) -> int | None:
        """Return the id of a special token, None where there is none of that spelling."""
        token = self._backend.token_to_id(content)
        return token if token in self.specials else None

    def ids(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def ends_of(self, ids: Sequence[int]) -> Ends:
        """Return where each token ends in the bytes of all of them; special tokens have none."""
        return self._lengths[np.asarray(ids, dtype=np.int64)].cumsum()

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of all the tokens; special tokens have none."""
        return b"".join([self.table[i] for i in ids])

    def encode(self, text: str) -> Encoded:
        """Return the tokens of `text` and where they end in it.

        A leading space that the tokenizer puts before every text is taken off again.
        """
        found = self._backend.encode(text, add_special_tokens=False)
        ids, wanted = found.ids, text.encode()
        unknown = np.asarray(ids, dtype=np.int64) == (-1 if self.unknown_id is None else self.unknown_id)
        if not unknown.any() and self.kind != "words":
            written = self.bytes_of(ids)
            if written == wanted:
                return Encoded(ids, self.ends_of(ids), exact=True, unknown=unknown)
            if written == b" " + wanted:
                return Encoded(ids, np.maximum(self.ends_of(ids) - 1, 0), exact=True, unknown=unknown)
        ends = _ends_by_spans(text, found.offsets)
        unknown |= _beside_lost(text, found.offsets, ends, self._lacking)
        return Encoded(ids, ends, exact=False, unknown=unknown)


def _kind(data: dict[str, Any], name: str) -> Kind:
    model = data["model"].get("type") or ("WordPiece" if "max_input_chars_per_word" in data["model"] else "BPE")
    parts = json.dumps([data.get("pre_tokenizer"), data.get("decoder"), data.get("normalizer")])
    match model:
        case "BPE" if '"ByteLevel"' in parts:
            return "byte_level"
        case "WordPiece":
            return "word_piece"
        case "BPE" | "Unigram" if "▁" in parts or '"Metaspace"' in parts or '"ByteFallback"' in parts:
            return "sentence_piece"
        case "BPE" | "Unigram" | "WordLevel":
            return "words"
        case _:
            raise ProgramError(
                f"{name}: found a tokenizer of model {model!r}, expected BPE, Unigram, WordPiece or WordLevel"
            )


def _byte_table(backend: Backend, model: dict[str, Any], kind: Kind, specials: dict[int, str]) -> list[bytes]:
    """Return the bytes of every id; none for specials, the unknown token and ids that nobody uses."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    added = {i: t.content for i, t in backend.get_added_tokens_decoder().items()}
    continuing: str = model.get("continuing_subword_prefix") or ""
    ending: str = model.get("end_of_word_suffix") or ""
    for text, i in vocabulary.items():
        if i in specials or text == model.get("unk_token"):
            continue
        if i in added:
            table[i] = added[i].encode()
        elif kind == "byte_level":
            table[i] = bytes(_BYTES[c] for c in text) if all(c in _BYTES for c in text) else text.encode()
        elif kind == "sentence_piece":
            byte = _BYTE_TOKEN.fullmatch(text)
            table[i] = bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
        else:
            table[i] = text.removeprefix(continuing).removesuffix(ending).encode()
    return table


def _ends_by_spans(text: str, offsets: Sequence[tuple[int, int]]) -> Ends:
    """Return ends in bytes from spans in characters.

    What lies between two spans belongs to the later one, and of several tokens over one character only the last ends
    with it. A span that goes back ends where the one before it did.
    """
    if not offsets:
        return np.zeros(0, dtype=np.int64)
    widths = np.array([len(c.encode(errors="surrogatepass")) for c in text], dtype=np.int64)
    at = np.concatenate([[0], widths.cumsum()])
    starts, ends = np.array(offsets, dtype=np.int64).T
    ends = np.concatenate([np.minimum(ends[:-1], np.maximum(starts[1:], starts[:-1])), ends[-1:]])
    return np.maximum.accumulate(at[ends])


def _beside_lost(
    text: str, offsets: Sequence[tuple[int, int]], ends: Ends, lacking: frozenset[int]
) -> NDArray[np.bool_]:
    """Return at which tokens characters were lost: those with a byte that no token has, or in no token's span.

    Spaces and accents in no span are what a normaliser takes off.
    """
    data = [c.encode(errors="surrogatepass") for c in text]
    told = np.zeros(len(text), dtype=bool)
    for start, end in offsets:
        told[start:end] = True
    lost = [
        i
        for i, c in enumerate(text)
        if not lacking.isdisjoint(data[i]) or not (told[i] or c.isspace() or unicodedata.combining(c))
    ]
    after = np.array([len(c) for c in data], dtype=np.int64).cumsum()
    places = np.searchsorted(ends, after[lost])
    found = np.zeros(len(ends), dtype=bool)
    found[places[places < len(ends)]] = True
    return found
