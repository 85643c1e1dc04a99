"""The report's section on rounds: why the policy failed before and after, what was done about it, and how it was judged."""

from collections.abc import Sequence
from html import escape
from typing import Any

from tasks.judging.report_data import RoundData
from tasks.judging.tables import cell, name_cell, table


def render_rounds(rounds: Sequence[RoundData], gates: Sequence[dict[str, Any]]) -> str:
    """Return the section; empty where the program has no rounds."""
    parts = [_round(r, [g for g in gates if g["gate"].endswith(f"@{r.number}")]) for r in rounds]
    if not parts:
        return ""
    hint = (
        "Failures by cause, as shares of judged tries with their intervals; after is what the round's candidate still "
        "fails on the same set."
    )
    return f'<h2>Rounds</h2><p class="hint">{hint}</p>{"".join(parts)}'


def _round(data: RoundData, gates: Sequence[dict[str, Any]]) -> str:
    said = f"Started from {data.start}: {data.why}." if data.start else ""
    judged = "".join(
        f"<p><b>Gate {escape(g['gate'])}: {escape(g['answer'].replace('_', ' '))}.</b> {escape(g['sentence'])}.</p>"
        for g in gates
    )
    return f"<h3>Round {data.number}</h3><p>{escape(said)}</p>{_causes(data)}{_pools(data)}{_siblings(data)}{judged}"


def _causes(data: RoundData) -> str:
    columns = [(name, when, found) for name in data.before for when, found in _times(data, name)]
    causes = dict.fromkeys(c for _, _, found in columns for c in found.get("causes", {}))
    if not columns:
        return ""
    head = ["cause", *(escape(f"{name}, {when}" if when else name) for name, when, _ in columns)]
    ordered = sorted(causes, key=lambda c: -max(f.get("causes", {}).get(c, {"count": 0})["count"] for *_, f in columns))
    rows = [
        [name_cell(c.replace("_", " ")), *(_figure(f.get("causes", {}).get(c)) for *_, f in columns)] for c in ordered
    ]
    rows.append([name_cell("all failures"), *(_total(f) for *_, f in columns)])
    return table(head, rows, range(1, len(head)))


def _times(data: RoundData, name: str) -> list[tuple[str, dict[str, Any]]]:
    if name in data.after:
        return [("before", data.before[name]), ("after", data.after[name])]
    return [("", data.before[name])]


def _figure(found: dict[str, Any] | None) -> str:
    if found is None:
        return '<td class="num">0</td>'
    low, high = found["low"], found["high"]
    return f'<td class="num">{found["count"]} · {found["share"]:.3f} <span class="hint">[{low:.3f}, {high:.3f}]</span></td>'


def _total(found: dict[str, Any]) -> str:
    return f'<td class="num"><b>{found["failures"]:,}</b> of {found.get("judged", found["problems"]):,}</td>'


def _pools(data: RoundData) -> str:
    if not data.pools:
        return ""
    rows = []
    for name, pool in data.pools.items():
        left = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in pool.get("dropped", {}).items())
        rows.append([name_cell(name), cell(pool["records"]), cell(left or "none")])
    return f'<div class="narrow">{table(("pool", "rows", "left out"), rows, (1,))}</div>'


def _siblings(data: RoundData) -> str:
    parts = [f"{n} {what.replace('_', ' ')}" for what, n in data.remedies.items()]
    made = data.siblings.get("made")
    if made is not None:
        lost = sum(sum(data.siblings.get(k, {}).values()) for k in ("refused", "unsolved", "impossible"))
        parts.append(f"{made} siblings made, {lost} draws refused or unsolved")
    parts += [f"{data.asks} cases wait for a person or are a ticket"] if data.asks else []
    return f'<p class="hint">Remedies: {escape("; ".join(parts))}.</p>' if parts else ""
