"""From a program file to a checked program; every mistake at once."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from specs.errors import ProgramError
from specs.overrides import apply_settings, read_file, with_base
from specs.positions import InvalidProgramError, KeyPath, Mistake, Position, as_map, path_text, position_of
from specs.program import Program
from specs.reader import Document
from specs.redaction import REFERENCE, Redactor, written_secrets
from specs.references import check, expanded

_REFERRING = (("data", "*", "path"), ("policy", "init", "model"), ("policy", "init", "revision"), ("tags", "*"),
              ("teachers", "*", "base_url"), ("teachers", "*", "url"), ("teachers", "*", "api_key"), ("teachers", "*", "model"),
              ("notify", "webhook"), ("notify", "command", "*"))  # fmt: skip
"""Where `${env:NAME}` may stand."""
_PLAIN_TEXT = re.compile(r"[A-Za-z][\w./@-]*", re.ASCII)
_MOST = 200
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


@dataclass(frozen=True, slots=True)
class Reference:
    """A `${env:NAME}` of a program; its value is not looked at here."""

    name: str
    path: KeyPath
    position: Position


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A program that passed every check, with what is known about its text."""

    program: Program
    """Everything implicit is written out (`specs.implicit.expanded`)."""
    path: Path
    """The file as it was named; relative paths in the program start in its folder."""
    positions: Mapping[KeyPath, Position]
    sources: tuple[Path, ...]
    """Files read: the program's, then its base."""
    references: tuple[Reference, ...] = ()
    warnings: tuple[Mistake, ...] = ()
    """What is odd and no mistake, such as a data set that nothing uses."""
    written: Any = field(default=None, repr=False)
    """The data as written, after `extends` and `--set`."""

    def where(self, path: str) -> str:
        """Return `file:line:col path` for a dotted path such as `stages[0].algorithm.type`."""
        parts = cast(KeyPath, tuple(int(m[1]) if m[1] else m[2] for m in _PART.finditer(path)))
        return f"{position_of(parts, self.positions)} {path}"


