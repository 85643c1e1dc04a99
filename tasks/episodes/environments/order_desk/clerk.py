"""The clerk: a generator per problem type that yields calls and is sent the observed data.

`wrong` is asked at each decision; where it says so the clerk takes the other branch, forgets a duty or gives the
wrong answer. Without mistakes the clerk solves every problem, also where tools fail now and then: look-ups are
repeated, and a change that may have happened is looked up before it is made again.
"""

from collections.abc import Callable, Generator
from typing import Any

from specs.records import ToolCall
from tasks.episodes.environments.order_desk.desk import DISCOUNT_LIMIT

Steps = Generator[ToolCall, dict[str, Any], None]
Exchange = Generator[ToolCall, dict[str, Any], dict[str, Any]]
FAULTS = ("timeout", "unavailable")


def clerk(kind: str, request: dict[str, Any], wrong: Callable[[], bool]) -> Steps:
    """Return the clerk for one problem."""
    return _CLERKS[kind](request, wrong)


def _call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, written="")


def _finish(answer: str) -> ToolCall:
    return _call("finish", answer=answer)


def _reach(call: ToolCall) -> Exchange:
    """Make a call that changes nothing, again as often as a fault strikes."""
    seen = yield call
    while seen.get("error") in FAULTS:
        seen = yield call
    return seen


def _order(customer: str, product: str, quantity: int) -> Exchange:
    """Place an order once: after a fault, look it up before placing it again."""
    call = _call("create_order", customer=customer, product=product, quantity=quantity)
    seen = yield call
    while seen.get("error") in FAULTS:
        found = yield from _reach(_call("find_order", order=seen["order"]))
        if "error" not in found:
            return {"ok": 1}
        seen = yield call
    return seen


def _cancel(order: str) -> Exchange:
    """Cancel an order; after a fault, look whether it is cancelled."""
    call = _call("cancel_order", order=order)
    seen = yield call
    while seen.get("error") in FAULTS:
        found = yield from _reach(_call("find_order", order=order))
        if found.get("status") == "cancelled":
            return {"ok": 1}
        seen = yield call
    return seen


def _send(customer: str, letter: str) -> Exchange:
    """Send a letter; the desk itself refuses a letter that went out despite a fault."""
    return (yield from _reach(_call("send_mail", customer=customer, letter=letter)))


def _stock(request: dict[str, Any], wrong: Callable[[], bool]) -> Steps:
    seen = yield from _reach(_call("check_stock", product=request["product"], quantity=request["quantity"]))
    yield _finish("done" if wrong() else str(seen.get("enough")))


def _status(request: dict[str, Any], wrong: Callable[[], bool]) -> Steps:
    seen = yield from _reach(_call("find_order", order=request["order"]))
    yield _finish("done" if wrong() else str(seen.get("status")))


def _customer(request: dict[str, Any], wrong: Callable[[], bool]) -> Generator[ToolCall, dict[str, Any], str | None]:
    """Look the customer up; finish where there is none."""
    seen = yield from _reach(_call("find_customer", name=request["name"]))
    if "error" in seen:
        yield _finish("done" if wrong() else "unknown customer")
        return None
    return seen["customer"]


def _mail(request: dict[str, Any], wrong: Callable[[], bool]) -> Steps:
    customer = yield from _customer(request, wrong)
    if customer is None:
        return
    seen: dict[str, Any] = {}
    if not wrong():
        seen = yield _call("send_mail", customer=customer, letter=request["letter"])
        refused = seen.get("error") == "mailed"  # before any fault: the letter was sent on another day
        if seen.get("error") in FAULTS:
            yield from _send(customer, request["letter"])
        if refused:
            yield _finish("done" if wrong() else "already mailed")
            return
    yield _finish("done")


def _place(request: dict[str, Any], wrong: Callable[[], bool], *, substitute: bool = False) -> Steps:
    customer = yield from _customer(request, wrong)
    if customer is None:
        return
    product, quantity = request["product"], request["quantity"]
    seen = yield from _reach(_call("check_stock", product=product, quantity=quantity))
    enough = (seen.get("enough") == "yes") != wrong()
    if enough:
        yield from _order(customer, product, quantity)
    else:
        if substitute:
            yield from _order(customer, seen.get("substitute", product), quantity)
        if not wrong():
            yield from _send(customer, "no_stock")
    yield _finish("done")


def _substitute(request: dict[str, Any], wrong: Callable[[], bool]) -> Steps:
    return _place(request, wrong, substitute=True)


def _withdraw(request: dict[str, Any], wrong: Callable[[], bool], *, replace: bool = False) -> Steps:
    seen = yield from _reach(_call("find_order", order=request["order"]))
    is_open = (seen["status"] == "open") != wrong()
    if is_open:
        yield from _cancel(request["order"])
        if replace and not wrong():
            yield from _order(seen["customer"], request["product"], request["quantity"])
    elif not wrong():
        yield from _send(seen["customer"], "shipped")
    yield _finish("done")


def _replace(request: dict[str, Any], wrong: Callable[[], bool]) -> Steps:
    return _withdraw(request, wrong, replace=True)


def _duplicate(request: dict[str, Any], wrong: Callable[[], bool]) -> Steps:
    customer = yield from _customer(request, wrong)
    if customer is None:
        return
    product, quantity = request["product"], request["quantity"]
    seen = yield from _reach(_call("find_order", order=request["order"]))
    same = [seen.get(k) for k in ("customer", "product", "quantity")] == [customer, product, quantity]
    if same != wrong():
        yield _finish("already ordered")
        return
    yield from _order(customer, product, quantity)
    yield _finish("done")


def _discount(request: dict[str, Any], wrong: Callable[[], bool]) -> Steps:
    if (request["percent"] <= DISCOUNT_LIMIT) != wrong():
        yield from _reach(_call("apply_discount", order=request["order"], percent=request["percent"]))
        yield _finish("done")
    else:
        yield _finish("no authority")


_CLERKS: dict[str, Callable[[dict[str, Any], Callable[[], bool]], Steps]] = {
    "stock": _stock,
    "status": _status,
    "mail": _mail,
    "place": _place,
    "cancel": _withdraw,
    "substitute": _substitute,
    "replace": _replace,
    "unknown_customer": _mail,
    "duplicate_order": _duplicate,
    "already_shipped": _withdraw,
    "discount": _discount,
    "timeout_resubmit": _place,
    "repeated_mail": _mail,
}
