"""Distillation from a program to a plan: whose weights are inputs, what is told, what is refused, and the smallest form."""

import json

import pytest

from flows.compile import compile
from flows.describe import effective_loss
from flows.losses_of_opd import teacher_term
from flows.resolution import wanted_aliases
from flows.smoke import smoke
from specs.distillation import OPD, FullVocabulary, SampledTokens, StateWeights, TeacherTerm, TopTokens
from specs.errors import ProgramError
from specs.grpo import GRPO
from tests.flows.programs import SMALL, changed, moved, nodes, plan, program, resolution

PUPIL = {"id": "pupil", "from": "teach", "algorithm": {"type": "opd", "steps": 4}, "data": ["train"]}
TAUGHT = changed(
    changed(SMALL, "stages", [*SMALL["stages"][:2], PUPIL]),
    "teachers",
    {"old": {"kind": "earlier_self", "of": "harvest"}},
)


def test_a_frozen_stage_teaches():
    made = nodes(plan(TAUGHT))
    pupil = made["pupil"]
    assert pupil.kind == "train.opd"
    assert pupil.inputs["policy"] == "teach"
    assert pupil.inputs["teacher.old"] == "harvest.fit2"
    assert pupil.params["routing"] == [{"when": None, "teachers": {"old": 1.0}, "reject": False, "history": None}]
    assert pupil.estimate.rollouts == 4 * 32 * 2
    assert pupil.estimate.memory_parts["teachers"] > 0
    start = nodes(plan(changed(TAUGHT, "teachers.old.of", "start")))["pupil"]
    assert start.inputs["teacher.old"] == "teach"
    smaller = smoke(program(TAUGHT)).stages[2].algorithm
    assert isinstance(smaller, OPD)
    assert smaller.steps == 2


def test_another_divergence_moves_the_stage_alone():
    before = plan(TAUGHT)
    after = plan(changed(TAUGHT, "stages.2.algorithm", {"type": "opd", "steps": 4, "over": {"kind": "sampled"}}))
    reached = moved(before, after)
    assert "pupil" in reached
    assert not reached & {"teach", "harvest.fit2"}


def test_a_teacher_that_does_not_come_before_is_refused():
    later = [*SMALL["stages"][:1], PUPIL, {**SMALL["stages"][1], "from": "teach"}]
    data = changed(TAUGHT, "stages", later)
    with pytest.raises(ProgramError, match=r"teachers\.old\.of is 'harvest', which does not come before it"):
        plan(data)
    with pytest.raises(ProgramError, match="nothing was promoted yet"):
        plan(changed(TAUGHT, "teachers.old.of", "champion"))


def test_a_promoted_policy_teaches():
    data = changed(TAUGHT, "teachers.old.of", "previous")
    assert set(wanted_aliases(program(data))) == {"champion", "previous"}
    alias = {"version": 1, "digest": "d", "folder": "versions/1"}
    made = compile(program(data), resolution(aliases={"previous": alias}))
    assert nodes(made)["pupil"].inputs["teacher.old"] == "policy.previous"


SHAPE = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 128, "vocab": 512}


def with_checkpoint(model="a", digest="1", shape=SHAPE, **more):
    data = changed(TAUGHT, "teachers", {"big": {"kind": "model", "model": model, **more}})
    found = resolution(teachers={"big": {"digest": digest, "path": f"/{model}", "shape": shape}})
    return compile(program(data), found)


def test_where_a_teacher_lies_moves_no_key_and_its_digest_moves_what_learns_from_it():
    before = with_checkpoint()
    assert moved(before, with_checkpoint("b", revision="1")) == set()
    gone = moved(before, with_checkpoint(digest="2"))
    assert gone == set(before.downstream("teacher.big"))
    assert nodes(before)["pupil"].params["teachers"]["big"]["shape"] == SHAPE
    longer = moved(before, with_checkpoint(max_length=512))
    assert {"teacher.big", "pupil"} <= longer
    assert "teach" not in longer


def test_a_checkpoint_acts_as_a_policy_where_its_own_success_is_measured():
    before, after = with_checkpoint(), with_checkpoint(evaluate=["golden"], template="policy", max_new_tokens=50)
    made = nodes(after)
    assert moved(before, after) == {"teacher.big.policy", "eval.teacher-big.golden", "report"}
    acting, asked = made["teacher.big.policy"], made["eval.teacher-big.golden"]
    assert (acting.kind, acting.params["path"], acting.params["digest"]) == ("policy.init", "/a", "1")
    assert acting.params["policy"]["init"]["kind"] == "pretrained"
    assert asked.inputs["policy"] == "teacher.big.policy"
    assert asked.params["agent"]["max_new_tokens"] == 50
    assert moved(after, with_checkpoint("b", evaluate=["golden"], max_new_tokens=50, revision="1")) == set()


