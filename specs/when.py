"""The `when` language: a condition on named values, parsed at check time and never run as Python.

    problem.type in ['mail', 'place'] and not (problem.min_calls > 3 or 'adversarial' in problem.tags)

Comparisons (`== != < <= > >=`), `in`, `not in`, `and`, `or`, `not`, parentheses, texts in quotes, numbers,
`true` and `false`, lists of literals, and dotted names from a given list with their types.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from specs.errors import ProgramError
from specs.positions import did_you_mean, listed

if TYPE_CHECKING:
    from specs.records import Problem

Type = Literal["text", "number", "flag", "texts", "numbers"]
Value = str | float | int | bool | list[str] | list[float]

PROBLEM_NAMES: dict[str, Type] = {
    "problem.id": "text",
    "problem.type": "text",
    "problem.environment": "text",
    "problem.split": "text",
    "problem.text": "text",
    "problem.tags": "texts",
    "problem.min_calls": "number",
}
"""What a condition on a problem may name; nothing of it is the expected outcome."""
HISTORY_NAMES: dict[str, Type] = {"history.problem_success": "number", "history.type_success": "number"}
"""Shares of the judged rollouts that a teacher is asked about which succeeded: of the problem, and of all problems of its type."""
STATE_NAMES: dict[str, Type] = {
    "state.turn": "number",
    "state.last_tool": "text",
    "state.last_tool_failed": "flag",
    "state.tool_errors": "number",
}
"""The state in which calls are judged: the number of the turn that comes, from 1; the tool of the call before it (empty where there is
none), whether that one failed, and how many have failed so far."""
ROUTING_NAMES: dict[str, Type] = {**PROBLEM_NAMES, **HISTORY_NAMES, **STATE_NAMES}
"""What a rule of the routing may name, as far as it is known where its stage asks."""

MAX_LENGTH = 2000
MAX_DEPTH = 30

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)|(?P<sign>==|!=|<=|>=|[<>()\[\],])|(?P<bad>\S))"
)
_KEYWORDS = frozenset(("and", "or", "not", "in", "true", "false"))
_NAMED = {"text": "a text", "number": "a number", "flag": "true or false", "texts": "texts", "numbers": "numbers"}


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value


@dataclass(frozen=True, slots=True)
class Named:
    """A value that is handed in."""

    name: str


@dataclass(frozen=True, slots=True)
class Compare:
    """Two operands and `== != < <= > >= in` or `not in` between them."""

    sign: str
    left: "Constant | Named"
    right: "Constant | Named"


@dataclass(frozen=True, slots=True)
class Negation:
    """`not`."""

    of: "Node"


@dataclass(frozen=True, slots=True)
class Junction:
    """Conditions of which all (`and`) or any (`or`) must hold."""

    word: Literal["and", "or"]
    of: "tuple[Node, ...]"


Node = Constant | Named | Compare | Negation | Junction

_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed condition."""

    text: str
    root: Node
    names: Mapping[str, Type]

    def evaluate(self, values: Mapping[str, Any]) -> bool:
        """Return whether the condition holds. Raises ProgramError for a value that is absent or of another type."""
        return bool(_evaluate(self.root, values, self))


def parse(text: str, names: Mapping[str, Type]) -> Expression:
    """Return the condition in `text`; ProgramError (`column N: …`) where it is none or names what is not in `names`."""
    if len(text) > MAX_LENGTH:
        raise ProgramError(f"column 1: found {len(text)} characters, expected a condition of at most {MAX_LENGTH}")
    return Expression(text, _Parser(text, names).whole(), dict(names))


def _walk(condition: Expression) -> Iterator[Node]:
    """Yield all parts of a condition, from left to right."""
    pending: list[Node] = [condition.root]
    while pending:
        part = pending.pop(0)
        yield part
        match part:
            case Compare(_, left, right):
                pending[:0] = [left, right]
            case Negation(of):
                pending[:0] = [of]
            case Junction(_, of):
                pending[:0] = of
            case _:
                pass


