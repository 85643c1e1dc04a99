import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.gates import Gate
from tasks.judging.charts import Dot, Series, interval_chart, line_chart, ticks
from tasks.judging.gates import Evidence, decide
from tasks.judging.report import render
from tasks.judging.report_data import Conversation, Cost, Curve, ReportData, Said, StageResult, Talk, Tokens
from tests.tasks.judging.builders import pair

NASTY = '<script>alert("x")</script>&\'<img src=http://evil.example/x>'
VOID = {"meta", "br", "img"}


class Balance(HTMLParser):
    """Fails on a tag that is closed twice or never."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def whole(text: str = "plain") -> ReportData:
    """Return data with something in every section, `text` wherever a person or a model wrote."""
    new, old = pair(both=300, solved=60, broken=20, neither=20)
    spec = Gate.model_validate(
        {"require": [{"set": "hidden", "at_least": 0.85}, {"set": "hidden", "no_worse_by": 0.03}]}
    )
    record = decide(spec, text, Evidence({text: {"hidden": new}}, {"hidden": old})).to_dict()
    success = {"value": 0.5, "low": 0.4, "high": 0.6, "problems": 100}
    summary = {
        "role": text,
        "metrics": {"success": success, "success_greedy": success},
        "types": {text: {"success": success}, "b": {"success": success}},
        "counts": {"problems": 100, "invalid_share": 0.0},
        "confidence": 0.95,
    }
    talks = [
        Talk(text, answer, "truncated", [Said(text, text, True), Said("", None)]) for answer in (True, False, None)
    ]
    return ReportData(
        program=text,
        about=text,
        gates=[record],
        stages=[StageResult(text, "sft", None, {text: summary}), StageResult("rl", "grpo", text, {text: summary})],
        curves=[Curve(text, [(0, {"loss": 3.0}), (1, {"loss": None}), (2, {"loss": 1.0, text: 1.0})])],
        data=[{"name": text, "kind": text, "role": text, "records": 600}],
        apart={"hits": [1], "dropped": {"a": ["x"]}},
        tokens=[Tokens(text, text, 3, 40, 10), Tokens("empty", "x", 0, 0, 0)],
        preflights=[{"node": text, "success": 0.5, "reward": {"mean": 0.1}, "reason": text, "go": True, "ids": [1]}],
        collects=[{"node": text, "selected": 4}],
        costs=[Cost(text, text, 1.5, 10, 20, 30), Cost("b", "gate", 0.1)],
        conversations=[Conversation(text, text, text, [*talks, Talk("none", None, "finished", [])])],
        notes=[(text, text)],
        problems=[text],
    )


def test_every_section_is_there_and_tags_balance():
    page = render(whole())
    for heading in ("Success by stage", "Gates", "Before and after", "Learning curves", "Data", "Cost", "Notes"):
        assert f"<h2>{heading}</h2>" in page
    parser = Balance()
    parser.feed(page.replace("<!doctype html>", ""))
    assert parser.stack == []
    assert "script" not in parser.seen
    assert page.count("<svg") == 2
    assert "25.0%" in page
    assert render(whole()) == page


def test_a_teacher_that_acts_is_neither_where_a_run_began_nor_where_it_came_to():
    data = whole()
    teacher = StageResult("teacher-elder", "", None, data.stages[0].sets)
    for stages in ([teacher, *data.stages], [*data.stages, teacher]):
        data.stages = stages
        page = render(data)
        assert "success of plain" in page
        assert "success of teacher-elder" not in page


def test_nothing_that_was_written_becomes_markup():
    page = render(whole(NASTY))
    parser = Balance()
    parser.feed(page.replace("<!doctype html>", ""))
    assert parser.seen.isdisjoint({"script", "img", "iframe", "link"})
    assert parser.stack == []
    assert "&lt;script&gt;" in page


def test_a_page_without_anything():
    page = render(ReportData("p", ""))
    assert "no gate" in page
    assert "<h2>" not in page


def test_without_durations_there_is_no_column_of_them():
    data = whole()
    data.costs = [Cost("a", "gate", None, 1.0)]
    page = render(data)
    assert ">seconds<" not in page
    assert "under notes/" in page


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_span_the_values(low: float, width: float):
    marks = ticks(low, low + width)
    assert marks[0] <= low + 1e-6 * (1 + abs(low) + width)
    assert marks[-1] >= low + width - 1e-6 * (1 + abs(low) + width)
    assert 2 <= len(marks) <= 9


def test_interval_chart_leaves_out_what_was_not_measured():
    chart = interval_chart("t", ["init", "rl"], [Series("sampled", [Dot(None), Dot(0.5, 0.4, 0.6)])])
    assert chart.count("<circle") == 1
    assert "0.500" in chart


@pytest.mark.parametrize(
    ("points", "lines", "dots"),
    [
        ([], 0, 0),
        ([(0, None)], 0, 0),
        ([(0, 1.0)], 0, 2),
        ([(0, 1.0), (1, 2.0)], 1, 1),
        ([(0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, 2.0)], 2, 1),
        ([(0, 5.0), (1, 5.0)], 1, 1),
    ],
)
def test_line_chart_has_gaps_where_values_are_missing(points: list[tuple[float, float | None]], lines: int, dots: int):
    chart = line_chart("t", points)
    assert (chart.count("<polyline"), chart.count("<circle")) == (lines, dots)
    assert not re.search(r"nan|inf", chart)
