"""A small real program that runs by itself: a policy from nothing, a data file that changes, a gate that may be held."""

import shutil
from pathlib import Path

from flows.work.data import _write
from specs.environments import OrderDesk
from tasks.episodes.environments import environment_for

FEW = 20
"""Problems with which the gate can say nothing."""
MANY = 120
"""Problems with which it passes."""
PROGRAM = """\
program: nightly
policy:
  init: {kind: scratch, hidden_size: 16, layers: 1, heads: 2, kv_heads: 2, intermediate_size: 32, max_length: 160,
         tokenizer: {kind: bpe, vocab_size: 320, train_on: demos}}
environments: {desk: {kind: order_desk, max_turns: 6}}
agent: {kind: tool_loop, max_new_tokens: 8}
data:
  demos: {kind: demonstrations, environment: desk, size: 40, seed: 1}
  golden: {kind: file, environment: desk, path: golden.jsonl, role: golden}
verifiers: {order_state: {kind: environment_state}}
reward: {outcome: {order_state: 1.0}}
stages:
  - {id: teach, algorithm: {type: sft, epochs: 0.5}, data: [demos]}
evaluation: {sets: [golden], greedy: false}
gates:
  ship: {require: [{metric: success, set: golden, at_most: 0.05}], looks: 9, on_pass: promote}
"""


def project(folder: Path, more: str = "") -> Path:
    """Write the program with `FEW` problems and return its file."""
    (folder / ".tutelage").mkdir(parents=True)
    path = folder / "nightly.yaml"
    path.write_text(PROGRAM + more)
    problems(folder, FEW, seed=1)
    return path


def problems(folder: Path, count: int, seed: int) -> None:
    """Replace the problems that the gate asks."""
    environment = environment_for("desk", OrderDesk(kind="order_desk", max_turns=6))
    _write(folder, environment.problems("golden", count, seed))
    (folder / "records.jsonl").replace(folder / "golden.jsonl")


def other_demonstrations(file: Path, seed: int) -> None:
    """Change what the policy learns from, so that there is another candidate."""
    file.write_text(file.read_text().replace("seed: 1}", f"seed: {seed}}}"))


def copied(project_folder: Path, to: Path) -> Path:
    """Copy a project with its state and return its program file."""
    shutil.copytree(project_folder, to)
    return to / "nightly.yaml"
