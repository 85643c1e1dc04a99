"""When a program runs by itself. Execution half: never part of any content key."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator

from specs.base import Flag, Spec
from specs.positions import did_you_mean

BY_HAND = "by-hand"
"""What a run of a deployment is called that no schedule asked for."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 7, _DAYS),
)
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EXAMPLE = 'for example "0 3 * * *" for every night at three'


def _cron(text: str) -> str:
    """Return a cron line of five fields. ValueError names the field that is wrong, and days that no month has."""
    parts = text.split()
    if len(parts) != len(_FIELDS):
        names = " ".join(f[0] for f in _FIELDS)
        raise ValueError(f"found {text!r} with {len(parts)} fields, expected five ({names}), {_EXAMPLE}")
    chosen = [_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
    days, months = chosen[2], chosen[3]
    if parts[4] == "*" and all(min(days) > _LONGEST[m - 1] for m in months):
        raise ValueError(f"found {text!r}, which never comes: no such month has a day {min(days)}")
    return " ".join(parts)


def _values(text: str, name: str, low: int, high: int, words: tuple[str, ...]) -> set[int]:
    def wrong() -> ValueError:
        also = f" (or {words[0]} to {words[-1]})" if words else ""
        return ValueError(
            f"found {text!r} as the {name}, expected *, a number from {low} to {high}{also}, "
            f"a range a-b, a step */n, or a list a,b; {_EXAMPLE}"
        )

    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and not (step.isascii() and step.isdigit() and 0 < int(step) <= high):
            raise wrong()
        first, last = _span(span, (low, high), words, wrong)
        if slash and "-" not in span and span != "*":
            last = high
        found.update(range(first, last + 1, int(step) if slash else 1))
    return found


def _span(
    text: str, limits: tuple[int, int], words: tuple[str, ...], wrong: Callable[[], ValueError]
) -> tuple[int, int]:
    def number(word: str) -> int:
        if word.lower() in words:
            return words.index(word.lower()) + limits[0]
        if not (word.isascii() and word.isdigit() and limits[0] <= int(word) <= limits[1]):
            raise wrong()
        return int(word)

    if text == "*":
        return limits
    first, dash, last = text.partition("-")
    start, end = number(first), number(last) if dash else number(first)
    if end < start:
        raise wrong()
    return start, end


def _zone(name: str) -> str:
    """Return the name of a time zone. ValueError with the nearest name where there is none."""
    from zoneinfo import ZoneInfo, available_timezones

    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        near = did_you_mean(name, sorted(available_timezones()))
        raise ValueError(
            f"found {name!r}, expected a time zone such as UTC, Europe/Berlin or America/New_York{near}"
        ) from None
    return name


class Schedule(Spec):
    """When and how a program runs by itself."""

    cron: Annotated[str, AfterValidator(_cron)]
    """Five fields: minute hour day month weekday."""
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """Name of a time zone in which `cron` is read."""
    overlap: Literal["skip", "wait"] = "skip"
    """What a run does that is due while another driver of this program works."""
    catchup: Literal["latest", "none"] = "latest"
    """Of runs that are late because nothing took them: the newest one alone is run, or none of them."""
    rounds_only: Flag = False
    """Run the rounds of the flywheel alone, from the champion: no stage of the main part is trained again."""
    active: Flag = True
    """Off keeps the schedule in Prefect, and nothing is run."""
