"""`tutelage schema`: the JSON Schema of a program, for editors."""

import argparse
from pathlib import Path

from specs.errors import StateError

EXAMPLES = {"schema": "tutelage schema --out schema.json"}


def configure(parser: argparse.ArgumentParser, _name: str) -> None:
    """Add the options of `schema`."""
    parser.add_argument("--out", metavar="FILE", help="write to a file; a program's first line may then name it")
    parser.add_argument("--json", action="store_true", help="no effect: the schema is JSON")


def run(args: argparse.Namespace) -> int:
    """Print or write the schema."""
    from specs.schema import schema_text

    if args.out is None:
        print(schema_text(), end="")
        return 0
    try:
        Path(args.out).write_text(schema_text(), encoding="utf-8")
    except OSError as e:
        raise StateError(f"{args.out}: cannot be written ({e.strerror}); choose another place") from None
    print(f"{args.out}: written; begin a program with `# yaml-language-server: $schema={args.out}`")
    return 0
