"""Names, products and order ids, each the property of one split; customer handles are shared by all.

A name, product or order id belongs to the split that its hash falls into, so no split ever sees another's,
whatever the seed and the size of a draw. Handles are opaque two-digit numbers without meaning.
"""

import hashlib
from functools import cache

SPLIT_SHARES = {"train": 0.60, "golden": 0.15, "hidden": 0.15, "audit": 0.10}
"""Share of all names, products and order ids that each split owns."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "Ada Ben Cara Dora Emil Fritz Gina Hugo Ines Jan Kira Leo Mona Nils Olga Paul Rita Sven Tara Udo Vera Willi "
    "Xenia Yann Zoe Anton Berta Carl Dina Erik Fanny Gero Hanna Ivan Jule Klaus Lena Max Nora Otto"
)
LAST_NAMES = _words(
    "Adler Brandt Conrad Dietz Ebert Franke Graf Hahn Iller Jung Kern Lang Maurer Nagel Ott Pohl Quast Roth Stark "
    "Thiel Ulrich Vogel Wolf Zorn Abel Busch Claus Dorn Engel Fink Gross Horn Jahn Kuhn Lutz Moser Noll Opitz "
    "Peters Rau"
)
ADJECTIVES = _words(
    "red blue green black white small large round flat tall light heavy old new soft hard oak steel glass paper"
)
NOUNS = _words(
    "lamp chair desk shelf vase clock frame bench stool rug bowl plate knife kettle basket mirror cabinet pillow "
    "candle hook"
)
TWO_DIGITS = tuple(str(n) for n in range(10, 100))
HANDLES = TWO_DIGITS


def owner(text: str) -> str:
    """Return the split that owns a name, product or order id."""
    point = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
    for split, share in SPLIT_SHARES.items():
        point -= share
        if point < 0:
            return split
    return "audit"


def _owned(split: str, firsts: tuple[str, ...], seconds: tuple[str, ...], between: str) -> tuple[str, ...]:
    every = (f"{a}{between}{b}" for a in firsts for b in seconds)
    return tuple(text for text in every if owner(text) == split)


@cache
def names(split: str) -> tuple[str, ...]:
    """Return the customer names of a split."""
    return _owned(split, FIRST_NAMES, LAST_NAMES, " ")


@cache
def products(split: str) -> tuple[str, ...]:
    """Return the products of a split."""
    return _owned(split, ADJECTIVES, NOUNS, " ")


@cache
def order_ids(split: str) -> tuple[str, ...]:
    """Return the order ids of a split: two numbers of two digits."""
    return _owned(split, TWO_DIGITS, TWO_DIGITS, "")
