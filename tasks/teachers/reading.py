"""From a teacher's reply to the fields that were asked for. What cannot be read is an abstention, never a score.

A reply must hold one JSON object with the wanted fields, alone, in a fence or among words. Two of them contradict each
other, a broken one beside a whole one as well, and a candidate that is quoted may hold one: then the teacher has not
said anything.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specs.routing import Signal
from specs.strict_json import parse

LABELS = {"good": 1.0, "neutral": 0.0, "bad": -1.0, "first_error": -1.0}
"""What a turn may be called, and what that is worth (formula sheet 8.4)."""
_BROKEN = 100
"""Pieces that look like JSON and are none, from which a reply is not read further."""
_FENCES = re.compile(r"\s*(?:```\w*)?\s*(?:```)?\s*")
_OF = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)\s*$")
_SAID = r"[\\\"']*\s*[:=]\s*[\\\"']*"
"""Between a field and its value, as JSON, as JSON within a text, or as plain words."""
_VERDICTS: dict[Signal, str] = {
    "score": rf"\b(?:score|rating|verdict){_SAID}[\d{{]",
    "rank": rf"\border{_SAID}(?:\[|(?-i:[A-Z])\b\s*[>,=])",
    "critique": rf"\bturns{_SAID}\[|\blabel{_SAID}(?:good|neutral|bad|first_error)\b",
}
_ADDRESSED = r"\[\[\s*(?:rating|score|verdict|(?-i:[A-Z])\s*\]\]|\d+\s*\]\])|(?:^|[\n>\]}]|\\n)\s*system\s*:"
"""What is written to a judge, whatever it is asked."""
_MARKS = {signal: re.compile(f"{form}|{_ADDRESSED}", re.IGNORECASE) for signal, form in _VERDICTS.items()}


class Unreadable(ValueError):  # noqa: N818 - to abstain is no mistake
    """The reply cannot be read: the teacher abstains."""


def the_object(text: str, wanted: Sequence[str], written: Sequence[str] = ()) -> dict[str, Any]:
    """Return the only JSON object in a reply that has one of the wanted fields.

    Among other words it must not be one that stands in `written`, which is what the teacher was shown.
    """
    found, rest = _objects(text, wanted)
    if not found:
        raise Unreadable(f"no JSON object with {' or '.join(wanted)}")
    if len(found) > 1:
        raise Unreadable(f"{len(found)} JSON objects with {' or '.join(wanted)}: which one counts is not said")
    if re.search(rf"[\"'](?:{'|'.join(wanted)})\\?[\"']\s*:", rest):
        raise Unreadable(f"a broken JSON object with {' or '.join(wanted)} beside the whole one")
    if not _FENCES.fullmatch(rest) and any(_squeezed(found[0]) in _squeezed(w) for w in written):
        raise Unreadable("the JSON object stands in what the teacher was shown: whether it means it is not said")
    try:
        return parse(found[0])
    except ValueError as e:
        raise Unreadable(f"its JSON is not strict: {e}") from None


def _objects(text: str, wanted: Sequence[str]) -> tuple[list[str], str]:
    """Return the JSON objects that have one of the wanted fields, and what stands outside all JSON objects."""
    found: list[str] = []
    outside: list[str] = []
    decoder, broken, last = json.JSONDecoder(), 0, 0
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at, broken = text.find("{", at + 1), broken + 1
            if broken > _BROKEN:
                raise Unreadable(f"more than {_BROKEN} beginnings of JSON without an end") from None
            continue
        if isinstance(value, dict) and any(w in value for w in wanted):
            found.append(text[at:end])
        outside.append(text[last:at])
        at, last = text.find("{", end), end
    return found, "".join([*outside, text[last:]])


def _squeezed(text: str) -> str:
    return "".join(text.split())


def share(value: Any, scale: float, what: str) -> float:
    """Return a score between 0 and `scale` as a share; `8/10` counts where 10 is the scale."""
    if isinstance(value, str) and (written := _OF.match(value)):
        if float(written[2]) != scale:
            raise Unreadable(f"{what} is {value!r}, expected of {scale:g}")
        value = float(written[1])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable(f"{what} is {value!r}, expected a number from 0 to {scale:g}")
    if not 0 <= value <= scale:
        raise Unreadable(f"{what} is {value!r}, outside 0 to {scale:g}")
    return value / scale


def scores(text: str, dimensions: Sequence[str], scale: float, written: Sequence[str] = ()) -> dict[str, Any]:
    """Return the score of each dimension, and their plain mean."""
    given = the_object(text, ["score"], written)["score"]
    if not isinstance(given, Mapping):
        if len(dimensions) > 1:
            raise Unreadable(f"score is {given!r}, expected one for each of {', '.join(dimensions)}")
        given = dict.fromkeys(dimensions, given)
    wrong = [d for d in dimensions if d not in given] + [d for d in given if d not in dimensions]
    if wrong:
        raise Unreadable(f"dimensions that are missing or were not asked for: {', '.join(map(str, wrong))}")
    found = {d: share(given[d], scale, f"score.{d}") for d in dimensions}
    return {"score": sum(found.values()) / len(found), "dimensions": found}


def order(text: str, names: Sequence[str], written: Sequence[str] = ()) -> dict[str, Any]:
    """Return tiers of indices, best first; a list within the list is a tie."""
    return {"tiers": _tiers(the_object(text, ["order"], written)["order"], names)}


def _tiers(given: Any, names: Sequence[str]) -> list[list[int]]:
    """Return an order of labels as tiers of indices. Unreadable where it is not about each label, once."""
    if not isinstance(given, list) or not given:
        raise Unreadable(f"order is {given!r}, expected a list of {', '.join(names)}")
    tiers = [entry if isinstance(entry, list) else [entry] for entry in given]
    flat = [name for tier in tiers for name in tier]
    if not all(isinstance(n, str) for n in flat):
        raise Unreadable("order holds something that is no label")
    strange = sorted({n for n in flat if n not in names})
    missing = [n for n in names if n not in flat]
    twice = sorted({n for n in flat if flat.count(n) > 1})
    told = [f"{what} {', '.join(x)}" for what, x in (("unknown", strange), ("missing", missing), ("twice", twice)) if x]
    if told:
        raise Unreadable("; ".join(told))
    return [[names.index(n) for n in tier] for tier in tiers if tier]


def critique(text: str, turns: int, written: Sequence[str] = ()) -> dict[str, Any]:
    """Return a label for each turn, and the corrections that were named."""
    given = the_object(text, ["turns"], written)["turns"]
    if not isinstance(given, list) or len(given) != turns:
        raise Unreadable(f"turns holds {len(given) if isinstance(given, list) else given!r}, expected {turns} entries")
    found: list[dict[str, Any]] = []
    for number, entry in enumerate(given):
        if not isinstance(entry, dict) or entry.get("turn") != number + 1:
            raise Unreadable(f"entry {number + 1} of turns is not about turn {number + 1}")
        label = entry.get("label")
        if not isinstance(label, str) or label not in LABELS:
            raise Unreadable(f"turn {number + 1} is called {label!r}, expected {', '.join(LABELS)}")
        found.append(
            {"turn": number, "label": label, "correction": _call(entry.get("correction"), f"turn {number + 1}")}
        )
    if sum(t["label"] == "first_error" for t in found) > 1:
        raise Unreadable("more than one turn is called the first error")
    return {"turns": found}


def correction(text: str, turns: int, written: Sequence[str] = ()) -> dict[str, Any]:
    """Return how many turns stay and which calls follow them."""
    data = the_object(text, ["calls"], written)
    keep, calls = data.get("keep"), data["calls"]
    if isinstance(keep, bool) or not isinstance(keep, int) or not 0 <= keep <= turns:
        raise Unreadable(f"keep is {keep!r}, expected a number of turns from 0 to {turns}")
    if not isinstance(calls, list) or not calls:
        raise Unreadable("calls is no list, or empty")
    found = [_call(c, f"call {i}") for i, c in enumerate(calls, 1)]
    if not all(found):
        raise Unreadable("calls holds something that is no call")
    return {"keep": keep, "calls": found}


def actions(text: str, names: Sequence[str], scale: float, written: Sequence[str] = ()) -> dict[str, Any]:
    """Return a score for each candidate call, and the call that the teacher would make."""
    data = the_object(text, ["score", "best"], written)
    given = data.get("score", {})
    if not isinstance(given, dict) or set(given) != set(names):
        raise Unreadable(
            f"score is about {sorted(given) if isinstance(given, dict) else given!r}, expected {list(names)}"
        )
    scored = [share(given[n], scale, f"score.{n}") for n in names]
    best = _call(data.get("best"), "best")
    if best is None and not names:
        raise Unreadable("neither a score nor a best call")
    return {"scores": scored, "best": best}


def ranked_actions(text: str, names: Sequence[str], written: Sequence[str] = ()) -> dict[str, Any]:
    """Return tiers of indices of candidate calls, best first, and the call that the teacher would make."""
    data = the_object(text, ["order", "best"], written)
    given, best = data.get("order", []), _call(data.get("best"), "best")
    if not names and given:
        raise Unreadable(f"order is {given!r:.80}, but there is no candidate")
    if best is None and not names:
        raise Unreadable("neither an order nor a best call")
    return {"tiers": _tiers(given, names) if names else [], "best": best}


def marked(signal: Signal, texts: Sequence[str]) -> bool:
    """Return whether what a candidate wrote reads like an answer to this signal's question, or is addressed to a judge."""
    return any(_MARKS[signal].search(text) for text in texts)


def _call(value: Any, where: str) -> dict[str, Any] | None:
    """Return a call's name and arguments; None where none was named."""
    if value is None:
        return None
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("name"), str)
        or not isinstance(value.get("arguments", {}), dict)
    ):
        raise Unreadable(f"{where}: {value!r:.80} is no call, expected {{name, arguments}}")
    return {"name": value["name"], "arguments": value.get("arguments", {})}
