"""`extends: base.yaml` (one level, maps merged) and `--set path=value`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from specs.errors import ProgramError
from specs.positions import KeyPath, Mistake, Position, as_map, did_you_mean, listed, path_text, position_of
from specs.reader import Document, read_yaml

_TAGS = ("kind", "type", "do")
_SUFFIXES = ("demonstrations", "train", "golden", "hidden")
Map = dict[str, Any]


def read_file(path: Path, *, at: Position | None = None) -> Document:
    """Return the document of a program file; ProgramError where it cannot be read (`at` is who asked for it)."""
    where = f"{at} extends: " if at else ""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ProgramError(f"{where}{path}: no such file; check the path, or let `tutelage init` write one") from None
    except IsADirectoryError:
        raise ProgramError(f"{where}{path}: found a directory, expected a program file (.yaml)") from None
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or "not a usable path"
        raise ProgramError(f"{where}{path}: cannot be read ({reason}); check the path and its permissions") from None
    return read_yaml(content, str(path))


def with_base(document: Document, path: Path) -> tuple[Document, list[Path]]:
    """Return the document over the file that its `extends` names, and the files read.

    Maps are merged key by key; lists and values replace. A map whose `kind` or `type` differs replaces too,
    because the keys of one kind mean nothing to another.
    """
    data: Any = document.data
    if not isinstance(data, dict) or "extends" not in data:
        return document, [path]
    own = cast(Map, data)
    at = position_of(("extends",), document.positions)
    named = own["extends"]
    rest = {k: v for k, v in own.items() if k != "extends"}
    if not isinstance(named, str) or not named:
        document.mistakes.append(Mistake(at, ("extends",), "expected the path of one program file"))
        return Document(document.file, rest, document.positions, document.mistakes), [path]
    base_path = path.parent / named
    base = read_file(base_path, at=at)
    if as_map(base.data) is None:
        base.mistakes.append(Mistake(position_of((), base.positions), (), "found no map, expected a program"))
        base.data = {}
    below = cast(Map, base.data)
    if "extends" in below:
        where = position_of(("extends",), base.positions)
        text = "a base cannot extend another file; only one level is possible"
        base.mistakes.append(Mistake(where, ("extends",), text))
        below = {k: v for k, v in below.items() if k != "extends"}
    positions = dict(base.positions)
    merged = _merge(below, rest, (), positions)
    positions.update(document.positions)
    return Document(document.file, merged, positions, [*document.mistakes, *base.mistakes]), [path, base_path]


def _merge(base: Any, top: Any, path: KeyPath, positions: dict[KeyPath, Position]) -> Any:
    if not (isinstance(base, dict) and isinstance(top, dict)) or _other_kind(cast(Map, base), cast(Map, top)):
        for known in [p for p in positions if p[: len(path)] == path]:
            del positions[known]
        return cast(Any, top)
    below, above = cast(Map, base), cast(Map, top)
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _merge(below[key], value, (*path, key), positions) if key in below else value
    return merged


def _other_kind(base: Map, top: Map) -> bool:
    return any(tag in base and tag in top and base[tag] != top[tag] for tag in _TAGS)


@dataclass(frozen=True, slots=True)
class _Setting:
    label: Position
    words: tuple[str, ...]
    value: Any


class _RefusedError(Exception):
    """A `--set` that cannot be applied; its argument says why."""


def apply_settings(document: Document, settings: Sequence[str]) -> None:
    """Write `path=value` pairs into the document; what cannot be applied is added to its mistakes.

    Items of lists are named by their `id` or number: `stages.rl.algorithm.steps=5`, `stages[2].algorithm.steps=5`.
    A path that no spec knows is found when the program is validated; its position is the `--set` itself.
    """
    for text in settings:
        setting = _parse(document, text)
        if setting is None:
            continue
        try:
            path = _put(document.data, setting)
        except _RefusedError as e:
            document.mistakes.append(Mistake(setting.label, (), str(e)))
            continue
        for known in [p for p in document.positions if p[: len(path)] == path]:
            del document.positions[known]
        for length in range(1, len(path) + 1):
            document.positions.setdefault(path[:length], setting.label)


def _parse(document: Document, text: str) -> _Setting | None:
    name, mark, written = text.partition("=")
    words = tuple(w for w in name.replace("[", ".").replace("]", "").strip().split(".") if w)
    label = Position(f"--set {name.strip()}")
    if not mark or not words or not written.strip():
        if not mark:  # the whole text may be a value
            label = Position("--set")
        document.mistakes.append(Mistake(label, (), "expected path=value, for example run.parallel=4"))
        return None
    read = read_yaml(written.encode("utf-8", "surrogateescape"), label.file, position=label)
    document.mistakes += read.mistakes
    return _Setting(label, words, read.data)


def _put(data: Any, setting: _Setting) -> KeyPath:
    """Write the value where the words lead and return the path."""
    place: Any = data
    path, words = cast(KeyPath, ()), list(setting.words)
    while True:
        key = _next_key(place, path, words)
        path = (*path, key)
        if not words:
            place[key] = setting.value
            return path
        if isinstance(key, str) and cast(Map, place).get(key) is None:
            place[key] = {}
        place = place[key]


def _next_key(place: Any, path: KeyPath, words: list[str]) -> str | int:
    """Take the words of one key and return it."""
    word = words.pop(0)
    if isinstance(place, dict):
        joined = f"{word}.{words[0]}" if words else word
        if path == ("data",) and words and (joined in place or words[0] in _SUFFIXES):
            words.pop(0)
            return joined
        return word
    if isinstance(place, list):
        return _item(cast(list[Any], place), path, word)
    raise _RefusedError(
        f"{path_text(path) or 'the program'} is no map, so it has no {word}; set {path_text(path)} itself"
    )


def _item(items: list[Any], path: KeyPath, word: str) -> int:
    if word.isdecimal() and len(word) < 6 and int(word) < len(items):
        return int(word)
    ids = [str(cast(Map, item).get("id")) if isinstance(item, dict) else None for item in items]
    if word in ids:
        return ids.index(word)
    known = [i for i in ids if i is not None]
    expected = listed(known) if known else f"a number below {len(items)}"
    raise _RefusedError(f"{path_text(path)} has no item {word!r}, expected {expected}{did_you_mean(word, known)}")
