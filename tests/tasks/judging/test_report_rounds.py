"""The report's section on rounds."""

from typing import Any

from tasks.judging.report import render
from tasks.judging.report_data import ReportData, RoundData, final_candidate
from tasks.judging.report_rounds import render_rounds


def figure(count: int, share: float) -> dict[str, Any]:
    return {"count": count, "share": share, "low": share - 0.05, "high": share + 0.05}


def found(**causes: dict[str, Any]) -> dict[str, Any]:
    return {"problems": 100, "judged": 200, "failures": sum(c["count"] for c in causes.values()), "causes": causes}


ROUND = RoundData(
    number=1, start="rl", why="it was promoted <just> before",
    before={"train": found(argument=figure(30, 0.15)), "golden": found(loop=figure(8, 0.04), argument=figure(20, 0.1))},
    after={"golden": found(argument=figure(6, 0.06))},
    pools={"repaired": {"records": 40, "dropped": {}}, "successes": {"records": 90, "dropped": {"not_verified": 3}}},
    remedies={"repair": 25}, siblings={"made": 40, "refused": {"twin": 2}, "unsolved": {}, "impossible": {}}, asks=2,
)  # fmt: skip
GATE = {"gate": "ship@1", "answer": "pass", "sentence": "mend@1 meets its requirement"}


def test_a_round_shows_causes_before_and_after_pools_and_its_gate() -> None:
    page = render_rounds([ROUND], [GATE, {**GATE, "gate": "ship@2", "sentence": "another"}])
    assert "Round 1" in page
    assert "promoted &lt;just&gt; before" in page
    for head in ("train", "golden, before", "golden, after"):
        assert f">{head}</th>" in page
    assert page.index("argument") < page.index(">loop<"), "the most frequent cause comes first"
    assert '20 · 0.100 <span class="hint">[0.050, 0.150]</span>' in page
    assert '6 · 0.060 <span class="hint">[0.010, 0.110]</span>' in page
    assert "<b>28</b> of 200" in page
    assert "3 not verified" in page
    assert "40 siblings made, 2 draws refused or unsolved" in page
    assert "2 cases wait for a person" in page
    assert "Gate ship@1: pass." in page
    assert "another" not in page


def test_without_rounds_there_is_no_section() -> None:
    assert render_rounds([], []) == ""
    assert "<h2>Rounds</h2>" not in render(ReportData("desk", ""))
    assert "<h2>Rounds</h2>" in render(ReportData("desk", "", rounds=[ROUND]))


def test_a_run_comes_to_the_last_candidate_whose_gate_did_not_fail() -> None:
    gates = [{"candidate": "rl", "answer": "pass"}, {"candidate": "mend@1", "answer": "fail"}]
    assert final_candidate(gates) == "rl"
    assert final_candidate([gates[0], {"candidate": "mend@1", "answer": "inconclusive"}]) == "mend@1"
    assert (
        final_candidate([{"candidate": "rl", "answer": "fail"}, {"candidate": None, "answer": "inconclusive"}]) == "rl"
    )
    assert final_candidate([]) is None
