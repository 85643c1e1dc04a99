"""Self-teaching and short distillation from a program to a plan: nodes, inputs, words, and what is refused."""

import pytest
from pydantic import ValidationError

from flows.describe import effective_loss
from flows.smoke import smoke
from specs.algorithms import policy_gradient_from
from specs.distillation import TeacherTerm
from specs.errors import ProgramError
from specs.self_teaching import (
    RLSD,
    Gated,
    Growth,
    Learners,
    Privileged,
    Redistribute,
    SelfDistilled,
    SelfEvolve,
    SuccessDistill,
)
from specs.short_opd import ByConfidence, ByRepetition, Segments, ShortOPD, Tokens
from tests.flows.programs import SMALL, changed, nodes, plan, program

OTHER = {"id": "other", "from": "harvest", "algorithm": {"type": "grpo", "steps": 5}, "data": ["train"]}


def evolving(**more):
    stage = {
        "id": "evolve",
        "from": "harvest",
        "algorithm": {"type": "self_evolve", "steps": 5, **more},
        "data": ["train"],
    }
    return changed(SMALL, "stages", [*SMALL["stages"][:2], OTHER, stage])


def test_the_experience_of_another_branch_is_an_input():
    made = nodes(plan(evolving(experience=["other"])))
    assert made["evolve"].inputs["experience.other"] == "other"
    assert "frozen self" in made["evolve"].estimate.memory_parts
    assert not [n for n in nodes(plan(evolving()))["evolve"].inputs if n.startswith("experience")]


def test_the_smallest_form_needs_no_success_of_another_stage():
    small = smoke(program(evolving(experience=["other"], experience_per_step=4))).stages[3].algorithm
    assert isinstance(small, SelfEvolve)
    assert small.experience == []


def test_learners_take_turns_from_their_own_last_one_with_the_experience_of_all():
    data = evolving(
        steps=6, experience=["other"], learners={"each": [{}, {"temperature": 0.8}], "choose_on": "chooses"}
    )
    data = changed(data, "data.chooses", SMALL["data"]["golden"] | {"seed": 3})
    data = changed(data, "evaluation.sets", ["golden", "chooses"])
    whole = plan(data)
    made = nodes(whole)
    first, second = made["evolve.turn1.learner2"], made["evolve.turn2.learner2"]
    assert first.inputs["experience.other"] == second.inputs["experience.other"] == "other"
    assert not [n for n in first.inputs if n.startswith("shared.")]
    assert {n: i for n, i in second.inputs.items() if n.startswith("shared.")} == {
        "shared.1": "evolve.turn1.learner1", "shared.2": "evolve.turn1.learner2",
    }  # fmt: skip
    assert second.inputs["policy"] == "evolve.turn1.learner2"
    assert (second.params["algorithm"]["steps"], second.params["algorithm"]["temperature"]) == (3, 0.8)
    assert made["evolve.turn2.learner1"].params["algorithm"]["temperature"] == 1.0
    assert second.params["algorithm"]["experience"] == ["other", "evolve_1", "evolve_2"]
    assert all(policy_gradient_from(n.params["algorithm"]) for i, n in made.items() if ".turn" in i)
    assert len({n.seed for i, n in made.items() if ".turn" in i}) == 4
    assert all("frozen self" in n.estimate.memory_parts for i, n in made.items() if ".turn" in i)
    assert made["eval.evolve_1.chooses"].inputs["policy"] == "evolve.turn2.learner1"
    best = made["evolve"]
    assert best.kind == "train.best"
    assert best.inputs["eval.2"] == "eval.evolve_2.chooses"
    assert made["eval.evolve.golden"].inputs["policy"] == "evolve"
    assert whole.policies["evolve_2"] == "evolve.turn2.learner2"
    small = smoke(program(data)).stages[3].algorithm
    assert isinstance(small, SelfEvolve)
    assert small.learners is not None
    assert small.steps == small.learners.turns == 2


def test_what_is_made_is_kept_apart_from_every_set_that_judges():
    made = nodes(plan(evolving(growth={"calls": [2, 3]})))
    node = made["evolve"]
    assert {n: i for n, i in node.inputs.items() if n.startswith("eval.")} == {
        "eval.golden": "data.golden", "eval.hidden": "data.hidden",
    }  # fmt: skip
    assert node.params["apart"]["near_duplicate"] == 0.9
    plain = nodes(plan(evolving()))
    assert not [n for n in plain["evolve"].inputs if n.startswith("eval.")]
    assert plain["evolve.preflight1"].plan_key == made["evolve.preflight1"].plan_key
    assert plain["evolve"].plan_key != node.plan_key


@pytest.mark.parametrize("name", ["teach", "nobody"])
def test_experience_of_a_stage_without_rollouts_is_refused(name):
    with pytest.raises(ProgramError, match="no policy-gradient stage before it; expected one of other"):
        plan(evolving(experience=[name]))


