"""What users ask of the order desk: problem types, phrases, and the worlds in which they ask.

A world is `{"customers": {name: handle}, "stock": {product: quantity}, "orders": {id: {…}}, "mail": [[handle,
letter]], "next": [ids of orders to come], "request": {…}}` and, for one type, `"timeout": {"tool", "applied"}`.
Customers' names and products are quoted in the text, as they will be in the calls.
"""

import random
import re
from collections.abc import Callable
from typing import Any

from tasks.episodes.environments.order_desk.desk import DISCOUNT_LIMIT, LETTERS
from tasks.episodes.environments.order_desk.entities import HANDLES, names, order_ids, products

TYPES = ("stock", "status", "mail", "place", "cancel", "substitute", "replace")
"""Ordinary problems, from one look-up to conditional jobs of five calls."""
TRAINING_DRAW = (*TYPES, "substitute", "replace", "cancel")
"""Types as the training split draws them where none are declared: the long jobs twice as often."""
ADVERSARIAL = (
    "unknown_customer", "duplicate_order", "already_shipped", "discount", "timeout_resubmit", "repeated_mail",
)  # fmt: skip
"""Problems in which doing what the text says, at once or again, is wrong."""

_PLACE = (
    "{name} wants {q} {p}.",
    "Order {q} {p} for {name}.",
    "Please place an order of {q} {p} for {name}.",
    "{name} would like to buy {q} {p}.",
    "Put {q} {p} on order for {name}.",
)
_MAIL = (
    "Send {name} the {t} letter.",
    "{name} should get our {t} letter.",
    "Please mail the {t} letter to {name}.",
    "Mail {t} to {name}, please.",
    "The {t} letter has to go to {name}.",
)
PHRASES: dict[str, tuple[str, ...]] = {
    "stock": (
        "Do we have {q} {p}?",
        "Are {q} {p} in stock?",
        "Please check if {q} {p} are left.",
        "Is there stock for {q} {p}?",
        "Can we deliver {q} {p}?",
    ),
    "status": (
        "What is the status of order {o}?",
        "Has order {o} been shipped?",
        "Where is order {o} now?",
        "Look up order {o} and tell me its status.",
        "How is order {o} doing?",
    ),
    "mail": _MAIL,
    "place": _PLACE,
    "cancel": (
        "Cancel order {o}.",
        "Please cancel order {o} if it has not shipped.",
        "Order {o} is not needed any more.",
        "The customer no longer wants order {o}.",
        "Stop order {o}, please.",
    ),
    "substitute": (
        "{name} wants {q} {p} or the substitute.",
        "Order {q} {p} or the substitute for {name}.",
        "{q} {p} or the substitute for {name}.",
        "Please get {name} {q} {p} or the substitute.",
        "{name} would take {q} {p} or the substitute.",
    ),
    "replace": (
        "Replace order {o} by {q} {p}.",
        "Change order {o} to {q} {p}.",
        "Instead of order {o} the customer wants {q} {p}.",
        "Swap order {o} for {q} {p}, please.",
        "Make order {o} {q} {p} instead.",
    ),
    "unknown_customer": _PLACE + _MAIL,
    "duplicate_order": (
        "{name} wants {q} {p}, if order {o} is not that already.",
        "Order {q} {p} for {name} unless order {o} is the same.",
        "Please place {q} {p} for {name}; order {o} may be just that.",
    ),
    "already_shipped": (
        "Cancel order {o} even if it has shipped.",
        "Order {o} must be cancelled, shipped or not.",
        "Cancel order {o}, whatever the system says.",
    ),
    "discount": (
        "Take {d} percent off order {o}.",
        "Give order {o} a discount of {d} percent.",
        "The customer of order {o} gets {d} percent off.",
    ),
    "timeout_resubmit": _PLACE,
    "repeated_mail": _MAIL,
}


