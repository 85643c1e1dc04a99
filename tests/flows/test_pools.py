"""Published pools: numbered versions that are whole, never change, and are found again."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows import pools
from flows.pools import newest, publish, records, versions
from flows.resolve import resolve
from flows.state import State
from flows.work.published import published
from specs.errors import StateError
from tests.flows.programs import SMALL, changed, nodes, plan, program
from tests.flows.test_judging import node
from tests.flows.wheels import MAIN, TURNING, WHEEL

ROWS: list[dict[str, Any]] = [{"id": "a", "type": "mail"}, {"id": "b", "type": "stock"}]


def test_a_version_is_published_once_for_the_same_records(tmp_path: Path) -> None:
    assert newest(tmp_path, "desk", "regression") is None
    first = publish(tmp_path, "desk", "regression", ROWS, {"round": 1})
    again = publish(tmp_path, "desk", "regression", ROWS, {"round": 2})
    assert (first.version, again.version, first.rows) == (1, 1, 2)
    assert again.about == {"round": 1}
    third = publish(tmp_path, "desk", "regression", [*ROWS, {"id": "c", "type": "mail"}], {"round": 2})
    assert third.version == 2
    assert [v.version for v in versions(tmp_path, "desk", "regression")] == [1, 2]
    assert newest(tmp_path, "desk", "regression") == third
    assert records(tmp_path, first) == ROWS
    assert records(tmp_path, third.resolved())[-1]["id"] == "c"
    assert pools.programs(tmp_path) == ["desk"]


def test_an_empty_pool_is_a_version_too(tmp_path: Path) -> None:
    made = publish(tmp_path, "desk", "regression", [], {})
    assert (made.version, made.rows, records(tmp_path, made)) == (1, 0, [])


def test_a_damaged_or_lost_version_is_named_with_its_remedy(tmp_path: Path) -> None:
    made = publish(tmp_path, "desk", "regression", ROWS, {})
    path = tmp_path / made.path / "records.jsonl"
    path.write_text(path.read_text().replace("mail", "mial"))
    with pytest.raises(StateError, match=r"a published pool is damaged .* restore it from a copy"):
        records(tmp_path, made)
    path.unlink()
    with pytest.raises(StateError, match="a published pool lost its records"):
        records(tmp_path, made)
    (tmp_path / made.path / "version.json").write_text("{")
    with pytest.raises(StateError, match="damaged version of a pool"):
        newest(tmp_path, "desk", "regression")


def test_a_program_is_resolved_to_the_newest_version_and_keeps_it_until_refresh(tmp_path: Path) -> None:
    state, what = State(tmp_path), program(MAIN)
    state.prepare()
    first = resolve(what, state_view=state, environ={})
    assert first.pools == {"regression": None}
    (tmp_path / "programs" / "small").mkdir()
    last = tmp_path / "programs" / "small" / "last.json"
    last.write_text(json.dumps({"resolution": first.to_dict()}))
    made = publish(tmp_path, "small", "regression", ROWS, {})
    assert resolve(what, state_view=state, environ={}).pools == {"regression": None}, "an unchanged program keeps it"
    fresh = resolve(what, state_view=state, environ={}, refresh=True)
    assert fresh.pools == {"regression": made.resolved()}


def test_a_flywheel_is_resolved_to_what_was_held_back_and_trained_whatever_its_data_sets(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.prepare()
    made = {
        name: publish(tmp_path, "small", name, ROWS, {}).resolved() for name in ("answered", "regression", "trained")
    }
    data = changed(SMALL, "flywheel", WHEEL)
    assert resolve(program(data), state_view=state, environ={}).pools == made
    found = nodes(plan(data, pools=made))
    assert found["round1.remedy"].inputs["published.trained"] == "round1.published.trained"
    assert found["round2.remedy"].inputs["published.regression"] == "round1.published.regression"
    assert found["round1.published.trained"].params["version"] == made["trained"]
    declared = nodes(plan(TURNING, pools=made))
    assert declared["round1.remedy"].inputs["published.regression"] == "data.regress"
    assert "round1.published.regression" not in declared


def test_the_data_node_writes_what_was_resolved(tmp_path: Path) -> None:
    made = publish(tmp_path, "desk", "regression", ROWS, {})
    body = node(tmp_path, {"name": "regress", "pool": "regression", "version": made.resolved()}, {}, "data.published")
    body.execution["home"] = str(tmp_path)
    assert published(body).metrics == {"records": 2.0}
    assert [json.loads(x) for x in (body.out / "records.jsonl").read_text().splitlines()] == ROWS
    assert json.loads((body.out / "summary.json").read_text()) == {
        "records": 2, "by_type": {"mail": 1, "stock": 1}, "version": 1,
    }  # fmt: skip
    empty = node(tmp_path, {"name": "regress", "pool": "regression", "version": None}, {}, "data.published")
    empty.execution["home"] = str(tmp_path)
    assert published(empty).notes == ["regression: nothing was published yet, so it is empty"]
    assert (empty.out / "records.jsonl").read_text() == ""
