"""Strict YAML 1.2: text to plain data with the position of every key.

Keys are unique and text, words such as `on` and `no` stay words, `2e-5` is a number, aliases are bounded.
Merge keys (`<<: *name`) work and a local key overrides a merged one. Mistakes are collected, not raised one by one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from specs.errors import ProgramError
from specs.positions import InvalidProgramError, KeyPath, Mistake, Position
from specs.redaction import secret_key
from specs.scalars import Bad, read_plain, read_tagged

MAX_BYTES = 1_000_000
MAX_VALUES = 20_000
"""Values that a file may expand to by its aliases."""
MAX_DEPTH = 40

_PLAIN = "tag:tutelage,plain"
_CORE = "tag:yaml.org,2002:"
_MERGE = object()

_HINTS = {
    "found character that cannot start any token": "a tab or a reserved character stands here; indent with spaces, quote text",
    "found a tab character": "a tab indents here; use spaces",
    "mapping values are not allowed in this context": "`:` is not possible here; quote the text, or check the indentation above",
    "did not find expected key": "a key was expected; check the indentation and the line above",
    "did not find expected ',' or '}'": "expected `,` or `}`; check the braces",
    "did not find expected ',' or ']'": "expected `,` or `]`; check the brackets",
    "could not find expected ':'": "expected `key: value`; a `:` is missing",
    "found undefined alias": "no `&name` above defines this `*name`",
    "found unexpected end of stream": "a quote is not closed",
    "exceeded maximum nesting depth": "nested too deeply",
    "but found another document": "one program a file; remove the second `---` document",
    "control characters are not allowed": "a control character stands here; remove it",
}

_EVERYTHING = re.compile("")
_ROOT = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class _Composer(_ROOT):  # type: ignore[misc, valid-type]
    """Composes nodes and resolves nothing: whatever is plain keeps a tag of its own."""

    yaml_implicit_resolvers = {None: [(_PLAIN, _EVERYTHING)]}


@dataclass(slots=True)
class Document:
    """A file as read: data, the position of every key path, and the mistakes met while reading."""

    file: str
    data: Any
    positions: dict[KeyPath, Position]
    mistakes: list[Mistake] = field(default_factory=list[Mistake])


def read_yaml(content: bytes, file: str, *, position: Position | None = None) -> Document:
    """Return the document in `content`; `position` stands for every place where the text is not a file.

    Raises ProgramError where the text is not YAML, is empty, or expands beyond bounds.
    """
    reader = _Reader(file, position)
    node = reader.compose(reader.decode(content))
    if node is None:
        raise reader.error(0, 0, "the file is empty; `tutelage init` writes a first program")
    reader.measure(node)
    reader.positions[()] = reader.at(node)
    return Document(file, reader.value(node, ()), reader.positions, reader.mistakes)


class _Reader:
    def __init__(self, file: str, position: Position | None) -> None:
        self.file = file
        self.fixed = position
        self.positions: dict[KeyPath, Position] = {}
        self.mistakes: list[Mistake] = []

    # text

    def decode(self, content: bytes) -> str:
        """Return the text; a byte-order mark at the start is dropped."""
        if len(content) > MAX_BYTES:
            raise self.error(0, 0, f"found {len(content):,} bytes, expected a program of at most {MAX_BYTES:,}")
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise self.error(0, 0, "found UTF-16, expected UTF-8; save the file as UTF-8")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as e:
            before = content[: e.start]
            column = e.start - (before.rfind(b"\n") + 1)
            raise self.error(
                before.count(b"\n"), column, "found bytes that are not UTF-8; save the file as UTF-8"
            ) from None
        mark = text.find("\ufeff")
        if mark >= 0:
            column = mark - (text.rfind("\n", 0, mark) + 1)
            raise self.error(text.count("\n", 0, mark), column, "found a byte-order mark inside the file; remove it")
        return text

    def compose(self, text: str) -> Any:
        """Return the root node, or None for an empty document."""
        try:
            return cast(Any, yaml).compose(text, Loader=_Composer)
        except yaml.MarkedYAMLError as e:
            mark = e.problem_mark or e.context_mark
            raise self.error(mark.line if mark else 0, mark.column if mark else 0, _problem(e)) from None
        except yaml.YAMLError as e:
            index = getattr(e, "position", 0) or 0
            line = text.count("\n", 0, index)
            raise self.error(line, 0, "found a character that a program cannot hold; remove it") from None
        except (RecursionError, UnicodeEncodeError, ValueError):
            raise self.error(0, 0, "nested too deeply, or holds a character that is no text") from None

    # nodes

    def error(self, line: int, column: int, text: str) -> ProgramError:
        return InvalidProgramError([Mistake(self.fixed or Position(self.file, line + 1, column + 1), (), text)])

    def at(self, node: Any) -> Position:
        mark = node.start_mark
        return self.fixed or Position(self.file, mark.line + 1, mark.column + 1)

    def wrong(self, node: Any, path: KeyPath, text: str) -> None:
        if any(secret_key(part) for part in path) and "twice" not in text:
            text = "found a value (not shown) that cannot be read"
        self.mistakes.append(Mistake(self.at(node), path, text))

    def measure(self, root: Any) -> None:
        """Refuse what expands beyond bounds, before anything is expanded."""
        known: dict[int, tuple[int, int]] = {}
        open_: set[int] = set()

        def size(node: Any, depth: int) -> tuple[int, int]:
            if id(node) in known:
                return known[id(node)]
            mark = node.start_mark
            if id(node) in open_:
                raise self.error(mark.line, mark.column, "an alias refers to the value that it is part of")
            open_.add(id(node))
            values, height = 1, 0
            for child in _children(node):
                child_values, child_height = size(child, depth + 1) if depth < MAX_DEPTH else (0, MAX_DEPTH)
                values, height = values + child_values, max(height, child_height + 1)
            if height > MAX_DEPTH:
                raise self.error(mark.line, mark.column, f"nested more than {MAX_DEPTH} levels deep")
            open_.discard(id(node))
            known[id(node)] = (values, height)
            if values > MAX_VALUES:
                raise self.error(
                    mark.line,
                    mark.column,
                    f"too large: the aliases (`*name`) expand to {values:,} values, expected at most {MAX_VALUES:,};"
                    " write fewer aliases of aliases",
                )
            return known[id(node)]

        size(root, 0)

    def value(self, node: Any, path: KeyPath) -> Any:
        """Return the data of a node and note the positions of what is in it."""
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        expected = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != _CORE + expected:
            self.wrong(node, path, f"found the tag {_tag(node)}, expected none; remove it")
        if isinstance(node, yaml.SequenceNode):
            return [self.item(child, (*path, i)) for i, child in enumerate(node.value)]
        return self.mapping(node, path)

    def item(self, node: Any, path: KeyPath) -> Any:
        self.positions[path] = self.at(node)
        return self.value(node, path)

    def mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        own: dict[str, Any] = {}
        first: dict[str, Any] = {}
        merged: list[Any] = []
        for key_node, value_node in node.value:
            key = self.key(key_node, path)
            if key is _MERGE:
                merged += self.merge_sources(value_node, path)
            elif key is None:
                continue
            elif key in own:
                text = f"the key is written twice, first at {self.at(first[key])}; keep one"
                self.wrong(key_node, (*path, key), text)
            else:
                first[key] = key_node
                self.positions[(*path, key)] = self.at(key_node)
                own[key] = self.value(value_node, (*path, key))
        return self.with_merged(own, merged, path)

    def with_merged(self, own: dict[str, Any], merged: list[Any], path: KeyPath) -> dict[str, Any]:
        """Return local keys over merged ones; of several merged maps the first that has a key decides."""
        result = dict(own)
        for source in merged:
            saved, noted = self.positions, len(self.mistakes)
            self.positions = {}
            for key, value in self.mapping(source, path).items():
                if key not in result:
                    result[key] = value
                    base = (*path, key)
                    saved |= {p: at for p, at in self.positions.items() if p[: len(base)] == base}
            self.positions = saved
            del self.mistakes[noted:]  # told where the anchor stands
        return result

    def merge_sources(self, node: Any, path: KeyPath) -> list[Any]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if all(isinstance(n, yaml.MappingNode) for n in nodes):
            return list(nodes)
        self.wrong(node, path, "found no map behind `<<`, expected `<<: *name` of a map")
        return []

    def key(self, node: Any, path: KeyPath) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(node, path, "found a list or map as key, expected text")
            return None
        if node.tag == _PLAIN and node.value == "<<":
            return _MERGE
        value = read_plain(node.value) if node.tag == _PLAIN else node.value
        if not isinstance(value, str):
            self.wrong(node, path, f"found the key {node.value[:40] or 'nothing'}, expected text; quote it")
            return None
        if "\0" in value:
            self.wrong(node, path, "found a NUL character in a key; remove it")
            return None
        return value

    def scalar(self, node: Any, path: KeyPath) -> Any:
        value = read_plain(node.value) if node.tag == _PLAIN else read_tagged(node.tag, node.value)
        if isinstance(value, str) and "\0" in value:
            value = Bad("found a NUL character, expected text; remove it")
        if isinstance(value, Bad):
            self.wrong(node, path, value.text)
            return None
        return value


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value


def _tag(node: Any) -> str:
    return str(node.tag).replace(_CORE, "!!")[:60]


def _problem(error: Any) -> str:
    said = " ".join(str(part) for part in (error.context, error.problem) if part)
    hint = next((text for phrase, text in _HINTS.items() if phrase in said), None)
    return f"not YAML: {hint}" if hint else f"not YAML: {error.problem or 'cannot be read'}"
