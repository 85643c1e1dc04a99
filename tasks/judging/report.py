"""The report of an execution: one HTML page without scripts. Everything that a model or a user wrote is escaped."""

from html import escape
from typing import Any

from specs.teacher_choice import acting_name
from tasks.judging.charts import Dot, Series, interval_chart, line_chart
from tasks.judging.gates import SETTLED
from tasks.judging.report_data import ReportData, Talk, final_candidate
from tasks.judging.report_rounds import render_rounds
from tasks.judging.report_teachers import render_teachers, render_tokens
from tasks.judging.style import CSS
from tasks.judging.tables import cell, name_cell, table

ANSWERS = {
    "pass": "Passed",
    "fail": "Failed",
    "inconclusive": "Undecided",
    "already_promoted": "Already promoted",
    "superseded": "Superseded",
}
CURVES = (
    "loss",
    "accuracy",
    "margin",
    "chosen_shift",
    "rejected_shift",
    "success",
    "reward_mean",
    "reward",
    "mixed_groups",
    "entropy",
    "policy_tokens",
    "grad_norm",
)
"""Figures that are drawn, in this order, where a stage logged them."""
BEHAVIOUR = {
    "success": "success",
    "success_greedy": "greedy success",
    "reward": "reward",
    "tool_success": "calls ok",
    "invalid_call_rate": "invalid calls",
    "truncated_rate": "cut",
    "loop_rate": "loops",
    "recovery_rate": "recovered",
}
"""Metric -> column of the table under the chart."""
SHOWN = 5
"""Most curves of one stage."""


def _right(value: Any) -> str:
    """Return a cell aligned right whatever it holds."""
    return cell(value).replace("<td>", '<td class="num">', 1)


def _value(summary: dict[str, Any], metric: str) -> dict[str, Any]:
    return summary.get("metrics", {}).get(metric) or {"value": None, "low": None, "high": None, "problems": 0}


def _range(found: dict[str, Any]) -> str:
    if found["value"] is None:
        return '<td class="num">–</td>'
    low, high = found["low"], found["high"]
    return f'<td class="num">{found["value"]:.3f} <span class="hint">[{low:.3f}, {high:.3f}]</span></td>'


def _sets(data: ReportData) -> list[str]:
    return list(dict.fromkeys(s for stage in data.stages for s in stage.sets))


def _header(data: ReportData) -> str:
    parts = [f"<h1>{escape(data.program)}</h1>"]
    if data.about:
        parts.append(f'<p class="lead">{escape(data.about)}</p>')
    for gate in data.gates:
        answer = gate["answer"]
        shade = "pass" if answer in SETTLED else answer
        parts.append(
            f'<div class="answer {escape(shade)}"><p><b>{ANSWERS.get(answer, escape(answer))}</b>'
            f"Gate {escape(gate['gate'])}: {escape(gate['sentence'])}.</p></div>"
        )
    if not data.gates:
        parts.append('<div class="answer"><p>This program has no gate; nothing was decided.</p></div>')
    parts.append(_figures(data))
    return "".join(parts)


def _figures(data: ReportData) -> str:
    """Show success before and after on the set that the first gate asks, else on the first set."""
    sets = _sets(data)
    asked = [r["set"] for g in data.gates for r in g["rows"] if r["set"] in sets]
    chosen = next(iter([*asked, *sets]), None)
    having = [s for s in data.stages if chosen in s.sets and not s.id.startswith(acting_name(""))]
    if chosen is None or not having:
        return ""
    first, last = having[0], having[-1]
    named = final_candidate(data.gates)
    last = next((s for s in having if s.id == named), last)
    shown = [
        (f"success of {first.id}", _value(first.sets[chosen], "success")),
        (f"success of {last.id}", _value(last.sets[chosen], "success")),
        (f"greedy success of {last.id}", _value(last.sets[chosen], "success_greedy")),
    ]
    boxes = "".join(
        f'<div><div class="n">{v["value"]:.3f}</div><div class="k">{escape(k)}</div></div>'
        for k, v in shown
        if v["value"] is not None
    )
    asked_count = last.sets[chosen].get("counts", {}).get("problems", 0)
    boxes += f'<div><div class="n">{asked_count:,}</div><div class="k">problems of {escape(chosen)}</div></div>'
    return f'<div class="figures">{boxes}</div>'


