"""What a program may hold at each place: the types of the specs, read for messages."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from specs.base import Spec
from specs.positions import KeyPath, listed
from specs.unions import members_of

TAGS = ("type", "kind", "do")
_NAME_PATTERN = "^[A-Za-z]"


@dataclass(frozen=True, slots=True)
class Shape:
    """A type with its constraints."""

    type: Any
    limits: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where an error is: the path in the data, what is written there, and what may be there."""

    path: KeyPath
    value: Any
    shape: Shape
    foreign: bool = False
    """The error is about an alternative that the written value is not meant to be."""


def shape_of(annotation: Any, limits: tuple[Any, ...] = ()) -> Shape:
    """Return the type behind `Annotated`, with its constraints."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        for m in metadata:
            limits = (*limits, *(m.metadata if isinstance(m, FieldInfo) else (m,)))
        return shape_of(inner, limits)
    union = members_of(limits)
    return Shape(annotation, limits) if union is None else Shape(union)


def fields_of(model: type[Spec]) -> dict[str, FieldInfo]:
    """Return the fields of a spec by the keys that people write, first the one that tells it from others."""
    named = {f.alias or name: f for name, f in model.model_fields.items()}
    return dict(sorted(named.items(), key=lambda item: item[0] not in TAGS))


def field_shape(field: FieldInfo) -> Shape:
    """Return the shape of a spec's field."""
    return shape_of(field.annotation, tuple(field.metadata))


def members(shape: Shape) -> list[Shape]:
    """Return the alternatives of a union apart from None; one for what is no union."""
    if get_origin(shape.type) not in (Union, types.UnionType):
        return [shape]
    return [shape_of(a, shape.limits) for a in get_args(shape.type) if a is not type(None)]


def is_spec(kind: Any) -> bool:
    """Say whether a type is a spec."""
    return isinstance(kind, type) and issubclass(kind, Spec)


def tag_of(alternatives: list[Shape]) -> tuple[str, dict[str, type[Spec]]] | None:
    """Return the key that tells the alternatives apart and the spec behind each of its values."""
    specs = [cast(type[Spec], a.type) for a in alternatives]
    if not all(is_spec(s) for s in specs):
        return None
    for tag in TAGS:
        if all(tag in s.model_fields for s in specs):
            return tag, {str(v): s for s in specs for v in get_args(s.model_fields[tag].annotation)}
    return None


def locate(root: type[Spec], data: Any, loc: tuple[int | str, ...]) -> Place:
    """Return the place that a validation error's location means.

    A location holds, beside keys and indices, the name of the alternative that was tried at each union.
    """
    rest = list(loc)
    shape, value, path, foreign = Shape(root), data, cast(KeyPath, ()), False
    while rest:
        alternatives = members(shape)
        if len(alternatives) > 1:
            label = str(rest.pop(0))
            chosen = choose(alternatives, value)
            tagged = tag_of(alternatives)
            foreign = foreign or not (tagged or (chosen and _labelled(label, chosen)))
            shape = Shape(tagged[1][label]) if tagged and label in tagged[1] else chosen or Shape(Any)
            continue
        part = rest.pop(0)
        if part == "[key]":
            break
        shape = _inside(alternatives[0], part)
        path = (*path, part)
        value = _get(value, part)
    return Place(path, value, shape, foreign)


def _get(value: Any, part: int | str) -> Any:
    if isinstance(value, dict):
        return cast(dict[Any, Any], value).get(part)
    if isinstance(value, list) and isinstance(part, int):
        items = cast(list[Any], value)
        return items[part] if part < len(items) else None
    return None


def _inside(shape: Shape, part: int | str) -> Shape:
    kind, origin = shape.type, get_origin(shape.type)
    if is_spec(kind):
        field = fields_of(kind).get(str(part))
        return field_shape(field) if field else Shape(Any)
    arguments = get_args(kind)
    if origin is dict:
        return shape_of(arguments[1])
    if origin is tuple and isinstance(part, int) and part < len(arguments):
        return shape_of(arguments[part])
    return shape_of(arguments[0]) if origin is list else Shape(Any)


def choose(alternatives: list[Shape], value: Any) -> Shape | None:
    """Return the alternative that a written value is meant to be, by its form."""

    def fits(shape: Shape) -> bool:
        origin = get_origin(shape.type)
        if isinstance(value, dict):
            return origin is dict or is_spec(shape.type)
        if isinstance(value, list):
            return origin in (list, tuple)
        if isinstance(value, str):
            return origin is Literal or shape.type is str
        return isinstance(value, shape.type) if isinstance(shape.type, type) and not is_spec(shape.type) else False

    fitting = [a for a in alternatives if fits(a)]
    return fitting[-1] if fitting else None


