import logging
import re
import shutil

import pytest
import torch

from flows.work import preference, supervised
from flows.work.lines import read_rows
from specs.errors import Interrupted, TrainingError
from specs.optimizer import Optimizer
from specs.preference import DPO, IPO, KTO, ORPO, Pairing, SimPO
from specs.records import pair_from
from specs.supervised import SFT, RewardWeighted, SupervisedBatch
from tasks.episodes.shards import read_shards
from tests.flows.test_stages import JUDGED, MUON, POLICY, ROLL, SHARED, base, node, read, weights

__all__ = ["base"]

FAST = Optimizer(learning_rate=1e-3)
PAIRING = Pairing(samples=6, at_least=4)
CUT = {"max_truncated": 1.0}
"""An untouched policy hardly ever ends a turn."""


@pytest.fixture(scope="module")
def paired(base, tmp_path_factory):
    """Return a folder with the pairs of the taught policy, and what the node said."""
    _, at = base
    made = pairs_node(tmp_path_factory.mktemp("pairs"), at, PAIRING)
    return made.out, preference.pairs(made)


def pairs_node(folder, at, pairing, policy="taught", **more):
    inputs = {"policy": at[policy], "data.train": at["data.train"]}
    return node(folder, "pairs", inputs, JUDGED | ROLL | {"pairing": pairing}, **more)


def train_node(folder, at, pairs, spec, **more):
    params = {"algorithm": spec, "policy": POLICY, "data": None}
    return node(folder, "prefer", {"policy": at["taught"], "pairs": pairs}, params, **more)


def test_pairs_are_a_success_and_a_failure_of_one_problem(paired):
    folder, outcome = paired
    drawn = {t.id: t for t in read_shards(folder / "trajectories")}
    found = [pair_from(line) for line in read_rows(folder / "pairs.jsonl")]
    assert len(found) >= PAIRING.at_least
    assert set(drawn) == {side for p in found for side in (p.chosen, p.rejected)}
    for pair in found:
        chosen, rejected = drawn[pair.chosen], drawn[pair.rejected]
        assert chosen.problem_id == rejected.problem_id == pair.problem_id
        assert (chosen.success, rejected.success, chosen.status) == (True, False, "finished")
        assert pair.margin == pytest.approx((chosen.reward or 0) - (rejected.reward or 0))
    figures = read(folder / "pairs.json")
    assert figures["pairs"] == len(found) == outcome.metrics["pairs"]
    assert figures["problems"] == 24
    assert (
        len({p.problem_id for p in found}) + sum(figures["without"].values()) + sum(figures["dropped"].values()) == 24
    )


@pytest.mark.parametrize(
    "spec",
    [
        DPO(type="dpo", epochs=6, optimizer=FAST),
        DPO(type="dpo", beta=5, lengths="mean", label_smoothing=0.1, nll_coef=0.1, epochs=6, optimizer=FAST),
        IPO(type="ipo", epochs=6, optimizer=FAST),
        ORPO(type="orpo", epochs=6, optimizer=FAST),
        SimPO(type="simpo", epochs=6, optimizer=FAST),
        KTO(type="kto", epochs=6, optimizer=FAST),
    ],
    ids=lambda s: f"{s.type}-{getattr(s, 'lengths', '')}",
)
def test_every_algorithm_learns_to_prefer(base, paired, tmp_path, spec):
    _, at = base
    made = train_node(tmp_path, at, paired[0], spec.model_copy(update={"pairing": PAIRING, "pairs_per_step": 8}))
    outcome = preference.train(made)
    figures = {name: value for name, value in outcome.metrics.items() if value is not None}
    assert figures["loss"] < figures["first_loss"]
    # of KTO it is the share of single trajectories on the right side of the baseline
    assert figures["accuracy"] > (0.6 if spec.type == "kto" else 0.75)
    assert not torch.equal(weights(made.out), weights(at["taught"]))
    rows = read(made.out / "rows.json")
    assert rows["sources"]["chosen"]["rows"] == rows["sources"]["rejected"]["rows"] == outcome.metrics["pairs"]
    if spec.type == "dpo" and spec.lengths == "sum":
        assert outcome.metrics["first_loss"] == pytest.approx(0.693147, abs=1e-4)  # the policy is its own reference


