"""Programs that the tests write and change."""

from pathlib import Path

import pytest

from specs.errors import ProgramError
from specs.loader import LoadedProgram, load_program

BASE = """\
program: desk
seed: 17
policy:
  init: {kind: scratch, tokenizer: {kind: bpe, train_on: demos}}
environments:
  desk: {kind: order_desk}
data:
  demos: {kind: demonstrations, environment: desk, size: 50}
  train: {kind: problems, environment: desk, size: 40}
  golden: {kind: problems, environment: desk, split: golden, size: 45, role: golden}
verifiers:
  order_state: {kind: environment_state}
stages:
  - id: teach
    algorithm:
      type: sft
    data: [demos]
  - id: rl
    from: teach
    algorithm:
      type: grpo
      group_size: 8
    data: [train]
evaluation: {sets: [golden]}
gates:
  ship:
    require:
      - {metric: success, set: golden, at_least: 0.5}
"""


def write(folder: Path, text: str | bytes = BASE, name: str = "x.yaml") -> Path:
    """Write a program and return its file."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(*pairs: tuple[str, str]) -> str:
    """Return the base program with each first text replaced by the second."""
    text = BASE
    for old, new in pairs:
        assert old in text, f"the base program has no {old!r}"
        text = text.replace(old, new, 1)
    return text


def load(folder: Path, *pairs: tuple[str, str], sets: tuple[str, ...] = ()) -> LoadedProgram:
    """Load the base program with replacements and `--set`s."""
    return load_program(write(folder, changed(*pairs)), sets)


def refused(folder: Path, text: str | bytes, sets: tuple[str, ...] = ()) -> str:
    """Return the message with which a program is refused, without the folder's name."""
    path = write(folder, text)
    with pytest.raises(ProgramError) as e:
        load_program(path, sets)
    assert e.value.exit_code == 2
    return str(e.value).replace(f"{folder}/", "")


def mistakes(folder: Path, *pairs: tuple[str, str], sets: tuple[str, ...] = ()) -> list[str]:
    """Return the lines with which the changed base program is refused."""
    return refused(folder, changed(*pairs), sets).splitlines()
