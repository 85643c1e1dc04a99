"""Teachers on the page: what was asked, what came of it and cost, what verifiers think of it; tokens of distillation."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tasks.judging.report_data import Cost, StageResult
from tasks.judging.tables import cell, name_cell, table

_HEAD = (
    "node", "signal", "teacher", "who", "asked", "answered", "no answer", "dollars", "per answer", "agrees with verifiers",
    "agreement by problem type",
)  # fmt: skip
_USED = ("node", "teacher", "answered", "learnt from", "dollars", "per answer that is learnt from")
_SCORED_HEAD = ("node", "teacher", "who", "trajectories scored", "tokens scored", "trajectories by problem type")
Found = Mapping[str, Any]
"""The `signals.json` of a node, with `node`."""


def render_teachers(found: Sequence[Found], used: Sequence[Found] = ()) -> str:
    """Return the section; nothing where no teacher was asked. `used` are the `notes/used.json` of nodes that learnt from words."""
    parts = [
        _asked([f for f in found if f["signal"] != "logprobs"]),
        _learnt(used),
        _scored([f for f in found if f["signal"] == "logprobs"]),
        *(_by_default(f) for f in found),
    ]
    return f"<h2>Teachers</h2>{''.join(parts)}" if any(parts) else ""


def _asked(found: Sequence[Found]) -> str:
    rows = [_row(f, name, card) for f in found for name, card in f["scorecard"].items()]
    if not rows:
        return ""
    hint = (
        "A score counts as agreeing where 0.5 or more goes with a success, an order in each pair of a success and a "
        "failure, a critique where an error is named in failures alone, a correction where it is a success in the world, "
        "scores of calls in each pair of a call of which a success came and one of which failures alone did."
    )
    return f'{table(_HEAD, rows, (4, 5, 7, 8))}<p class="hint">{hint}</p>'


def _learnt(used: Sequence[Found]) -> str:
    """Return how many of the answers stages learnt from, and what each of those came to."""
    rows = [
        [
            name_cell(told["node"]), name_cell(name), cell(card["answered"]), cell(card["used"]),
            cell(float(card["usd"]), ",.4f"), cell(card["usd_per_used"], ",.4f"),
        ]
        for told in used
        for name, card in told["teachers"].items()
    ]  # fmt: skip
    if not rows:
        return ""
    hint = (
        "An answer is learnt from where an example, a pair or a list came of it. Dollars are of all that was asked for the "
        "stage; stages that ask alike share answers and cost."
    )
    return f'{table(_USED, rows, (2, 3, 4, 5))}<p class="hint">{hint}</p>'


def _scored(found: Sequence[Found]) -> str:
    """Return what teachers scored whose probabilities were read; a teacher that nothing went to has a row as well."""
    rows = [
        [
            name_cell(f["node"]), name_cell(name), cell(card["revision"]), cell(card["trajectories"]), cell(card["tokens"]),
            cell(_listed(card["by_type"]) or "–"),
        ]
        for f in found
        for name, card in f["scorecard"].items()
    ]  # fmt: skip
    return table(_SCORED_HEAD, rows, (3, 4)) if rows else ""


def _by_default(found: Found) -> str:
    """Return how many problems of which types no rule of the routing was written for."""
    kinds = _listed(found.get("by_default", {}))
    return f'<p class="hint">{escape(found["node"])}: the last rule decided for {escape(kinds)}</p>' if kinds else ""


def render_tokens(costs: Sequence[Cost], stages: Sequence[StageResult]) -> str:
    """Return what each stage of distillation generated, had scored and trained on; nothing where there is none."""
    found = [c for c in costs if c.trained is not None]
    if not found:
        return ""
    known = {s.id: s.sets for s in stages}
    sets = list(dict.fromkeys(name for c in found for name in known.get(c.node, ())))
    rows = [
        [
            name_cell(c.node),
            *(cell(None if v is None else round(v)) for v in (c.rollouts, c.tokens, c.scored, c.trained)),
            *(cell(_success(known.get(c.node, {}).get(name)), ".3f") for name in sets),
        ]
        for c in found
    ]
    head = ["stage", "rollouts", "generated tokens", "scored", "trained", *(f"success, {escape(n)}" for n in sets)]
    hint = (
        "Scored are the tokens of which a teacher said how likely they are, trained those of them that kept a weight."
    )
    return f'<h2>Distillation</h2>{table(head, rows, range(1, len(head)))}<p class="hint">{hint}</p>'


def _success(summary: Mapping[str, Any] | None) -> float | None:
    return None if summary is None else summary["metrics"]["success"]["value"]


def _row(found: Mapping[str, Any], name: str, card: Mapping[str, Any]) -> list[str]:
    agreement = card["agreement"]
    failures = "; ".join(
        [_listed(card["failures"]), *(f"{m}: {_listed(told['failures'])}" for m, told in card["absent"].items())]
    ).removeprefix("; ")
    rate = "–" if agreement["rate"] is None else f"{agreement['rate']:.1%} of {agreement['judged']}"
    kinds = ", ".join(f"{kind} {agreed / judged:.0%}" for kind, (agreed, judged) in agreement["by_type"].items())
    return [
        name_cell(found["node"]), cell(found["signal"]), name_cell(name), cell(card["revision"]), cell(card["asked"]),
        cell(card["answered"]), cell(failures or "–"), cell(float(card["usd"]), ",.4f"),
        cell(card["usd_per_signal"], ",.4f"), cell(rate), cell(kinds or "–"),
    ]  # fmt: skip


def _listed(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {why}" for why, n in failures.items())
