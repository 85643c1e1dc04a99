"""The sources of the product as syntax trees, for rules that hold across files."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

from specs.base import Spec
from specs.program import Program
from specs.shapes import field_shape, shape_of

ROOT = Path(__file__).parents[2]


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def trees(*folders: str) -> Iterator[ast.Module]:
    """Yield the syntax trees of folders and files, named from the root."""
    for name in folders:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield tree(file)


@cache
def words_read(*folders: str) -> frozenset[str]:
    """Return every attribute that is read in these folders, and every text that may be a key."""
    found: set[str] = set()
    for module in trees(*folders):
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)
    return frozenset(found)


@cache
def classes_matched(*folders: str) -> frozenset[str]:
    """Return the classes that a `case` or `isinstance` in these folders names."""
    found: set[str] = set()
    for module in trees(*folders):
        for node in ast.walk(module):
            if isinstance(node, ast.MatchClass):
                found.add(ast.unparse(node.cls).rpartition(".")[2])
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                found.update(
                    ast.unparse(n).rpartition(".")[2] for n in ast.walk(node.args[1]) if isinstance(n, ast.expr)
                )
    return frozenset(found)


def specs_of(annotation: Any = Program) -> list[type[Spec]]:
    """Return every spec that a program may hold, each once."""
    found: dict[type[Spec], None] = {}

    def visit(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, Spec):
            if kind not in found:
                found[kind] = None
                for field in kind.model_fields.values():
                    visit(field_shape(field).type)
        else:
            for inner in get_args(kind):
                visit(shape_of(inner).type)

    visit(annotation)
    return list(found)
