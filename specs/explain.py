"""From pydantic's errors to sentences: what was found, what was expected, and the nearest name."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from specs.base import Spec
from specs.positions import KeyPath, Mistake, Position, as_map, did_you_mean, listed, nearest, position_of
from specs.shapes import Place, describe, fields_of, homes, is_spec, locate, members, tag_of

_HOME_LIMIT = 3
_TEXT_LIMIT = 60


def explain(
    root: type[Spec],
    data: Any,
    errors: Iterable[Mapping[str, Any]],
    positions: Mapping[KeyPath, Position],
) -> list[Mistake]:
    """Return one mistake for each validation error, at the place in the file that it is about."""
    found: list[Mistake] = []
    foreign: list[Place] = []
    for error in errors:
        place = locate(root, data, tuple(error["loc"]))
        if place.foreign:
            foreign.append(place)
            continue
        if error["type"] == "extra_forbidden":
            found.append(_unknown_key(root, data, place, tuple(error["loc"]), positions))
            continue
        path, text = _sentence(place, error)
        found.append(Mistake(position_of(path, positions), path, text))
    for place in foreign:
        found += _unlike_all(place, data, found, root, positions)
    meant = {(*m.path[:-1], m.meant) for m in found if m.meant}
    return [m for m in found if not (m.path in meant and m.text.startswith("is missing"))]


def _unlike_all(
    place: Place, data: Any, found: list[Mistake], root: type[Spec], positions: Mapping[KeyPath, Position]
) -> list[Mistake]:
    """Return a mistake for a value that is none of a union's alternatives, unless one is told already."""
    if any(m.path[: len(place.path)] == place.path for m in found):
        return []
    whole = _place_of(root, data, place.path)
    text = f"found {shown(whole.value)}, expected {describe(whole.shape)}"
    return [Mistake(position_of(place.path, positions), place.path, text)]


def _place_of(root: type[Spec], data: Any, path: KeyPath) -> Place:
    """Return the place of a path in the data (a location without the names of alternatives)."""
    loc: list[int | str] = []
    place = locate(root, data, ())
    for part in path:
        alternatives = members(place.shape)
        if len(alternatives) > 1:
            loc.append(_label(alternatives, place.value))
        loc.append(part)
        place = locate(root, data, tuple(loc))
    return place


def _label(alternatives: list[Any], value: Any) -> str:
    tagged = tag_of(alternatives)
    return str(cast(dict[str, Any], value).get(tagged[0], "")) if tagged and isinstance(value, dict) else ""


def _sentence(place: Place, error: Mapping[str, Any]) -> tuple[KeyPath, str]:
    """Return the path that an error is about and what to say."""
    kind, context = str(error["type"]), cast(dict[str, Any], error.get("ctx", {}))
    if kind == "missing":
        return place.path, f"is missing, expected {describe(place.shape)}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(place)
    if kind == "value_error":
        said = str(context.get("error", "cannot be used"))
        return place.path, said
    if kind == "too_short":
        least = context.get("min_length")
        return (
            place.path,
            f"found {shown(place.value)}, expected at least {least} {'entry' if least == 1 else 'entries'}",
        )
    if kind == "too_long":
        return place.path, f"found {len(place.value)} entries, expected at most {context.get('max_length')}"
    if tuple(error["loc"])[-1:] == ("[key]",):
        if kind == "literal_error":
            known = [w.strip("' ") for w in str(context.get("expected", "")).replace(" or ", ",").split(",")]
            return place.path, f"unknown key, expected {listed(known, most=24)}{did_you_mean(place.path[-1], known)}"
        return place.path, "this key is no name; expected a letter, then letters, digits, _ and - (at most 64)"
    return place.path, _wrong_value(place)


def _wrong_value(place: Place) -> str:
    value = place.value
    hint = ""
    if isinstance(value, str):
        options = [a.type for a in members(place.shape)]
        words = [str(w) for o in options for w in getattr(o, "__args__", ()) if isinstance(w, str)]
        hint = did_you_mean(value, words)
        if not hint and not words and _written_number(value):
            hint = "; remove the quotes"
    return f"found {shown(value)}, expected {describe(place.shape)}{hint}"


def _written_number(text: str) -> bool:
    from specs.scalars import read_plain

    value = read_plain(text)
    return isinstance(value, int | float)


def _wrong_tag(place: Place) -> tuple[KeyPath, str]:
    tagged = tag_of(members(place.shape))
    assert tagged is not None, "a tag error comes from a union of specs with tags"
    tag, known = tagged
    written = as_map(place.value) or {}
    if tag not in written:
        near = next((k for k in written if nearest(k, [tag])), None)
        found = f"found {near}, expected {tag}" if near else f"{tag} is missing, expected {tag}"
        return place.path, f"{found}: {listed(known)}"
    value = written[tag]
    return (*place.path, tag), f"found {shown(value)}, expected {listed(known)}{did_you_mean(value, known)}"


def _unknown_key(
    root: type[Spec], data: Any, place: Place, loc: tuple[int | str, ...], positions: Mapping[KeyPath, Position]
) -> Mistake:
    key = str(place.path[-1])
    holder = _holder(root, data, loc)
    known = list(fields_of(holder)) if holder else []
    elsewhere = homes(root, key)
    near = nearest(key, known)
    if elsewhere:
        more = [f"{len(elsewhere) - _HOME_LIMIT} more places"] if len(elsewhere) > _HOME_LIMIT else []
        text = f"unknown key here; it belongs to {listed([*elsewhere[:_HOME_LIMIT], *more])}"
        text += f", or did you mean {near}?" if near else ""
    elif near:
        text = f"unknown key; did you mean {near}?"
    else:
        text = f"unknown key, expected {listed(known, most=24)}"
    return Mistake(position_of(place.path, positions), place.path, text, "unknown_key", near)


def _holder(root: type[Spec], data: Any, loc: tuple[int | str, ...]) -> type[Spec] | None:
    """Return the spec in which the unknown key stands."""
    place = locate(root, data, loc[:-1])
    kinds = members(place.shape)
    return kinds[0].type if len(kinds) == 1 and is_spec(kinds[0].type) else None


def shown(value: Any) -> str:
    """Return a written value for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= _TEXT_LIMIT else value[: _TEXT_LIMIT - 1] + "…")
    if isinstance(value, list | dict):
        size = len(cast(list[Any], value))
        return f"an empty {_noun(cast(Any, value))}" if size == 0 else f"a {_noun(cast(Any, value))}"
    return repr(value)


def _noun(value: Any) -> str:
    return {list: "list", dict: "map", str: "text"}.get(cast(Any, type(value)), "value")
