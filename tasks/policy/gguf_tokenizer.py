"""The tokenizer of a GGUF file, rebuilt from its header; torch-free."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from specs.errors import ProgramError, StateError
from tasks.boundary import Failure, boundary
from tasks.tokens.tokenizer import Tokenizer

_CONTROL = 3
"""Token type of special tokens in GGUF."""


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a GGUF file alone. StateError where it is damaged."""
    return tokenizer_of(opened(path)[1], path)


def opened(path: Path) -> tuple[Any, Callable[[str], Any]]:
    """Return the file, and what gives the values of its header by key."""
    from gguf import GGUFReader

    reader = boundary("gguf", lambda: GGUFReader(str(path)))
    if isinstance(reader, Failure):
        raise StateError(f"{path}: damaged, expected a GGUF file ({reader.message}); install the package again")
    fields: dict[str, Any] = reader.fields

    def value(key: str) -> Any:
        if key not in fields:
            raise StateError(f"{path}: no key {key}; expected a Llama model with its tokenizer")
        return fields[key].contents()

    return reader, value


def tokenizer_of(value: Callable[[str], Any], path: Path) -> Tokenizer:
    """Return the tokenizer that a header describes. ProgramError where it is of another kind."""
    kind = (value("tokenizer.ggml.model"), value("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ProgramError(f"{path}: found tokenizer {kind}, expected ('gpt2', 'smollm')")
    tokens: list[str] = value("tokenizer.ggml.tokens")
    control = [i for i, t in enumerate(value("tokenizer.ggml.token_type")) if t == _CONTROL]
    added = [
        {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i in control
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [m.split(" ") for m in value("tokenizer.ggml.merges")],
        },
    }
    return Tokenizer(Backend.from_str(json.dumps(data)), str(path))
