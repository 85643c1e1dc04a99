"""Reward models as stages: bodies, the plan around them, mistakes in programs, and a program that uses one."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flows.cli import main
from flows.describe import effective_loss
from flows.smoke import smoke
from flows.work import preference, reward_models
from specs.errors import Interrupted, TrainingError
from specs.optimizer import Optimizer
from specs.policy import LoRA
from specs.preference import Pairing
from specs.reward_models import RewardModel, TurnLabels
from specs.verifiers import RewardModelVerifier
from tasks.episodes.shards import read_shards, write_shards
from tasks.evidence.verifiers.reward_model import LearntVerifier
from tasks.policy.reward_model import load_reward_model
from tests.flows.programs import SMALL, changed, moved, nodes, plan
from tests.flows.small_desk import DESK
from tests.flows.test_stages import JUDGED, POLICY, ROLL, base, node, read
from tests.specs.programs import load, mistakes

__all__ = ["base"]

PAIRING = Pairing(samples=6, choose="all", at_least=2)
TURNS = TurnLabels(samples=6)
FAST = {"epochs": 4.0, "held_out": 0.3, "least_accuracy": 0.0, "optimizer": Optimizer(learning_rate=2e-3)}
ON_PAIRS = RewardModel(type="reward_model", pairing=PAIRING, **FAST)
ON_TURNS = RewardModel(type="reward_model", learns="turns", turns=TURNS, **FAST)


@pytest.fixture(scope="module")
def rolled(base, tmp_path_factory):
    """Return the outputs of the nodes that roll out for reward models."""
    _, at = base
    folder = tmp_path_factory.mktemp("rewards")
    inputs = {"policy": at["taught"], "data.train": at["data.train"]}
    paired = node(folder, "pairs", inputs, JUDGED | ROLL | {"pairing": PAIRING})
    preference.pairs(paired)
    labelled = node(folder, "turns", inputs, JUDGED | ROLL | {"turns": TURNS})
    said = reward_models.turns(labelled)
    return {"pairs": paired.out, "turns": labelled.out}, said


def train_node(folder, at, rolled, spec, *, policy=POLICY, **more):
    params = {"algorithm": spec, "policy": policy, "data": None}
    inputs = {"policy": at["taught"], spec.learns: rolled[0][spec.learns]}
    return node(folder, "rm", inputs, params, checkpoint_seconds=1e-9, **more)


def test_turns_are_labelled_from_rollouts(rolled):
    folder, said = rolled[0]["turns"], rolled[1]
    labels = {r["trajectory"]: r["labels"] for r in map(json.loads, (folder / "labels.jsonl").read_text().splitlines())}
    drawn = {t.id: t for t in read_shards(folder / "trajectories")}
    assert set(labels) == set(drawn)
    assert all(len(labels[i]) == len(t.turns) and t.success is not None for i, t in drawn.items())
    assert said.cost["rollouts"] == 6 * 24 == len(labels) + sum(read(folder / "labels.json")["dropped"].values())


@pytest.mark.parametrize("adapter", [None, LoRA(kind="lora", rank=4)])
@pytest.mark.parametrize("spec", [ON_PAIRS, ON_TURNS], ids=lambda s: s.learns)
def test_it_learns_what_it_trained_on_and_resumes_bit_for_bit(base, rolled, tmp_path, caplog, spec, adapter):
    caplog.set_level(logging.INFO)
    _, at = base
    policy = POLICY.model_copy(update={"adapter": adapter})
    whole = train_node(tmp_path / "whole", at, rolled, spec, policy=policy)
    outcome = reward_models.train(whole)
    figures = {k: v for k, v in outcome.metrics.items() if v is not None}
    assert figures["loss"] < figures["first_loss"]
    assert figures["train_accuracy"] > 0.6
    made = load_reward_model(whole.out / "reward")
    assert made.held_out["accuracy"] == figures["accuracy"]
    assert made.held_out["compared"] > 0
    calls = iter(range(999))
    stopped = train_node(tmp_path / "parts", at, rolled, spec, policy=policy, stop=lambda: next(calls) > 1)
    with pytest.raises(Interrupted):
        reward_models.train(stopped)
    again = train_node(tmp_path / "parts", at, rolled, spec, policy=policy)
    assert reward_models.train(again).metrics == outcome.metrics
    assert "went on from step 2" in caplog.messages
    for name in ("head.safetensors", "policy/model.safetensors"):
        one, other = (load_file(n.out / "reward" / name) for n in (whole, again))
        assert all(torch.equal(one[k], other[k]) for k in one)


def test_too_little_to_learn_from_stops_with_the_reasons(base, rolled, tmp_path):
    _, at = base
    inputs = {"policy": at["taught"], "data.train": at["data.train"]}
    few = TURNS.model_copy(update={"at_least": 9999, "problems": 4})
    made = node(tmp_path, "turns", inputs, JUDGED | ROLL | {"turns": few})
    with pytest.raises(TrainingError, match=r"turns are labelled, .*turns.at_least, 9999"):
        reward_models.turns(made)
    strict = ON_PAIRS.model_copy(update={"least_accuracy": 1.0, "epochs": 0.1})
    with pytest.raises(TrainingError, match=r"least_accuracy, 100%.*Ways out"):
        reward_models.train(train_node(tmp_path, at, rolled, strict))


def with_model(**more):
    """Return the small program with a reward model before its last stage."""
    data = changed(SMALL, "verifiers.taste", {"kind": "reward_model", "stage": "rm"})
    data = changed(data, "reward", {"outcome": dict.fromkeys([*SMALL["verifiers"]][:1], 1.0), "soft": {"taste": 0.2}})
    stages = [*data["stages"]]
    stages.insert(len(stages) - 1, {"id": "rm", "algorithm": {"type": "reward_model", **more}, "data": ["train"]})
    return changed(data, "stages", stages)


def test_it_judges_what_comes_after_it_and_nothing_else():
    made = nodes(plan(with_model()))
    assert (made["rm.pairs"].kind, made["rm"].kind) == ("pairs", "train.reward_model")
    after = [n for n in made.values() if "verifier.taste" in n.inputs]
    assert {"rl", "rl.preflight1", "rl.first1.collect1"} <= {n.id for n in after}
    assert all(n.id.startswith("rl") for n in after)
    for n in after:
        assert n.inputs["verifier.taste"] == "rm"
        assert n.params["reward"]["soft"] == {"taste": 0.2}
    for n in made.values():
        if n not in after and "reward" in n.params and n.kind != "report":
            assert "taste" not in n.params["reward"]["soft"], n.id
            assert "taste" not in n.params["verifiers"], n.id
    assert made["rl.preflight1"].inputs["policy"] == made["rm"].inputs["policy"], "the policy is handed on as it is"
    assert "eval.rm.golden" not in made
    assert nodes(plan(with_model(learns="turns")))["rm.turns"].estimate.rollouts > 0


def test_another_loss_of_the_reward_model_moves_it_and_what_it_judges():
    before, after = plan(with_model()), plan(with_model(center_coef=0.5))
    assert {"rm", "rl", "rl.preflight1"} <= set(moved(before, after))
    assert "rm.pairs" not in moved(before, after)


def test_its_loss_is_told():
    equation, words = effective_loss(RewardModel(type="reward_model", use_margin="reward"))
    assert equation == "L = mean [- log sigmoid(r+ - r- - (R+ - R-)) + 0.01 (r+ + r-)^2]"
    assert "20% of the problems are held out" in words
    equation, words = effective_loss(RewardModel(type="reward_model", learns="turns", turns=TurnLabels(by="calls")))
    assert equation == "L = - mean [y log sigmoid(v) + (1 - y) log sigmoid(-v)]"
    assert "y = 1 where the call changed" in words


VERIFIER = ("verifiers:\n", "verifiers:\n  taste: {kind: reward_model, stage: rm}\n")
STAGE = ("  - id: rl\n", "  - {id: rm, algorithm: {type: reward_model}, data: [train]}\n  - id: rl\n    from: teach\n")
REWARD = ("stages:\n", "reward: {outcome: {order_state: 1.0}, soft: {taste: 0.2}}\nstages:\n")
ONCE = ("    from: teach\n    from: teach\n", "    from: teach\n")


@pytest.mark.parametrize("learns", ["pairs", "turns"])
def test_without_rows_it_stops_unless_nothing_is_asked(base, tmp_path, learns):
    _, at = base
    empty = tmp_path / learns
    empty.mkdir()
    write_shards(empty / "trajectories", [])
    (empty / ("pairs.jsonl" if learns == "pairs" else "labels.jsonl")).touch()
    none: dict[str, Any] = {"pairing": Pairing(samples=6, at_least=0), "turns": TurnLabels(at_least=0)}
    name = "pairing" if learns == "pairs" else "turns"
    rolled = {learns: empty}, None
    with pytest.raises(TrainingError, match=r"no trajectory is left to train on \(none held out\)"):
        reward_models.train(train_node(tmp_path / "asks", at, rolled, RewardModel(type="reward_model", learns=learns)))
    spec = RewardModel(type="reward_model", learns=learns, least_accuracy=0.0, **{name: none[name]})
    made = train_node(tmp_path / "any", at, rolled, spec)
    assert "gives every trajectory the same number" in reward_models.train(made).notes[0]
    judge = LearntVerifier("taste", RewardModelVerifier(kind="reward_model", stage="rm"), made.out / "reward")
    assert judge.failures() == []
    assert load_reward_model(made.out / "reward").numbers([1, 2, 3], [2, 3]) == [0.0, 0.0]


def test_a_program_with_a_reward_model_loads(tmp_path):
    loaded = load(tmp_path, VERIFIER, REWARD, STAGE, ONCE)
    assert not loaded.warnings


@pytest.mark.parametrize("learns", ["pairs", "turns"])
def test_its_smallest_form_sets_nothing_that_is_not_read(tmp_path, learns):
    stage = (STAGE[0], STAGE[1].replace("reward_model}", f"reward_model, learns: {learns}}}"))
    small = smoke(load(tmp_path, VERIFIER, REWARD, stage, ONCE).program).stages[1].algorithm
    assert isinstance(small, RewardModel)
    assert (small.pairing.samples, small.turns.samples) == ((4, 8) if learns == "pairs" else (8, 4))


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([VERIFIER, REWARD], "verifiers.taste.stage: found 'rm', expected a stage of type reward_model"),
        (
            [VERIFIER, STAGE, ONCE, ("stages:\n", "reward: {outcome: {taste: 1.0}}\nstages:\n")],
            "reward.outcome.taste: found taste, a reward model, which is part of soft alone",
        ),
        (
            [VERIFIER, STAGE, ONCE, ("stages:\n", "reward: {outcome: {order_state: 1.0}, must: [taste]}\nstages:\n")],
            "reward.must[0]: found taste, a reward model",
        ),
    ],
)
def test_mistakes_are_told(tmp_path, pairs, said):
    assert any(said in line for line in mistakes(tmp_path, *pairs)), mistakes(tmp_path, *pairs)


def test_what_is_of_no_use_is_a_warning(tmp_path):
    (warning,) = load(tmp_path, STAGE, ONCE).warnings
    assert "rm makes a reward model that no verifier uses" in str(warning)


PROGRAM = (
    "program: judged\n"
    + DESK.replace("environments:", "  adapter: {kind: lora, rank: 4, stages: [rl]}\nenvironments:")
    + """\
  golden: {kind: problems, environment: desk, split: golden, size: 6, role: golden}
