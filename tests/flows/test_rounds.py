"""Rounds in the plan: what they consist of, what of it moves which key, and when a node of theirs is skipped."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.describe import flywheel_words
from flows.nodes import NODE_KINDS, outside_name, plan_from, round_of
from flows.plan import diff, save_bytes, statuses, totals
from flows.power import gate_powers
from flows.resolution import environments_of, wanted_aliases
from flows.smoke import smoke
from specs.flywheel import HardPool, Repair
from tests.flows.programs import MACHINE, SMALL, as_kept, changed, closure, moved, nodes, plan, program
from tests.flows.wheels import MAIN, TURNING, WHEEL

CHAMPION = {"version": 3, "digest": "d" * 64, "folder": "registry/small/v3"}
MADE = plan(TURNING)


def test_a_round_is_start_mine_cases_remedy_pools_stages_gate_and_publication() -> None:
    first = [n.id for n in MADE if round_of(n.id) == 1]
    assert first == [
        "round1.start", "round1.evidence", "round1.mine", "round1.cases", "round1.published.trained", "round1.remedy",
        "round1.pool.repaired", "round1.pool.hard", "round1.pool.successes", "round1.pool.anchor",
        "mend@1", "eval.mend@1.golden", "harden@1.collect1", "harden@1.fit1",
        "eval.harden@1.golden", "eval.harden@1.hidden", "eval.harden@1.regress",
        "gate.ship@1", "promote.ship@1", "round1.after", "round1.publish",
    ]  # fmt: skip
    found = nodes(MADE)
    assert found["round1.start"].inputs["policy.rl"] == "rl"
    assert found["round1.start"].inputs["gate"] == "gate.ship"
    assert set(found["round1.start"].inputs) == {"policy.rl", "gate"}, "evaluations move nothing that trains"
    assert found["round1.evidence"].params["sets"] == ["golden", "regress"]
    assert found["round1.evidence"].inputs["eval.rl.golden"] == "eval.rl.golden"
    assert found["round1.cases"].inputs["evidence"] == "round1.evidence"
    assert found["round1.mine"].inputs == {"policy": "round1.start", "data.train": "data.train", "apart": "data.apart"}
    assert found["mend@1"].inputs["data.repaired"] == "round1.pool.repaired"
    assert found["mend@1"].inputs["policy"] == "round1.start"
    assert found["harden@1.collect1"].inputs["data.train"] == "data.train"
    assert found["harden@1.collect1"].inputs["policy"] == "mend@1"
    assert found["round1.remedy"].inputs["train.demos"] == "data.demos"
    assert {"eval.golden", "eval.hidden", "eval.regress", "collect.harvest.collect1"} <= set(
        found["round1.remedy"].inputs
    )
    assert found["round1.after"].inputs["evaluated.golden"] == "eval.harden@1.golden"
    assert MADE.stages == ("teach", "harvest", "rl", "mend@1", "harden@1", "mend@2", "harden@2")


def test_conditions_are_inputs_and_inputs_come_before_their_readers() -> None:
    seen: set[str] = set()
    for node in MADE:
        assert set(node.inputs.values()) <= seen, node.id
        seen.add(node.id)
        assert node.passthrough is None or node.passthrough in node.inputs
        assert set(NODE_KINDS[node.kind].needs) <= set(node.inputs), node.id
        if node.when is not None:
            assert node.inputs["condition"] == node.when["node"]
    assert len({n.plan_key for n in MADE}) == len(MADE.nodes)
    assert save_bytes(plan_from(json.loads(save_bytes(MADE)))) == save_bytes(MADE)


def test_a_later_round_hangs_on_its_choice() -> None:
    found = nodes(MADE)
    second = [n for n in MADE if round_of(n.id) == 2 and n.id != "round2.choose"]
    assert all(n.when is not None for n in second)
    assert {n.when["node"] for n in second if n.when is not None} == {"round2.choose"}
    choice = found["round2.choose"]
    assert choice.inputs == {
        "evidence.1": "round1.evidence", "eval.1.harden@1": "eval.harden@1.golden", "gate.1": "gate.ship@1",
    }  # fmt: skip
    assert found["round2.start"].inputs["before"] == "round1.evidence"
    assert found["round2.evidence"].inputs["before"] == "round1.evidence"
    assert found["round2.pool.hard"].inputs["earlier"] == "round1.pool.hard"
    assert found["round2.publish"].inputs["previous"] == "round1.publish"
    assert found["promote.ship@2"].inputs["before"] == "promote.ship@1"
    third = nodes(plan(changed(changed(TURNING, "flywheel.rounds", 3), "flywheel.stop.no_gain_rounds", 2)))
    assert third["round3.choose"].when == {"node": "round2.choose", "go": True}
    assert third["round3.choose"].passthrough == "previous"
    assert {"evidence.1", "evidence.2", "gate.1", "gate.2"} <= set(third["round3.choose"].inputs)


def test_the_gate_of_a_round_looks_again_and_compares_with_the_champion_of_the_moment() -> None:
    gate = nodes(MADE)["gate.ship@2"]
    assert gate.inputs["evidence"] == "round2.evidence"
    assert (gate.inputs["earlier.ship"], gate.inputs["earlier.ship@1"]) == ("gate.ship", "gate.ship@1")
    assert gate.params["candidates"] == ["harden@2"]
    best = nodes(plan(changed(TURNING, "gates.ship.candidate", "best")))
    assert best["gate.ship@1"].params["candidates"] == ["mend@1", "harden@1"]
    assert set(best["round2.evidence"].inputs) >= {"policy.mend@1", "policy.harden@1", "eval.mend@1.golden"}
    assert set(best["round1.evidence"].inputs) >= {"policy.teach", "policy.rl", "eval.teach.golden"}
    stage = nodes(plan(changed(TURNING, "gates.ship.candidate", "harvest")))
    assert stage["gate.ship@1"].params["candidates"] == ["harden@1"], "a round's gate asks about its own last stage"
    assert stage["round1.start"].inputs["policy.harvest"] == "harvest.fit2"


def test_a_champion_may_be_where_a_round_starts() -> None:
    later = nodes(plan(TURNING, aliases={"champion": CHAMPION}))
    assert later["round1.start"].inputs["policy.champion"] == "policy.champion"
    assert later["round1.evidence"].inputs["eval.champion.golden"] == "eval.champion.golden"
    assert later["round1.start"].params["champion"] is True
    assert later["gate.ship@1"].inputs["baseline.golden"] == "eval.champion.golden"
    without = changed(changed(TURNING, "gates.ship.on_pass", "nothing"), "gates.ship.baseline", {"stage": "teach"})
    assert wanted_aliases(program(without)) == ["champion"]
    made = nodes(plan(without, aliases={"champion": CHAMPION}))
    assert "evidence" not in made["gate.ship@1"].inputs
    assert made["gate.ship"].params["champion"] is None, "the main part's gate does not need it"


def test_rounds_only_begin_with_the_champion_and_train_no_stage_of_the_main_part() -> None:
    whole, alone = (
        plan(TURNING, aliases={"champion": CHAMPION}),
        plan(TURNING, aliases={"champion": CHAMPION}, rounds_only=True),
    )
    found = nodes(alone)
    assert alone.stages == ("mend@1", "harden@1", "mend@2", "harden@2")
    assert not {"teach", "harvest.fit1", "rl", "gate.ship", "promote.ship", "eval.init.golden"} & set(found)
    assert {n.id for n in alone} <= {n.id for n in whole}
    assert not moved(whole, alone) & {n for n in found if n.startswith(("data.", "policy.", "eval.champion"))}
    assert found["round1.start"].inputs == {"policy.champion": "policy.champion"}
    assert found["round1.start"].params["candidates"] == ["champion"]
    assert found["round1.evidence"].inputs["eval.champion.golden"] == "eval.champion.golden"
    assert found["gate.ship@1"].inputs["baseline.golden"] == "eval.champion.golden"
    assert not [name for name in found["round1.remedy"].inputs if name.startswith("collect.")]
    assert list(alone.details["losses"]) == ["mend@round", "harden@round"]
    assert [s["id"] for s in found["report"].params["stages"]] == list(alone.stages)
    other = plan(changed(TURNING, "data.demos.seed", 5), aliases={"champion": CHAMPION}, rounds_only=True)
    moves = moved(alone, other)
    assert {"data.demos", "round1.remedy"} <= moves
    assert not {"round1.start", "policy.champion", "eval.champion.golden"} & moves
    as_kept(alone, "rounds_only")


def test_without_gates_and_regression_pool_a_round_starts_from_the_last_stage() -> None:
    data = changed({k: v for k, v in SMALL.items() if k != "gates"}, "flywheel", WHEEL)
    found = nodes(plan(data))
    assert found["round1.start"].params["promotes"] is False
    assert "gate" not in found["round1.start"].inputs
    assert found["round1.start"].params["candidates"] == ["rl"]
    assert found["round1.cases"].params["regression"] is None
    assert "gate.1" not in found["round2.choose"].inputs


def test_what_only_rounds_train_on_is_kept_apart_as_well() -> None:
    data = changed(TURNING, "data.more", {"kind": "problems", "environment": "desk", "size": 30})
    made = nodes(plan(changed(data, "flywheel.mine.from", ["more"])))
    assert set(made["data.apart.rounds"].inputs) == {
        "train.demos", "train.train", "train.more", "eval.golden", "eval.hidden", "eval.regress",
    }  # fmt: skip
    assert made["mend@1"].inputs["apart"] == "data.apart.rounds"
    assert made["teach"].inputs["apart"] == "data.apart"


def test_a_set_that_is_asked_judges_in_rounds_too_whatever_its_role() -> None:
    dev = {"kind": "problems", "environment": "desk", "size": 30, "seed": 5, "role": "train"}
    data = changed(changed(TURNING, "data.dev", dev), "evaluation.sets", ["golden", "dev"])
    made = nodes(plan(changed(data, "flywheel.causes_from", ["golden", "dev"])))
    assert made["data.apart"].inputs["eval.dev"] == "data.dev"
    assert "data.apart.rounds" not in made
    assert made["mend@1"].inputs["apart"] == "data.apart"
    assert made["round1.remedy"].inputs["eval.dev"] == "data.dev"
    assert "train.dev" not in made["round1.remedy"].inputs
    assert made["round1.cases"].params["sources"] == {"train": "train", "golden": "golden", "dev": "golden"}
    assert made["round1.after"].params["sources"] == {"golden": "golden", "dev": "golden"}


def test_the_end_of_a_round_sees_which_stages_ran() -> None:
    made = nodes(MADE)["round2.publish"]
    assert made.params["stages"] == [
        {"id": "stage.mend", "from": "start", "pools": ["anchor", "repaired", "successes"]},
        {"id": "stage.harden", "from": "stage.mend", "pools": ["hard"]},
    ]
    assert made.inputs["start"] == "round2.start"
    assert (made.inputs["stage.mend"], made.inputs["stage.harden"]) == ("mend@2", "harden@2.fit1")


def test_successes_of_all_rounds_and_anchors_of_one_are_held_to_their_size() -> None:
    made = nodes(plan(changed(TURNING, "flywheel.pools", {"anchor": 7, "successes": 9})))
    assert [made[f"round2.pool.{p}"].params["size"] for p in ("anchor", "successes")] == [7, 9]
    assert made["round2.pool.successes"].inputs["earlier"] == "round1.pool.successes"
    assert "earlier" not in made["round2.pool.anchor"].inputs


# --- keys

OF_ALL = {"report"}
"""What is told of a whole run is told of its rounds too."""


def test_a_flywheel_moves_no_key_of_the_main_part() -> None:
    before = plan(MAIN)
    assert moved(before, MADE) == {n.id for n in MADE if round_of(n.id)} | OF_ALL
    assert [n.id for n in before if n.id not in nodes(MADE)] == []


@settings(max_examples=25, deadline=None)
@given(
    problems=st.integers(1, 500),
    rounds=st.integers(1, 3),
    sources=st.sampled_from([["train"], ["more"], ["train", "more"]]),
    default=st.sampled_from(["ask_person", "ticket", "repair", "hard_pool", "stop_for_reward_fix"]),
    weight=st.floats(0.1, 3.0),
)
def test_no_flywheel_moves_a_key_of_the_main_part(
    problems: int, rounds: int, sources: list[str], default: str, weight: float
) -> None:
    more = changed(MAIN, "data.more", {"kind": "problems", "environment": "unused", "size": 30})
    wheel = {**WHEEL, "mine": {"from": sources, "problems": problems}, "rounds": rounds, "default": default}
    wheel = changed(wheel, "round.stages.0.data.anchor", weight)
    before, after = plan(more), plan({**more, "flywheel": wheel})
    changed_keys = moved(before, after) - OF_ALL
    assert all(round_of(i) or i == "data.apart.rounds" or i in {f"data.{s}" for s in sources} for i in changed_keys)
    assert not [n.id for n in before if n.id not in nodes(after)]


@settings(max_examples=15, deadline=None)
@given(
    run=st.fixed_dictionaries(
        {}, optional={"threads": st.integers(1, 64), "parallel": st.integers(1, 8), "rollout_batch": st.integers(1, 9)}
    ),
    hours=st.floats(0.1, 100),
)
def test_an_execution_setting_never_moves_a_key_of_a_round(run: dict[str, Any], hours: float) -> None:
    assert moved(MADE, plan({**TURNING, "run": run, "budget": {"wall_hours": hours}})) == set()


BEGINNINGS = ("round1.start", "round1.evidence", "round2.start", "round2.evidence")
CHANGES: list[tuple[str, Any, tuple[str, ...]]] = [
    ("flywheel.mine.problems", 61, ("round1.mine", "round2.mine")),
    ("flywheel.remedies.argument.quota", 41, ("round1.remedy", "round2.remedy")),
    ("flywheel.default", "ticket", ("round1.remedy", "round2.remedy")),
    ("flywheel.siblings", {"per_case": 3}, ("round1.remedy", "round2.remedy")),
    ("flywheel.pools", {"anchor": 7}, ("round1.remedy", "round2.remedy")),
    ("flywheel.round.start_from", "candidate", BEGINNINGS),
    ("flywheel.round.stages.0.algorithm.epochs", 2.0, ("mend@1", "mend@2")),
    ("flywheel.round.stages.0.data", {"anchor": 1.0, "repaired": 1.0, "successes": 1.0}, ("mend@1", "mend@2")),
    ("flywheel.stop.no_gain_rounds", 2, ("round2.choose",)),
    ("flywheel.stop.gain_on", "hidden", ("round1.evidence", "round2.evidence", "round2.choose")),
]


@pytest.mark.parametrize(("path", "value", "roots"), CHANGES, ids=[p for p, _, _ in CHANGES])
def test_a_change_moves_exactly_what_depends_on_it(path: str, value: Any, roots: tuple[str, ...]) -> None:
    assert moved(MADE, plan(changed(TURNING, path, value))) == closure(MADE, *roots)


def test_a_third_round_keeps_the_two_before_it() -> None:
    other = plan(changed(TURNING, "flywheel.rounds", 3))
    assert moved(MADE, other) == {n.id for n in other if round_of(n.id) == 3} | OF_ALL
    assert diff(MADE, other).changed.keys() == OF_ALL


def test_a_published_pool_is_part_of_the_key_of_what_reads_it() -> None:
    version = {"version": 2, "digest": "a" * 64, "rows": 7, "path": "pools/small/regression/v2"}
    known = plan(TURNING, pools={"regression": version})
    assert known.rows["regress"] == 7
    assert "data.regress" in moved(MADE, known)
    elsewhere = plan(TURNING, pools={"regression": {**version, "path": "other"}})
    assert moved(known, elsewhere) == set(), "where it lies is no part of it"


# --- what a reader is told


def test_the_golden_plan_of_a_flywheel() -> None:
    as_kept(MADE, "flywheel")


def test_estimates_follow_the_pools() -> None:
    found = nodes(MADE)
    assert found["round1.mine"].estimate.rollouts == 60 * 2
    assert {k: MADE.rows[k] for k in ("repaired", "hard", "successes", "anchor")} == {
        "repaired": 60, "hard": 30, "successes": 120, "anchor": 400,
    }  # fmt: skip
    assert found["mend@1"].estimate.tokens == (400 + 60 + 120) * 50
    assert found["harden@1.collect1"].estimate.rollouts == (30 + 100) * 4
    assert MACHINE["memory_gb"] > max(n.estimate.memory_gb for n in MADE)


def test_the_plan_says_which_nodes_are_conditional_and_what_gates_can_see() -> None:
    found = statuses(MADE, None)
    assert str(found["round2.mine"]) == "maybe: only if round2.choose says go: true"
    assert totals(MADE, found)["conditional"] == sum(n.when is not None for n in MADE)
    powers = {(p.gate, p.metric, p.set): p for p in gate_powers(MADE)}
    first, second = powers["ship", "success", "hidden"], powers["ship@1", "success", "hidden"]
    assert second.alpha < first.alpha, "each round spends a look"
    assert powers["ship", "regressed_cases", "regress"].text == "not applicable while the pool holds no case"
    assert powers["ship@1", "success", "golden"].text.startswith("against the champion as the round begins")
    used_up = {
        p.gate: p.decidable for p in gate_powers(plan(changed(TURNING, "gates.ship.looks", 2))) if p.set == "hidden"
    }
    assert used_up == {"ship": True, "ship@1": True, "ship@2": False}


def test_a_round_is_told_in_words() -> None:
    said = program(TURNING).flywheel
    assert said is not None
    words = flywheel_words(said)
    assert words["mined"].startswith(
        "60 problems of train, each tried 2 times at temperature 1; failures on golden count"
    )
    assert "argument: the clerk solves siblings, at most 40 of them, for the pool repaired" in words["remedies"]
    assert words["remedies"].endswith("every other cause: a person is asked")
    assert words["stages"] == (
        "mend (sft) from anchor 50%, repaired 30%, successes 20%; harden (rft) from hard 50%, train 50%"
    )
    assert words["rounds"] == "at most 2; no further one after a round without a gain in success on golden"
    assert MADE.details["flywheel"] == words
    assert set(MADE.details["losses"]) == {"teach", "harvest", "rl", "mend@round", "harden@round"}


def test_environments_of_pools_are_those_of_what_is_mined() -> None:
    whole = program(TURNING)
    assert environments_of(whole, "repaired") == ["desk"]
    assert environments_of(whole, "regress") == ["desk"]
    assert set(nodes(MADE)["mend@1"].params["environments"]) == {"desk"}


def test_the_smallest_form_has_one_small_round() -> None:
    small = smoke(program(TURNING))
    assert small.flywheel is not None
    assert small.flywheel.rounds == 1
    assert small.flywheel.mine.problems == 12
    assert max(r.quota for r in small.flywheel.remedies.values() if isinstance(r, Repair | HardPool)) == 12
    from flows.compile import compile
    from tests.flows.programs import resolution

    made = compile(small, resolution(TURNING))
    assert [n.id for n in made if round_of(n.id)][:3] == ["round1.start", "round1.evidence", "round1.mine"]


@pytest.mark.parametrize(
    ("node_id", "number"),
    [
        ("round1.start", 1), ("round12.pool.hard", 12), ("mend@1", 1), ("eval.mend@2.golden", 2), ("gate.ship@3", 3),
        ("harden@1.collect1", 1), ("teach", 0), ("eval.champion.golden", 0), ("rounds.start", 0),
    ],
)  # fmt: skip
def test_the_round_of_a_node_is_read_from_its_id(node_id: str, number: int) -> None:
    assert round_of(node_id) == number


def test_names_told_to_services_hold_no_sign_that_they_refuse() -> None:
    names = [outside_name(n.id) for n in MADE]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w./: -]+", n) for n in names)
    assert outside_name("gate.ship@1") == "gate.ship.round1"
