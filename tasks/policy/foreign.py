"""A teacher's folder: the files of a policy folder, but with a tokenizer of any kind and marks of its own."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save

from specs.errors import ProgramError
from specs.policy import PretrainedPolicy
from specs.served_teacher import ServedModelTeacher
from specs.teachers import ModelTeacher
from tasks.files import digest_entries, list_tree, sha256_file, write_durable, write_json
from tasks.policy.config import LlamaConfig, config_from, config_to_hf
from tasks.policy.initial import PACKAGES, from_pretrained
from tasks.policy.llama import Llama
from tasks.policy.store import (
    DTYPES,
    FILES,
    LoadedPolicy,
    Precision,
    digest_of,
    load_model,
    read_json,
    read_manifest,
    refuse_unsafe,
)
from tasks.policy.weights import named_weights
from tasks.tokens.bytes import AnyTokenizer
from tasks.tokens.frames import Frame, FrameName, frame_for


@dataclass(slots=True)
class LoadedTeacher:
    """A frozen model in memory, whose tokens need not be the policy's."""

    model: Llama
    tokenizer: AnyTokenizer
    frame: Frame
    config: LlamaConfig
    digest: str = ""
    notes: list[str] = field(default_factory=list[str])


def read_teacher(spec: ModelTeacher, policy_template: str, path: Path | None = None) -> LoadedTeacher:
    """Load a teacher's checkpoint: a model folder (`path`, else `spec.model`) or `package:NAME`.

    ProgramError where it is absent, not supported, lacks the template's special tokens, or is not the one whose digest
    `spec.revision` gives.
    """
    template = frame_name(spec, policy_template)
    if spec.model.startswith("package:"):
        pretrained = PretrainedPolicy(
            kind="pretrained", model=spec.model, revision=spec.revision, max_length=spec.max_length
        )
        name = template if template != "builtin/plain@1" else "builtin/chatml@1"
        return teacher_of(from_pretrained(pretrained, name), template)
    folder = path or Path(spec.model)
    if not folder.is_dir():
        raise ProgramError(
            f"teacher model: found {spec.model!r}, which is no folder; expected a folder with config.json, tokenizer.json "
            f"and safetensors, or package:{next(iter(PACKAGES))}"
        )
    refuse_unsafe(folder)
    digest = digest_entries([e for e in list_tree(folder) if e.path.endswith((".safetensors", ".json"))])
    if spec.revision is not None and spec.revision != digest:
        raise ProgramError(
            f"teacher model {spec.model}: found the digest {digest}, expected {spec.revision}; use the model that the "
            "program names, or change its revision"
        )
    config = config_from(read_json(folder / "config.json"), str(folder / "config.json"), spec.max_length)
    teacher = _assemble(folder, config, template)
    teacher.notes.append(f"{spec.model} has revision {digest}")
    return teacher


def frame_name(spec: ModelTeacher | ServedModelTeacher, policy_template: str) -> FrameName:
    """Return the template of a teacher's prompts. ProgramError where the policy's is none that a teacher can have."""
    name = policy_template if spec.template == "policy" else spec.template
    match name:
        case "builtin/compact@1" | "builtin/chatml@1" | "builtin/plain@1":
            return name
        case _:
            raise ProgramError(f"teacher template: found {name!r}, expected builtin/compact@1, chatml@1 or plain@1")


def _assemble(folder: Path, config: LlamaConfig, template: FrameName) -> LoadedTeacher:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ProgramError(f"{path}: missing; expected the tokenizer as tokenizer.json (fast tokenizers write it)")
    tokenizer = AnyTokenizer.load(path)
    if tokenizer.size > config.vocab_size:
        raise ProgramError(
            f"{folder}: the tokenizer has {tokenizer.size} ids, but the model only {config.vocab_size}; "
            "they belong to different models"
        )
    return LoadedTeacher(load_model(folder, config), tokenizer, frame_for(template, tokenizer, str(folder)), config)


def teacher_of(policy: LoadedPolicy, template: FrameName | None = None) -> LoadedTeacher:
    """Return a policy as a teacher."""
    tokenizer = AnyTokenizer.from_json(policy.tokenizer.to_json(), "the policy's tokenizer")
    name = template or frame_name(ModelTeacher(kind="model", model="."), policy.template.name)
    frame = frame_for(name, tokenizer, "the policy's tokenizer")
    return LoadedTeacher(policy.model, tokenizer, frame, policy.config, policy.digest, list(policy.notes))


def save_teacher(teacher: LoadedTeacher, folder: Path) -> str:
    """Write a teacher's folder and return its digest. The same teacher, the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    stop = teacher.frame.stop or 0
    about: dict[str, Any] = {
        "template": teacher.frame.name,
        "tokenizer_digest": teacher.tokenizer.digest,
        "max_length": teacher.config.max_length,
    }
    write_json(folder / "config.json", config_to_hf(teacher.config, pad_id=0, stop_id=stop))
    write_durable(folder / "model.safetensors", save(named_weights(teacher.model), {"format": "pt"}))
    write_durable(folder / "tokenizer.json", teacher.tokenizer.to_json())
    write_json(folder / "template.json", about)
    entries = {n: {"size": (folder / n).stat().st_size, "sha256": sha256_file(folder / n)} for n in FILES}
    write_json(folder / "manifest.json", entries)
    teacher.digest = digest_of(entries)
    return teacher.digest


def load_teacher(folder: Path, dtype: Precision = "fp32", device: str = "cpu") -> LoadedTeacher:
    """Load a teacher's or a policy's folder; StateError where a file is missing, damaged, or not safe to open."""
    entries = read_manifest(folder)
    about = read_json(folder / "template.json")
    config = config_from(read_json(folder / "config.json"), str(folder / "config.json"), int(about["max_length"]))
    teacher = _assemble(folder, config, frame_name(ModelTeacher(kind="model", model="."), about["template"]))
    teacher.model.to(device=device, dtype=DTYPES[dtype])
    teacher.digest = digest_of(entries)
    return teacher