@pytest.mark.parametrize("spec", [DPO(type="dpo", epochs=2, optimizer=FAST), KTO(type="kto", epochs=2, optimizer=FAST)])
def test_a_stopped_stage_resumes_bit_for_bit(base, paired, tmp_path, caplog, spec):
    caplog.set_level(logging.INFO)
    _, at = base
    spec = spec.model_copy(update={"pairing": PAIRING, "pairs_per_step": 4})
    whole = train_node(tmp_path / "whole", at, paired[0], spec)
    said = preference.train(whole)
    calls = iter(range(999))
    stopped = train_node(tmp_path / "parts", at, paired[0], spec, stop=lambda: next(calls) > 1)
    with pytest.raises(Interrupted):
        preference.train(stopped)
    again = train_node(tmp_path / "parts", at, paired[0], spec)
    assert preference.train(again) == said
    assert "went on from step 2" in caplog.messages
    assert torch.equal(weights(again.out), weights(whole.out))
    assert read(again.out / "rows.json") == read(whole.out / "rows.json")


@pytest.mark.parametrize(
    ("choose", "spec", "told"),
    [
        ("best_worst", DPO(type="dpo", pairs_per_step=500, optimizer=FAST), r"\d+ pairs are fewer than one step takes \(500\)"),
        ("alone", KTO(type="kto", pairs_per_step=500, optimizer=FAST), r"\d+ trajectories are fewer than one step takes \(1000\)"),
    ],
    ids=["pairs", "alone"],
)  # fmt: skip
def test_fewer_pairs_than_a_step_takes_are_one_step_and_told(base, tmp_path, choose, spec, told):
    _, at = base
    pairing = PAIRING.model_copy(update={"choose": choose})
    made = pairs_node(tmp_path, at, pairing)
    preference.pairs(made)
    outcome = preference.train(train_node(tmp_path, at, made.out, spec.model_copy(update={"pairing": pairing})))
    assert any(re.fullmatch(f"{told}: it takes them all", n) for n in outcome.notes)
    assert outcome.cost["steps"] == 1


def test_too_few_pairs_stop_the_stage_with_the_reasons(base, tmp_path):
    _, at = base
    with pytest.raises(TrainingError, match=r"0 pairs of 24 problems.*no_success.*demonstrations first"):
        preference.pairs(pairs_node(tmp_path, at, PAIRING.model_copy(update=CUT), policy="init"))


def test_without_a_pair_a_stage_that_may_hands_its_policy_on(base, tmp_path):
    _, at = base
    none = Pairing(samples=2, problems=4, at_least=0, max_truncated=1.0)
    made = pairs_node(tmp_path, at, none, policy="init")
    preference.pairs(made)
    trained = train_node(tmp_path, at, made.out, DPO(type="dpo", pairing=none))
    assert any("handed on as it is" in n for n in preference.train(trained).notes)
    assert torch.equal(weights(trained.out), weights(at["taught"]))


def test_sft_mixes_its_sources_by_weight(base, tmp_path):
    _, at = base
    spec = SFT(type="sft", batch=SupervisedBatch(rows=16), optimizer=MUON)
    params = SHARED | {"algorithm": spec, "data": {"demos": 0.75, "again": 0.25}}
    mixed = {"policy": at["init"], "data.demos": at["data.demos"], "data.again": at["data.demos"]}
    made = node(tmp_path, "teach", mixed, params)
    supervised.sft(made)
    assert read(made.out / "rows.json")["drawn"] == {"again": 80, "demos": 240}


@pytest.mark.parametrize("denominator", ["weighted_tokens", "sequences", "tokens"])
def test_reward_weighted_likelihood_trains_on_what_was_collected(base, tmp_path, denominator):
    _, at = base
    spec = RewardWeighted(type="reward_weighted", samples=4, denominator=denominator, optimizer=MUON)
    params = JUDGED | ROLL | {"algorithm": spec, "round": 1}
    collected = node(tmp_path, "collect1", {"policy": at["taught"], "data.train": at["data.train"]}, params)
    supervised.collect(collected)
    found = read(collected.out / "collect.json")
    assert len(found["selected"]) + sum(found["dropped"].values()) == 96
    assert set(found["dropped"]) <= {"no_success", "truncated", "invalid", "infrastructure"}
    fit = node(
        tmp_path, "weigh", {"policy": at["taught"], "collect": collected.out},
        {"algorithm": spec, "policy": POLICY, "data": None},
    )  # fmt: skip
    outcome = supervised.weighted(fit)
    assert read(fit.out / "rows.json")["sources"]["selected"]["rows"] == len(found["selected"])
    assert 0 < (outcome.metrics["effective_share"] or 0) <= 1
    assert not torch.equal(weights(fit.out), weights(at["taught"]))


