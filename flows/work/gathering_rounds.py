"""What the report says of rounds, read from their nodes; a round that did not run is left out."""

import re
from collections.abc import Callable
from typing import Any

from tasks.judging.report_data import RoundData

Read = Callable[[str, str], Any]
"""(node, file) -> JSON, or None where it is not there."""
_BEGUN = re.compile(r"round(\d+)\.evidence")


def gather_rounds(nodes: list[str], read: Read) -> list[RoundData]:
    """Return the rounds that ran, in order."""
    numbers = sorted(int(m[1]) for n in nodes if (m := _BEGUN.fullmatch(n)))
    return [_round(number, nodes, read) for number in numbers]


def _round(number: int, nodes: list[str], read: Read) -> RoundData:
    def found(part: str, name: str) -> dict[str, Any]:
        node = f"round{number}.{part}"
        return (read(node, name) if node in nodes else None) or {}

    start, remedy = found("evidence", "start.json"), found("remedy", "pools.json")
    return RoundData(
        number=number,
        start=start.get("policy", ""),
        why=start.get("why", ""),
        before=found("cases", "causes.json").get("sets", {}),
        after=found("after", "causes.json").get("sets", {}),
        pools=remedy.get("pools", {}),
        remedies=remedy.get("remedies", {}),
        siblings=remedy.get("siblings", {}),
        asks=remedy.get("asks", 0),
    )
