"""When a program runs by itself, and who is told: what is refused, and with which words."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.loader import load_program
from specs.schedule import Schedule
from tests.specs.programs import BASE, refused


def _schedule(text: str) -> str:
    return f"{BASE}schedule: {{nightly: {text}}}\n"


def test_what_is_left_out_of_a_schedule(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(_schedule('{cron: "0  3 * * mon-fri"}'))
    found = load_program(path).program.schedule["nightly"]
    assert found == Schedule(cron="0 3 * * mon-fri")
    assert (found.timezone, found.overlap, found.catchup, found.active) == ("UTC", "skip", "latest", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{cron: "0 3 * *"}', "with 4 fields, expected five (minute hour day month weekday)"),
        ('{cron: "@daily"}', "with 1 fields, expected five"),
        ('{cron: "60 3 * * *"}', "found '60' as the minute, expected *, a number from 0 to 59"),
        ('{cron: "0 25 * * *"}', "found '25' as the hour"),
        ('{cron: "0 3 0 * *"}', "found '0' as the day"),
        ('{cron: "0 3 * foo *"}', "found 'foo' as the month, expected *, a number from 1 to 12 (or jan to dec)"),
        ('{cron: "0 3 * * 5-2"}', "found '5-2' as the weekday"),
        ('{cron: "*/0 3 * * *"}', "found '*/0' as the minute"),
        ('{cron: "0 0 31 2,4 *"}', "which never comes: no such month has a day 31"),
        ('{cron: "0 3 * * *", timezone: Europe/Berln}', "did you mean Europe/Berlin?"),
        ('{cron: "0 3 * * *", timezone: "../etc"}', "expected a time zone such as UTC"),
        ('{cron: "0 3 * * *", timezone: ""}', "expected a time zone such as UTC"),
        (
            '{cron: "0 3 * * *", overlap: queue}',
            "schedule.nightly.overlap: found 'queue', expected one of skip or wait",
        ),
        ("{timezone: UTC}", "schedule.nightly.cron: is missing"),
    ],
)
def test_a_schedule_that_would_not_run_as_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, _schedule(text))


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    pair = st.tuples(number, number).map(sorted).map(lambda p: f"{p[0]}-{p[1]}")
    one = st.one_of(st.just("*"), number.map(str), pair, st.integers(1, high).map(lambda n: f"*/{n}"))
    return st.lists(one, min_size=1, max_size=3).map(",".join)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.tuples(_field(0, 59), _field(0, 23), _field(1, 28), _field(1, 12), _field(0, 6)).map(" ".join))
def test_what_is_accepted_is_accepted_by_prefect_too(cron: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    assert CronSchedule(cron=Schedule(cron=cron).cron, timezone="UTC").cron == cron


@pytest.mark.parametrize("text", ['{webhook: "${env:URL}"}', '{command: [curl, "-H", "Auth: ${env:KEY}"]}'])
def test_a_hook_may_refer_to_the_environment(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"{BASE}notify: {text}\n")
    assert [r.name for r in load_program(path).references] in (["URL"], ["KEY"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{on: [held]}", "expected exactly one of command and webhook"),
        ('{command: [mail], webhook: "${env:URL}"}', "expected exactly one of command and webhook"),
        ("{webhook: 'https://hooks.example/T0/B0'}", "expected a reference such as ${env:NOTIFY_URL}"),
        ("{command: []}", "expected at least 1 entry"),
        ("{command: [mail], on: []}", "expected at least 1 entry"),
        ("{command: [mail], on: [heldd]}", "did you mean held?"),
        ("{command: [mail], timeout_seconds: 600}", "notify.timeout_seconds"),
        ("{command: [curl, 'Bearer abcdefghi']}", "${env:"),
    ],
)
def test_a_hook_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    message = refused(tmp_path, f"{BASE}notify: {text}\n")
    assert said in message
    assert "abcdefghi" not in message
