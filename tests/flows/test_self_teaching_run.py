"""Self-taught stages and short distillation as nodes, through real rollouts on the order desk."""

from typing import Any

import pytest

from flows.work import opd, policy_gradient
from specs.errors import DataError
from specs.optimizer import Optimizer
from specs.self_teaching import RLSD, Privileged, SelfEvolve, Snapshot, SuccessDistill
from specs.short_opd import ByRepetition, ShortOPD
from specs.teachers import PrivilegedTeacher
from tasks.episodes.shards import read_shards, write_shards
from tasks.policy.store import load_policy
from tests.flows.test_stages import JUDGED, ROLL, base, grpo_node, node, read

__all__ = ["base"]
SHAPE: dict[str, Any] = {
    "group_size": 4,
    "problems_per_step": 4,
    "steps": 2,
    "optimizer": Optimizer(learning_rate=1e-3),
}


@pytest.fixture
def go(tmp_path):
    folder = tmp_path / "go"
    folder.mkdir()
    (folder / "decision.json").write_text('{"go": true, "reason": ""}')
    return folder


def test_a_privileged_self_is_shown_the_environments_solution(base, tmp_path, go):
    _, at = base
    shown = Privileged(shows=["reference"], max_tokens=60)
    made = grpo_node(tmp_path, at, go, RLSD(type="rlsd", form="redistribute", privileged=shown, **SHAPE))
    outcome = policy_gradient.train(made)
    first = read(made.out / "curve.json")["steps"][0]
    assert first["privileged"] == 1.0
    assert first["redistributed"] > 0
    assert outcome.cost["rollouts"] == 32


def test_an_evolving_stage_learns_from_its_frozen_self_and_from_others(base, tmp_path, go):
    _, at = base
    spec = SelfEvolve(
        type="self_evolve",
        success_distill=SuccessDistill(coef=0.5, tokens="tool_call", exploration=0.5),
        snapshot=Snapshot(every=1, min_gain=-1.0),
        experience=["first"],
        experience_per_step=3,
        **SHAPE,
    )
    first = grpo_node(tmp_path / "first", at, go, RLSD(type="rlsd", **SHAPE))
    policy_gradient.train(first)
    kept = list(read_shards(first.out / "trajectories"))
    assert len(kept) == 32, "the frozen self's rollouts are kept too"
    assert {v.split("/")[1][:6] for t in kept for v, _ in t.policy_versions} == {"0", "1", "frozen"}
    made = grpo_node(tmp_path / "second", at, go, spec)
    made.inputs["experience.first"] = first.out
    policy_gradient.train(made)
    steps = read(made.out / "curve.json")["steps"]
    assert [line["frozen_version"] for line in steps] == [0, 1]
    assert all(line["taught"] >= 1 and line["taught_loss"] > 0 for line in steps)
    assert "curriculum_seen" in steps[0]
    write_shards(tmp_path / "failures" / "trajectories", [t for t in kept if not t.success])
    made = grpo_node(tmp_path / "third", at, go, spec)
    made.inputs["experience.first"] = tmp_path / "failures"
    with pytest.raises(DataError, match="hold no verified success"):
        policy_gradient.train(made)


@pytest.mark.parametrize("kind", ["privileged", "earlier_self"])
def test_short_distillation_from_a_self(base, tmp_path, kind):
    _, at = base
    spec = ShortOPD(
        type="short_opd",
        group_size=2,
        problems_per_step=8,
        steps=2,
        min_coverage=0.0,
        length=ByRepetition(kind="by_repetition", start=16, least=8, most=24, every=1),
    )
    told = PrivilegedTeacher(kind="privileged", shows=["reference"]).model_dump(mode="json")
    params = (
        JUDGED
        | ROLL
        | {
            "algorithm": spec,
            "teachers": {"self": told if kind == "privileged" else {"kind": kind, "of": "start"}},
            "routing": [{"when": None, "teachers": {"self": 1.0}, "reject": False, "history": None}],
        }
    )
    inputs = {"policy": at["init"], "data.train": at["data.train"], "teacher.self": at["taught"]}
    made = node(tmp_path, "recover", inputs, params)
    outcome = opd.train(made)
    steps = read(made.out / "curve.json")["steps"]
    assert steps[0]["completion_limit"] == 16
    assert steps[0]["coverage"] > 0.5
    assert {"looping", "kept_tokens", "gap"} <= set(steps[0])
    assert (outcome.metrics["completion_limit"] or 0) <= 24
    assert load_policy(made.out / "policy").config.layers == 1