verifiers:
  state: {kind: environment_state, answer: no}
  steps: {kind: reward_model, stage: rm, turns: mean}
reward: {outcome: {state: 1.0}, soft: {steps: 0.3}}
stages:
  - id: teach
    algorithm: {type: sft, epochs: 6, batch: {tokens: 1024}, optimizer: {kind: muon, learning_rate: 1e-2, schedule: linear}}
    data: [demos]
  - id: rm
    algorithm:
      {type: reward_model, learns: turns, epochs: 4, least_accuracy: 0.0, turns: {samples: 4}, held_out: 0.3, optimizer: {learning_rate: 2e-3}}
    data: [train]
  - id: rl
    algorithm: {type: ppo, steps: 2, problems_per_step: 4, kl_coef: 0.01, critic: {backbone: shared}, optimizer: {learning_rate: 1e-3}}
    data: [train]
    preflight: {problems: 4, samples: 2}
    needs: {success: 0.0}
evaluation: {at_the_end: [golden]}
"""
)


def test_a_program_learns_a_reward_and_trains_an_adapter_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = tmp_path / "home", tmp_path / "judged.yaml"
    monkeypatch.setenv("TUTELAGE_HOME", str(home))
    file.write_text(PROGRAM)
    assert main(["plan", str(file)]) == 0
    told = capsys.readouterr().out
    assert "trains an adapter (rank 4" in told
    assert "0.5 mean (V - return)^2 / 2" in told
    assert main(["run", str(file), "--no-services", "--json", "--set", "run.gradient_checkpointing=true"]) == 0
    ran = json.loads(capsys.readouterr().out)
    ends = {n["node"]: n for n in ran["nodes"]}
    assert {ends[n]["status"] for n in ("teach", "rm", "rl")} == {"completed"}, ran
    out = home / "nodes" / ends["rl"]["run_key"] / "out"
    drawn = list(read_shards(out / "trajectories"))
    verdicts = [v for t in drawn for v in t.verdicts if v.verifier == "steps"]
    assert verdicts
    assert all(t.reward_parts["soft"] > 0 for t in drawn if t.status == "finished")
    assert (out / "adapter" / "adapter_model.safetensors").is_file()
    assert main(["export", "rl", str(tmp_path / "exported"), "--adapter"]) == 0
    assert (tmp_path / "exported" / "adapter_config.json").is_file()