def compared(condition: Expression, name: str) -> list[str]:
    """Return the texts that a condition compares a name with as a whole (`==`, `!=`, `in`, `not in`)."""
    found: list[str] = []
    for part in _walk(condition):
        match part:
            case Compare("==" | "!=", Named(n), Constant(str(value))) | Compare(
                "==" | "!=", Constant(str(value)), Named(n)
            ):
                found += [value] if n == name else []
            case Compare("in" | "not in", Named(n), Constant(list(values))):
                found += [v for v in values if isinstance(v, str)] if n == name else []
            case _:
                pass
    return found


def mentioned(condition: Expression) -> list[str]:
    """Return the names that a condition reads, each once, as they come."""
    return list(dict.fromkeys(part.name for part in _walk(condition) if isinstance(part, Named)))


def problem_values(problem: "Problem") -> dict[str, Any]:
    """Return what a condition over `PROBLEM_NAMES` is evaluated with."""
    return {name: getattr(problem, name.removeprefix("problem.")) for name in PROBLEM_NAMES}


def _instead(sign: str, left: Type, right: Type) -> str:
    """Return what was probably meant by a comparison that could never hold."""
    if sign in ("==", "!=") and left in ("texts", "numbers"):
        return "; to ask whether a list holds a value, write VALUE in NAME"
    return "; put a text in quotes" if left == "text" and right in ("number", "flag") else ""


def _evaluate(node: Node, values: Mapping[str, Any], whole: Expression) -> Any:
    match node:
        case Constant(value):
            return value
        case Named(name):
            return _value(name, values, whole)
        case Negation(of):
            return not _evaluate(of, values, whole)
        case Junction("and", of):
            return all(_evaluate(n, values, whole) for n in of)
        case Junction(_, of):
            return any(_evaluate(n, values, whole) for n in of)
        case Compare(sign, left, right):
            return _SIGNS[sign](_evaluate(left, values, whole), _evaluate(right, values, whole))


def _value(name: str, values: Mapping[str, Any], whole: Expression) -> Any:
    if name not in values:
        raise ProgramError(f"condition {whole.text!r}: no value for {name}, expected {_NAMED[whole.names[name]]}")
    value = values[name]
    expected = whole.names[name]
    fits = {
        "text": isinstance(value, str),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "flag": isinstance(value, bool),
    }.get(expected, isinstance(value, list | tuple))
    if not fits:
        raise ProgramError(f"condition {whole.text!r}: {name} is {value!r}, expected {_NAMED[expected]}")
    return value


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