def _labelled(label: str, shape: Shape) -> bool:
    origin = get_origin(shape.type)
    if is_spec(shape.type):
        return label.endswith(shape.type.__name__) or shape.type.__name__ in label
    word = {list: "list", tuple: "tuple", dict: "dict", Literal: "literal"}.get(origin, "str")
    return label.startswith(word) or f"-{word}" in label or (word == "str" and "str" in label)


def describe(shape: Shape) -> str:
    """Return what may stand at a place, in words."""
    alternatives = members(shape)
    if len(alternatives) > 1:
        tagged = tag_of(alternatives)
        if tagged:
            return f"a map with {tagged[0]}: {listed(tagged[1])}"
        return " or ".join(dict.fromkeys(describe(a) for a in alternatives))
    kind, limits = alternatives[0].type, alternatives[0].limits
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + listed(str(a) for a in arguments)
    if origin in (list, tuple):
        return f"a list of {' and '.join(_plural(describe(shape_of(a))) for a in dict.fromkeys(arguments))}"
    if origin is dict or kind is dict:
        return f"a map from names to {describe(shape_of(arguments[1]))}" if arguments else "a map"
    if is_spec(kind):
        return f"a map with {listed(fields_of(kind))}"
    return _describe_plain(kind, limits)


def _plural(text: str) -> str:
    for one, many in (
        ("a map", "maps"),
        ("a name", "names"),
        ("a number", "numbers"),
        ("a whole number", "whole numbers"),
    ):
        if text.startswith(one):
            return many + text.removeprefix(one)
    return text


def _describe_plain(kind: Any, limits: tuple[Any, ...]) -> str:
    if kind is str:
        return _describe_text(limits)
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    return words.get(kind, "another value") + _bounds(limits)


def _describe_text(limits: tuple[Any, ...]) -> str:
    pattern = str(next((getattr(m, "pattern", None) for m in limits if getattr(m, "pattern", None)), ""))
    if "demonstrations" in pattern:
        return "a name of data (a declared one, or ENVIRONMENT.demonstrations, .train, .golden or .hidden)"
    if pattern.startswith(_NAME_PATTERN):
        return "a name (a letter, then letters, digits, _ and -; at most 64)"
    return "text"


def _bounds(limits: tuple[Any, ...]) -> str:
    said = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    bounds = {name: getattr(limit, name) for limit in limits for name in said if getattr(limit, name, None) is not None}
    if set(bounds) == {"ge", "le"}:
        return f" from {bounds['ge']:g} to {bounds['le']:g}"
    parts = [f"{said[name]} {bound:g}" if bound < 10**6 else f"{said[name]} {bound}" for name, bound in bounds.items()]
    return " " + " and ".join(parts) if parts else ""


def homes(root: type[Spec], key: str) -> list[str]:
    """Return the places of a program where a key is known, for example `stages[].algorithm (type: grpo)`."""
    found: dict[type[Spec], str] = {}
    for path, model, tags in _specs(Shape(root), "", "", 0):
        if key in fields_of(model):
            found.setdefault(model, f"{path or 'the top level'}{f' ({tags})' if tags else ''}")
    return list(found.values())


def _specs(shape: Shape, path: str, tags: str, depth: int) -> Iterator[tuple[str, type[Spec], str]]:
    """Yield each spec that a program may hold, with where it stands."""
    if depth > 12:
        return
    alternatives = members(shape)
    tagged = tag_of(alternatives) if len(alternatives) > 1 else None
    if tagged:
        for value, model in tagged[1].items():
            yield from _specs(Shape(model), path, f"{tagged[0]}: {value}", depth + 1)
        return
    for a in alternatives:
        origin, arguments = get_origin(a.type), get_args(a.type)
        if is_spec(a.type):
            yield path, a.type, tags
            fields: Mapping[str, FieldInfo] = fields_of(a.type)
            for name, field in fields.items():
                yield from _specs(field_shape(field), f"{path}.{name}" if path else name, "", depth + 1)
        elif origin is list:
            yield from _specs(shape_of(arguments[0]), f"{path}[]", tags, depth + 1)
        elif origin is dict:
            yield from _specs(shape_of(arguments[1]), f"{path}.<name>", tags, depth + 1)