def test_kto_learns_from_trajectories_without_a_partner(base, tmp_path):
    _, at = base
    alone = Pairing(samples=6, choose="alone", at_least=4)
    made = pairs_node(tmp_path, at, alone)
    told = preference.pairs(made)
    labels = list(read_rows(made.out / "labels.jsonl"))
    drawn = {t.id: t for t in read_shards(made.out / "trajectories")}
    assert {label["trajectory"] for label in labels} == set(drawn)
    assert all(label["wanted"] is drawn[label["trajectory"]].success for label in labels)
    wanted = sum(label["wanted"] for label in labels)
    assert (told.metrics["wanted"], told.metrics["unwanted"]) == (wanted, len(labels) - wanted)
    spec = KTO(type="kto", epochs=6, pairing=alone, pairs_per_step=4, optimizer=FAST)
    outcome = preference.train(trained := train_node(tmp_path, at, made.out, spec))
    figures = {name: value for name, value in outcome.metrics.items() if value is not None}
    assert figures["loss"] < figures["first_loss"]
    assert figures["trajectories"] == len(labels)
    sources = read(trained.out / "rows.json")["sources"]
    assert (sources["chosen"]["rows"], sources["rejected"]["rows"]) == (wanted, len(labels) - wanted)
    assert not torch.equal(weights(trained.out), weights(at["taught"]))


def test_too_few_of_a_side_stop_the_stage(base, tmp_path):
    _, at = base
    alone = Pairing(samples=4, choose="alone", at_least=4, max_truncated=1.0)
    with pytest.raises(TrainingError, match=r"0 wanted and .* of either side. Too few are wanted: train on demonstr"):
        preference.pairs(pairs_node(tmp_path, at, alone, policy="init"))


def test_where_the_policy_never_succeeds_the_solution_of_the_pool_is_chosen(base, tmp_path):
    _, at = base
    pool = tmp_path / "pool"
    shutil.copytree(at["data.demos"], pool)
    (pool / "summary.json").write_text('{"records": 160}')
    params = JUDGED | {"data": {"pairs": None}, "of_round": ["pairs"], "pairing": Pairing(samples=2, problems=160)}
    inputs = {"policy": at["taught"], "data.pairs": pool}
    made = node(tmp_path, "pairs", inputs, params)
    preference.pairs(made)
    pairs = [pair_from(line) for line in read_rows(made.out / "pairs.jsonl")]
    drawn = {t.id: t for t in read_shards(made.out / "trajectories")}
    assert {p.by for p in pairs} == {"solution", "reward"}
    for pair in pairs:
        assert drawn[pair.rejected].origin == "rollout"
        assert (pair.by == "solution") is drawn[pair.chosen].origin.startswith("demonstration/")
    done = preference.train(
        train_node(tmp_path, at, made.out, DPO(type="dpo", pairing=Pairing(at_least=4), optimizer=FAST))
    )
    assert done.metrics["pairs"] == len(pairs)


def test_a_solution_of_the_pool_is_wanted_where_trajectories_stand_alone(base, tmp_path):
    _, at = base
    pool = tmp_path / "pool"
    shutil.copytree(at["data.demos"], pool)
    (pool / "summary.json").write_text('{"records": 160}')
    alone = Pairing(samples=2, problems=160, choose="alone", at_least=4)
    params = JUDGED | {"data": {"pairs": None}, "of_round": ["pairs"], "pairing": alone}
    made = node(tmp_path, "pairs", {"policy": at["taught"], "data.pairs": pool}, params)
    told = preference.pairs(made)
    wanted = {line["trajectory"] for line in read_rows(made.out / "labels.jsonl") if line["wanted"]}
    solutions = {t.id for t in read_shards(made.out / "trajectories") if t.origin.startswith("demonstration/")}
    assert solutions
    assert solutions <= wanted
    assert any("solutions of the pool" in line for line in told.notes)
