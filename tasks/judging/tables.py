"""Tables of the report: finished cells, escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def cell(value: Any, form: str = "") -> str:
    """Return a table cell; numbers are aligned right, a missing value is a dash."""
    if value is None:
        return '<td class="num">–</td>'
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int | float):
        return f'<td class="num">{format(value, form or ",.4g" if isinstance(value, float) else ",")}</td>'
    return f"<td>{escape(str(value))}</td>"


def name_cell(text: str) -> str:
    """Return a cell with a name, which is not wrapped."""
    return f'<td class="name">{escape(text)}</td>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table; cells are finished `<td>` strings, `numbers` are the columns aligned right."""
    top = "".join(f'<th class="num">{h}</th>' if i in numbers else f"<th>{h}</th>" for i, h in enumerate(head))
    body = "".join(f"<tr>{''.join(r)}</tr>" for r in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