@pytest.mark.parametrize(
    ("spec", "equation", "said"),
    [
        (RLSD(type="rlsd", form="redistribute"), "min(r A", "m falls from 0.5 to 0 in 50 steps"),
        (
            SelfDistilled(type="self_distilled", form="gated", gated=Gated(coef=0.1)),
            "+ 0.1 sum w g (log teacher - log pi)",
            "shown sibling",
        ),
        (
            RLSD(type="rlsd", form="gated", privileged=Privileged(shows=[]), gated=Gated(warmup_steps=9)),
            "+ 0.01 sum w g",
            "its coefficient rises in 9 steps; the teaching self is the policy of at most 4 steps before, shown nothing",
        ),
        (
            RLSD(type="rlsd", success_distill=SuccessDistill(tokens="top_k")),
            "+ 0.1 L_SD",
            "32 likeliest and one bucket",
        ),
        (SelfEvolve(type="self_evolve", experience=["a"]), "+ 0.1 L_SD", "16 verified rollouts a step of a teach too"),
        (
            SelfEvolve(type="self_evolve", learners=Learners(choose_on="golden")),
            "+ 0.1 L_SD",
            "2 learners, each 2 turns of 10 steps; 16 verified rollouts a step of all of them in the turn before teach too",
        ),
        (
            SelfEvolve(type="self_evolve", form="gated", growth=Growth(share=0.25)),
            "+ 0.01 sum w g",
            "25% of the problems are made anew, at levels of 2, 3, 4, 5 calls; the next one opens where over 60%",
        ),
    ],
)
def test_what_teaches_stands_in_the_loss(spec, equation, said):
    found, words = effective_loss(spec)
    assert equation in found
    assert said in words


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {},
            "a completion's limit is 128, 512 or 2048 tokens by the last step's divergence (below 0.2, below 0.5, above)",
        ),
        (
            {"length": ByConfidence(kind="by_confidence")},
            "by the policy's mean probability (above 0.9, above 0.5, below)",
        ),
        (
            {"length": ByRepetition(kind="by_repetition")},
            "begins at 512 tokens and follows loops and cuts every 10 steps",
        ),
        (
            {"select": Tokens(kind="tokens", share=0.2, above=0.1)},
            "the 20% of tokens with the highest divergence above 0.1",
        ),
        ({"select": Segments(kind="segments")}, "the 50% of turns with the highest divergence"),
        ({"horizon": 0.1}, "the first 10% of a trajectory's tokens train"),
    ],
)
def test_lengths_and_tokens_stand_in_the_loss(more, said):
    assert said in effective_loss(ShortOPD(type="short_opd", **more))[1]


@pytest.mark.parametrize(
    ("length", "said"),
    [
        ({"kind": "by_gap", "lengths": [16, 32, 512]}, "a completion's limit is 16, 32 or 40 tokens by the last"),
        ({"kind": "by_confidence", "lengths": [16, 64, 512]}, "a completion's limit is 16, 40 or 40 tokens by the pol"),
        (
            {"kind": "by_repetition", "least": 8},
            "begins at 40 tokens and follows loops and cuts every 10 steps between 8 and 40;",
        ),
    ],
)
def test_the_plan_tells_lengths_as_the_agent_allows_them(length, said):
    short = {"id": "short", "algorithm": {"type": "short_opd", "length": length}, "data": ["train"]}
    data = changed(changed(SMALL, "stages.2", short), "teachers", {"old": {"kind": "earlier_self"}})
    assert said in str(plan(data).details["losses"])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RLSD(type="rlsd", gated=Gated(coef=0.2)), "gated is not read with form: success_distill"),
        (lambda: RLSD(type="rlsd", form="gated", redistribute=Redistribute(mix=0.2)), "redistribute is not read"),
        (
            lambda: RLSD(type="rlsd", form="gated", success_distill=SuccessDistill(coef=0.3)),
            "success_distill is not read",
        ),
        (lambda: RLSD(type="rlsd", privileged=Privileged(max_tokens=9)), "privileged is not read"),
        (lambda: SuccessDistill(tokens="action", share=0.3), "only selected takes a share"),
        (lambda: SuccessDistill(top_k=5), "only top_k reads a distribution"),
        (lambda: SelfEvolve(type="self_evolve", experience_per_step=3), "without experience"),
        (lambda: SelfEvolve(type="self_evolve", form="gated", experience=["a"]), "teaches what was verified"),
        (lambda: SelfEvolve(type="self_evolve", growth=Growth(), curriculum=None), "leave curriculum: null out"),
        (lambda: SelfEvolve(type="self_evolve", growth=Growth(), adversarial=0.1), "adversarial is about problems of"),
        (
            lambda: SelfEvolve(type="self_evolve", growth=Growth(), distill=TeacherTerm()),
            "distill is about problems of",
        ),
        (
            lambda: SelfEvolve(type="self_evolve", form="gated", learners=Learners(choose_on="x")),
            "they share what success_distill teaches",
        ),
        (
            lambda: SelfEvolve(type="self_evolve", steps=5, learners=Learners(choose_on="x")),
            r"expected a multiple of learners.turns \(2\)",
        ),
        (lambda: Growth(calls=[3, 2]), "expected them to rise"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, text):
    with pytest.raises(ValidationError, match=text):
        make()
