"""`tutelage init`: write a first program."""

import argparse
from pathlib import Path

from specs.errors import ProgramError, StateError

EXAMPLES = {"init": "tutelage init program.yaml"}

PROGRAM = """\
# Check it: tutelage check {file}    See what would run: tutelage plan {file}    Run it: tutelage run {file}
program: {name}
about: Train a small agent from nothing to run an order desk, and promote it if it is good enough.
policy:
  init: {{kind: scratch, tokenizer: {{kind: bpe}}}}
environments:
  desk: {{kind: order_desk}} # has the data sets desk.demonstrations, desk.train, desk.golden and desk.hidden
verifiers:
  order_state: {{kind: environment_state}} # success: the desk is in the state that the problem asks for
stages:
  - id: teach # learn from solved problems
    algorithm:
      type: sft
      epochs: 2
      batch: {{tokens: 512}}
      optimizer: {{kind: muon, learning_rate: 5e-3, warmup_steps: 20, schedule: linear}}
    data: [desk.demonstrations]
  - id: harvest # learn from its own successes
    algorithm: {{type: rft, problems: 200, batch: {{tokens: 512}}}}
    data: [desk.train]
gates:
  ship: # promoted when the lower bound of its success on unseen problems is at least this
    require:
      - {{metric: success, set: desk.hidden, at_least: 0.3}}
"""


def configure(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the options of `init`."""
    parser.add_argument("file", nargs="?", default="program.yaml", help="file to write (program.yaml)")
    parser.add_argument("--name", help="the program's name; order-desk where left out")


def run(args: argparse.Namespace) -> int:
    """Write the beginner's program; a file that is there is left alone."""
    path = Path(args.file)
    name = args.name or "order-desk"
    if not (
        name[:1].isalpha() and name.isascii() and len(name) <= 64 and name.replace("-", "").replace("_", "").isalnum()
    ):
        raise ProgramError(f"--name: found {name!r}, expected a letter, then letters, digits, _ and - (at most 64)")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as f:
            f.write(PROGRAM.format(file=path, name=name))
    except FileExistsError:
        raise ProgramError(f"{path}: is there already and is left as it is; name another file") from None
    except OSError as e:
        raise StateError(f"{path}: cannot be written ({e.strerror}); choose another place") from None
    print(f"{path}: written\nnext: tutelage check {path}, then tutelage run {path}")
    return 0
