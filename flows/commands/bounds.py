"""Numbers on the command line: what a number must be is said before anything is done."""

import argparse
import math
from collections.abc import Callable


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type of argument: whole numbers from `least`, up to `most` where that is given."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or number < least or (most is not None and number > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number {bounds}")
        return number

    return read


def not_negative(text: str) -> float:
    """Return a number of 0 or more: a type of argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of 0 or more")
    return number
