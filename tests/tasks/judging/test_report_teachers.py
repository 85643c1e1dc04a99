"""The scorecard of teachers on the page."""

import re
from typing import Any

from tasks.judging.report import render
from tasks.judging.report_data import Cost, ReportData, StageResult
from tasks.judging.report_teachers import render_tokens

CARD: dict[str, Any] = {
    "revision": "openai some<model>", "asked": 10, "answered": 8, "failures": {"empty_length": 1, "unreadable": 1},
    "absent": {"old": {"failures": {"refused": 2, "teacher_failed": 5}, "example": "refused"}}, "asked_again": 0,
    "usd": 0.5, "usd_per_signal": 0.0625, "agreement": {"rate": 0.75, "judged": 8, "by_type": {"mail": [3, 4], "stock": [3, 4]}},
}  # fmt: skip


def test_teachers_have_a_table_where_some_were_asked() -> None:
    asked = {"node": "learn.teach1", "signal": "score", "scorecard": {"closed": CARD}}
    page = render(ReportData("desk", "", teachers=[asked]))
    assert "<h2>Teachers</h2>" in page
    for words in (
        "openai some&lt;model&gt;",
        "1 empty_length, 1 unreadable; old: 2 refused, 5 teacher_failed",
        "75.0% of 8",
        "mail 75%, stock 75%",
        "0.0625",
    ):
        assert words in page
    assert "learnt from" not in page
    used = {"node": "learn", "teachers": {"clo<sed": {"answered": 8, "used": 4, "usd": 0.5, "usd_per_used": 0.125}}}
    page = render(ReportData("desk", "", teachers=[asked], used=[used]))
    learnt = page.partition("learnt from</th>")[2].partition("</table>")[0]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", learnt) == ["learn", "clo&lt;sed", "8", "4", "0.5000", "0.1250"]
    silent = CARD | {"answered": 0, "usd_per_signal": None, "agreement": {"rate": None, "judged": 0, "by_type": {}}}
    assert "<h2>Teachers</h2>" in render(ReportData("desk", "", teachers=[asked | {"scorecard": {"closed": silent}}]))
    assert "<h2>Teachers</h2>" not in render(ReportData("desk", ""))


def test_who_scored_which_tokens_has_a_table_and_the_last_rule_a_sentence() -> None:
    cards = {
        "reader": {
            "revision": "earlier_self 3f<",
            "trajectories": 12,
            "tokens": 1300,
            "by_type": {"mail": 4, "stock": 8},
        },
        "idle": {"revision": "model 00", "trajectories": 0, "tokens": 0, "by_type": {}},
    }
    scored = {"node": "routed", "signal": "logprobs", "by_default": {"law": 3, "mail": 4}, "scorecard": cards}
    page = render(ReportData("desk", "", teachers=[scored]))
    assert page.count("<h2>Teachers</h2>") == 1
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page.partition("<h2>Teachers</h2>")[2])
    assert cells[:12] == [
        "routed", "reader", "earlier_self 3f&lt;", "12", "1,300", "4 mail, 8 stock",
        "routed", "idle", "model 00", "0", "0", "–",
    ]  # fmt: skip
    assert "routed: the last rule decided for 3 law, 4 mail" in page
    both = [scored, {"node": "learn.teach1", "signal": "score", "scorecard": {"closed": CARD}}]
    page = render(ReportData("desk", "", teachers=both))
    assert page.count("<h2>Teachers</h2>") == 1
    assert "75.0% of 8" in page


def test_distillation_has_a_table_of_its_tokens() -> None:
    sets = {"hidden<": {"metrics": {"success": {"value": 0.4625, "low": 0.4, "high": 0.5, "problems": 600}}}}
    costs = [
        Cost("short", "train.opd", None, 768.0, 15000.0, 12.0, 14990.0, 7495.0),
        Cost("rl", "train.policy_gradient", None, 100.0, 2000.0, 3.0),
    ]
    page = render_tokens(costs, [StageResult("short", "short_opd", "pruned", sets)])
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert cells == ["short", "768", "15,000", "14,990", "7,495", "0.463"]
    assert "success, hidden&lt;" in page
    assert render_tokens(costs[1:], []) == ""
    assert "<h2>Distillation</h2>" in render(ReportData("desk", "", costs=costs))
