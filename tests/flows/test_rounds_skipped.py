"""When a node of a round is skipped, and what it says then."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.conditions import skip_reason
from flows.estimates import Estimate
from flows.nodes import Node, Plan, node_from, round_of
from specs.errors import StateError
from tests.flows.programs import changed, nodes, plan
from tests.flows.wheels import TURNING

GOLDEN = Path(__file__).parent / "golden" / "flywheel.json"
MADE = plan(TURNING)


def _node(kind: str, params: dict[str, Any], inputs: dict[str, str]) -> Node:
    return node_from({
        "id": "n", "kind": kind, "version": 1, "params": params, "seed": 1, "inputs": inputs, "plan_key": "",
        "resources": {"threads": 1}, "estimate": Estimate().to_dict(),
    })  # fmt: skip


def _pool(folder: Path, records: Any) -> Path:
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"records": records}))
    return folder


def test_a_stage_of_which_every_pool_is_empty_is_skipped(tmp_path: Path) -> None:
    none, some = _pool(tmp_path / "none", 0), _pool(tmp_path / "some", 3)
    reads = {"data.repaired": "round1.pool.repaired", "data.anchor": "round1.pool.anchor"}
    node = _node("train.sft", {"data": {"repaired": 1, "anchor": 1}, "of_round": ["repaired", "anchor"]}, reads)
    assert skip_reason(node, {"data.repaired": none, "data.anchor": none}, {}) == (
        "nothing to train on: repaired, anchor are empty"
    )
    assert skip_reason(node, {"data.repaired": none, "data.anchor": some}, {}) is None
    mixed = _node(
        "collect", {"data": {"hard": 1, "train": 1}, "of_round": ["hard"]}, {"data.hard": "a", "data.train": "b"}
    )
    assert skip_reason(mixed, {"data.hard": none, "data.train": some}, {}) is None, "a data set is left to train on"
    (none / "summary.json").write_text("{}")
    with pytest.raises(StateError, match="does not say how many records the pool holds"):
        skip_reason(node, {"data.repaired": none, "data.anchor": some}, {})


def test_what_needs_a_skipped_node_is_skipped_with_it(tmp_path: Path) -> None:
    fit = _node("train.rft", {"data": {"hard": None}}, {"policy": "mend@1", "collect": "harden@1.collect1"})
    assert skip_reason(fit, {"policy": tmp_path}, {}) == "harden@1.collect1 was skipped"
    assert skip_reason(fit, {"policy": tmp_path, "collect": tmp_path}, {}) is None


def test_a_held_remedy_gives_no_pool_and_trains_nothing(tmp_path: Path) -> None:
    pool = _node("data.pool", {"pool": "hard"}, {"remedy": "round1.remedy"})
    assert skip_reason(pool, {"remedy": tmp_path}, {"remedy": "held"}) == "round1.remedy is held"
    assert skip_reason(pool, {"remedy": tmp_path}, {"remedy": "completed"}) is None
    stage = _node(
        "collect", {"data": {"hard": 1, "train": 1}, "of_round": ["hard"]}, {"data.hard": "p", "data.train": "t"}
    )
    assert skip_reason(stage, {"data.train": tmp_path}, {}) == "p was skipped"


def walk(
    of: Plan, folder: Path, decisions: dict[str, dict[str, Any]], results: dict[str, str] | None = None
) -> dict[str, str | None]:
    """Return for each node why it is skipped, None where it runs; what is not said decides for going on."""
    out: dict[str, Path] = {}
    told: dict[str, str | None] = {}
    for node in of:
        given = {name: out[source] for name, source in node.inputs.items() if source in out}
        ended = {name: (results or {}).get(source, "completed") for name, source in node.inputs.items()}
        told[node.id] = skip_reason(node, given, ended)
        if told[node.id] is None:
            out[node.id] = at = folder / node.id
            at.mkdir()
            (at / "summary.json").write_text('{"records": 5}')
            (at / "decision.json").write_text(json.dumps({"go": True, "continue": True, **decisions.get(node.id, {})}))
        elif node.passthrough in given:
            out[node.id] = given[node.passthrough]
    return told


BEST = changed(TURNING, "gates.ship.candidate", "best")


def test_every_policy_that_a_round_offers_is_evaluated_on_what_decides_about_further_rounds() -> None:
    data = changed(changed(BEST, "data.far", {**BEST["data"]["golden"], "size": 20}), "flywheel.stop.gain_on", "far")
    made = nodes(plan(changed(data, "evaluation.at_the_end", ["golden", "hidden", "regress", "far"])))
    assert {i: n for i, n in made["round2.choose"].inputs.items() if i.startswith("eval.")} == {
        "eval.1.mend@1": "eval.mend@1.far", "eval.1.harden@1": "eval.harden@1.far",
    }  # fmt: skip
    assert made["eval.mend@2.regress"].when == {"node": "round2.choose", "go": True}


def test_of_a_round_that_is_left_out_nothing_is_evaluated(tmp_path: Path) -> None:
    told = walk(plan(changed(BEST, "flywheel.rounds", 3)), tmp_path, {"round2.choose": {"go": False}})
    assert [i for i, why in told.items() if round_of(i) > 1 and why is None] == ["round2.choose"]
    assert told["eval.mend@2.regress"] == "round2.choose decided go: false"
    gone = _node("evaluate", {}, {"policy": "mend@1", "problems": "data.golden"})
    assert skip_reason(gone, {"problems": tmp_path}, {}) == "mend@1 was skipped"


def test_a_round_that_is_stopped_for_the_reward_trains_judges_and_promotes_nothing(tmp_path: Path) -> None:
    data = changed(TURNING, "flywheel.remedies.reward_hack", {"do": "stop_for_reward_fix"})
    data = changed(data, "flywheel.round.stages.1.data", ["train"])
    made = plan(changed(data, "flywheel.remedies.premature_stop", {"do": "ticket"}))
    stop = {"go": False, "held": "round1.remedy"}
    told = walk(made, tmp_path, {"round1.proceed": stop, "round2.choose": {"go": False}}, {"round1.remedy": "held"})
    begun = ["start", "evidence", "mine", "cases", "published.trained", "remedy", "proceed", "publish"]
    assert [i for i, why in told.items() if round_of(i) == 1 and why is None] == [f"round1.{name}" for name in begun]
    for node in ("mend@1", "harden@1.collect1", "eval.mend@1.golden", "gate.ship@1", "promote.ship@1", "round1.after"):
        assert told[node] == "round1.remedy is held"
    found = nodes(made)
    assert found["round2.choose"].inputs["proceed"] == "round1.proceed"
    assert found["round2.publish"].when == {"node": "round2.choose", "go": True}
    assert found["mend@2"].when == {"node": "round2.proceed", "go": True}
    assert "round1.remedy" not in found["mend@1"].inputs.values(), "what the remedies write moves no key of a stage"


def test_a_round_that_nothing_stops_has_no_decision_about_it() -> None:
    assert not [n.id for n in MADE if n.kind == "round.proceed"]
    assert nodes(MADE)["mend@1"].when is None