def dump_program(program: Program) -> str:
    """Return the YAML of a program; loading it gives the same program."""
    import yaml

    from specs.scalars import read_plain

    class Dumper(yaml.SafeDumper):
        """Quotes whatever would not be read back as the same text."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        plain = _PLAIN_TEXT.fullmatch(value) and isinstance(read_plain(value), str)
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    data = program.model_dump(mode="json", by_alias=True)
    return str(yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))


def load_program(path: str | Path, overrides: Sequence[str] = ()) -> LoadedProgram:
    """Return the program in a file, with `overrides` (`path=value`) written over it.

    Raises ProgramError: one line `file:line:col path: what, expected, nearest name` for each mistake.
    """
    path = Path(path)
    document = read_file(path)
    try:
        document, sources = with_base(document, path)
    except ProgramError as e:  # the base: what is wrong with the program itself is told as well
        raise _refused(document, getattr(e, "mistakes", None) or [_as_mistake(document, e)]) from None
    apply_settings(document, overrides)
    if as_map(document.data) is None:
        raise _refused(document, [_at_top(document)])
    references = _references(document)
    _secrets(document)
    program = _validated(document)
    if program is None or document.mistakes:
        _across_what_is_right(document, path)
        raise _refused(document, [])
    program = expanded(program)
    mistakes, warnings = check(program, document.positions, path.parent)
    if mistakes:
        raise _refused(document, mistakes)
    return LoadedProgram(
        program, path, document.positions, tuple(sources), tuple(references), tuple(warnings), document.data
    )


def _as_mistake(document: Document, error: ProgramError) -> Mistake:
    text = str(error).partition("extends: ")[2] or str(error)
    return Mistake(position_of(("extends",), document.positions), ("extends",), text)


def _at_top(document: Document) -> Mistake:
    return Mistake(position_of((), document.positions), (), "found no map, expected program, policy, environments, …")


def _refused(document: Document, more: Sequence[Mistake]) -> InvalidProgramError:
    """Return the error with every mistake in the order of the file, without doubles and without secrets."""
    files = list(dict.fromkeys([document.file, *(m.position.file for m in (*document.mistakes, *more))]))
    clean = Redactor(document.data).clean
    mistakes = [_cleaned(m, clean) for m in (*document.mistakes, *more)]
    unique = {(m.position, m.text): m for m in reversed(mistakes)}
    order = {clean(f): i for i, f in enumerate(files)}
    told = sorted(unique.values(), key=lambda m: (order[m.position.file], m.position.line, m.position.column,
                                                  path_text(m.path)))  # fmt: skip
    if len(told) > _MOST:
        rest = Mistake(told[_MOST].position, (), f"{len(told) - _MOST} more mistakes from here on")
        told = [*told[:_MOST], rest]
    return InvalidProgramError(told)


def _cleaned(mistake: Mistake, clean: Callable[[str], str]) -> Mistake:
    at = mistake.position
    path = tuple(clean(p) if isinstance(p, str) else p for p in mistake.path)
    return Mistake(Position(clean(at.file), at.line, at.column), path, clean(mistake.text), mistake.code)


def _secrets(document: Document) -> None:
    for secret in written_secrets(document.data):
        key = secret.key
        variable = re.sub(r"\W+", "_", key).upper() or "NAME"
        subject = f"`{key}` holds a secret" if key else "this looks like a secret"
        text = (
            f"{subject} that is written out; expected a reference: put the value into an environment variable"
            f' and write "${{env:{variable}}}"'
        )
        document.mistakes.append(Mistake(position_of(secret.path, document.positions), secret.path, text))


def _references(document: Document) -> list[Reference]:
    """Return every `${env:NAME}`; one that is malformed or stands where none is read is a mistake."""
    found: list[Reference] = []
    for path, text in _texts(document.data, ()):
        if "${" not in text:
            continue
        at = position_of(path, document.positions)
        names = [str(m[1]) for m in REFERENCE.finditer(text)]
        found += [Reference(name, path, at) for name in names]
        if "${" in REFERENCE.sub("", text):
            document.mistakes.append(Mistake(at, path, "found `${` without env:NAME}, expected ${env:NAME}"))
        elif not any(_matches(path, p) for p in _REFERRING):
            known = ", ".join(".".join(p) for p in _REFERRING)
            document.mistakes.append(
                Mistake(at, path, f"a reference to the environment is not read here, only in {known}; write the value")
            )
    return found


def _matches(path: KeyPath, pattern: tuple[str, ...]) -> bool:
    return len(path) == len(pattern) and all(p in ("*", part) for part, p in zip(path, pattern, strict=True))


def _texts(data: Any, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(data, str):
        return [(path, data)]
    items: list[tuple[Any, Any]] = []
    if isinstance(data, dict):
        items = list(cast(dict[Any, Any], data).items())
    elif isinstance(data, list):
        items = list(enumerate(cast(list[Any], data)))
    return [found for key, value in items for found in _texts(value, (*path, key))]


def _validated(document: Document) -> Program | None:
    """Return the program, or None and a mistake for each thing that does not fit."""
    told = {m.path for m in document.mistakes}
    try:
        return Program.model_validate(document.data)
    except ValidationError as e:
        from specs.explain import (
            explain,
        )  # reads the specs' types, which takes time that a right program need not spend

        mistakes = explain(Program, document.data, e.errors(include_url=False), document.positions)
    document.mistakes += [m for m in mistakes if m.path not in told or m.code == "unknown_key"]
    return None


def _across_what_is_right(document: Document, path: Path) -> None:
    """Also check across sections where the program can be read without what is wrong in it.

    A misspelt key counts as the key that was meant, another wrong key as left out. Where nothing else is wrong, every
    mistake is reported but those of a map that something was left out of; else only names that do not exist are, since
    what seems missing may be what was left out.
    """
    gone = {m.path: m.meant for m in document.mistakes}
    keys_alone = all(m.code == "unknown_key" for m in document.mistakes)
    try:
        program = expanded(Program.model_validate(_mended(document.data, gone)))
    except ValidationError:
        return
    mistakes, _ = check(program, document.positions, path.parent)
    left_out = [p for p, meant in gone.items() if meant is None]
    for m in mistakes:
        written = _as_written(document.data, m.path, gone)
        if written is None or (m.code != "unknown_name" and not keys_alone):
            continue
        if any(p[:-1][: len(written)] == written or written[: len(p)] == p for p in left_out):
            continue
        document.mistakes.append(replace(m, path=written, position=position_of(written, document.positions)))


def _as_written(data: Any, path: KeyPath, gone: Mapping[KeyPath, str | None]) -> KeyPath | None:
    """Return a path with the keys as they are written, misspelt or not; None where it is not written at all."""
    written: KeyPath = ()
    for part in path:
        if isinstance(data, dict):
            items = cast(dict[Any, Any], data)
            key = part if part in items else next((k for k in items if gone.get((*written, k)) == part), None)
            if key is None:
                return None
            written, data = (*written, key), items[key]
        elif isinstance(data, list) and isinstance(part, int) and part < len(cast(list[Any], data)):
            written, data = (*written, part), cast(list[Any], data)[part]
        else:
            return None
    return written


def _mended(data: Any, gone: Mapping[KeyPath, str | None], here: KeyPath = ()) -> Any:
    """Return a copy in which wrong keys are renamed or left out; items of lists stay, since others are counted by them."""
    if isinstance(data, dict):
        found: dict[str, Any] = {}
        for key, value in cast(dict[str, Any], data).items():
            meant = gone.get((*here, key), key)
            if meant is not None and (meant == key or meant not in data):
                found[meant] = _mended(value, gone, (*here, key))
        return found
    if isinstance(data, list):
        return [_mended(v, gone, (*here, i)) for i, v in enumerate(cast(list[Any], data))]
    return data
