"""Self-taught stages and short distillation as nodes, through real rollouts on the order desk."""

import json
from typing import Any

import pytest
import torch

from flows.work import opd, panels, policy_gradient, self_teaching
from specs.data import Apart
from specs.distillation import FullVocabulary, SampledTokens
from specs.errors import DataError, Interrupted, ProgramError, TrainingError
from specs.optimizer import Optimizer
from specs.records import to_dict
from specs.self_teaching import RLSD, CollapseGuard, Growth, Privileged, SelfEvolve, Snapshot, SuccessDistill
from specs.short_opd import ByRepetition, ShortOPD
from specs.teachers import PrivilegedTeacher
from tasks.episodes.environments import environment_for
from tasks.episodes.seeds import derive
from tasks.episodes.shards import read_shards, write_shards
from tasks.loops.token_lessons import Panel
from tasks.policy.initial import from_scratch
from tasks.policy.store import load_policy, save_policy
from tests.flows.test_stages import DESK, JUDGED, POLICY, ROLL, SCRATCH, base, grpo_node, node, read, weights

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


GROWING = SelfEvolve(
    type="self_evolve",
    growth=Growth(share=0.5, calls=[2]),
    success_distill=SuccessDistill(exploration=0.5),
    **{**SHAPE, "steps": 3},
)


def growing_node(folder, at, go, judging, **more):
    made = grpo_node(folder, at, go, GROWING, **more)
    made.inputs["eval.hidden"] = judging
    made.params["apart"] = Apart().model_dump(mode="json")
    return made


def test_made_problems_grow_keep_apart_and_resume_bit_for_bit(base, tmp_path, go):
    _, at = base
    judging = tmp_path / "judging"
    judging.mkdir()
    (judging / "records.jsonl").write_text("")
    free = growing_node(tmp_path / "free", at, go, judging)
    policy_gradient.train(free)
    known = {json.loads(x)["id"] for x in (at["data.train"] / "records.jsonl").read_text().splitlines()}
    own = {t.problem_id for t in read_shards(free.out / "trajectories")} - known
    assert len(own) == 6, "half of the problems of each step are new"
    desk = environment_for("desk", DESK)
    seeds = [derive(derive(11, "growth", 2, 0), "desk")]
    texts = {p.id: p for seed in seeds for p in desk.problems("train", 128, seed)}
    assert own <= set(texts)
    (judging / "records.jsonl").write_text("".join(json.dumps(to_dict(texts[i])) + "\n" for i in sorted(own)))

    whole = growing_node(tmp_path / "whole", at, go, judging)
    outcome = policy_gradient.train(whole)
    again = {t.problem_id for t in read_shards(whole.out / "trajectories")} - known
    assert len(again) == 6
    assert not again & own, "what the set that judges holds is never rolled out"
    assert any("6 drawn ones were refused" in n for n in outcome.notes)
    assert any(n.startswith("problems made anew, by calls 2: steps 1 to 1: 100%") for n in outcome.notes)
    assert outcome.metrics["made_2_calls"] == 1.0

    stops = iter([False] * 2 + [True] * 99)
    killed = growing_node(tmp_path / "killed", at, go, judging, stop=lambda: next(stops))
    with pytest.raises(Interrupted):
        policy_gradient.train(killed)
    resumed = growing_node(tmp_path / "killed", at, go, judging)
    policy_gradient.train(resumed)
    assert read(resumed.out / "curve.json") == read(whole.out / "curve.json")
    assert torch.equal(weights(resumed.out), weights(whole.out))


def test_a_collapsing_stage_stops_with_its_reason_and_says_when_it_was_switched_off(base, tmp_path, go):
    _, at = base
    guard, own = CollapseGuard(patience=2, min_entropy=99.0), SuccessDistill(exploration=1.0)
    made = grpo_node(
        tmp_path, at, go, RLSD(type="rlsd", guard=guard, success_distill=own, **{**SHAPE, "group_size": 8})
    )
    with pytest.raises(
        TrainingError, match=r"collapsed for 2 steps in a row: the entropy is .* \(guard\.min_entropy 99\)"
    ):
        policy_gradient.train(made)
    lines = [{"self_teaching": 1.0}, {"self_teaching": 0.0}, {"self_teaching": 0.0}]
    assert self_teaching.notes(lines) == [
        "success fell by more than guard.max_drop: self-teaching was switched off after step 2 of 3"
    ]
    assert self_teaching.notes(lines[:1]) == []


@pytest.mark.parametrize("over", [SampledTokens(kind="sampled"), FullVocabulary(kind="full")])
def test_a_privileged_teacher_needs_the_policys_own_tokens(tmp_path, over):
    for name, text in (("own", "order a lamp"), ("champion", "mail the customer")):
        made = from_scratch(SCRATCH, POLICY.template, [text] * 9, (), 0)
        save_policy(made, tmp_path / name / "policy")
    told = PrivilegedTeacher(kind="privileged", of="champion", shows=["reference"]).model_dump(mode="json")
    routing = [{"when": None, "teachers": {"self": 1.0}, "reject": False, "history": None}]
    params = JUDGED | {"data": {}, "teachers": {"self": told}, "routing": routing}
    policy = load_policy(tmp_path / "own" / "policy")
    same, other = (node(tmp_path, n, {"teacher.self": tmp_path / n}, params) for n in ("own", "champion"))
    assert isinstance(panels.panel(same, policy, over), Panel)
    with pytest.raises(
        ProgramError, match=r"teachers\.self\.of: the tokens of champion are not the policy's \(.*\), but"
    ):
        panels.panel(other, policy, over)


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
    kept = sum(line["kept_tokens"] * line["coverage"] * line["trained_tokens"] for line in steps)
    assert 0 < outcome.cost["trained_tokens"] == pytest.approx(kept)
    assert outcome.cost["trained_tokens"] <= outcome.cost["taught_tokens"] <= outcome.cost["tokens"]
    assert any(n.startswith(f"tokens: {outcome.cost['tokens']:.0f} generated in 32 rollouts") for n in outcome.notes)
    assert load_policy(made.out / "policy").config.layers == 1