def test_what_a_teacher_takes_to_score_is_estimated_by_its_size_and_its_passes():
    def seconds(**more):
        return nodes(with_checkpoint(**more))["pupil"].estimate.seconds

    small, big = seconds(), seconds(shape={**SHAPE, "hidden": 512, "layers": 12})
    assert big > small
    few, many = (seconds(align={"score": "covers", "max_cover_passes": n}) for n in (8, 16))
    assert many - small == pytest.approx(2 * (few - small))
    assert few > small


def test_a_teacher_stands_beside_a_policy_gradient():
    data = changed(
        changed(SMALL, "stages.2.algorithm", {"type": "grpo", "steps": 5, "distill": {"coef": 0.2}}),
        "teachers",
        {"old": {"kind": "earlier_self", "of": "teach"}},
    )
    made = nodes(plan(data))
    assert made["rl"].inputs["teacher.old"] == "teach"
    assert made["rl"].estimate.memory_parts["teachers"] > 0
    plain = nodes(plan())["rl"]
    assert "teachers" not in plain.params
    assert "teachers" not in plain.estimate.memory_parts
    asked = changed(data, "stages.2.algorithm.distill", {"coef": 0.3})
    assert "rl.preflight1" not in moved(plan(data), plan(asked))


def words(**fields):
    return effective_loss(OPD.model_validate_json(json.dumps({"type": "opd", **fields})))


@pytest.mark.parametrize(
    ("over", "equation", "said"),
    [
        (FullVocabulary(), "L = sum w KL(pi || teacher)", "over the whole vocabulary"),
        (FullVocabulary(direction="forward", most=2.0), "L = sum w KL(teacher || pi)", "no gradient above 2 nats"),
        (FullVocabulary(direction="jsd", beta=0.3), "L = sum w JSD_0.3(teacher, pi)", "over the whole vocabulary"),
        (
            TopTokens(kind="top_k", size=8, direction="forward", rest="none"),
            "L = sum w KL(teacher || pi)",
            "over the teacher's 8 likeliest tokens alone",
        ),
        (TopTokens(kind="top_k", loss_temperature=2.0), "L = sum w KL(pi || teacher)", "both at temperature 2"),
        (
            SampledTokens(kind="sampled", discount=0.5, early_coef=0.5),
            "L = - sum w stop(r) A log pi(token)",
            "A of later tokens is added, discounted by 0.5; early tokens weigh up to 1.5; r = pi / sampler, 0 outside",
        ),
        (SampledTokens(kind="sampled", ratio_band=None), "L = - sum w stop(r) A log pi(token)", "r = pi / sampler"),
        (
            SampledTokens(kind="sampled", spread="broadcast"),
            "L = - sum w stop(r) A log pi(token)",
            "given whole to each",
        ),
        (
            SampledTokens(kind="sampled", spread="last", discount=0.5),
            "L = - sum w stop(r) A log pi(token)",
            "to the last, and from there whole to those before it; A of later pieces is added, discounted by 0.5",
        ),
        (SampledTokens(kind="sampled", estimator="k2"), "L = sum w A^2 / 2", "at most 10 either way"),
    ],
)
def test_what_is_minimised_is_told(over, equation, said):
    told, text = words(over=over.model_dump())
    assert told == equation
    assert said in text


def test_every_knob_stands_in_the_words():
    equation, text = words(
        teachers={"a": 0.75, "b": 0.25}, combine="log_linear", by_confidence=True, token_weights="reward",
        states=StateWeights().model_dump(), demonstrations=0.25, aggregation="sequence", truncated="mask",
    )  # fmt: skip
    assert equation == "L = sum w KL(pi || teacher)"
    for said in (
        "KL(teacher || pi) on demonstrations",
        "several teachers (0.75 a, 0.25 b): the weighted product of their probabilities",
        "a teacher weighs less the more its distribution is spread out",
        "trajectories weigh by their reward",
        "in failed trajectories the first wrong turn weighs 2, later ones 0.5 ** turns (at least 0.1), a recovery 2",
        "w = 1 / (trajectories x trained tokens of the trajectory)",
        "cut trajectories are left out",
        "25% of a step's trajectories are demonstrations",
    ):
        assert said in text
    outcome, text = words(over={"kind": "sampled"}, outcome_coef=0.2)
    assert outcome == "L = - sum w stop(r) (A + 0.2 A_outcome) log pi(token)"
    term, text = teacher_term(TeacherTerm(coef=0.2, coef_end=0.02, full_length=64, teachers={"a": 1.0}))
    assert term == "(0.2 to 0.02) (sum v KL(pi || teacher))"
    assert "trajectories of more than 64 tokens count by 64 / tokens" in text
    beside, _ = effective_loss(GRPO(type="grpo", distill=TeacherTerm(coef=0.2)))
    assert beside.endswith(" + 0.2 (sum v KL(pi || teacher))")