class _Parser:
    """Recursive descent; every operand's type is known, so a comparison that could never hold is refused."""

    def __init__(self, text: str, names: Mapping[str, Type]) -> None:
        self.names = names
        self.tokens = [_Token(m.lastgroup or "", m[m.lastgroup or 0], m.start(m.lastgroup or 0) + 1)
                       for m in _TOKEN.finditer(text)]  # fmt: skip
        self.end = _Token("end", "the end", len(text) + 1)
        self.at = 0
        self.depth = 0

    def whole(self) -> Node:
        node = self.any_of()
        if self.peek().kind != "end":
            self.fail(self.peek(), f"found {self.peek().text}, expected and, or, or the end")
        return node

    def peek(self) -> _Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else self.end

    def take(self, *texts: str) -> _Token | None:
        """Take the next token where it is one of these words or signs."""
        token = self.peek()
        if token.kind in ("word", "sign") and token.text in texts:
            self.at += 1
            return token
        return None

    def fail(self, token: _Token, text: str) -> NoReturn:
        if token.text == "=":
            text = "found =, expected =="
        elif token.text in ("'", '"'):
            text = "a quote is not closed"
        elif token.text in ("&", "|", "!"):
            text = f"found {token.text}, expected and, or or not"
        raise ProgramError(f"column {token.column}: {text}")

    def any_of(self) -> Node:
        nodes = [self.all_of()]
        while self.take("or"):
            nodes.append(self.all_of())
        return nodes[0] if len(nodes) == 1 else Junction("or", tuple(nodes))

    def all_of(self) -> Node:
        nodes = [self.negation()]
        while self.take("and"):
            nodes.append(self.negation())
        return nodes[0] if len(nodes) == 1 else Junction("and", tuple(nodes))

    def negation(self) -> Node:
        token = self.peek()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(token, f"nested more than {MAX_DEPTH} levels deep")
        if self.take("not"):
            node: Node = Negation(self.negation())
        elif self.take("("):
            node = self.any_of()
            if not self.take(")"):
                self.fail(self.peek(), f"found {self.peek().text}, expected )")
        else:
            node = self.comparison()
        self.depth -= 1
        return node

    def comparison(self) -> Node:
        first = self.peek()
        left, left_type = self.operand()
        sign = self.sign()
        if sign is None:
            if left_type != "flag":
                self.fail(
                    self.peek(), f"found {self.peek().text}, expected a comparison: {first.text} is {_NAMED[left_type]}"
                )
            return left
        token = self.peek()
        right, right_type = self.operand()
        self.check(sign, left_type, right_type, token)
        if self.peek().text in _SIGNS and self.peek().kind == "sign":
            self.fail(self.peek(), "found a second comparison; join comparisons by and")
        return Compare(sign, left, right)

    def sign(self) -> str | None:
        token = self.take("==", "!=", "<", "<=", ">", ">=", "in")
        if token:
            return token.text
        if self.take("not"):
            if not self.take("in"):
                self.fail(self.peek(), f"found {self.peek().text}, expected in (not in)")
            return "not in"
        return None

    def check(self, sign: str, left: Type, right: Type, token: _Token) -> None:
        if sign in ("in", "not in"):
            fits = right == f"{left}s" or (left == right == "text")
            expected = f"a list of {left}s" if left in ("text", "number") else "a text or number before in"
        elif sign in ("==", "!="):
            fits, expected = left == right, _NAMED[left]
        else:
            fits, expected = left == right and left in ("number", "text"), "two numbers or two texts"
        if not fits:
            self.fail(
                token,
                f"found {token.text}, {_NAMED[right]}, behind {sign}, expected {expected}{_instead(sign, left, right)}",
            )

    def operand(self) -> tuple[Constant | Named, Type]:
        token = self.peek()
        if self.take("["):
            return self.items(token)
        self.at += 1
        if token.kind == "number":
            return Constant(self.number(token)), "number"
        if token.kind == "text":
            return Constant(token.text[1:-1]), "text"
        if token.kind == "word" and token.text in ("true", "false"):
            return Constant(token.text == "true"), "flag"
        if token.kind != "word" or token.text in _KEYWORDS:
            self.fail(token, f"found {token.text}, expected a name, a number, a text in quotes or a list")
        if token.text not in self.names:
            near = did_you_mean(token.text, self.names) or "; put texts in quotes"
            self.fail(token, f"unknown name {token.text}, expected {listed(self.names)}{near}")
        return Named(token.text), self.names[token.text]

    def number(self, token: _Token) -> float | int:
        try:
            return int(token.text)
        except ValueError:
            value = float(token.text)
        if value in (float("inf"), float("-inf")):
            self.fail(token, f"found {token.text}, expected a finite number")
        return value

    def items(self, start: _Token) -> tuple[Constant, Type]:
        values: list[Any] = []
        kinds: set[str] = set()
        while not self.take("]"):
            if values and not self.take(","):
                self.fail(self.peek(), f"found {self.peek().text}, expected , or ]")
            token = self.peek()
            if token.kind not in ("number", "text"):
                self.fail(token, f"found {token.text}, expected a number or a text in quotes")
            node, kind = self.operand()
            values.append(node.value if isinstance(node, Constant) else None)
            kinds.add(kind)
        if len(kinds) != 1:
            self.fail(start, f"found {'an empty list' if not kinds else 'texts and numbers in one list'},"
                             " expected a list of texts or of numbers")  # fmt: skip
        return Constant(values), "texts" if "text" in kinds else "numbers"