def _success(data: ReportData) -> str:
    charts: list[str] = []
    empty: list[str] = []
    for name in _sets(data):
        stages = [s for s in data.stages if name in s.sets]
        series = [
            Series(label, [Dot(v["value"], v["low"], v["high"]) for v in values], style)
            for metric, label, style in (("success", "sampled", "solid"), ("success_greedy", "greedy", "hollow"))
            for values in [[_value(s.sets[name], metric) for s in stages]]
            if any(v["value"] is not None for v in values)
        ]
        if not series:
            empty.append(name)
            continue
        count = stages[-1].sets[name].get("counts", {}).get("problems", 0)
        role = stages[-1].sets[name].get("role", "")
        chart = interval_chart(f"success by stage on {name}", [s.id for s in stages], series)
        about = f"{escape(str(role))}, {count:,} problems" if role and role != name else f"{count:,} problems"
        charts.append(f"<figure><figcaption><b>{escape(name)}</b> &nbsp;{about}</figcaption>{chart}</figure>")
    if not charts:
        return ""
    key = '<span class="key"><i></i>sampled</span><span class="key hollow"><i></i>greedy</span>'
    confidence = next((s.sets[n].get("confidence") for s in data.stages for n in s.sets), 0.95)
    hint = f"Whiskers are {confidence:.0%} intervals over problems; samples of one problem count as one cluster."
    hint += f" Not measured: {escape(', '.join(empty))}." if empty else ""
    wide = f'<div class="charts wide">{"".join(charts)}</div>'
    return f'<h2>Success by stage</h2><p class="hint">{hint}</p><p>{key}</p>{wide}{_behaviour(data)}{_types(data)}'


def _behaviour(data: ReportData) -> str:
    head = ["stage", "set", *BEHAVIOUR.values(), "tokens", "no verdict"]
    rows = []
    for stage in data.stages:
        for name, summary in stage.sets.items():
            values = [_value(summary, m) for m in BEHAVIOUR]
            counts = summary.get("counts", {})
            cells = [
                _range(v) if m.startswith("success") else cell(v["value"], ".3f")
                for m, v in zip(BEHAVIOUR, values, strict=True)
            ]
            invalid = counts.get("invalid_share")
            last = [cell(counts.get("policy_tokens_mean"), ".1f"), cell(invalid, ".1%")]
            rows.append([name_cell(stage.id), name_cell(name), *cells, *last])
    return table(head, rows, range(2, len(head)))


def _types(data: ReportData) -> str:
    """Show sampled success by problem type and stage, one table per set, folded."""
    parts = []
    for name in _sets(data):
        stages = [s for s in data.stages if s.sets.get(name, {}).get("types")]
        types = list(dict.fromkeys(t for s in stages for t in s.sets[name]["types"]))
        if len(types) < 2:
            continue
        rows = []
        for kind in types:
            found = [s.sets[name]["types"].get(kind, {}).get("success") for s in stages]
            count = next((f["problems"] for f in reversed(found) if f), 0)
            rows.append([name_cell(kind), cell(count), *(_range(f) if f else cell(None) for f in found)])
        head = ["type", "problems", *(escape(s.id) for s in stages)]
        shown = table(head, rows, range(1, len(head)))
        parts.append(f"<details><summary>{escape(name)} by problem type</summary>{shown}</details>")
    return "".join(parts)


def _gates(data: ReportData) -> str:
    parts = []
    head = ("requirement", "value", "baseline", "effect", "interval", "p", "level", "problems", "answer")
    for gate in data.gates:
        if not gate["rows"]:
            continue
        body = "".join(_gate_row(r) for r in gate["rows"])
        top = "".join(f'<th class="num">{h}</th>' if 0 < i < 8 else f"<th>{h}</th>" for i, h in enumerate(head))
        about = (
            f"Candidate {gate['candidate']}, baseline {gate['baseline'] or 'none'}; look {gate['look']} of "
            f"{gate['looks']}, alpha {gate['alpha_of_look']:.3g} of {gate['alpha']:g}. A requirement passes only where the "
            "data show it; p and its level are after Holm's order over the rows."
        )
        parts.append(
            f'<h3>{escape(gate["gate"])}</h3><p class="hint">{escape(about)}</p><div class="scroll"><table><thead><tr>{top}'
            f"</tr></thead><tbody>{body}</tbody></table></div>{_changed(gate)}"
        )
    return f"<h2>Gates</h2>{''.join(parts)}" if parts else ""


