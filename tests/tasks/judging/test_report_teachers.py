"""The scorecard of teachers on the page."""

from typing import Any

from tasks.judging.report import render
from tasks.judging.report_data import ReportData

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
    silent = CARD | {"answered": 0, "usd_per_signal": None, "agreement": {"rate": None, "judged": 0, "by_type": {}}}
    assert "<h2>Teachers</h2>" in render(ReportData("desk", "", teachers=[asked | {"scorecard": {"closed": silent}}]))
    assert "<h2>Teachers</h2>" not in render(ReportData("desk", ""))
