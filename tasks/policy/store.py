"""Policy folders: config, safetensors, tokenizer and template under one manifest of sha256 digests.

The manifest is checked before anything is parsed. Pickle files, and configurations that ask for code of their
own, are refused unread; there is no second way of loading after a safe one failed.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from specs.errors import ProgramError, StateError
from tasks.files import sha256_file, write_durable, write_json
from tasks.policy.config import LlamaConfig, config_from, config_to_hf
from tasks.policy.llama import Llama
from tasks.policy.weights import model_from, named_weights
from tasks.tokens.template import Template, template_for
from tasks.tokens.tokenizer import Tokenizer

Precision = Literal["fp32", "bf16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

FILES = ("config.json", "model.safetensors", "template.json", "tokenizer.json")
_PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz"}
_PICKLE_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")


@dataclass(slots=True)
class LoadedPolicy:
    """A policy in memory. `digest` names its exact files (empty until it was saved)."""

    model: Llama
    tokenizer: Tokenizer
    template: Template
    config: LlamaConfig
    digest: str = ""
    folder: Path | None = None
    notes: list[str] = field(default_factory=list)


def save_policy(policy: LoadedPolicy, folder: Path) -> str:
    """Write a policy folder that transformers loads too, and return its digest. The same policy, the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    template = policy.template
    config = config_to_hf(policy.config, pad_id=template.pad_id, stop_id=template.stop_ids[0])
    write_json(folder / "config.json", config)
    write_durable(folder / "model.safetensors", save(named_weights(policy.model), {"format": "pt"}))
    policy.tokenizer.save(folder / "tokenizer.json")
    write_json(
        folder / "template.json",
        {
            "template": template.name,
            "digest": template.digest,
            "tokenizer_digest": policy.tokenizer.digest,
            "stop_ids": list(template.stop_ids),
            "max_length": policy.config.max_length,
        },
    )
    entries = {n: {"size": (folder / n).stat().st_size, "sha256": sha256_file(folder / n)} for n in FILES}
    write_json(folder / "manifest.json", entries)
    policy.digest, policy.folder = digest_of(entries), folder
    return policy.digest


def digest_of(entries: dict[str, Any]) -> str:
    """Return the digest that names a policy: that of its manifest."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a policy folder's manifest after checking every file against it. StateError names the damaged file."""
    refuse_unsafe(folder)
    entries = read_json(folder / "manifest.json")
    if set(entries) != set(FILES):
        raise StateError(
            f"{folder / 'manifest.json'}: lists {', '.join(sorted(entries)) or 'nothing'}, expected "
            f"{', '.join(FILES)}; this is no policy folder, or it is damaged"
        )
    for name, entry in entries.items():
        path = folder / name
        if not path.is_file():
            raise StateError(f"{path}: missing, but the manifest lists it; restore it or run the node again")
        size = path.stat().st_size
        if size != entry["size"]:
            raise StateError(f"{path}: damaged: {size} bytes, the manifest says {entry['size']}; run the node again")
        if sha256_file(path) != entry["sha256"]:
            raise StateError(f"{path}: damaged: its sha256 is not the manifest's; restore it or run the node again")
    return entries


def load_policy(folder: Path, dtype: Precision = "fp32", device: str = "cpu") -> LoadedPolicy:
    """Load a policy folder; StateError where a file is missing, damaged, or not safe to open."""
    entries = read_manifest(folder)
    about = read_json(folder / "template.json")
    config = config_from(read_json(folder / "config.json"), str(folder / "config.json"), int(about["max_length"]))
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    template = template_for(about["template"], tokenizer)
    if template.digest != about["digest"]:
        raise StateError(
            f"{folder / 'template.json'}: made with template digest {about['digest'][:12]}, but this version of "
            f"tutelage writes {about['template']} as {template.digest[:12]}; train the policy anew"
        )
    model = load_model(folder, config).to(device=device, dtype=DTYPES[dtype])
    return LoadedPolicy(model, tokenizer, template, config, digest_of(entries), folder)


def load_model(folder: Path, config: LlamaConfig) -> Llama:
    """Read the safetensors of a folder, in one file or in several with an index."""
    index = folder / "model.safetensors.index.json"
    with ExitStack() as stack:
        if index.is_file():
            read = _indexed(stack, folder, read_json(index))
        else:
            path = folder / "model.safetensors"
            if not path.is_file():
                raise StateError(f"{path}: missing; expected weights as safetensors, the only format that is loaded")
            handle = _open(stack, path)
            read = lambda name: _get(handle, name, path)  # noqa: E731
        return model_from(config, read, str(folder))


def _indexed(stack: ExitStack, folder: Path, index: dict[str, Any]) -> Callable[[str], Tensor]:
    files: dict[str, str] = index.get("weight_map", {})
    handles: dict[str, Any] = {}
    for name in sorted(set(files.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise StateError(f"{folder}: the index names the file {name!r}, expected a .safetensors file beside it")
        handles[name] = _open(stack, folder / name)

    def read(name: str) -> Tensor:
        if name not in files:
            raise StateError(f"{folder}: the index has no tensor {name}; the model is damaged or no plain Llama")
        return _get(handles[files[name]], name, folder / files[name])

    return read


def _open(stack: ExitStack, path: Path) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework="pt"))
    except (SafetensorError, OSError) as e:
        raise StateError(f"{path}: damaged or no safetensors ({e}); nothing else is tried: restore the file") from e


def _get(handle: Any, name: str, path: Path) -> Tensor:
    try:
        return handle.get_tensor(name)
    except SafetensorError as e:
        raise StateError(f"{path}: no tensor {name} ({e}); the model is damaged or no plain Llama") from e


def refuse_unsafe(folder: Path) -> None:
    """Raise ProgramError for a folder that holds pickles or asks to run code of its own. Nothing is executed."""
    if not folder.is_dir():
        raise StateError(f"{folder}: no such folder; expected a policy or model folder")
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.suffix.lower()
        if name in _PICKLES or (name == ".safetensors" and _starts_like_pickle(path)):
            raise ProgramError(
                f"{path}: found a pickle, which can run code when it is opened; it was not opened. "
                "Expected safetensors: convert it elsewhere, or remove it from the folder"
            )
        if name == ".json":
            for key in _code_keys(read_json(path)):
                raise ProgramError(
                    f"{path}: found {key!r}: this model asks to run code of its own, and nothing of the folder was "
                    "loaded. Use a model of a supported architecture without it"
                )


def _starts_like_pickle(path: Path) -> bool:
    """Return whether it is one by its first bytes; the length of a safetensors header may begin with the same two."""
    with path.open("rb") as f:
        start = f.read(9)
    header = start[8:] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size - 8
    return start.startswith(_PICKLE_STARTS) and not header


def _code_keys(data: Any) -> Iterator[str]:
    stack = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            for key, value in item.items():
                if key == "auto_map" or (key == "trust_remote_code" and value):
                    yield key
                stack.append(value)
        elif isinstance(item, list):
            stack.extend(item)


def read_json(path: Path) -> Any:
    """Return a JSON file's data. StateError where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise StateError(f"{path}: cannot be read ({e.strerror})") from e
    except (ValueError, RecursionError) as e:
        raise StateError(f"{path}: damaged, expected JSON ({type(e).__name__}); restore the file") from e