def _gate_row(row: dict[str, Any]) -> str:
    interval = row["interval"]
    signed = "+.3f" if row["effect"] is not None else ".3f"
    shown = "–" if interval is None else f"[{interval[0]:{signed}}, {interval[1]:{signed}}]"
    name = f"{row['metric'].replace('_', ' ')} on {row['set']} {row['kind'].replace('_', ' ')} {row['bound']:g}"
    answer = row["answer"]
    tag = f'<td><span class="tag {escape(answer)}">{escape(answer.replace("_", " "))}</span></td>'
    cells = [
        name_cell(name), cell(row["value"], ".4f"), cell(row["baseline"], ".4f"), cell(row["effect"], "+.4f"),
        f'<td class="num">{shown}</td>', cell(row["p"], ".2g"), cell(row["level"], ".2g"), cell(row["n"]), tag,
    ]  # fmt: skip
    said = f"{row['sentence']}. {row['method']}" if row["method"] else row["sentence"]
    return f'<tr class="has-said">{"".join(cells)}</tr><tr class="said"><td colspan="9">{escape(said)}.</td></tr>'


def _changed(gate: dict[str, Any]) -> str:
    parts = []
    for name, changed in gate["changed"].items():
        solved, broken = changed["newly_solved_count"], changed["newly_broken_count"]
        lists = "".join(
            f"<h3>{title}</h3><p class='mono'>{escape(', '.join(changed[key]) or 'none')}</p>"
            for title, key in (("Better now", "newly_solved"), ("Worse now", "newly_broken"))
        )
        parts.append(
            f"<details><summary>{escape(name)}: {solved} problems better, {broken} worse than the baseline</summary>"
            f"{lists}</details>"
        )
    return "".join(parts)


def _curves(data: ReportData) -> str:
    parts = []
    for curve in data.curves:
        logged = {k for _, values in curve.lines for k in values}
        names = [n for n in CURVES if n in logged][:SHOWN]
        charts = "".join(
            f"<figure><figcaption>{escape(n.replace('_', ' '))}</figcaption>{chart}</figure>"
            for n in names
            if (chart := line_chart(f"{n} of {curve.node}", [(x, v.get(n)) for x, v in curve.lines]))
        )
        if charts:
            parts.append(f'<h3>{escape(curve.node)}</h3><div class="charts">{charts}</div>')
    return f"<h2>Learning curves</h2>{''.join(parts)}" if parts else ""


def _data(data: ReportData) -> str:
    parts = []
    if data.data:
        rows = [[name_cell(d["name"]), cell(d["kind"]), cell(d["role"]), cell(d["records"])] for d in data.data]
        parts.append(table(("data set", "kind", "role", "records"), rows, (3,)))
    if data.apart is not None:
        hits = len(data.apart.get("hits", []))
        dropped = sum(len(ids) for ids in data.apart.get("dropped", {}).values())
        parts.append(
            f"<p>Training and evaluation data kept apart: {hits} overlaps found, {dropped} records dropped.</p>"
        )
    if data.tokens:
        rows = []
        for t in data.tokens:
            share = t.trained / t.tokens if t.tokens else 0.0
            meter = f'<span class="meter"><i style="width:{100 * share:.1f}%"></i></span>{share:.1%}'
            cells = [cell(t.rows), cell(t.tokens), cell(t.trained), f'<td class="num">{meter}</td>']
            rows.append([name_cell(t.node), name_cell(t.source), *cells])
        head = ("stage", "source", "rows", "tokens", "trained", "share that trained")
        parts.append(f"<h3>Tokens that trained</h3>{table(head, rows, (2, 3, 4, 5))}")
    return f"<h2>Data</h2>{''.join(parts)}" if parts else ""


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in figures.items():
        if isinstance(value, dict):
            flat += _flat(value, f"{prefix}{key} ")
        elif isinstance(value, str | int | float | bool) or value is None:
            flat.append((f"{prefix}{key}".replace("_", " "), value))
    return flat


