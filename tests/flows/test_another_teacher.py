"""One program learns from a closed API, and by another teacher's name token by token from a model that it can read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flows.cli import main
from flows.compile import compile
from flows.resolve import resolve
from specs.loader import load_program
from tests.contracts.sources import ROOT
from tests.flows.small_desk import DESK, OTHER_TOKENS
from tests.tasks.teachers.closed_clerk import serve

PROGRAM = (
    f"program: either\n{DESK}"
    + """\
  clean: {kind: demonstrations, environment: desk, size: 60}
verifiers: {state: {kind: environment_state, answer: no}}
teachers:
  closed: {kind: openai, model: closed, base_url: "${env:TEACHER_URL}", gives: [sample], cap_calls: 100}
  open:
"""
    + OTHER_TOKENS
    + """\
routing: [{teachers: {closed: 1.0}}]
stages:
  - id: teach
    algorithm: {type: sft, epochs: 6, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}}
    data: [demos]
  - id: learn
    algorithm:
      type: from_teacher
      samples: 2
      per_step: 8
      at_least: 1
      corrections: {learn: both}
      over: {kind: sampled}
    data: [train]
"""
)


def test_another_teachers_name_makes_it_token_level_distillation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file, home = tmp_path / "either.yaml", tmp_path / "home"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))

    def run(program: str) -> dict[str, Path]:
        file.write_text(program)
        code = main(["run", str(file), "--no-services", "--json"])
        told = json.loads(capsys.readouterr().out)
        assert code == 0, told
        return {n["node"]: home / "nodes" / n["run_key"] for n in told["nodes"]}

    file.write_text(PROGRAM)
    with serve(file, home) as server:
        monkeypatch.setenv("TEACHER_URL", server.url)
        by_words = run(PROGRAM)
    asked, replied = server.seen.bodies, server.seen.replies
    assert len(asked) == len(replied) > 0
    assert not any("logprobs" in json.dumps(body) for body in asked)
    assert not any(b"logprobs" in reply for reply in replied)
    monkeypatch.delenv("TEACHER_URL")  # and the server is gone
    by_tokens = run(PROGRAM.replace("routing: [{teachers: {closed: ", "routing: [{teachers: {open: "))

    assert by_words["teach"] == by_tokens["teach"], "both begin with the same policy"
    assert [n for n in by_words if n.startswith("learn")] == [
        "learn.rollouts1", "learn.teach1", "learn.lessons1", "learn.imitate1", "learn"
    ]  # fmt: skip
    assert receipt(by_words, "learn.teach1")["metrics"]["answered"] == len(asked)
    assert receipt(by_words, "learn.imitate1")["metrics"]["units"] > 0
    assert receipt(by_words, "learn")["metrics"]["pairs"] > 0
    assert [n for n in by_tokens if n.startswith("learn")] == ["learn"]
    assert receipt(by_tokens, "learn")["cost"]["trained_tokens"] > 100
    for before, after in (
        (by_words["teach"], by_words["learn.imitate1"]),
        (by_words["learn.imitate1"], by_words["learn"]),
        (by_tokens["teach"], by_tokens["learn"]),
    ):
        assert receipt({"": after}, "")["cost"]["steps"] > 0
        assert moved(before, after)


def test_a_recipe_is_switched_by_another_teacher_alone() -> None:
    recipe = ROOT / "specs" / "recipes" / "blackbox_sequence.yaml"
    elder = "{kind: trained, init: {kind: scratch, hidden_size: 192, tokenizer: {kind: bpe, vocab_size: 960, train_on: demos}}, data: [demos]}"
    for settings, kinds in (
        ([], {"sequence": "train.corrected", "pairs": "train.preference", "both": "train.preference"}),
        ([f"teachers.clerk={elder}"], dict.fromkeys(("sequence", "pairs", "both"), "train.opd")),
    ):
        loaded = load_program(recipe, settings)
        made = compile(loaded.program, resolve(loaded, environ={}))
        assert {n.id: n.kind for n in made if n.id in kinds} == kinds


def receipt(nodes: dict[str, Path], name: str) -> dict[str, Any]:
    return json.loads((nodes[name] / "receipt.json").read_text())


def moved(before: Path, after: Path) -> bool:
    """Return whether every matrix of the policy is another one after a node."""
    old, new = (load_file(folder / "out" / "policy" / "model.safetensors") for folder in (before, after))
    return all(not torch.equal(old[name], new[name]) for name in old if old[name].dim() > 1)