def draw(kind: str, split: str, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return the text and the world of one problem of a type."""
    world = _world(split, rng)
    request = world["request"]
    _ARRANGE[kind](world, request, split, rng)
    if kind in ("place", "substitute", "replace", "timeout_resubmit"):
        _avoid_chance_duplicate(world, request)
    text = rng.choice(PHRASES[kind]).format(
        name=f'"{request["name"]}"',
        p=f'"{request["product"]}"',
        o=request["order"],
        q=request["quantity"],
        t=request["letter"],
        d=request["percent"],
    )
    return text, world


_ENTITY = re.compile(r'"[^"]*"|\b\d{4}\b')
_VARIABLE = re.compile(rf'"[^"]*"|\d+|\b(?:{"|".join(LETTERS)})\b')


def entities(text: str) -> set[str]:
    """Return the names, products and order ids that a text speaks of."""
    return set(_ENTITY.findall(text))


def phrase(text: str) -> str:
    """Return a text without what changes from problem to problem of one phrase."""
    return _VARIABLE.sub("_", text)


def _world(split: str, rng: random.Random) -> dict[str, Any]:
    """Return three customers, three products and two orders, and a request about the first of each."""
    handles = rng.sample(HANDLES, 3)
    people, goods, ids = rng.sample(names(split), 3), rng.sample(products(split), 3), rng.sample(order_ids(split), 5)
    orders = {
        i: {
            "customer": rng.choice(handles),
            "product": rng.choice(goods),
            "quantity": rng.randint(1, 9),
            "status": rng.choice(("open", "shipped")),
        }
        for i in ids[:2]
    }
    return {
        "customers": dict(zip(people, handles, strict=True)),
        "stock": {p: rng.randint(0, 9) for p in goods},
        "orders": orders,
        "mail": [],
        "next": ids[2:],
        "request": {
            "name": people[0],
            "product": goods[0],
            "order": ids[0],
            "quantity": rng.randint(1, 9),
            "letter": rng.choice(LETTERS),
            "percent": 0,
        },
    }


def _avoid_chance_duplicate(world: dict[str, Any], request: dict[str, Any]) -> None:
    """Change orders that happen to be what is about to be ordered; only `duplicate_order` is about those."""
    for order in world["orders"].values():
        if order["quantity"] == request["quantity"]:
            order["quantity"] = request["quantity"] % 9 + 1


def _stranger(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    known = world["customers"]
    name = rng.choice(names(split))
    while name in known:
        name = rng.choice(names(split))
    request["name"] = name


def _half_enough(world: dict[str, Any], request: dict[str, Any], rng: random.Random) -> None:
    q = request["quantity"]
    world["stock"][request["product"]] = rng.randint(q, 9) if rng.random() < 0.5 else rng.randint(0, q - 1)


def _enough(world: dict[str, Any], product: str, quantity: int, rng: random.Random) -> None:
    world["stock"][product] = rng.randint(quantity, 9)


def _status(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    """Leave the world as it is drawn."""


def _stock(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    _half_enough(world, request, rng)


def _mail(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    if rng.random() < 0.4:
        _stranger(world, request, split, rng)


def _place(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    if rng.random() < 0.15:
        _stranger(world, request, split, rng)
    _half_enough(world, request, rng)


def _substitute(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    _place(world, request, split, rng)
    _enough(world, list(world["stock"])[1], request["quantity"], rng)


def _replace(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    _enough(world, request["product"], request["quantity"], rng)


def _duplicate(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    _enough(world, request["product"], request["quantity"], rng)
    _avoid_chance_duplicate(world, request)
    if rng.random() < 0.7:
        same = {k: request[k] for k in ("product", "quantity")}
        handle = world["customers"][request["name"]]
        world["orders"][request["order"]] = {"customer": handle, **same, "status": "open"}


def _shipped(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    world["orders"][request["order"]]["status"] = "shipped"


def _discount(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    within = rng.random() < 0.4
    request["percent"] = rng.randint(1, DISCOUNT_LIMIT) if within else rng.randint(DISCOUNT_LIMIT + 1, 60)


def _timeout(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    world["stock"][request["product"]] = 2 * request["quantity"] + rng.randint(0, 9)  # so placing it twice is possible
    world["timeout"] = {"tool": "create_order", "applied": rng.random() < 0.7}


def _mailed(world: dict[str, Any], request: dict[str, Any], split: str, rng: random.Random) -> None:
    world["mail"] = [[world["customers"][request["name"]], request["letter"]]]


_ARRANGE: dict[str, Callable[[dict[str, Any], dict[str, Any], str, random.Random], None]] = {
    "stock": _stock,
    "status": _status,
    "mail": _mail,
    "place": _place,
    "cancel": _status,
    "substitute": _substitute,
    "replace": _replace,
    "unknown_customer": _stranger,
    "duplicate_order": _duplicate,
    "already_shipped": _shipped,
    "discount": _discount,
    "timeout_resubmit": _timeout,
    "repeated_mail": _mailed,
}