def _before(data: ReportData) -> str:
    """Show preflights, collections and pairs: what rollouts said before an update."""
    parts = []
    for title, found in (("Preflight", data.preflights), ("Collection", data.collects), ("Pairs", data.pairs)):
        if not found:
            continue
        columns = [(f["node"], dict(_flat({k: v for k, v in f.items() if k != "node"}))) for f in found]
        keys = list(dict.fromkeys(k for _, c in columns for k in c))
        rows = [[name_cell(k), *(_right(c.get(k)) for _, c in columns)] for k in keys]
        head = ["figure", *(escape(n) for n, _ in columns)]
        shown = table(head, rows, range(1, len(head)))
        parts.append(f'<h3>{title}</h3><div class="narrow">{shown}</div>')
    return f"<h2>Before the updates</h2>{''.join(parts)}" if parts else ""


def _costs(data: ReportData) -> str:
    if not data.costs:
        return ""
    timed = any(c.seconds is not None for c in data.costs)
    head = ["node", "kind", *(["seconds"] if timed else []), "rollouts", "tokens", "steps"]
    rows = []
    for c in data.costs:
        seconds = [cell(c.seconds, ",.1f")] if timed else []
        numbers = [cell(None if v is None else round(v)) for v in (c.rollouts, c.tokens, c.steps)]
        rows.append([name_cell(c.node), cell(c.kind), *seconds, *numbers])

    def total(name: str) -> float:
        return sum(getattr(c, name) or 0.0 for c in data.costs)

    seconds = [f'<td class="num"><b>{total("seconds"):,.1f}</b></td>'] if timed else []
    sums = [f'<td class="num"><b>{round(total(n)):,}</b></td>' for n in ("rollouts", "tokens", "steps")]
    rows.append(["<td><b>sum</b></td>", "<td></td>", *seconds, *sums])
    shown = table(head, rows, range(2, len(head)))
    when = "" if timed else '<p class="hint">Durations and notes are in the copy of this page under notes/.</p>'
    return f"<h2>Cost</h2>{when}{shown}"


def _talk(talk: Talk) -> str:
    answer = "solved" if talk.success else "no verdict" if talk.success is None else "failed"
    shade = "pass" if talk.success else "inconclusive" if talk.success is None else "fail"
    status = "" if talk.status == "finished" else f" ({talk.status.replace('_', ' ')})"
    turns = []
    for said in talk.turns:
        turns.append(f'<div class="say policy mono">{escape(said.text) or "<i>nothing</i>"}</div>')
        if said.reply is not None:
            turns.append(f'<div class="say tool mono{" error" if said.is_error else ""}">{escape(said.reply)}</div>')
    body = "".join(turns) or '<p class="hint">It wrote nothing.</p>'
    tag = f'<span class="tag {shade}">{answer}{escape(status)}</span>'
    return f'<div class="talk"><h4><span>{escape(talk.policy)}</span>{tag}</h4>{body}</div>'


def _conversations(data: ReportData) -> str:
    parts = []
    for c in data.conversations:
        talks = "".join(_talk(t) for t in c.talks)
        head = f'<h3>{escape(c.type)} <span class="hint mono">{escape(c.problem)}</span></h3>'
        parts.append(f'{head}<p class="asked">{escape(c.text)}</p><div class="talks">{talks}</div>')
    if not parts:
        return ""
    hint = "The same problems, tried greedily where that was asked; the policy's own words, and what its tools replied."
    return f'<h2>Before and after</h2><p class="hint">{hint}</p>{"".join(parts)}'


def _notes(data: ReportData) -> str:
    lines = [*(f"<b>{escape(n)}</b>: {escape(t)}" for n, t in data.notes), *(escape(p) for p in data.problems)]
    if not lines:
        return ""
    return f'<h2>Notes</h2><ul class="notes">{"".join(f"<li>{line}</li>" for line in lines)}</ul>'


def _rounds(data: ReportData) -> str:
    return render_rounds(data.rounds, data.gates)


def _teachers(data: ReportData) -> str:
    return render_teachers(data.teachers, data.used) + render_tokens(data.costs, data.stages)


def render(data: ReportData) -> str:
    """Return the page; the same data give the same bytes."""
    sections = (_header, _success, _gates, _rounds, _conversations, _curves, _data, _before, _teachers, _costs, _notes)
    body = "".join(section(data) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(data.program)} · report</title><style>{CSS}</style></head><body><main>{body}"
        "<footer>Written by tutelage. Intervals of shares are Wilson's, clustered by problem; paired differences are "
        "tested exactly.</footer></main></body></html>\n"
    )
